"""Moments on the command line: a commit, a time, how long ago."""

import click
import pytest

from sparklog.cli.inputs import Moment, parse_moment
from sparklog.cli.output import shown_time

CONTEXT = click.Context(click.Command("x"))
PARAMETER = click.Option(["--at"])
SIX_UTC = 1_795_370_400_000


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("42", Moment(commit=42)),
        ("00000000000000000042", Moment(commit=42)),
        ("2026-11-22T18:00", Moment(time_ms=SIX_UTC)),
        ("2026-11-22 18:00:00.25", Moment(time_ms=SIX_UTC + 250)),
        ("2026-11-22T18:00Z", Moment(time_ms=SIX_UTC)),
        ("2026-11-22T19:00+01:00", Moment(time_ms=SIX_UTC)),
        ("2026-11-22", Moment(time_ms=SIX_UTC - 18 * 3_600_000)),
        ("1d", Moment(ago_ms=86_400_000)),
        ("90 minutes", Moment(ago_ms=5_400_000)),
        ("0s", Moment(ago_ms=0)),
    ],
)
def test_a_moment_is_a_commit_a_time_or_how_long_ago(text: str, moment: Moment) -> None:
    assert parse_moment(CONTEXT, PARAMETER, text) == moment


@pytest.mark.parametrize("text", ["", "-1", "soon", "1e3", "2026-13-01", "0" * 21, "\u0661", "1 fortnight"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected a commit's number, a time"):
        parse_moment(CONTEXT, PARAMETER, text)


def test_none_is_now() -> None:
    assert parse_moment(CONTEXT, PARAMETER, None) is None


def test_times_are_shown_in_utc() -> None:
    assert shown_time(SIX_UTC + 7) == "2026-11-22T18:00:00.007Z"
    assert shown_time(10**18) == str(10**18)
