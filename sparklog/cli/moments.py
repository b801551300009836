"""A moment of a log on the command line: a commit's number, a time, or how long ago.

    42                        after commit 42
    2026-11-22T18:00          as of then, UTC unless it says otherwise: ...+01:00
    1d, 90m, '2 hours'        so long ago

Not here: which commit was the newest then, and its image (sparklog/metadata/past.py).
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from sparklog.cli.durations import parse_duration
from sparklog.cli.notes import note

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.metadata import Image

METAVAR = "COMMIT|TIME|DURATION"
_MAX_DIGITS = 20  # as in the names of commits' files


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One of the three is given."""

    commit: int | None = None
    time_ms: int | None = None
    ago_ms: int | None = None


def parse_moment(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Moment | None:
    """A callback for an option; None if it is not given."""
    if value is None:
        return None
    text = value.strip()
    if (commit := commit_number(text)) is not None:
        return Moment(commit=commit)
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        zoned = found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
        return Moment(time_ms=round(zoned.timestamp() * 1000))
    try:
        return Moment(ago_ms=parse_duration(ctx, parameter, text))
    except click.BadParameter:
        raise click.BadParameter(
            f"found {value!r}, expected a commit's number, a time such as 2026-11-22T18:00 (UTC), "
            "or how long ago, such as 1d.",
            ctx=ctx,
            param=parameter,
        ) from None


def commit_number(text: str) -> int | None:
    """The number, if it is one; zeros before it do not matter."""
    return int(text) if re.fullmatch(rf"\d{{1,{_MAX_DIGITS}}}", text, re.ASCII) else None


def shown_time(time_ms: int) -> str:
    """As `2026-11-22T18:00:00.123Z`; what is no time of ours as it stands."""
    try:
        found = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


at_option = click.option(
    "--at",
    "moment",
    callback=parse_moment,
    metavar=METAVAR,
    help="As of then: after a commit, at a time (2026-11-22T18:00, UTC), or so long ago (1d).",
)


def image_of(log: SparkLog, moment: Moment | None) -> Image:
    """The image of a moment; of now, if none is named.

    Raises:
        InvalidRequestError: COMMIT_MISSING.
    """
    from sparklog.metadata.past import load_image_at, newest_commit_before

    image = log.refresh(force=True)
    if moment is None:
        return image
    commit = moment.commit
    if commit is None:
        until_ms = moment.time_ms if moment.ago_ms is None else log.clock.now_ms() - moment.ago_ms
        assert until_ms is not None
        commit = newest_commit_before(log.store, image, until_ms)
        note(f"Commit {commit} was the newest then.")
    return load_image_at(log.store, image, commit)
