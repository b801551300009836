"""`sparklog produce`: lines from stdin or a file become records, acknowledged batch by batch.

A batch is the lines that have arrived: at most `MAX_BATCH_BYTES`, and no later than `LINGER_S` after the
input pauses, so that `tail -f | sparklog produce` does not wait, and a large file goes in large appends. Each
batch is one append, durable when it is counted. What was counted before an error stays, and is reported.
SIGTERM and SIGINT end it after the whole lines that it has read; a second signal ends it immediately.
A line that cannot be a record ends it: the lines before it are records, and the error names it.
"""

from __future__ import annotations

import io
import os
import sys
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import click

from sparklog.cli.framework import Command, current, is_terminal, note
from sparklog.cli.inputs import Stop, until_signalled
from sparklog.cli.output import show_json
from sparklog.cli.record_format import FormatError, unescape
from sparklog.errors import InvalidRequestError
from sparklog.wording import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.client import AppendResult, SparkLog

MAX_BATCH_BYTES = 4 << 20
READ_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
LINGER_S = 0.1

# --- lines -------------------------------------------------------------------------------------------


class LineError(ValueError):
    """A line that cannot be a record."""


class LineFormat(NamedTuple):
    """How a line becomes a key and a value.

    key_delimiter: splits a line at its first occurrence; None: the line is the value.
    fixed_key: the key of a line without a key.
    empty_is_null: an empty key or value is null (a null value is a tombstone).
    null_marker: this text is null.
    must_have_keys: a line without the delimiter is an error.
    """

    key_delimiter: bytes | None = None
    fixed_key: bytes | None = None
    empty_is_null: bool = False
    null_marker: bytes | None = None
    must_have_keys: bool = False

    def parse(self, line: bytes) -> tuple[bytes | None, bytes | None]:
        key, value = self.fixed_key, line
        if self.key_delimiter is not None and self.key_delimiter in line:
            key, value = line.split(self.key_delimiter, 1)
        return self._nullable(key), self._nullable(value)

    def _nullable(self, field: bytes | None) -> bytes | None:
        return None if field == self.null_marker or (self.empty_is_null and field == b"") else field

    def shown_delimiter(self) -> str:
        return repr(self.key_delimiter).removeprefix("b")


def peculiarities(lines: Sequence[bytes]) -> list[str]:
    """What editors and shells of other systems put into the first lines of a file; it is kept."""
    found = []
    if lines[0].startswith(BOM_UTF8):
        found.append("the input begins with a byte order mark, which is part of the first record.")
    elif lines[0].startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        found.append("the input seems to be UTF-16, and is kept so: iconv -f UTF-16 -t UTF-8 changes it.")
    if all(line.endswith(b"\r") for line in lines):
        found.append("all lines so far end with a carriage return, which is kept: tr -d '\\r' removes it.")
    return found


def read_line_batches(stream: BinaryIO, stop: Stop) -> Iterator[list[bytes]]:
    """Yield batches of lines, without their newlines, until the input ends. The last line needs none.

    After a stop the whole lines that were read are yielded, and no part of a line.
    """
    pending: list[bytes] = []
    pending_bytes = 0
    rest = b""
    for chunk in _read_chunks(stream, stop):
        if chunk:
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise LineError(f"a line is longer than {MAX_LINE_BYTES:,} bytes; is the input text?")
            pending += lines
            pending_bytes += len(chunk)
        if pending and (not chunk or pending_bytes >= MAX_BATCH_BYTES):
            yield pending
            pending, pending_bytes = [], 0
    if rest and not stop.is_asked():
        pending.append(rest)
    if pending:
        yield pending


def _read_chunks(stream: BinaryIO, stop: Stop) -> Iterator[bytes]:
    """Yield bytes as they come, until a stop; an empty chunk when the input pauses."""
    try:
        descriptor = stream.fileno()
    except (OSError, io.UnsupportedOperation):
        while not stop.is_asked() and (chunk := stream.read(READ_BYTES)):
            yield chunk
        return
    silent = True
    while not stop.is_asked():
        # After a pause there is nothing to flush: wait without a limit.
        ready = stop.wait_or_read(None if silent else LINGER_S, [descriptor])
        silent = not ready
        chunk = os.read(descriptor, READ_BYTES) if ready else b""
        if ready and not chunk:
            return
        yield chunk


# --- produce -----------------------------------------------------------------------------------------

