"""The columns of records: the encoder's input, and the Arrow types of keys, values and headers.

Invariants: keys and values are 32-bit-offset binary columns; timestamps are integer milliseconds;
    a header is a (key: string, value: binary or null) pair, and keys may repeat, as in Kafka.
Not here: topics, partitions and offsets; filling in missing timestamps (the caller owns the clock).
Concurrency: immutable values.
Sources: FORMAT.md#records; Kafka ProducerRecord, RecordHeaders; Spark's Kafka source schema.
"""

import enum
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import InvalidRequestError
from sparklog.format.byte_views import ByteViews, null_mask

# --- value bytes -------------------------------------------------------------------------------------
#
# The size of the values of an Arrow column whose rows may share them.
#
# A dictionary, or a buffer of views, holds a value once for any number of rows. So a column of a megabyte may
# be gigabytes of records; and beyond 2 GiB the 32-bit offsets of Arrow's cast from views to binary wrap,
# returns other bytes, or memory beyond the column.
#
# Invariants: only numbers are copied.
#
# Concurrency: pure functions.
# Sources: the Arrow columnar format, dictionary-encoded and variable-size binary view layouts.


Rows: TypeAlias = slice | npt.NDArray[np.integer]
_VIEW_WORDS = 4  # of 32 bits; the first one is the size


def value_bytes(column: pa.Array) -> int:
    """Return the bytes of all values, counted once per row; of other types, the bytes of the column."""
    kind = column.type
    if not _may_share(kind):
        return int(column.nbytes)
    if pa.types.is_struct(kind):
        return sum(map(value_bytes, column.flatten()))
    if pa.types.is_map(kind):  # Arrow does not flatten maps
        entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return value_bytes(column.cast(pa.list_(entry)))
    if _is_list(kind):
        return value_bytes(column.flatten())
    rows: Rows
    if pa.types.is_dictionary(kind) and _has_bytes(kind.value_type):
        rows = column.indices.drop_null().to_numpy(zero_copy_only=False)
        return int(_lengths(column.dictionary, rows).sum())
    if holds_views(kind):
        is_null = null_mask(column)
        rows = slice(None) if is_null is None else np.flatnonzero(~is_null)
        return int(_lengths(column, rows).sum())
    return int(column.nbytes)


def holds_views(kind: pa.DataType) -> bool:
    """True if the type is a column of views."""
    return bool(pa.types.is_binary_view(kind) or pa.types.is_string_view(kind))


def _lengths(column: pa.Array, rows: Rows) -> npt.NDArray[np.int64]:
    """Return the bytes of some values. Reads only the requested ones: a dictionary may have many more."""
    kind, first = column.type, column.offset
    if pa.types.is_fixed_size_binary(kind):
        return np.full(len(column), kind.byte_width)[rows]
    if not len(column):
        return np.zeros(0, np.int64)
    if holds_views(kind):
        words = np.frombuffer(column.buffers()[1], np.uint32)[_VIEW_WORDS * first :: _VIEW_WORDS]
        return words[: len(column)][rows].astype(np.int64)
    is_large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    offsets = np.frombuffer(column.buffers()[1], "<i8" if is_large else "<i4")[first:]
    start, end = offsets[: len(column)], offsets[1 : len(column) + 1]
    lengths: npt.NDArray[np.int64] = np.subtract(end[rows], start[rows], dtype=np.int64)
    return lengths


