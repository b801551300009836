"""Results on stdout, everything else on stderr.

One list of rows serves three renderings: aligned columns in a pipe (Kafka's headings, so that awk and
fingers keep working); on a terminal the same, with numbers to the right and without columns that
have nothing to say; and JSON. Nothing is folded or cut: a narrow terminal wraps, as with Kafka's tools.
A row is a dict whose keys are the JSON field names; they are API and listed in docs/cli.md.
Not here: the records of `consume` (record_format.py).
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import click

from sparklog.cli.notes import is_terminal
from sparklog.cli.plain_text import json_text, plain
from sparklog.cli.settings import current

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
