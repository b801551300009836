"""Results on stdout: rows as a table or as a document (JSON, CSV, YAML), lines, and a progress bar.

A table has aligned columns, with Kafka's headings, and is never cut. On a terminal numbers are on the right,
and columns without any value are left out. A row is a dict; its keys are the JSON field names, which are API
(docs/cli.md).
Not here: the records of `consume` (record_format.py).
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from sparklog.cli.framework import current, is_terminal, json_text
from sparklog.wording import human_age, human_bytes, plain, shown_time

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

    from sparklog.client.admin import EffectiveConfig

Row = Mapping[str, object]
Document = dict[str, object]
SETTING_COLUMNS = "name:SETTING value source overrides"
_PLAIN_KEY = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z_][a-z0-9_.-]*", re.IGNORECASE)

# --- tables ------------------------------------------------------------------------------------------


def show_rows(columns: str, rows: Sequence[Row], *, empty: str = "") -> None:
    """Print all fields of `rows` as a document, or some as a table; with --output wide all as a table.

    Args:
        columns: fields, each perhaps with a heading and a unit: `topic size_bytes:SIZE:bytes`. In a heading
            `_` is a space. Units: bytes, age (in ms), time (ms since 1970).
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
    if current().output == "wide":
        named = {field for field, _, _ in specs}
        specs += [[field, "", ""] for field in (rows[0] if rows else ()) if field not in named]
    elif on_terminal and rows:
        specs = [spec for spec in specs if any(row[spec[0]] not in (None, [], ()) for row in rows)]
    cells = [[heading.replace("_", " ") or field.upper().replace("_", "-") for field, heading, _ in specs]]
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
    """Print a document in the format that --output names."""
    output = current().output
    rows: list[Any] = document if isinstance(document, list) else [document]
    if output == "jsonl":
        for row in rows:
            click.echo(json_text(row))
    elif output == "csv":
        _show_csv(rows)
    elif output == "yaml":
        click.echo("\n".join(_yaml_lines(document)))
    else:
        click.echo(json_text(document, indent=2))


def _show_csv(rows: Sequence[Row]) -> None:
    """Print rows by RFC 4180, but with line feeds; lists and objects as JSON, nothing for null."""
    text = io.StringIO()
    fields = dict.fromkeys(field for row in rows for field in row)
    writer = csv.DictWriter(text, list(fields), lineterminator="\n")
    if fields:
        writer.writeheader()
    for row in rows:
        writer.writerow({field: _csv_cell(value) for field, value in row.items()})
    shown = text.getvalue()
    click.echo(plain(shown, keep="\n") if is_terminal(sys.stdout) else shown, nl=False)


def _csv_cell(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value)


def _yaml_lines(value: object) -> Iterator[str]:
    """A document as YAML 1.2, of which JSON is a part: strings and empty values are written as JSON."""
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            first, *others = _yaml_lines(entry)
            name = key if _PLAIN_KEY.fullmatch(key) else json_text(key)
            if isinstance(entry, Mapping | list | tuple) and entry:
                yield f"{name}:"
                yield from (f"  {line}" for line in (first, *others))
            else:
                yield f"{name}: {first}"
    elif isinstance(value, list | tuple) and value:
        for entry in value:
            first, *others = _yaml_lines(entry)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)
    else:
        yield json_text(value)


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


def setting_row(entry: EffectiveConfig) -> Document:
    """A setting in force in one row, for SETTING_COLUMNS."""
    overrides = [f"{one.source}={one.value}" for one in entry.overridden]
    return {"name": entry.name, "value": entry.value, "source": entry.source, "overrides": overrides}


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
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(bar_width=30), DownloadColumn(), TimeRemainingColumn())
    with _bar(columns) as (bar, task):
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def record_bar(total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar of records on a terminal's stderr; it takes how many are done. None: no end is known."""
    if not is_terminal(sys.stderr):
        yield lambda _done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TimeRemainingColumn

    columns = (
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TaskProgressColumn(show_speed=True),
        TimeRemainingColumn(),
    )
    with _bar(columns, total) as (bar, task):
        yield lambda done: bar.update(task, completed=done)


@contextlib.contextmanager
def _bar(columns: Sequence[ProgressColumn], total: float | None = None) -> Iterator[tuple[Progress, TaskID]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        yield bar, bar.add_task("", total=total)
