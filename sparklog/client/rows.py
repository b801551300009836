"""Rows to append: validates the caller's Arrow columns, and converts them for the encoder.

Columns (at least one of key and value): key and value (string or binary), headers (list of
    key and value), partition (integer), timestamp (timestamp, or int64 milliseconds), topic (string).
Invariants: after `normalise_rows` key and value are binary, partition is int64, timestamps are
    int64 milliseconds with no gaps, headers are list<struct<key, value>>.
Not here: choosing partitions (waiting_rows.py), encoding (format).
"""

import dataclasses
import difflib
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import InvalidRequestError
from sparklog.format.byte_views import ByteViews
from sparklog.format.schema import HEADERS_TYPE, as_binary, as_headers
from sparklog.log.config import TimestampMode, TopicConfig

_NOW = -1  # in place of null
_TICKS_OF_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
COLUMNS = ("key", "value", "headers", "partition", "timestamp", "topic")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Normalised columns of equal length; None where the caller gave none."""

    key: pa.Array | None
    value: pa.Array | None
    headers: pa.Array | None
    partition: pa.Array | None
    topic: pa.Array | None
    timestamp_ms: npt.NDArray[np.int64]  # -1 (from null): the time of the append

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self.timestamp_ms.size)

    def take(self, rows: npt.NDArray[np.int64]) -> "Rows":
        """Return these rows, copied."""
        index = pa.array(rows)
        return Rows(
            key=None if self.key is None else self.key.take(index),
            value=None if self.value is None else self.value.take(index),
            headers=None if self.headers is None else self.headers.take(index),
            partition=None if self.partition is None else self.partition.take(index),
            topic=None if self.topic is None else self.topic.take(index),
            timestamp_ms=self.timestamp_ms[rows],
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows of a topic that wait to be encoded. Keys and values are still in the caller's buffers."""

    key: ByteViews | None
    value: ByteViews | None
    headers: pa.Array | None
    timestamp_ms: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Rows, timestamp_ms: npt.NDArray[np.int64]) -> Self:
        """Return all of `rows`, with these timestamps."""
        return cls(
            key=None if rows.key is None else ByteViews.of(rows.key),
            value=None if rows.value is None else ByteViews.of(rows.value),
            headers=rows.headers,
            timestamp_ms=timestamp_ms,
        )

    @classmethod
    def joined(cls, pieces: Sequence["Piece"]) -> "Piece":
        """Return the pieces concatenated; a column that no piece has stays None."""
        if len(pieces) == 1:
            return pieces[0]
        return cls(
            key=_joined_views([(piece.key, piece.num_rows) for piece in pieces]),
            value=_joined_views([(piece.value, piece.num_rows) for piece in pieces]),
            headers=_joined_headers([(piece.headers, piece.num_rows) for piece in pieces]),
            timestamp_ms=np.concatenate([piece.timestamp_ms for piece in pieces]),
        )

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self.timestamp_ms.size)

    @property
    def data_bytes(self) -> int:
        """The approximate bytes of the rows' keys, values, headers and timestamps."""
        views = sum(int(column.length.sum()) for column in (self.key, self.value) if column is not None)
        headers = 0 if self.headers is None else int(self.headers.nbytes)
        return int(self.timestamp_ms.nbytes) + views + headers

    def row_bytes(self) -> npt.NDArray[np.int64]:
        """Return the approximate bytes of each row; their sum is `data_bytes`, but for rounding."""
        headers = 0 if self.headers is None else int(self.headers.nbytes) // max(1, self.num_rows)
        sizes = np.full(self.num_rows, self.timestamp_ms.itemsize + headers, np.int64)
        for column in (self.key, self.value):
            if column is not None:
                sizes += column.length
        return sizes

    def slice(self, start: int, end: int) -> "Piece":
        """Return the rows of [start, end)."""
        return Piece(
            key=None if self.key is None else self.key.slice(start, end),
            value=None if self.value is None else self.value.slice(start, end),
            headers=None if self.headers is None else self.headers.slice(start, end - start),
            timestamp_ms=self.timestamp_ms[start:end],
        )

    def take(self, rows: npt.NDArray[np.int64]) -> "Piece":
        """Return these rows; the bytes of keys and values are not copied."""
        return Piece(
            key=None if self.key is None else self.key.take(rows),
            value=None if self.value is None else self.value.take(rows),
            headers=None if self.headers is None else self.headers.take(pa.array(rows)),
            timestamp_ms=self.timestamp_ms[rows],
        )


