"""A time on the command line: a number with its unit, such as 7d, 30s or '168 hours', as SQL has it; or 0."""

from __future__ import annotations

import re

import click

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
