"""The rows of the source (values.py), as Arrow batches.

Cost matters here: every record passes through. Columns that are constant within a chunk (topic,
partition, timestampType) are made once per task and sliced, never rebuilt.
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
# Rows as Arrow batches, should a Spark hand them to a streaming sink one at a time.
#
# Since 4.1 Spark promises Arrow batches; 4.0.5 does not, and hands them over all the same
# (features.py).
# Invariants: the rows' order; the values are those that a Spark with Arrow batches hands over. But for one
# hour a year: Spark makes a timestamp a local time without a zone, which in the hour that comes twice is the
# first.
# Not here: what the columns may be (stream_writer.py).
# Memory: BATCH_ROWS rows at a time, or fewer: a batch ends when its keys and values reach BATCH_BYTES.
# Sources: pyspark.sql.datasource.DataSourceStreamWriter; Spark's ArrowConverters for the types.


BATCH_ROWS = 10_000
BATCH_BYTES = 8 << 20

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])


def as_arrow_batches(
    given: Iterator[Any], schema: StructType, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """What Spark hands over: Arrow batches as they are, rows as batches of the columns."""
    first = next(given, None)
    if first is None:
        return iter(())
    everything = itertools.chain([first], given)
    return everything if isinstance(first, pa.RecordBatch) else arrow_batches(everything, schema, columns)


def arrow_batches(
    rows: Iterator[Sequence[Any]], schema: StructType, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The columns of the rows, by name.

    Args:
        rows: of Spark, with all columns of `schema`.
        columns: those to take.
    """
    places = [schema.fieldNames().index(name) for name in columns]
    fields = [schema.fields[place] for place in places]
    converters = [_converter(field) for field in fields]
    types = [_arrow_type(field.dataType) for field in fields]
    for gathered in _gathered(rows, places):
        arrays = [
            pa.array([convert(row[place]) for row in gathered], type=kind)
            for place, convert, kind in zip(places, converters, types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _gathered(rows: Iterator[Sequence[Any]], places: Sequence[int]) -> Iterator[list[Sequence[Any]]]:
    gathered: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        gathered.append(row)
        size += sum(len(row[place]) for place in places if isinstance(row[place], str | bytes | bytearray))
        if len(gathered) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


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
            return _as_it_is


def _instant(value: dt.datetime | None) -> dt.datetime | None:
    """Spark hands a timestamp over as the local time of this process, without a zone."""
    return None if value is None else value.astimezone(dt.UTC)


def _as_it_is(value: Any) -> Any:
    return value


def _bytes(value: bytearray | bytes | None) -> bytes | None:
    return None if value is None else bytes(value)


def _headers(value: Sequence[Any] | None) -> list[Any] | None:
    if value is None:
        return None
    return [None if one is None else {"key": one[0], "value": _bytes(one[1])} for one in value]


# --- rows --------------------------------------------------------------------------------------------


logger = logging.getLogger("sparklog.spark")
_HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
# A record may have any 64 bits of milliseconds; Spark's timestamps are as many microseconds, and end in the
# year 294247. What lies beyond is shown as that end, rather than as some other time, and with a warning.
_MOST_MS = (2**63 - 1) // 1000


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """The schema in Arrow, exactly as Spark expects it from a Python source."""
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
        """One Arrow batch with as many rows as there are records."""
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
        """The timestamps, as far as Spark has them; the first one that it has not is logged."""
        times_ms = records.timestamp_ms
        beyond = (times_ms > _MOST_MS) | (times_ms < -_MOST_MS)
        if not beyond.any():
            return times_ms
        if not self._has_warned:
            self._has_warned = True
            at = int(beyond.argmax())
            logger.warning(
                "%s-%d: the record at offset %d has the timestamp %d ms, and Spark's timestamps end at %d "
                "ms: this and others beyond read as that end. Is the record's timestamp in microseconds?",
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
    """Rows for each non-empty chunk of records, in order."""
    builder = RowBuilder(topic, partition, include_headers=include_headers)
    for records in decoded:
        if records.num_rows:
            yield builder.rows(records)
