"""Records in Arrow columns to Kafka record batches, without a loop over records.

Invariants: records keep their order; every batch holds at least one record and at most max_message_bytes,
    compressed; offsets in a batch are dense; nothing is written, and no state is kept.
Not here: rows of many partitions (encode_partitions.py); choosing a row's partition; assigning offsets
    (base_offset is given); files.
Concurrency: pure functions.
Sources: FORMAT.md#record-batch; Kafka MemoryRecordsBuilder, LogValidator.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import InvalidRequestError
from sparklog.format import kernels
from sparklog.format.byte_views import ByteViews, Int32Array, Int64Array, UInt8Array
from sparklog.format.codec import DEFAULT_MAX_DECOMPRESSED_BYTES, BytesLike, Codec, compress
from sparklog.format.kernels import MAX_RECORD_OVERHEAD
from sparklog.format.record_batch import (
    HEADER,
    MAX_INT32,
    MAX_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    encode_header,
)
from sparklog.format.schema import RecordColumns, TimestampType

# --- record layout -----------------------------------------------------------------------------------
#
# Rows of Arrow columns to the bytes of records (records.py has their layout), all rows in one pass.
#
# Invariants: the bytes are those that Kafka's own writers produce for the same records.
# Not here: the batch header (record_batch.py).
# Concurrency: pure functions.
# Sources: FORMAT.md#records; Kafka DefaultRecord.


class HeaderBytes(NamedTuple):
    """The encoded headers of every row, without their count."""

    counts: Int64Array
    bytes: ByteViews


class RowBytes(NamedTuple):
    """Encoded records of consecutive rows."""

    data: UInt8Array
    start: Int32Array  # of each record, and the end of the last one

    def body(self, start: int, end: int) -> memoryview:
        """Return the bytes of some records, not copied."""
        return self.data.data[start:end]


class Rows(NamedTuple):
    """The inputs of a row's layout that do not depend on its batch."""

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
    """Compute lengths and encoded headers, in one pass over the columns."""
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
    """Encode these rows as consecutive records."""
    headers = rows.headers
    columns = (rows.key, rows.value, None if headers is None else headers.bytes)
    counts = None if headers is None else headers.counts
    return RowBytes(*kernels.lay_out(timestamp_delta, offset_delta, rows.rest, columns, counts))