def normalise_rows(arrow_batch: pa.RecordBatch) -> Rows:
    """Check names and types, and convert the columns for the encoder.

    Raises:
        InvalidRequestError: an unknown column, a wrong type, or neither key nor value.
    """
    names = arrow_batch.schema.names
    _validate_names(names)

    def column(name: str) -> pa.Array | None:
        if name not in names:
            return None
        found = arrow_batch.column(names.index(name))
        return None if pa.types.is_null(found.type) else found

    return Rows(
        key=_binary("key", column("key")),
        value=_binary("value", column("value")),
        headers=_headers(column("headers")),
        partition=_partition(column("partition")),
        topic=_cast("topic", column("topic"), pa.string()),
        timestamp_ms=_timestamps(column("timestamp"), arrow_batch.num_rows),
    )


def validate_rows(rows: object) -> None:
    """Raise unless `rows` is an Arrow table or record batch."""
    if not isinstance(rows, pa.Table | pa.RecordBatch):
        raise InvalidRequestError(
            "INVALID_ROWS",
            f"found rows of type {type(rows).__name__}, expected pyarrow.Table or pyarrow.RecordBatch",
            fix='pass an Arrow table, for instance pyarrow.table({"value": ["a", "b"]})',
        )


def with_partition(rows: pa.Table | pa.RecordBatch, partition: int) -> pa.Table:
    """Return the rows with this number in the partition column."""
    if isinstance(partition, bool) or not isinstance(partition, int | np.integer):
        raise InvalidRequestError(
            "INVALID_ROWS",
            f"found partition {partition!r} of type {type(partition).__name__}, expected an integer",
            fix="give the partition's number",
        )
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    if "partition" in table.column_names:
        table = table.drop_columns(["partition"])
    return table.append_column("partition", pa.repeat(pa.scalar(partition, pa.int64()), table.num_rows))


def validate_timestamps(timestamp_ms: npt.NDArray[np.int64], config: TopicConfig, now_ms: int) -> None:
    """Refuse CreateTime timestamps outside the range that the topic's settings allow."""
    if config.message_timestamp_type == TimestampMode.LOG_APPEND_TIME or timestamp_ms.size == 0:
        return
    newest = int(timestamp_ms.max())
    oldest = int(timestamp_ms.min())
    latest_allowed = now_ms + config.message_timestamp_after_max_ms
    earliest_allowed = now_ms - config.message_timestamp_before_max_ms
    if newest > latest_allowed:
        row, bound, key = int(timestamp_ms.argmax()), f"at most {latest_allowed}", "after"
    elif oldest < earliest_allowed:
        row, bound, key = int(timestamp_ms.argmin()), f"at least {earliest_allowed}", "before"
    else:
        return
    raise InvalidRequestError(
        "TIMESTAMP_OUT_OF_RANGE",
        f"row {row}: found timestamp {int(timestamp_ms[row])} ms, expected {bound}",
        fix=f"correct the timestamps, or raise the topic's message.timestamp.{key}.max.ms",
    )


def validate_keys(key: pa.Array | None, rows: int, config: TopicConfig) -> None:
    """Refuse records without a key in a compacted topic: compaction works by key."""
    if "compact" not in config.cleanup_policy or rows == 0 or (key is not None and not key.null_count):
        return
    row = 0 if key is None else pc.index(key.is_null(), True).as_py()
    raise InvalidRequestError(
        "INVALID_ROWS",
        f"row {row}: found no key, expected one, since the topic is compacted (cleanup.policy "
        f"{','.join(config.cleanup_policy)})",
        fix="give every record of a compacted topic a key",
    )


