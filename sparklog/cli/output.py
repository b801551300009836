"""Results on stdout, everything else on stderr.

One list of rows serves three renderings: aligned columns in a pipe (Kafka's headings, so that awk and
fingers keep working); on a terminal the same, with numbers to the right and without columns that
have nothing to say; and JSON. Nothing is folded or cut: a narrow terminal wraps, as with Kafka's tools.
A row is a dict whose keys are the JSON field names; they are API and listed in docs/cli.md.
Not here: the records of `consume` (record_format.py).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import os
import re
import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import click

from sparklog.cli.framework import current, is_terminal, json_text, note, plain

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.metadata import Image

# --- progress ----------------------------------------------------------------------------------------
#
# A bar on a terminal's stderr for work that takes long; elsewhere nothing.


@contextlib.contextmanager
def byte_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Takes (bytes done, bytes in all)."""
    if not is_terminal(sys.stderr):
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(bar_width=30), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# --- durations ---------------------------------------------------------------------------------------
#
# A time on the command line: a number with its unit, such as 7d, 30s or '168 hours', as SQL has it; or 0.


METAVAR = "DURATION"
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
MOST_MS = 36_500 * _UNITS_MS["d"]  # a hundred years; no clock waits for much longer
_WORDS = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}
_PATTERN = re.compile(
    rf"(\d{{1,12}})\s*(?:({'|'.join(_UNITS_MS)})|({'|'.join(_WORDS)})s?)", re.ASCII | re.IGNORECASE
)


def parse_duration(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    """A callback for an option: in milliseconds; None if it is not given and has no default."""
    if value is None:
        return None
    if value == "0":
        return 0
    match = _PATTERN.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(
            f"found {value!r}, expected a number with ms, s, m, h, d or w, such as 7d, or '7 days'."
        )
    unit = match[2] or _WORDS[match[3].lower()]
    if unit == "M":  # months, to many; what is older goes
        raise click.BadParameter(f"found {value!r}: write {match[1]}m for minutes; for months, days.")
    found_ms = int(match[1]) * _UNITS_MS[unit.lower()]
    if found_ms > MOST_MS:
        raise click.BadParameter(f"found {value!r}, expected at most {MOST_MS // _UNITS_MS['d']:,}d.")
    return found_ms


# --- stopping ----------------------------------------------------------------------------------------
#
# threading.Event is not for that. Its `wait` has a lock for moments; a handler that runs in such a moment, in
# the same thread, waits in `set` for that lock, and the thread for its handler: for ever. Here what wakes who
# waits is a byte in a pipe.
#
# Concurrency: `ask` anywhere, also between two instructions of `wait`; the rest in one thread.


LONGEST_SECONDS = 86_400.0 * 365


class Stop:
    """To be asked to stop by a signal, while the same thread waits."""

    def __init__(self) -> None:
        self._is_asked = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def ask(self) -> None:
        """From now on."""
        self._is_asked = True
        with contextlib.suppress(OSError):  # the pipe is full: whoever waits is awake
            os.write(self._writer, b"\0")

    def is_asked(self) -> bool:
        """Was it?"""
        return self._is_asked

    def wait(self, seconds: float) -> bool:
        """Until it is asked, or for so long. Was it?"""
        if not self._is_asked:
            select.select([self._reader], [], [], min(max(0.0, seconds), LONGEST_SECONDS))
        return self._is_asked

    def close(self) -> None:
        """Nobody asks, or waits, any more."""
        os.close(self._reader)
        os.close(self._writer)


# --- moments -----------------------------------------------------------------------------------------
#
# A moment of a log on the command line: a commit's number, a time, or how long ago.
#
#     42                        after commit 42
#     2026-11-22T18:00          as of then, UTC unless it says otherwise: ...+01:00
#     1d, 90m, '2 hours'        so long ago
#
# Not here: which commit was the newest then, and its image (sparklog/metadata/loading.py).


MOMENT_METAVAR = "COMMIT|TIME|DURATION"
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
    metavar=MOMENT_METAVAR,
    help="As of then: after a commit, at a time (2026-11-22T18:00, UTC), or so long ago (1d).",
)