def encode_headers(headers: pa.Array) -> HeaderBytes:
    """Encode all headers of all rows, and cut them by row."""
    counts = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    entries = headers.flatten()  # respects slices and drops values hidden by null lists
    keys, values = entries.flatten()  # respects slices, too, and makes the key of a null header null
    if keys.null_count:
        raise InvalidRequestError(
            "RECORD_HEADER_NULL",
            "column headers: found a null header or a header with a null key, expected a string",
            fix="Remove null headers, or give them a key",
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
    """Return the size of each value's zigzag varint."""
    coded = ((values << 1) ^ (values >> 63)).view(np.uint64)
    sizes = np.ones(len(coded), np.int64)
    top = int(coded.max()) if len(coded) else 0
    for bits in range(7, 64, 7):
        if top >> bits == 0:
            break
        sizes += coded >= np.uint64(1 << bits)
    return sizes


# --- encoded batches ---------------------------------------------------------------------------------
#
# Encoded record batches, as chunks to write and as a table for the index.
#
# Invariants: the concatenated chunks are whole batches; the table's rows are those batches.
# Concurrency: EncodedBatches is immutable; a BatchList belongs to one encoder.
# Sources: FORMAT.md#record-batch.


class EncodedBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Record batches, and the index writer's data of each.

    Args:
        data: chunks to write in order; views that stay valid while they are referenced.
        position: of each batch, from the start of `data`.
        base_offset: of each batch, as stored (from the base_offset given to the encoder).
    """

    data: list[BytesLike]
    size_bytes: int
    record_count: int
    max_timestamp_ms: int
    position: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    base_offset: npt.NDArray[np.int64]
    batch_record_count: npt.NDArray[np.int64]
    batch_max_timestamp_ms: npt.NDArray[np.int64]

    @property
    def batch_count(self) -> int:
        return len(self.position)

    def to_bytes(self) -> bytes:
        """Copy all chunks into one object."""
        return b"".join(self.data)


def join_batches(parts: Sequence[EncodedBatches]) -> EncodedBatches:
    """Concatenate batches without copying their bytes."""
    if len(parts) == 1:
        return parts[0]
    sizes = [part.size_bytes for part in parts]
    starts = np.cumsum([0, *sizes[:-1]])
    return EncodedBatches(
        data=[chunk for part in parts for chunk in part.data],
        size_bytes=sum(sizes),
        record_count=sum(part.record_count for part in parts),
        max_timestamp_ms=max(part.max_timestamp_ms for part in parts),
        position=np.concatenate([part.position + start for part, start in zip(parts, starts, strict=True)]),
        size=np.concatenate([part.size for part in parts]),
        base_offset=np.concatenate([part.base_offset for part in parts]),
        batch_record_count=np.concatenate([part.batch_record_count for part in parts]),
        batch_max_timestamp_ms=np.concatenate([part.batch_max_timestamp_ms for part in parts]),
    )


def parts_within(batches: EncodedBatches, most_offsets: int) -> Iterator[EncodedBatches]:
    """Split the batches into parts that span at most `most_offsets`; a batch is never split."""
    end_offset = batches.base_offset + batches.batch_record_count
    if int(end_offset[-1] - batches.base_offset[0]) <= most_offsets:
        yield batches
        return
    data = memoryview(batches.to_bytes())  # rare: compaction has removed nearly all records between
    start = 0
    while start < batches.batch_count:
        near = int(batches.base_offset[start]) + most_offsets
        stop = max(start + 1, int(np.searchsorted(end_offset, near, side="right")))
        rows = slice(start, stop)
        first, last = int(batches.position[start]), int(batches.position[stop - 1] + batches.size[stop - 1])
        yield EncodedBatches(
            data=[data[first:last]],
            size_bytes=last - first,
            record_count=int(batches.batch_record_count[rows].sum()),
            max_timestamp_ms=int(batches.batch_max_timestamp_ms[rows].max()),
            position=batches.position[rows] - first,
            size=batches.size[rows],
            base_offset=batches.base_offset[rows],
            batch_record_count=batches.batch_record_count[rows],
            batch_max_timestamp_ms=batches.batch_max_timestamp_ms[rows],
        )
        start = stop


@dataclass(slots=True)
class BatchList:
    """Collects batches into one EncodedBatches."""

    data: list[BytesLike] = field(default_factory=list)
    size_bytes: int = 0
    batches: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def add(self, header: BatchHeader, body: BytesLike) -> None:
        size = HEADER.size + len(body)
        self.batches.append(
            (self.size_bytes, size, header.base_offset, header.record_count, header.max_timestamp_ms)
        )
        self.data += (encode_header(header, body), body)
        self.size_bytes += size

    def finished(self) -> EncodedBatches:
        columns = np.array(self.batches, np.int64).reshape(len(self.batches), 5).T.copy()
        return EncodedBatches(
            data=self.data,
            size_bytes=self.size_bytes,
            record_count=int(columns[3].sum()),
            max_timestamp_ms=int(columns[4].max()) if self.batches else -1,
            position=columns[0],
            size=columns[1],
            base_offset=columns[2],
            batch_record_count=columns[3],
            batch_max_timestamp_ms=columns[4],
        )


# --- encode ------------------------------------------------------------------------------------------


__all__ = ["EncodeOptions", "EncodedBatches", "encode_batches"]

KIB, MIB = 1024, 1024 * 1024
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588  # Kafka's max.message.bytes
# Rows are laid out this many at a time, so that the columns of intermediate numbers stay in the CPU cache.
_BLOCK_ROWS = 32 * 1024
_BLOCK_BYTES = 4 * MIB
_LEAST_GAIN = 32
_BATCHES_NOT_TRIED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeOptions:
    """Options of the encoder.

    Args:
        codec, level: compression; a batch that hardly shrinks is stored uncompressed, as readers accept
            either.
        timestamp_type: with LOG_APPEND_TIME readers see a batch's largest timestamp for all of its records.
        max_batch_bytes: target size of a batch, uncompressed. Larger: fewer headers, better compression;
            smaller: finer index entries, less to fetch for one record.
        max_message_bytes: maximum size of a batch, compressed.
        base_sequence: of the first record; continues over all batches, and wraps after 2^31 - 1.
    """

    codec: Codec = Codec.NONE
    level: int | None = None
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    max_batch_bytes: int = 64 * KIB
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    is_transactional: bool = False
    partition_leader_epoch: int = 0


def encode_batches(columns: RecordColumns, options: EncodeOptions, *, base_offset: int = 0) -> EncodedBatches:
    """Encode all rows, in order, with dense offsets from `base_offset` on.

    Raises:
        InvalidRequestError: RECORD_TOO_LARGE names the row; RECORD_COLUMN_* and RECORD_HEADER_NULL the
            column.
    Shape: no rows give no batches.  Cost: about one copy of keys and values, plus 150 bytes a row within a
        block.
    """
    columns = columns.validated()
    count = columns.num_rows
    output = BatchList()
    if count == 0:
        return output.finished()
    if base_offset < 0 or base_offset > MAX_OFFSET - count:
        raise InvalidRequestError(
            "OFFSET_OUT_OF_RANGE",
            f"base_offset: found {base_offset} for {count} records, expected 0 to {MAX_OFFSET - count}",
            fix="Append to another partition",
        )
    rows = prepare_rows(columns.key, columns.value, columns.headers, count)
    bounds = split_rows(rows.rest, columns.timestamp_ms, options)
    compressor = Compressor(options)
    for block in _blocks(bounds, rows.rest):
        _encode_block(rows, columns.timestamp_ms, block, compressor, base_offset, output)
    return output.finished()


def batch_limit(options: EncodeOptions) -> int:
    """Return the maximum uncompressed size of a batch."""
    return min(options.max_batch_bytes, options.max_message_bytes)


def records_limit(options: EncodeOptions) -> int:
    """Return the maximum bytes of a batch's records."""
    return max(1, batch_limit(options) - HEADER.size)


def split_rows(
    rest: npt.NDArray[np.int64], timestamp_ms: npt.NDArray[np.int64], options: EncodeOptions
) -> npt.NDArray[np.int64]:
    """Return the starts of the batches, and the end of the last one.

    Sizes are estimated a few bytes too large, never too small.
    """
    limit = records_limit(options)
    span = int(timestamp_ms.max()) - int(timestamp_ms.min())
    time_bytes = int(varint_sizes(np.array([span]))[0]) if span <= MAX_OFFSET else 10
    offset_bytes = int(varint_sizes(np.array([min(len(rest), limit)]))[0])
    length_bytes = int(varint_sizes(rest.max(keepdims=True) + MAX_RECORD_OVERHEAD)[0])
    ends = np.cumsum(rest + (length_bytes + 1 + time_bytes + offset_bytes))
    bounds, done = [0], 0
    while bounds[-1] < len(ends):
        end = max(int(np.searchsorted(ends, done + limit, side="right")), bounds[-1] + 1)
        bounds.append(end)
        done = int(ends[end - 1])
    return np.array(bounds, np.int64)


def _blocks(bounds: npt.NDArray[np.int64], rest: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Group whole batches into blocks of limited rows and bytes."""
    sizes = np.add.reduceat(rest, bounds[:-1])
    start = 0
    while start < len(sizes):
        end, size = start + 1, int(sizes[start])
        while (
            end < len(sizes)
            and bounds[end + 1] - bounds[start] <= _BLOCK_ROWS
            and size + int(sizes[end]) <= _BLOCK_BYTES
        ):
            size += int(sizes[end])
            end += 1
        yield bounds[start : end + 1]
        start = end


def _encode_block(
    rows: Rows,
    timestamp_ms: npt.NDArray[np.int64],
    bounds: npt.NDArray[np.int64],
    compressor: "Compressor",
    base_offset: int,
    output: BatchList,
) -> None:
    options = compressor.options
    first, last = int(bounds[0]), int(bounds[-1])
    if last - first == 1:
        _check_record(rows, first, options)
    counts = np.diff(bounds)
    times = timestamp_ms[first:last]
    first_times = timestamp_ms[bounds[:-1]]
    max_times = np.maximum.reduceat(times, bounds[:-1] - first)
    records = lay_out(
        rows.slice(first, last),
        times - np.repeat(first_times, counts),
        np.arange(last - first) - np.repeat(bounds[:-1] - first, counts),
    )
    starts = records.start[bounds - first]
    for batch, (start, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        row, count = int(bounds[batch]), int(counts[batch])
        body, codec = compressor.compress(records.body(start, end))
        if HEADER.size + len(body) > options.max_message_bytes:
            if count == 1:
                raise _record_too_large(row, HEADER.size + len(body), options)
            halves = np.array([row, row + count // 2, row + count], np.int64)
            for half in (halves[:2], halves[1:]):
                _encode_block(rows, timestamp_ms, half, compressor, base_offset, output)
            continue
        output.add(
            BatchHeader(
                base_offset=base_offset + row,
                partition_leader_epoch=options.partition_leader_epoch,
                attributes=attributes_of(codec, options),
                last_offset_delta=count - 1,
                first_timestamp_ms=int(first_times[batch]),
                max_timestamp_ms=int(max_times[batch]),
                producer_id=options.producer_id,
                producer_epoch=options.producer_epoch,
                base_sequence=_sequence(options.base_sequence, row),
                record_count=count,
            ),
            body,
        )


def _check_record(rows: Rows, row: int, options: EncodeOptions) -> None:
    """Refuse a record that no compression could make small enough, before it is copied."""
    size = int(rows.rest[row]) + MAX_RECORD_OVERHEAD
    if size > MAX_INT32 - HEADER.size or (
        options.codec is Codec.NONE and int(rows.rest[row]) > options.max_message_bytes
    ):
        raise _record_too_large(row, size + HEADER.size, options)


def _record_too_large(row: int, size: int, options: EncodeOptions) -> InvalidRequestError:
    return InvalidRequestError(
        "RECORD_TOO_LARGE",
        f"row {row}: found a record that needs a batch of {size} bytes, "
        f"expected at most {options.max_message_bytes}",
        fix="Raise max.message.bytes of the topic (Spark's sink: option topic.config.max.message.bytes, for "
        f"topics that it creates), compress (up to {DEFAULT_MAX_DECOMPRESSED_BYTES >> 20} MiB), or store the "
        "payload elsewhere",
    )


class Compressor:
    """Compresses batches where it helps, and tries less often where it does not.

    A batch that shrinks by less than a thirty-second is stored as it is, which saves every reader the
    decompression; then only one of the next four is tried. A batch larger than readers decompress is never
    compressed.
    """

    def __init__(self, options: EncodeOptions) -> None:
        self.options = options
        self._skip = 0

    def compress(self, body: BytesLike) -> tuple[BytesLike, Codec]:
        if self.options.codec is Codec.NONE or len(body) > DEFAULT_MAX_DECOMPRESSED_BYTES:
            return body, Codec.NONE
        room = self.options.max_message_bytes - HEADER.size
        if self._skip and len(body) <= room:
            self._skip -= 1
            return body, Codec.NONE
        smaller = compress(self.options.codec, body, self.options.level)
        pays = len(smaller) <= len(body) - len(body) // _LEAST_GAIN
        self._skip = 0 if pays else _BATCHES_NOT_TRIED
        if pays or len(smaller) <= room < len(body):
            return smaller, self.options.codec
        return body, Codec.NONE


def attributes_of(codec: Codec, options: EncodeOptions) -> int:
    """Return a batch's attributes."""
    return (
        codec.value
        | (TIMESTAMP_TYPE_MASK if options.timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_MASK if options.is_transactional else 0)
    )


def _sequence(base_sequence: int, row: int) -> int:
    return NO_SEQUENCE if base_sequence == NO_SEQUENCE else (base_sequence + row) % (MAX_INT32 + 1)
