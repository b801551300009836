"""How numbers, times and foreign text are shown to people: on a terminal, in messages, and on web pages.

Names and messages may come from others. A line feed in one would forge a row of a table, an escape sequence
would control the terminal. So shown text has such characters as escapes (https://trojansource.codes).
Not here: JSON, which holds the exact text.
"""

import datetime as dt
import json


def plain(text: str, *, keep: str = "") -> str:
    r"""The text in one line: `\n`, `\u001b`, `\u202e` for what cannot be printed; `keep` stays."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escape(char) for char in text)


def _escape(character: str) -> str:
    """The escape of JSON, so that plain JSON text stays valid."""
    escaped = json.dumps(character)[1:-1]
    return escaped if escaped != character else f"\\u{ord(character):04x}"


def counted(number: int, noun: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def human_age(age_ms: int) -> str:
    """1,234 -> '1.2 s ago'; days are the largest unit."""
    value = age_ms / 1000
    for unit, more in (("s", 60), ("m", 60), ("h", 24)):
        if value < more:
            return f"{value:.1f} {unit} ago" if unit == "s" else f"{value:.0f} {unit} ago"
        value /= more
    return f"{value:.0f} d ago"


def human_bytes(size: int) -> str:
    """1,234,567 -> '1.2 MB' (decimal units)."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def shown_time(time_ms: int) -> str:
    """As `2026-11-22T18:00:00.123Z`; a number that is no time as it is."""
    try:
        found = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")
