"""The rows of the source (schema: values.py), as Arrow batches; and rows for the sink from old Sparks.

Performance matters here: every record passes through. The constant columns topic and partition are built once
per task and sliced.
"""

import datetime as dt
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sparklog.format.decode import DecodedRecords

# --- row batches -------------------------------------------------------------------------------------
#
# Converts rows to Arrow batches, in case Spark passes single rows to a streaming sink.
#
# Since 4.1 Spark documents that it passes Arrow batches; 4.0.5 passes them, undocumented
# (data_source_api.py).
# Invariants: the order of rows; the same values as in Spark's own Arrow batches. One exception: Spark passes
# a timestamp as a local time without zone; in the hour that is repeated in autumn, the first one is taken.
# Not here: validation of columns (stream_writer.py).
# Memory: at most BATCH_ROWS rows, fewer if their keys and values reach BATCH_BYTES.
# Sources: pyspark.sql.datasource.DataSourceStreamWriter; Spark's ArrowConverters for the types.


BATCH_ROWS = 10_000
BATCH_BYTES = 8 << 20

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])


def as_arrow_batches(
    given: Iterator[Any], schema: StructType, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Return Spark's Arrow batches unchanged, or rows as batches of the columns."""
    first = next(given, None)
    if first is None:
        return iter(())
    everything = itertools.chain([first], given)
    return everything if isinstance(first, pa.RecordBatch) else arrow_batches(everything, schema, columns)


def arrow_batches(
    rows: Iterator[Sequence[Any]], schema: StructType, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield these columns of the rows.

    Args:
        rows: Spark's rows, with all columns of `schema`.
    """
    places = [schema.fieldNames().index(name) for name in columns]
    fields = [schema.fields[place] for place in places]
    converters = [_converter(field) for field in fields]
    types = [_arrow_type(field.dataType) for field in fields]
    for chunk in _chunks(rows, places):
        arrays = [
            pa.array([convert(row[place]) for row in chunk], type=kind)
            for place, convert, kind in zip(places, converters, types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _chunks(rows: Iterator[Sequence[Any]], places: Sequence[int]) -> Iterator[list[Sequence[Any]]]:
    chunk: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += sum(len(row[place]) for place in places if isinstance(row[place], str | bytes | bytearray))
        if len(chunk) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _arrow_type(kind: DataType) -> pa.DataType:
    match kind:
        case StringType():
            return pa.string()
        case BinaryType():
            return pa.binary()
        case TimestampType():
            return pa.timestamp("us", tz="UTC")
        case ArrayType():
            return pa.list_(_HEADER)
        case _:
            return pa.int32() if kind.typeName() == "integer" else pa.int64()


def _converter(field: StructField) -> Callable[[Any], Any]:
    match field.dataType:
        case TimestampType():
            return _instant
        case ArrayType():
            return _headers
        case BinaryType():
            return _bytes
        case _:
            return _unchanged


def _instant(value: dt.datetime | None) -> dt.datetime | None:
    """Convert Spark's timestamp, a local time of this process without a zone."""
    return None if value is None else value.astimezone(dt.UTC)


def _unchanged(value: Any) -> Any:
    return value


def _bytes(value: bytearray | bytes | None) -> bytes | None:
    return None if value is None else bytes(value)


def _headers(value: Sequence[Any] | None) -> list[Any] | None:
    if value is None:
        return None
    return [None if header is None else {"key": header[0], "value": _bytes(header[1])} for header in value]


# --- rows --------------------------------------------------------------------------------------------


logger = logging.getLogger("sparklog.spark")
_HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
# A record's timestamp has 64 bits of milliseconds; Spark's have 64 bits of microseconds, and end in the year
# 294247. Later timestamps read as that end, with a warning.
_MOST_MS = (2**63 - 1) // 1000


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """Return the Arrow schema, exactly as Spark expects it from a Python source."""
    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
    if include_headers:
        fields.append(pa.field("headers", _HEADERS_TYPE))
    return pa.schema(fields)


class RowBuilder:
    """Turns decoded records of one partition into the source's rows."""

    def __init__(self, topic: str, partition: int, *, include_headers: bool) -> None:
        self._schema = arrow_schema(include_headers=include_headers)
        self._include_headers = include_headers
        self._topic, self._partition = topic, partition
        self._has_warned = False
        self._topics: pa.Array = pa.array([], pa.string())
        self._partitions: pa.Array = pa.array([], pa.int32())

    def rows(self, records: DecodedRecords) -> pa.RecordBatch:
        """Return an Arrow batch with a row for each record."""
        count = records.num_rows
        if count > len(self._topics):
            self._topics = pa.repeat(pa.scalar(self._topic, pa.string()), count)
            self._partitions = pa.repeat(pa.scalar(self._partition, pa.int32()), count)
        timestamps_us = pa.array(self._shown_ms(records) * 1000, pa.int64())
        columns = [
            records.key,
            records.value,
            self._topics.slice(0, count),
            self._partitions.slice(0, count),
            pa.array(records.offset, pa.int64()),
            timestamps_us.view(pa.timestamp("us", tz="UTC")),
            pa.array(records.timestamp_type.astype(np.int32, copy=False), pa.int32()),
        ]
        if self._include_headers:
            columns.append(self._headers(records.headers, count))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _shown_ms(self, records: DecodedRecords) -> npt.NDArray[np.int64]:
        """Return the timestamps, clipped to Spark's range; log the first one outside."""
        times_ms = records.timestamp_ms
        beyond = (times_ms > _MOST_MS) | (times_ms < -_MOST_MS)
        if not beyond.any():
            return times_ms
        if not self._has_warned:
            self._has_warned = True
            at = int(beyond.argmax())
            logger.warning(
                "%s-%d: the record at offset %d has the timestamp %d ms, and Spark's timestamps end at %d "
                "ms: this and later timestamps read as that end. Is the record's timestamp in microseconds?",
                self._topic,
                self._partition,
                records.offset[at],
                times_ms[at],
                _MOST_MS,
            )
        return np.clip(times_ms, -_MOST_MS, _MOST_MS)

    @staticmethod
    def _headers(headers: pa.Array | None, count: int) -> pa.Array:
        if headers is None:
            return pa.nulls(count, _HEADERS_TYPE)
        return headers.cast(_HEADERS_TYPE)


def to_rows(
    decoded: Iterator[DecodedRecords], topic: str, partition: int, *, include_headers: bool
) -> Iterator[pa.RecordBatch]:
    """Yield a batch of rows for each non-empty chunk of records, in order."""
    builder = RowBuilder(topic, partition, include_headers=include_headers)
    for records in decoded:
        if records.num_rows:
            yield builder.rows(records)