def image_of(log: SparkLog, moment: Moment | None) -> Image:
    """The image of a moment; of now, if none is named.

    Raises:
        InvalidRequestError: COMMIT_MISSING.
    """
    from sparklog.metadata.loading import load_image_at, newest_commit_before

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


# --- output ------------------------------------------------------------------------------------------


Row = Mapping[str, object]
_NOTHING: Sequence[object] = (None, [], ())
_LEFT = select.POLLERR | select.POLLHUP | select.POLLNVAL


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its JSON field and its heading.

    number: to the right, on a terminal.
    bytes: with a unit.
    age: milliseconds, told as a time ago.
    optional: left out on a terminal when no row has a value.
    """

    field: str
    heading: str
    number: bool = False
    bytes: bool = False
    age: bool = False
    optional: bool = False

    def is_told(self, rows: Sequence[Row]) -> bool:
        return any(row[self.field] not in _NOTHING for row in rows)

    def text(self, row: Row) -> str:
        value = row[self.field]
        if self.age and isinstance(value, int):
            return human_age(value)
        return human_bytes(value) if self.bytes and isinstance(value, int) else cell(value)


def prepare_stdout() -> bool:
    """Have stdout take all it is given, or raise; False: it is closed.

    With PYTHONUNBUFFERED, which images of containers set, Python's is a raw file. Its `write` ends without an
    error when a full disk, or a pipe whose reader leaves, has taken the first bytes only: `consume` would
    commit the rest, too.
    """
    if sys.stdout is not None and isinstance(sys.stdout.buffer, io.RawIOBase):
        raw = sys.stdout
        sys.stdout = open(  # noqa: SIM115 - until the process ends
            raw.fileno(), "w", encoding=raw.encoding, errors=raw.errors, closefd=False
        )
    return sys.stdout is not None


def show_rows(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Print `rows`: all fields as JSON, or the given columns as a table."""
    if current().json:
        show_json(list(rows))
    elif is_terminal(sys.stdout):
        told = [
            one for one in columns if not one.optional or any(row[one.field] not in _NOTHING for row in rows)
        ]
        heading, *lines = _aligned(told, rows, numbers_right=True)
        click.echo(click.style(heading, bold=True) if _wants_style() else heading)
        for line in lines:
            click.echo(line)
    else:
        for line in _aligned(columns, rows, numbers_right=False):
            click.echo(line)


def show_json(document: object) -> None:
    click.echo(json_text(document, indent=2))


def tell(*fields: str) -> None:
    """Print a line of a result as text, in which others' names may stand; with tabs between its fields."""
    click.echo("\t".join(map(plain, fields)))


def reader_left(stream: IO[Any]) -> bool:
    """Is it a pipe that nobody reads any more? Nothing is written to find out."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # it is no file, or closed
        return False
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(events & _LEFT for _, events in poller.poll(0))


def cell(value: object) -> str:
    """The text of a value in a table, in one line; nothing known is Kafka's dash."""
    return plain(_words(value))


def _words(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={entry}" for key, entry in value.items())
    return str(value)


def human_age(age_ms: int) -> str:
    """1,234 -> '1.2 s ago'; days are the largest unit."""
    value = age_ms / 1000
    for unit, more in (("s", 60), ("m", 60), ("h", 24)):
        if value < more:
            return f"{value:.1f} {unit} ago" if unit == "s" else f"{value:.0f} {unit} ago"
        value /= more
    return f"{value:.0f} d ago"


def human_bytes(size: int) -> str:
    """1,234,567 -> '1.2 MB' (decimal units, as disks are sold)."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _wants_style() -> bool:
    """https://no-color.org, and terminals that cannot."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _aligned(columns: Sequence[Column], rows: Sequence[Row], *, numbers_right: bool) -> list[str]:
    """The heading, and a line for each row."""
    cells = [[column.heading for column in columns]]
    cells += [[column.text(row) for column in columns] for row in rows]
    widths = [max(len(line[position]) for line in cells) for position in range(len(columns))]
    right = [numbers_right and column.number for column in columns]
    return [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in cells
    ]