def _may_share(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _may_share(kind.key_type) or _may_share(kind.item_type)
    if pa.types.is_struct(kind):
        return any(_may_share(field.type) for field in kind)
    if _is_list(kind):
        return _may_share(kind.value_type)
    return holds_views(kind) or pa.types.is_dictionary(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _has_bytes(kind: pa.DataType) -> bool:
    return (
        holds_views(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


# --- schema ------------------------------------------------------------------------------------------


HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE = pa.list_(HEADER_TYPE)
MAX_COLUMN_BYTES = 2**31 - 1  # the limit of 32-bit offsets


class TimestampType(enum.IntEnum):
    """The origin of the timestamp: the producer, or the log at the append (attributes bit 3)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """The records to encode, one row each, in order.

    Args:
        key, value: binary, large_binary, binary_view, fixed_size_binary or string arrays, or dictionaries
            of those; None = all null. A ChunkedArray is combined (one copy). ByteViews save a copy after
            a selection of rows.
        timestamp_ms: int64, one per record, without missing values.
        headers: list<struct<key: string, value: binary>>, or None; a null list means no headers.
    """

    key: pa.Array | ByteViews | None
    value: pa.Array | ByteViews | None
    timestamp_ms: npt.NDArray[np.int64]
    headers: pa.Array | None = None

    @property
    def num_rows(self) -> int:
        return len(self.timestamp_ms)

    def validated(self) -> "RecordColumns":
        """Return the records with every column in the encoder's types, or raise InvalidRequestError."""
        rows = self.num_rows
        timestamp_ms = np.ascontiguousarray(self.timestamp_ms)
        if timestamp_ms.ndim != 1 or timestamp_ms.dtype != np.int64:
            raise InvalidRequestError(
                "RECORD_COLUMN_TYPE",
                f"column timestamp_ms: found {timestamp_ms.dtype}[{timestamp_ms.ndim}], expected int64[1]",
                fix="Pass one int64 of milliseconds per record",
            )
        columns = RecordColumns(
            key=_bytes_column(self.key, "key"),
            value=_bytes_column(self.value, "value"),
            timestamp_ms=timestamp_ms,
            headers=None if self.headers is None else as_headers(self.headers),
        )
        for name in ("key", "value", "headers"):
            column = getattr(columns, name)
            found = column.rows if isinstance(column, ByteViews) else rows if column is None else len(column)
            if found != rows:
                raise InvalidRequestError(
                    "RECORD_COLUMN_LENGTH",
                    f"column {name}: found {found} rows, expected {rows}",
                    fix="Pass columns of equal length",
                )
        return columns


def _bytes_column(
    column: pa.Array | pa.ChunkedArray | ByteViews | None, name: str
) -> pa.Array | ByteViews | None:
    return column if column is None or isinstance(column, ByteViews) else as_binary(column, name)


def as_binary(column: pa.Array | pa.ChunkedArray, name: str) -> pa.Array:
    """View or cast one column as pa.binary(); InvalidRequestError for other types."""
    if isinstance(column, pa.ChunkedArray):
        column = _combined(column, name)
    kind = column.type
    if pa.types.is_binary(kind):
        return column
    is_view, is_dictionary = holds_views(kind), pa.types.is_dictionary(kind)
    if (is_view or is_dictionary) and value_bytes(column) > MAX_COLUMN_BYTES:
        raise _too_large(name)
    if is_dictionary:
        if holds_views(kind.value_type):  # Arrow (26.0) does not decode these
            column = pa.DictionaryArray.from_arrays(column.indices, as_binary(column.dictionary, name))
        return as_binary(column.dictionary_decode(), name)
    if pa.types.is_string(kind):
        return column.view(pa.binary())
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.binary())
    if (
        is_view
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        try:
            return column.cast(pa.binary())
        except pa.ArrowInvalid as error:
            raise _too_large(name) from error
    raise InvalidRequestError(
        "RECORD_COLUMN_TYPE",
        f"column {name}: found {kind}, expected binary or string",
        fix=f"Cast {name} to binary first",
    )


def as_headers(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Cast a column to HEADERS_TYPE; InvalidRequestError for other types, or too many bytes."""
    if isinstance(column, pa.ChunkedArray):
        column = _combined(column, "headers")
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), HEADERS_TYPE)
    if not _holds_headers(kind):
        raise InvalidRequestError(
            "RECORD_COLUMN_TYPE",
            f"column headers: found {kind}, expected list<struct<key: string, value: binary>>",
            fix="Cast headers to array<struct<key: string, value: binary>> first",
        )
    if value_bytes(column) > MAX_COLUMN_BYTES:
        raise _too_large("headers")
    if kind == HEADERS_TYPE:
        return column
    try:
        return column.cast(HEADERS_TYPE)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRequestError(
            "RECORD_COLUMN_TYPE",
            f"column headers: found {kind}, which does not cast to list<struct<key: string, value: binary>>: "
            f"{error}",
            fix="Cast headers to array<struct<key: string, value: binary>> first",
        ) from error


def _holds_headers(kind: pa.DataType) -> bool:
    """True for a map, a list of keys and values, or a list that is always empty.

    Arrow's cast makes a field of another name null, and turns lists of views (26.0) into other lists.
    """
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        entry = kind.value_type
        has_fields = pa.types.is_struct(entry) and sorted(field.name for field in entry) == ["key", "value"]
        return bool(has_fields or pa.types.is_null(entry))
    return bool(pa.types.is_map(kind))


def _combined(column: pa.ChunkedArray, name: str) -> pa.Array:
    try:
        return column.combine_chunks()
    except pa.ArrowInvalid as error:
        raise _too_large(name) from error


def _too_large(name: str) -> InvalidRequestError:
    return InvalidRequestError(
        "RECORD_COLUMN_TOO_LARGE",
        f"column {name}: found more than 2 GiB of bytes, expected less in one call",
        fix="Append smaller tables",
    )
