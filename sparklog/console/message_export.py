"""A scan as a file: CSV, JSON lines or Parquet, in pieces.

csv: keys and values are text, or base64 where `key_encoding` and `value_encoding` say so. An apostrophe comes
    before a text that a spreadsheet would run as a formula.
jsonl: the fields of `sparklog consume --json`: text, or {"base64": ...}.
parquet: bytes, as they are stored; the columns of `SparkLog.read`.

Invariants: masks have been applied (messages.py). A file whose scan could not read a partition is not ended,
    so that nobody takes it for complete.
Memory: one step of the scan; Parquet gathers ROW_GROUP_BYTES.
Concurrency: a generator belongs to one thread.
Sources: kcat's JSON; https://owasp.org/www-community/attacks/CSV_Injection.
"""

import base64
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from sparklog.client.consumer import SCHEMA_WITH_HEADERS
from sparklog.console.messages import Step
from sparklog.errors import DataLossError
from sparklog.format.schema import TimestampType

ExportFormat = Literal["csv", "jsonl", "parquet"]
EXPORT_FORMATS: Final[tuple[ExportFormat, ...]] = get_args(ExportFormat)
MEDIA_TYPES: Final[dict[ExportFormat, str]] = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
ROW_GROUP_BYTES: Final = 16 << 20


def export(steps: Iterable[Step], wanted: ExportFormat) -> Iterator[bytes]:
    """Yield the file of what a scan finds.

    Raises:
        DataLossError: PARTITION_UNREADABLE, after all that could be read.
    """
    return _WRITERS[wanted](_found(steps))


def _found(steps: Iterable[Step]) -> Iterator[pa.RecordBatch]:
    """Yield what is found; at the end raise if it is not all."""
    for step in steps:
        problems = step.progress.problems
        if step.found.num_rows:
            yield step.found
    if problems:
        partition, problem = problems[0]
        raise DataLossError(
            "PARTITION_UNREADABLE",
            f"an export is not complete: found {len(problems)} partitions that cannot be read; "
            f"partition {partition}: {problem}",
            fix="export the other partitions alone, and see sparklog doctor",
        )


# --- CSV ---------------------------------------------------------------------------------------------

_FORMULA: Final = r"^\s*[=+\-@]|^[\t\r]"
_NUMBER: Final = r"^[+-]?[0-9]+(\.[0-9]+)?$"


def _csv(found: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    yield _csv_bytes(_csv_table(pa.RecordBatch.from_pylist([], schema=SCHEMA_WITH_HEADERS)), header=True)
    for rows in found:
        yield _csv_bytes(_csv_table(rows), header=False)


def _csv_table(rows: pa.RecordBatch) -> pa.Table:
    key, key_encoding = _text(rows.column("key"))
    value, value_encoding = _text(rows.column("value"))
    headers = pa.array(
        [
            msgspec.json.encode(_header_list(entries)).decode()
            for entries in rows.column("headers").to_pylist()
        ],
        pa.string(),
    )
    return pa.table(
        {
            "partition": rows.column("partition"),
            "offset": rows.column("offset"),
            "timestamp": rows.column("timestamp"),
            "key": key,
            "key_encoding": key_encoding,
            "value": value,
            "value_encoding": value_encoding,
            "headers": headers,
        }
    )


def _csv_bytes(table: pa.Table, *, header: bool) -> bytes:
    sink = pa.BufferOutputStream()
    pa_csv.write_csv(table, sink, pa_csv.WriteOptions(include_header=header))
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _text(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the values as texts, and the encoding of each."""
    try:
        text = column.cast(pa.string())
        encoding = pa.repeat(pa.scalar("utf-8"), len(column))
    except pa.ArrowInvalid:  # one at least is not UTF-8
        shown = [_text_or_base64(value) for value in column.to_pylist()]
        text = pa.array([text for text, _ in shown], pa.string())
        encoding = pa.array([name for _, name in shown], pa.string())
    is_formula = pc.and_not(
        pc.match_substring_regex(text, pattern=_FORMULA), pc.match_substring_regex(text, pattern=_NUMBER)
    )
    guarded = pc.if_else(is_formula, pc.binary_join_element_wise("'", text, ""), text)
    return guarded, pc.if_else(pc.is_valid(text), encoding, pa.scalar(None, pa.string()))


def _text_or_base64(value: bytes | None) -> tuple[str | None, str]:
    if value is None:
        return None, "utf-8"
    try:
        return value.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(value).decode(), "base64"


# --- JSON lines --------------------------------------------------------------------------------------


def _json_lines(found: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    encoder = msgspec.json.Encoder()
    for rows in found:
        yield encoder.encode_lines([json_record(row) for row in _rows(rows)])


def _rows(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    timestamps = rows.column("timestamp").cast(pa.int64())
    at = rows.schema.get_field_index("timestamp")
    yield from rows.set_column(at, "timestamp", timestamps).to_pylist()


def json_record(row: dict[str, Any]) -> dict[str, object]:
    """The fields of kcat for a row of SCHEMA_WITH_HEADERS, its timestamp in ms."""
    is_create = row["timestamp_type"] == TimestampType.CREATE_TIME
    return {
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "tstype": "create" if is_create else "logappend",
        "ts": row["timestamp"],
        "headers": _header_list(row["headers"]),
        "key": json_bytes(row["key"]),
        "payload": json_bytes(row["value"]),
    }


def _header_list(entries: list[dict[str, Any]] | None) -> list[object]:
    return [text for entry in entries or [] for text in (entry["key"], json_bytes(entry["value"]))]


def json_bytes(value: bytes | None) -> object:
    """A key or value as JSON: text if it is UTF-8, else base64 in an object."""
    text, encoding = _text_or_base64(value)
    return text if encoding == "utf-8" else {"base64": text}


# --- Parquet -----------------------------------------------------------------------------------------


class _Pieces:
    """A file to write to, whose bytes are taken away in pieces."""

    def __init__(self) -> None:
        self.closed = False
        self._written = bytearray()
        self._taken = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._written += memoryview(data).cast("B")
        return size

    def take(self) -> bytes:
        data = bytes(self._written)
        self._taken += len(data)
        self._written.clear()
        return data

    def tell(self) -> int:
        return self._taken + len(self._written)

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def _parquet(found: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    pieces = _Pieces()
    gathered: list[pa.RecordBatch] = []
    size = 0
    writer = pq.ParquetWriter(pa.PythonFile(pieces, mode="w"), SCHEMA_WITH_HEADERS, compression="zstd")
    for rows in found:
        gathered.append(rows)
        size += rows.nbytes
        if size >= ROW_GROUP_BYTES:
            writer.write_table(pa.Table.from_batches(gathered))
            gathered, size = [], 0
            yield pieces.take()
    if gathered:
        writer.write_table(pa.Table.from_batches(gathered))
    writer.close()
    yield pieces.take()


_WRITERS: Final[dict[ExportFormat, Callable[[Iterator[pa.RecordBatch]], Iterator[bytes]]]] = {
    "csv": _csv,
    "jsonl": _json_lines,
    "parquet": _parquet,
}
