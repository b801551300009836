"""Rows as Arrow batches, should a Spark hand them to a streaming sink one at a time.

Since 4.1 Spark promises Arrow batches; 4.0.5 does not, and hands them over all the same (data_source_api.py).
Invariants: the rows' order; the values are those that a Spark with Arrow batches hands over. But for one hour
a year: Spark makes a timestamp a local time without a zone, which in the hour that comes twice is the first.
Not here: what the columns may be (columns.py).
Memory: BATCH_ROWS rows at a time, or fewer: a batch ends when its keys and values reach BATCH_BYTES.
Sources: pyspark.sql.datasource.DataSourceStreamWriter; Spark's ArrowConverters for the types.
"""

import datetime as dt
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

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
