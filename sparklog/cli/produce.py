"""`sparklog produce`: lines from stdin become records, acknowledged bundle by bundle.

Each bundle of lines is one append, durable when it is counted; what was counted before an error or
an interrupt stays, and stderr says how many that are.
Not here: reading and splitting lines (line_input.py).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, BinaryIO

import click

from sparklog.cli.group import OnceCommand
from sparklog.cli.line_input import LineError, LineFormat, peculiarities, read_line_bundles
from sparklog.cli.notes import is_terminal, note
from sparklog.cli.output import show_json
from sparklog.cli.record_format import FormatError, unescape
from sparklog.cli.settings import common_options, current
from sparklog.errors import InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.client import AppendResult, SparkLog

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
        from sparklog.client.offsets_topic import partitions_of_new
        from sparklog.log.root_config import RootConfig

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
