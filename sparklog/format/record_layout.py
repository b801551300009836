"""Rows of Arrow columns to the bytes of records (records.py shows their layout), all rows at once.

Invariants: the bytes are those that Kafka's own writers produce for the same records.
Not here: where batches begin and end (encode.py); the batch header (record_batch.py).
Concurrency: pure functions.
Sources: FORMAT.md#records; Kafka DefaultRecord.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.errors import InvalidRequestError
from sparklog.format import kernels
from sparklog.format.byte_views import ByteViews, Int32Array, Int64Array, UInt8Array


class HeaderBytes(NamedTuple):
    """The encoded headers of every row, without their count."""

    counts: Int64Array
    bytes: ByteViews


class RowBytes(NamedTuple):
    """Encoded records of consecutive rows."""

    data: UInt8Array
    start: Int32Array  # of each record, and the end of the last one

    def body(self, start: int, end: int) -> memoryview:
        """The bytes of some records, not copied."""
        return self.data.data[start:end]


class Rows(NamedTuple):
    """What the layout of a row depends on, besides its batch."""

    key: ByteViews | None
    value: ByteViews | None
    headers: HeaderBytes | None
    rest: Int64Array  # bytes from the key length on

    def slice(self, start: int, end: int) -> "Rows":
        headers = self.headers
        if headers is not None:
            headers = HeaderBytes(headers.counts[start:end], headers.bytes.slice(start, end))
        return Rows(
            None if self.key is None else self.key.slice(start, end),
            None if self.value is None else self.value.slice(start, end),
            headers,
            self.rest[start:end],
        )


def prepare_rows(
    key: pa.Array | ByteViews | None, value: pa.Array | ByteViews | None, headers: pa.Array | None, count: int
) -> Rows:
    """Look at the columns once: lengths, and the encoded headers."""
    key_column, value_column = _views(key), _views(value)
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
    headers = rows.headers
    columns = (rows.key, rows.value, None if headers is None else headers.bytes)
    counts = None if headers is None else headers.counts
    return RowBytes(*kernels.lay_out(timestamp_delta, offset_delta, rows.rest, columns, counts))


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
    key, value = ByteViews.of(keys), ByteViews.of(values)
    data, start = kernels.lay_out_headers(key, value, int(key.length.sum() + value.length.sum()))
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    starts = start[ends]
    return HeaderBytes(counts, ByteViews.cut(data, starts))


def _views(column: pa.Array | ByteViews | None) -> ByteViews | None:
    if column is None or (not isinstance(column, ByteViews) and column.null_count == len(column)):
        return None
    views = column if isinstance(column, ByteViews) else ByteViews.of(column)
    return None if views.all_null() else views


def _coded_length(column: ByteViews) -> Int64Array:
    length = column.length
    if column.is_null is not None:
        length[column.is_null] = -1
    return length


def varint_sizes(values: Int64Array) -> Int64Array:
    """Bytes of each value's zigzag varint."""
    coded = ((values << 1) ^ (values >> 63)).view(np.uint64)
    sizes = np.ones(len(coded), np.int64)
    top = int(coded.max()) if len(coded) else 0
    for bits in range(7, 64, 7):
        if top >> bits == 0:
            break
        sizes += coded >= np.uint64(1 << bits)
    return sizes
