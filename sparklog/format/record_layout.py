"""Rows of Arrow columns to the bytes of records, all rows at once.

    record  = length varint | attributes 00 | timestamp delta varint | offset delta varint
            | key length varint | key | value length varint | value | header count varint | headers
    header  = key length varint | key | value length varint | value

Invariants: the bytes are those that Kafka's own writers produce for the same records.
Not here: where batches begin and end (encode.py); the batch header (record_batch.py).
Concurrency: pure functions.
Sources: FORMAT.md#records; Kafka DefaultRecord.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.errors import InvalidRequestError
from sparklog.format.arrow_bytes import (
    BinaryColumn,
    Inline,
    Int32Array,
    Int64Array,
    UInt8Array,
    binary_column,
    join_rows,
    pack_inline,
)
from sparklog.format.varint import Bytes8, constant, encode_varints, varint_sizes

_NO_HEADERS = constant(0)
_NO_ATTRIBUTES = constant(0)
_NULL_KEY = constant(1)  # the varint of -1


class HeaderBytes(NamedTuple):
    """The encoded headers of every row, without their count."""

    counts: Int64Array
    bytes: BinaryColumn


class RowBytes(NamedTuple):
    """Encoded records of consecutive rows."""

    data: UInt8Array
    start: Int32Array  # of each record, and the end of the last one

    def body(self, start: int, end: int) -> memoryview:
        """The bytes of some records, not copied."""
        return self.data.data[start:end]


class Rows(NamedTuple):
    """What the layout of a row depends on, besides its batch."""

    key: BinaryColumn | None
    value: BinaryColumn | None
    headers: HeaderBytes | None
    rest: Int64Array  # bytes from the key length on

    def slice(self, start: int, end: int) -> "Rows":
        headers = self.headers
        if headers is not None:
            headers = HeaderBytes(headers.counts[start:end], _slice(headers.bytes, start, end))
        return Rows(
            None if self.key is None else _slice(self.key, start, end),
            None if self.value is None else _slice(self.value, start, end),
            headers,
            self.rest[start:end],
        )


def prepare_rows(key: pa.Array | None, value: pa.Array | None, headers: pa.Array | None, count: int) -> Rows:
    """Look at the columns once: lengths, and the encoded headers."""
    key_column = None if key is None or key.null_count == count else binary_column(key)
    value_column = None if value is None or value.null_count == count else binary_column(value)
    header_bytes = None if headers is None or headers.null_count == count else encode_headers(headers)
    rest = np.zeros(count, np.int64)
    for column in (key_column, value_column):
        if column is None:
            rest += 1
        else:
            rest += column.length
            rest += varint_sizes(_coded_length(column))
    if header_bytes is None:
        rest += 1
    else:
        rest += header_bytes.bytes.length
        rest += varint_sizes(header_bytes.counts)
    return Rows(key_column, value_column, header_bytes, rest)


def lay_out(rows: Rows, timestamp_delta: Int64Array, offset_delta: Int64Array) -> RowBytes:
    """The records of these rows, one after the other."""
    count = len(offset_delta)
    times, offsets = encode_varints(timestamp_delta), encode_varints(offset_delta)
    length = rows.rest + 1
    for piece in (*times, *offsets):
        length += np.asarray(piece.size).astype(np.int64)
    components: list[Bytes8 | BinaryColumn] = [
        *encode_varints(length),
        _NO_ATTRIBUTES,
        *times,
        *offsets,
        *_sized(rows.key),
        *_sized(rows.value),
    ]
    if rows.headers is not None:
        components += [*encode_varints(rows.headers.counts), rows.headers.bytes]
        data, start = join_rows(_columns(components), count)
        return RowBytes(data, start)
    # Without headers, the count 00 that ends a record travels in front of the next one: one column less to
    # copy.
    data, start = join_rows(_columns([_NO_HEADERS, *components]), count, closing=b"\0")
    return RowBytes(data[1:], start)


def encode_headers(headers: pa.Array) -> HeaderBytes:
    """Encode all headers of all rows, and cut them by row."""
    counts = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    entries = headers.flatten()  # respects slices and drops what null lists may hide
    keys, values = entries.flatten()  # respects slices too, and makes the key of a null header null
    if keys.null_count:
        raise InvalidRequestError(
            "RECORD_HEADER_NULL",
            "column headers: found a null header or a header with a null key, expected a string",
            fix="remove null headers, or give them a key",
        )
    components = [*_sized(binary_column(keys)), *_sized(binary_column(values))]
    data, start = join_rows(_columns(components), len(entries))
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    starts = start[ends]
    return HeaderBytes(counts, BinaryColumn(starts[:-1], np.diff(starts), data, None))


def _slice(column: BinaryColumn, start: int, end: int) -> BinaryColumn:
    is_null = None if column.is_null is None else column.is_null[start:end]
    return BinaryColumn(column.start[start:end], column.length[start:end], column.data, is_null)


def _coded_length(column: BinaryColumn) -> Int64Array:
    length = column.length.astype(np.int64)
    if column.is_null is not None:
        length[column.is_null] = -1
    return length


def _sized(column: BinaryColumn | None) -> list[Bytes8 | BinaryColumn]:
    return [_NULL_KEY] if column is None else [*encode_varints(_coded_length(column)), column]


def _columns(components: list[Bytes8 | BinaryColumn]) -> list[Inline | BinaryColumn]:
    columns: list[Inline | BinaryColumn] = []
    short: list[Bytes8] = []
    for component in components:
        if isinstance(component, BinaryColumn):
            columns += [*pack_inline(short), component]
            short = []
        else:
            short.append(component)
    return columns + list(pack_inline(short))
