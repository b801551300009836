"""Results on stdout: rows as a table or as JSON, lines, and a progress bar.

A table has aligned columns, with Kafka's headings, and is never cut. On a terminal numbers are on the right,
and columns without any value are left out. A row is a dict; its keys are the JSON field names, which are API
(docs/cli.md).
Not here: the records of `consume` (record_format.py).
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import click

from sparklog.cli.framework import current, is_terminal, json_text
from sparklog.wording import human_age, human_bytes, plain, shown_time

Row = Mapping[str, object]
Document = dict[str, object]

# --- tables ------------------------------------------------------------------------------------------


def show_rows(columns: str, rows: Sequence[Row], *, empty: str = "") -> None:
    """Print all fields of `rows` as JSON, or some as a table.

    Args:
        columns: fields, each perhaps with a heading and a unit: `topic size_bytes:SIZE:bytes`. Units: bytes,
            age (in ms), time (ms since 1970).
        empty: printed instead of a table without rows.
    """
    if current().json:
        show_json(list(rows))
        return
    if empty and not rows:
        tell(empty)
        return
    specs = [[*spec.split(":"), "", ""][:3] for spec in columns.split()]
    on_terminal = is_terminal(sys.stdout)
    if on_terminal and rows:
        specs = [spec for spec in specs if any(row[spec[0]] not in (None, [], ()) for row in rows)]
    cells = [[heading or field.upper().replace("_", "-") for field, heading, _ in specs]]
    cells += [[_cell(row[field], unit) for field, _, unit in specs] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [
        on_terminal and bool(rows) and all(_is_number(row[field]) for row in rows) for field, _, _ in specs
    ]
    for number, line in enumerate(cells):
        aligned = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        text = "  ".join(aligned).rstrip()
        is_bold = on_terminal and not number and not os.environ.get("NO_COLOR")  # https://no-color.org
        click.echo(click.style(text, bold=True) if is_bold and os.environ.get("TERM") != "dumb" else text)


def show_fields(labels: Mapping[str, str], document: Document) -> None:
    """Print a document as JSON, or a line for each of its fields that have a label and a value."""
    if current().json:
        show_json(document)
        return
    width = max(map(len, labels.values())) + 2
    for field, label in labels.items():
        if document[field] is not None:
            tell(f"{label + ':':<{width}}{cell(document[field])}")


def show_json(document: object) -> None:
    click.echo(json_text(document, indent=2))


def show(document: object, *lines: str) -> None:
    """Print a document as JSON, or lines instead."""
    if current().json:
        show_json(document)
    else:
        for line in lines:
            tell(line)


def tell(*fields: str) -> None:
    """Print a line of a result, with tabs between its fields."""
    click.echo("\t".join(map(plain, fields)))


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _cell(value: object, unit: str) -> str:
    if isinstance(value, int) and unit:
        return {"bytes": human_bytes, "age": human_age, "time": shown_time}[unit](value)
    return cell(value)


def cell(value: object) -> str:
    """The text of a value in a table, in one line; Kafka's dash for none."""
    if value is None:
        text = "-"
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, list | tuple):
        text = ",".join(map(str, value)) or "-"
    elif isinstance(value, Mapping):
        text = ",".join(f"{key}={entry}" for key, entry in value.items())
    else:
        text = str(value)
    return plain(text)


# --- streams -----------------------------------------------------------------------------------------


def prepare_stdout() -> bool:
    """Make writes to stdout complete or raise; False if it is closed.

    With PYTHONUNBUFFERED, which container images set, it is a raw file. Its `write` returns without an error
    when a full disk, or a pipe whose reader leaves, took only the first bytes: `consume` would commit all.
    """
    if sys.stdout is not None and isinstance(sys.stdout.buffer, io.RawIOBase):
        raw = sys.stdout
        sys.stdout = open(  # noqa: SIM115 - until the process ends
            raw.fileno(), "w", encoding=raw.encoding, errors=raw.errors, closefd=False
        )
    return sys.stdout is not None


def reader_left(stream: IO[Any]) -> bool:
    """True if the stream is a pipe without a reader. Nothing is written to find out."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # not a file, or closed
        return False
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, events in poller.poll(0))


@contextlib.contextmanager
def byte_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal's stderr; it takes (bytes done, bytes in all)."""
    if not is_terminal(sys.stderr):
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(bar_width=30), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
