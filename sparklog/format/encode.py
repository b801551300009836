"""Records in Arrow columns to Kafka record batches, without a loop over records.

Invariants: records keep their order; every batch holds at least one record and at most what max_message_bytes
    allows after compression; offsets in a batch are dense; nothing is written, and nothing is kept.
Not here: rows of many partitions at once (encode_partitions.py); which partition a row goes to; assigning
    offsets (base_offset is given); files.
Concurrency: pure functions.
Sources: FORMAT.md#record-batch; Kafka MemoryRecordsBuilder, LogValidator.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.errors import InvalidRequestError
from sparklog.format.codec import DEFAULT_MAX_DECOMPRESSED_BYTES, BytesLike, Codec, compress
from sparklog.format.encoded_batches import BatchList, EncodedBatches
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
)
from sparklog.format.record_layout import Rows, lay_out, prepare_rows, varint_sizes
from sparklog.format.schema import RecordColumns, TimestampType

__all__ = ["EncodeOptions", "EncodedBatches", "encode_batches"]

KIB, MIB = 1024, 1024 * 1024
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588  # Kafka's max.message.bytes
# Rows are laid out this many at a time, so that the columns of intermediate numbers stay in the processor's
# cache.
_BLOCK_ROWS = 32 * 1024
_BLOCK_BYTES = 4 * MIB
_LEAST_GAIN = 32
_BATCHES_NOT_TRIED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeOptions:
    """How to make batches.

    Args:
        codec, level: compression; a batch that hardly shrinks is stored uncompressed, as readers expect
            either.
        timestamp_type: with LOG_APPEND_TIME readers see a batch's largest timestamp for all of its records.
        max_batch_bytes: target size of a batch, uncompressed. Larger: fewer headers, better compression;
            smaller: finer index entries, less to fetch for one record.
        max_message_bytes: no batch may be larger than that, after compression.
        base_sequence: of the first record; counts on over all batches, and wraps after 2^31 - 1.
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
            fix="append to another partition",
        )
    rows = prepare_rows(columns.key, columns.value, columns.headers, count)
    bounds = split_rows(rows.rest, columns.timestamp_ms, options)
    compressor = Compressor(options)
    for block in _blocks(bounds, rows.rest):
        _encode_block(rows, columns.timestamp_ms, block, compressor, base_offset, output)
    return output.finished()


def batch_limit(options: EncodeOptions) -> int:
    """The uncompressed size that batches are cut to."""
    return min(options.max_batch_bytes, options.max_message_bytes)


def records_limit(options: EncodeOptions) -> int:
    """The bytes of records that batches are cut to."""
    return max(1, batch_limit(options) - HEADER.size)


def split_rows(
    rest: npt.NDArray[np.int64], timestamp_ms: npt.NDArray[np.int64], options: EncodeOptions
) -> npt.NDArray[np.int64]:
    """Where batches begin, and where the last one ends; sizes are estimated a few bytes too large, never too
    small.
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
    """Refuse a record before it is copied, if no compression could save it."""
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
        fix="raise max.message.bytes of the topic (Spark's sink: option topic.config.max.message.bytes, for "
        f"topics that it creates), compress (up to {DEFAULT_MAX_DECOMPRESSED_BYTES >> 20} MiB), or store the "
        "payload elsewhere",
    )


class Compressor:
    """Compresses batches where it pays, and tries less often where it has not.

    A batch that shrinks by less than a thirty-second is kept as it is, which saves every reader the
    decompression; the next ones are then not even tried, but for one in four. Nor is what no reader would
    decompress again, since it is too large.
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
    """A batch's attributes."""
    return (
        codec.value
        | (TIMESTAMP_TYPE_MASK if options.timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_MASK if options.is_transactional else 0)
    )


def _sequence(base_sequence: int, row: int) -> int:
    return NO_SEQUENCE if base_sequence == NO_SEQUENCE else (base_sequence + row) % (MAX_INT32 + 1)