Headers = list[dict[str, object]]
_OF_A_LINE = ("RECORD_TOO_LARGE", "INVALID_ROWS")  # errors of a single record
_PROPERTIES = ("parse.key", "key.separator", "null.marker", "ignore.error")


def parse_headers(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> Headers:
    """`name=value`; a name alone is a null header."""
    headers: Headers = []
    for text in values:
        name, separator, value = text.partition("=")
        if not name:
            raise click.BadParameter(f"found {text!r}, expected name=value.")
        headers.append({"key": name, "value": os.fsencode(value) if separator else None})
    return headers


def parse_properties(
    _ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """kafka-console-producer's reader properties."""
    properties = {text.partition("=")[0]: text.partition("=")[2] for text in values}
    for key in properties:
        if key not in _PROPERTIES:
            raise click.BadParameter(f"found {key!r}, expected one of {', '.join(_PROPERTIES)}.")
    if properties.get("key.separator") == "":
        raise click.BadParameter("key.separator is empty: give the text between key and value.")
    return properties


def parse_delimiter(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> bytes | None:
    """A delimiter, in which the escapes of a format may stand."""
    if value == "":
        raise click.BadParameter("it is empty: give the text between key and value.")
    try:
        return None if value is None else unescape(value)
    except FormatError as error:
        raise click.BadParameter(str(error)) from None


@click.command("produce", cls=Command)
@click.option(
    "--topic", "-t", required=True, metavar="NAME", help="The topic; created when it does not exist."
)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Default: by key; without key, sticky.")
@click.option("-l", "--file", "file", type=click.File("rb"), help="Read lines from FILE. Default: stdin.")
@click.option(
    "-K",
    "--key-delimiter",
    metavar="TEXT",
    callback=parse_delimiter,
    help=r"Splits each line into key and value; \t, \xNN are known.",
)
@click.option("-k", "--key", "fixed_key", metavar="KEY", help="The key of lines without one.")
@click.option(
    "-H", "--header", "headers", multiple=True, callback=parse_headers, help="name=value, for all records."
)
@click.option(
    "-z",
    "--compression",
    "codec",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="Default: the topic's, else none.",
)
@click.option("-Z", "--empty-as-null", is_flag=True, help="Empty keys and values are null.")
@click.option(
    "--reader-property", "--property", "properties", multiple=True, callback=parse_properties, hidden=True
)
@click.option("-P", "unused", is_flag=True, expose_value=False, hidden=True)  # kcat's "produce"
def produce(
    topic: str,
    partition: int | None,
    file: BinaryIO | None,
    key_delimiter: bytes | None,
    fixed_key: str | None,
    headers: Headers,
    codec: str | None,
    empty_as_null: bool,
    properties: dict[str, str],
) -> None:
    """Write lines from stdin, or a file, as records.

    \b
    seq 1000 | sparklog produce --topic numbers
    echo 'JFK:{"delay": 5}' | sparklog produce --topic delays -K:
    """  # noqa: D301 - click looks for the character, not for a backslash and a b

    def is_true(key: str) -> bool:
        return properties.get(key, "").strip().lower() == "true"

    by_property = os.fsencode(properties.get("key.separator", "\t")) if is_true("parse.key") else None
    line_format = LineFormat(
        key_delimiter=key_delimiter or by_property,
        fixed_key=None if fixed_key is None else os.fsencode(fixed_key),
        empty_is_null=empty_as_null,
        null_marker=os.fsencode(properties["null.marker"]) if "null.marker" in properties else None,
        must_have_keys=key_delimiter is None and fixed_key is None and not is_true("ignore.error"),
    )
    from sparklog.client import refuse_internal

    refuse_internal(topic)  # before the first line, and before a root is made
    if file is None and sys.stdin is None:
        raise click.ClickException("stdin is closed: there are no lines to be read.")
    log = current().open_log(create=True)
    if file is None and is_terminal(sys.stdin):
        note("Type records, one a line; end with Ctrl-D.")
    producer = Producer(log, topic, partition, line_format, headers, codec)
    try:
        with until_signalled() as stop:
            producer.run(file or sys.stdin.buffer, stop)
        if stop.is_asked():
            raise click.Abort
    except LineError as error:
        raise click.ClickException(str(error)) from None
    finally:  # before a failure is reported, report what was acknowledged
        if current().json:
            show_json({"topic": topic, "records": producer.records, "partitions": producer.partitions()})
        else:
            note(f"{counted(producer.records, 'record')} acknowledged by topic {topic}.")


class Producer:
    """Appends batches of lines, and counts what was acknowledged."""

    def __init__(
        self,
        log: SparkLog,
        topic: str,
        partition: int | None,
        line_format: LineFormat,
        headers: Headers,
        codec: str | None,
    ) -> None:
        self.records = 0
        self._log = log
        self._topic = topic
        self._partition = partition
        self._format = line_format
        self._headers = headers
        self._codec = codec
        self._base_offsets: dict[int, int] = {}
        self._counts: dict[int, int] = {}

    def run(self, stream: BinaryIO, stop: Stop) -> None:
        live = is_terminal(sys.stderr)
        delimiter = self._format.key_delimiter
        for lines in read_line_batches(stream, stop):
            whole = lines
            if self._format.must_have_keys and delimiter is not None:
                faults = (at for at, line in enumerate(lines) if delimiter not in line)
                whole = lines[: next(faults, None)]
            if whole:
                self._append(whole)
            if len(whole) < len(lines):
                raise LineError(
                    f"line {self.records + 1:,}: found no key separator {self._format.shown_delimiter()}, "
                    "expected one (parse.key=true); ignore.error=true, or -K TEXT, takes lines without a key."
                )
            if live:
                note(f"\r{self.records:,} records acknowledged", end="")
        if live and self.records:
            note("\r", end="")

    def partitions(self) -> list[dict[str, int]]:
        return [
            {"partition": partition, "base_offset": self._base_offsets[partition], "records": count}
            for partition, count in sorted(self._counts.items())
        ]

    def _append(self, lines: list[bytes]) -> None:
        if not self.records:
            self._warn(lines)
        try:
            result: AppendResult = self._log.append(
                self._topic, self._table(lines), partition=self._partition, compression_type=self._codec
            )
        except InvalidRequestError as error:
            if error.code == "PARTITION_OUT_OF_RANGE" and self._partition is not None:
                raise self._no_such_partition(self._partition) from None
            if error.code not in _OF_A_LINE:
                raise
            self._append_before_fault(lines, error)
            return
        for partition, appended in result.partitions.items():
            self._base_offsets.setdefault(partition, appended.base_offset)
            self._counts[partition] = self._counts.get(partition, 0) + appended.record_count
        self.records += len(lines)

    def _append_before_fault(self, lines: list[bytes], error: InvalidRequestError) -> None:
        """Append the lines before the first one that is refused, in halves; then raise its error."""
        if len(lines) == 1:
            where = f"line {self.records + 1:,}, of {len(lines[0]):,} bytes"
            raise type(error)(error.code, f"{where}: {error.message}", fix=error.fix) from None
        half = len(lines) // 2
        self._append(lines[:half])
        self._append(lines[half:])

    def _warn(self, lines: list[bytes]) -> None:
        """Warn if the first lines do not look as the options say."""
        delimiter = self._format.key_delimiter
        lacks_keys = delimiter is not None and not any(delimiter in line for line in lines)
        if lacks_keys and self._format.fixed_key is None:
            note(
                f"Warning: no line so far ({len(lines):,}) holds the key delimiter "
                f"{self._format.shown_delimiter()}: lines without it have no key."
            )
        for peculiarity in peculiarities(lines):
            note(f"Warning: {peculiarity}")

    def _no_such_partition(self, partition: int) -> InvalidRequestError:
        from sparklog.client.topic_plan import partitions_of_new
        from sparklog.log.config import RootConfig

        image = self._log.image
        verb, count = "create", partitions_of_new(self._topic, RootConfig.parse(image.configs))
        if self._topic in image.topics:
            verb, count = "alter", self._log.partition_count(self._topic)
        return InvalidRequestError(
            "PARTITION_OUT_OF_RANGE",
            f"topic {self._topic}: found --partition {partition}, expected 0 to {count - 1}",
            fix="use one of those, leave --partition out, or let the topic have as many: "
            f"sparklog topics {verb} --topic {self._topic} --partitions {partition + 1}",
        )

    def _table(self, lines: list[bytes]) -> pa.Table:
        import pyarrow as pa

        from sparklog.format.schema import HEADERS_TYPE

        keys, values = zip(*map(self._format.parse, lines), strict=True)
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        if self._headers:
            columns["headers"] = pa.repeat(pa.scalar(self._headers, HEADERS_TYPE), len(lines))
        return pa.table(columns)
