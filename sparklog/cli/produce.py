"""`sparklog produce`: lines from stdin become records, acknowledged bundle by bundle.

Each bundle of lines is one append, durable when it is counted; what was counted before an error or
an interrupt stays, and stderr says how many that are.
"""

from __future__ import annotations

import io
import os
import select
import sys
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import click

from sparklog.cli.framework import OnceCommand, common_options, current, is_terminal, note
from sparklog.cli.output import show_json
from sparklog.cli.record_format import FormatError, unescape
from sparklog.errors import InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.client import AppendResult, SparkLog

# --- line input --------------------------------------------------------------------------------------
#
# Records from lines: how `produce` reads stdin.
#
# Lines arrive in bundles: as many as are there, at most `MAX_BUNDLE_BYTES`, and no later than
# `LINGER_S` after the input fell silent, so that `tail -f | sparklog produce` does not wait and
# `< big.file` goes in large appends. The last line needs no newline.


MAX_BUNDLE_BYTES = 4 << 20
READ_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
LINGER_S = 0.1


class LineError(ValueError):
    """The input is not what it was said to be."""


class LineTooLongError(LineError):
    """It has no newline for longer than any record may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """How a line becomes a key and a value.

    key_delimiter: splits a line at its first occurrence; None: the line is the value.
    fixed_key: the key of every record whose line has none.
    empty_is_null: kcat's -Z: an empty key or value is null (a null value is a tombstone).
    null_marker: Kafka's null.marker: this text is null.
    must_have_keys: Kafka's parse.key without ignore.error: a line without the delimiter is none.
    """

    key_delimiter: bytes | None = None
    fixed_key: bytes | None = None
    empty_is_null: bool = False
    null_marker: bytes | None = None
    must_have_keys: bool = False

    def up_to_fault(self, lines: list[bytes]) -> list[bytes]:
        """The lines before the first one that must have a key, and has none; mostly all."""
        delimiter = self.key_delimiter
        if not self.must_have_keys or delimiter is None:
            return lines
        faults = (at for at, line in enumerate(lines) if delimiter not in line)
        return lines[: next(faults, None)]

    def parse(self, line: bytes) -> tuple[bytes | None, bytes | None]:
        key, value = self.fixed_key, line
        if self.key_delimiter is not None and self.key_delimiter in line:
            key, value = line.split(self.key_delimiter, 1)
        return self._nullable(key), self._nullable(value)

    def lacks_keys(self, lines: Sequence[bytes]) -> bool:
        """Would the delimiter that was given find no key in any of these lines?"""
        delimiter = self.key_delimiter
        if delimiter is None or self.fixed_key is not None:
            return False
        return not any(delimiter in line for line in lines)

    def shown_delimiter(self) -> str:
        """The delimiter for a message: what is not ASCII as an escape."""
        return repr(self.key_delimiter).removeprefix("b")

    def _nullable(self, field: bytes | None) -> bytes | None:
        if (self.empty_is_null and field == b"") or (
            self.null_marker is not None and field == self.null_marker
        ):
            return None
        return field


def peculiarities(lines: Sequence[bytes]) -> list[str]:
    """What editors and shells of other systems put into the first lines of a file; it is kept as it is."""
    found = []
    if lines[0].startswith(BOM_UTF8):
        found.append("the input begins with a byte order mark, which is part of the first record.")
    elif lines[0].startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        found.append("the input seems to be UTF-16, and is kept so: iconv -f UTF-16 -t UTF-8 changes it.")
    if all(line.endswith(b"\r") for line in lines):
        found.append("all lines so far end with a carriage return, which is kept: tr -d '\\r' removes it.")
    return found


def read_line_bundles(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yield bundles of whole lines, without their newlines, until the input ends."""
    pending: list[bytes] = []
    pending_bytes = 0
    rest = b""
    for chunk in _read_chunks(stream):
        if chunk:
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise LineTooLongError(f"a line is longer than {MAX_LINE_BYTES:,} bytes; is the input text?")
            pending += lines
            pending_bytes += len(chunk)
        if pending and (not chunk or pending_bytes >= MAX_BUNDLE_BYTES):
            yield pending
            pending, pending_bytes = [], 0
    if rest:
        pending.append(rest)
    if pending:
        yield pending


def _read_chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield bytes as they come; an empty chunk says that the input has fallen silent."""
    try:
        descriptor = stream.fileno()
    except (OSError, io.UnsupportedOperation):
        while chunk := stream.read(READ_BYTES):
            yield chunk
        return
    silent = True
    while True:
        # Once silence has been reported there is nothing to flush: wait as long as it takes.
        ready, _, _ = select.select([descriptor], [], [], None if silent else LINGER_S)
        if not ready:
            silent = True
            yield b""
            continue
        chunk = os.read(descriptor, READ_BYTES)
        if not chunk:
            return
        silent = False
        yield chunk


# --- produce -----------------------------------------------------------------------------------------


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Headers = list[dict[str, object]]


def parse_headers(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> Headers:
    """Headers as in kcat: -H name=value; a name alone is a null header."""
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
    """kafka-console-producer's reader properties, those that mean something here."""
    known = ("parse.key", "key.separator", "null.marker", "ignore.error")
    properties = {}
    for text in values:
        key, _, value = text.partition("=")
        if key not in known:
            raise click.BadParameter(f"found {key!r}, expected one of {', '.join(known)}.")
        properties[key] = value
    return properties