def _joined_views(columns: Sequence[tuple[ByteViews | None, int]]) -> ByteViews | None:
    if all(column is None for column, _ in columns):
        return None
    return ByteViews.concat([ByteViews.nulls(rows) if column is None else column for column, rows in columns])


def _joined_headers(columns: Sequence[tuple[pa.Array | None, int]]) -> pa.Array | None:
    if all(column is None for column, _ in columns):
        return None
    return pa.concat_arrays(
        [pa.nulls(rows, HEADERS_TYPE) if column is None else column for column, rows in columns]
    )


def _validate_names(names: list[str]) -> None:
    for name in names:
        if name not in COLUMNS or names.count(name) > 1:
            near = difflib.get_close_matches(name, COLUMNS, n=1)
            unknown = name not in COLUMNS
            raise InvalidRequestError(
                "INVALID_ROWS",
                f"found {'unknown' if unknown else 'duplicate'} column {name!r}, "
                f"expected some of {', '.join(COLUMNS)}",
                fix=f"rename it to {near[0]!r}"
                if near and unknown
                else "select only those columns, once each",
            )
    if "key" not in names and "value" not in names:
        raise InvalidRequestError(
            "INVALID_ROWS",
            f"found columns {names}, expected key or value among them",
            fix="give at least a value column",
        )


def _wrong_type(name: str, found: pa.Array, expected: str, cause: str = "") -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_ROWS",
        f"column {name!r}: found type {found.type}, expected {expected}{cause and ': '}{cause}",
        fix=f"cast {name!r} to {expected}",
    )


def _cast(name: str, found: pa.Array | None, wanted: pa.DataType) -> pa.Array | None:
    if found is None or found.type == wanted:
        return found
    try:
        return found.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise _wrong_type(name, found, str(wanted), str(error)) from None


def _binary(name: str, found: pa.Array | None) -> pa.Array | None:
    return None if found is None else as_binary(found, name)


def _headers(found: pa.Array | None) -> pa.Array | None:
    return None if found is None else as_headers(found)


def _partition(found: pa.Array | None) -> pa.Array | None:
    if found is None:
        return None
    if not pa.types.is_integer(found.type):
        raise _wrong_type("partition", found, "int")
    return _cast("partition", found, pa.int64())


def _timestamps(found: pa.Array | None, rows: int) -> npt.NDArray[np.int64]:
    if found is None:
        return np.full(rows, _NOW, dtype=np.int64)
    if pa.types.is_timestamp(found.type):
        wanted = pa.timestamp("ms", found.type.tz)
        if found.type.unit == "s":  # raises if it overflows milliseconds
            found = _cast("timestamp", found, wanted)
            assert found is not None
        _refuse_negative(found.cast(pa.int64()), found.type.unit)
        # Casting to a coarser unit truncates, as Spark and Kafka do.
        found = pc.cast(found, wanted, safe=False).cast(pa.int64())
    elif not pa.types.is_integer(found.type):
        raise _wrong_type("timestamp", found, "timestamp or int64 milliseconds")
    whole = _cast("timestamp", found, pa.int64())
    assert whole is not None, "found is not"
    _refuse_negative(whole, "ms")
    numbers: npt.NDArray[np.int64] = whole.fill_null(_NOW).to_numpy(zero_copy_only=False)
    return numbers


def _refuse_negative(times: pa.Array, unit: str) -> None:
    """Refuse times before 1970, as Kafka's producers do, fractions of a millisecond included."""
    oldest = pc.min(times).as_py()
    if oldest is None or oldest >= 0:
        return
    row = pc.index(pc.less(times, 0), True).as_py()
    found_ms = times[row].as_py() // _TICKS_OF_MS[unit]
    raise InvalidRequestError(
        "INVALID_ROWS",
        f"row {row}: found timestamp {found_ms} ms, expected 0 or more, or null",
        fix="write null for the time of the append (-1 is how a record without a timestamp reads), and times "
        "before 1970 into the value or a header, as for Kafka",
    )
