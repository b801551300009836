"""Results on stdout, everything else on stderr.

One list of rows serves three renderings: a rich table on a terminal, aligned plain columns in a
pipe (Kafka's headings, so that awk and fingers keep working), and JSON. A row is a dict whose
keys are the JSON field names; they are API and listed in docs/cli.md.
Not here: the records of `consume` (record_format.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from sparklog.cli.settings import current

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its JSON field and its heading; numbers go right, bytes get a unit."""

    field: str
    heading: str
    number: bool = False
    bytes: bool = False

    def text(self, row: Row) -> str:
        value = row[self.field]
        return human_bytes(value) if self.bytes and isinstance(value, int) else cell(value)


def show_rows(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Print `rows`: all fields as JSON, or the given columns as a table."""
    if current().json:
        show_json(list(rows))
    elif sys.stdout.isatty():
        _show_rich(columns, rows)
    else:
        _show_plain(columns, rows)


def show_json(document: object) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def note(message: str) -> None:
    """Tell the user something that is not a result."""
    click.echo(message, err=True)


def cell(value: object) -> str:
    """The text of a value in a table; nothing known is Kafka's dash."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={entry}" for key, entry in value.items())
    return str(value)


def human_bytes(size: int) -> str:
    """1,234,567 -> '1.2 MB' (decimal units, as disks are sold)."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _show_rich(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.heading, justify="right" if column.number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(column.text(row) for column in columns))
    Console(markup=False, highlight=False).print(table)


def _show_plain(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    lines = [[column.heading for column in columns]]
    lines += [[column.text(row) for column in columns] for row in rows]
    widths = [max(len(line[position]) for line in lines) for position in range(len(columns))]
    for line in lines:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