def parse_delimiter(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> bytes | None:
    """A delimiter with kcat's escapes, so that it may be typed in any shell."""
    if value == "":
        raise click.BadParameter("it is empty: give the text between key and value.")
    try:
        return None if value is None else unescape(value)
    except FormatError as error:
        raise click.BadParameter(str(error)) from None


@click.command("produce", cls=OnceCommand)
@click.option(
    "--topic", "-t", required=True, metavar="NAME", help="The topic; created when it does not exist."
)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Default: by key; without key, sticky.")
@click.option(
    "-K",
    "--key-delimiter",
    metavar="TEXT",
    callback=parse_delimiter,
    help=r"Splits each line into key and value; \t, \xNN are known.",
)
@click.option("-k", "--key", "fixed_key", metavar="KEY", help="The key of every record.")
@click.option(
    "-H", "--header", "headers", multiple=True, callback=parse_headers, help="name=value, for all records."
)
@click.option(
    "-z",
    "--compression",
    "--compression-codec",
    "codec",
    type=click.Choice(CODECS),
    help="Default: the topic's, else none.",
)
@click.option("-Z", "--empty-as-null", is_flag=True, help="Empty keys and values are null.")
@click.option(
    "--reader-property", "--property", "properties", multiple=True, callback=parse_properties, hidden=True
)
@common_options
def produce(
    topic: str,
    partition: int | None,
    key_delimiter: bytes | None,
    fixed_key: str | None,
    headers: Headers,
    codec: str | None,
    empty_as_null: bool,
    properties: dict[str, str],
) -> None:
    """Write lines from stdin as records.

    \b
    seq 1000 | sparklog produce --topic numbers
    echo 'JFK:{"delay": 5}' | sparklog produce --topic delays -K:
    """  # noqa: D301 - click looks for the character, not for a backslash and a b
    line_format = LineFormat(
        key_delimiter=_key_delimiter(key_delimiter, properties),
        fixed_key=None if fixed_key is None else os.fsencode(fixed_key),
        empty_is_null=empty_as_null,
        null_marker=os.fsencode(properties["null.marker"]) if "null.marker" in properties else None,
        must_have_keys=key_delimiter is None
        and fixed_key is None
        and not _is_true(properties, "ignore.error"),
    )
    from sparklog.client import refuse_internal

    refuse_internal(topic)  # before the first line, and before a root is made
    if sys.stdin is None:
        raise click.ClickException("stdin is closed: there are no lines to be read.")
    log = current().open_log(create=True)
    if is_terminal(sys.stdin):
        note("Type records, one a line; end with Ctrl-D.")
    producer = Producer(log, topic, partition, line_format, headers, codec)
    try:
        producer.run(sys.stdin.buffer)
    except LineError as error:
        raise click.ClickException(str(error)) from None
    finally:  # also before a failure is told: what was acknowledged is
        if current().json:
            show_json({"topic": topic, "records": producer.records, "partitions": producer.partitions()})
        else:
            note(producer.summary())


def _key_delimiter(option: bytes | None, properties: dict[str, str]) -> bytes | None:
    if option is not None:
        return option
    if properties.get("key.separator") == "":
        raise click.UsageError("key.separator is empty: give the text between key and value.")
    if _is_true(properties, "parse.key"):
        return os.fsencode(properties.get("key.separator", "\t"))
    return None


def _is_true(properties: dict[str, str], key: str) -> bool:
    return properties.get(key, "").strip().lower() == "true"


class Producer:
    """Appends bundles of lines, and counts what was acknowledged."""

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

    def run(self, stream: BinaryIO) -> None:
        live = is_terminal(sys.stderr)
        for lines in read_line_bundles(stream):
            whole = self._format.up_to_fault(lines)
            if whole:
                self._take(whole)
            if len(whole) < len(lines):
                raise LineError(
                    f"line {self.records + 1:,}: found no key separator {self._format.shown_delimiter()}, "
                    "expected one (parse.key=true); ignore.error=true, or -K TEXT, takes lines without a key."
                )
            if live:
                note(f"\r{self.records:,} records acknowledged", end="")
        if live and self.records:
            note("\r", end="")

    def _take(self, lines: list[bytes]) -> None:
        if not self.records:
            self._warn(lines)
        result = self._append(lines)
        for partition, appended in result.partitions.items():
            self._base_offsets.setdefault(partition, appended.base_offset)
            self._counts[partition] = self._counts.get(partition, 0) + appended.record_count
        self.records += len(lines)

    def _warn(self, lines: list[bytes]) -> None:
        """Of what the first lines seem to be, if that is not what the options say."""
        if self._format.lacks_keys(lines):
            note(
                f"Warning: no line so far ({len(lines):,}) holds the key delimiter "
                f"{self._format.shown_delimiter()}: lines without it have no key."
            )
        for peculiarity in peculiarities(lines):
            note(f"Warning: {peculiarity}")

    def _append(self, lines: list[bytes]) -> AppendResult:
        try:
            return self._log.append(
                self._topic, self._table(lines), partition=self._partition, compression_type=self._codec
            )
        except InvalidRequestError as error:
            if error.code != "PARTITION_OUT_OF_RANGE" or self._partition is None:
                raise
            raise self._no_such_partition(self._partition) from None

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

    def summary(self) -> str:
        noun = "record" if self.records == 1 else "records"
        return f"{self.records:,} {noun} acknowledged by topic {self._topic}."

    def partitions(self) -> list[dict[str, int]]:
        return [
            {"partition": partition, "base_offset": self._base_offsets[partition], "records": count}
            for partition, count in sorted(self._counts.items())
        ]

    def _table(self, lines: list[bytes]) -> pa.Table:
        import pyarrow as pa

        from sparklog.format.schema import HEADERS_TYPE

        keys, values = zip(*map(self._format.parse, lines), strict=True)
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        if self._headers:
            columns["headers"] = pa.repeat(pa.scalar(self._headers, HEADERS_TYPE), len(lines))
        return pa.table(columns)
