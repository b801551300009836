"""Records of many partitions to their record batches, in one pass: for a few rows in each of many partitions.

encode.py needs some fifty NumPy calls for one partition, whether it has a thousand rows or one. Here the
calls are for the rows of all partitions together; only the checksum and the compression are per batch.

Invariants: each partition's batches are, byte for byte, those of encode_batches for its rows alone
    (tests/property/test_encode_partitions.py). Special cases (a record that may not fit into a batch) are
    left to encode_batches, which also raises all errors.
Not here: gathering the rows (client/waiting_rows.py), cutting batches (encode.py), files (log/writer.py).
Bounds: MAX_BYTES of keys, values and headers per call; more is left to encode_batches, too.
Concurrency: pure functions; an EncodedPartitions is immutable.
Sources: FORMAT.md#record-batch.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sparklog.format.batch_table import HEADER_DTYPE
from sparklog.format.byte_views import Int64Array
from sparklog.format.codec import BytesLike, Codec
from sparklog.format.encode import (
    Compressor,
    EncodedBatches,
    EncodeOptions,
    RowBytes,
    attributes_of,
    lay_out,
    prepare_rows,
    records_limit,
    split_rows,
    varint_sizes,
)
from sparklog.format.kernels import MAX_RECORD_OVERHEAD
from sparklog.format.record_batch import (
    CRC_START,
    HEADER,
    MAGIC,
    MAX_INT32,
    MAX_OFFSET,
    MIN_BATCH_LENGTH,
    NO_SEQUENCE,
    crc32c,
)
from sparklog.format.schema import RecordColumns

MAX_ROWS = 32 * 1024  # as encode.py's blocks: the columns of intermediate numbers stay in the cache
MAX_BYTES = 8 << 20
# Batches of fewer bytes, on average, are copied into one chunk: writing each costs more than copying it.
_SMALL_BATCH_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPartitions:
    """The batches of consecutive partitions.

    Args:
        batches: of all partitions; their offsets begin at 0 in each.
        first_batch: the first batch of each partition, and the end of the last one's.
    """

    batches: EncodedBatches
    first_batch: Int64Array

    def __len__(self) -> int:
        return len(self.first_batch) - 1

    @property
    def position(self) -> Int64Array:
        """The position of each partition's first batch."""
        return self.batches.position[self.first_batch[:-1]]

    @property
    def size_bytes(self) -> Int64Array:
        """The bytes of each partition."""
        return np.add.reduceat(self.batches.size, self.first_batch[:-1])

    @property
    def record_count(self) -> Int64Array:
        """The records of each partition."""
        return np.add.reduceat(self.batches.batch_record_count, self.first_batch[:-1])

    @property
    def max_timestamp_ms(self) -> Int64Array:
        """The largest timestamp of each partition."""
        return np.maximum.reduceat(self.batches.batch_max_timestamp_ms, self.first_batch[:-1])

    def split(self) -> Iterator[EncodedBatches]:
        """Yield each partition's batches; copies all bytes."""
        data, batches = memoryview(self.batches.to_bytes()), self.batches
        for start, end in zip(self.first_batch[:-1].tolist(), self.first_batch[1:].tolist(), strict=True):
            own = slice(start, end)
            first, size_bytes = int(batches.position[start]), int(batches.size[own].sum())
            yield EncodedBatches(
                data=[data[first : first + size_bytes]],
                size_bytes=size_bytes,
                record_count=int(batches.batch_record_count[own].sum()),
                max_timestamp_ms=int(batches.batch_max_timestamp_ms[own].max()),
                position=batches.position[own] - first,
                size=batches.size[own],
                base_offset=batches.base_offset[own],
                batch_record_count=batches.batch_record_count[own],
                batch_max_timestamp_ms=batches.batch_max_timestamp_ms[own],
            )


def encode_partitions(
    columns: RecordColumns, rows: Int64Array, options: EncodeOptions
) -> EncodedPartitions | None:
    """Encode the rows of several partitions, each with dense offsets, and sequences, from the first on.

    Args:
        columns: the rows of consecutive partitions.
        rows: the number of rows of each partition; at least one.

    Returns: None if encode_batches must encode the partitions one by one: a record may be too large for a
        batch, or the rows are too large for one call.

    Raises:
        InvalidRequestError: an illegal column; perhaps only one partition's rows are.
    Cost: about one copy of keys and values, 150 bytes a row, and 2 us a batch.
    """
    columns = columns.validated()
    assert int(rows.sum()) == columns.num_rows, "the partitions' rows do not add up to the columns' rows"
    assert (rows > 0).all(), "a partition has no rows"
    prepared = prepare_rows(columns.key, columns.value, columns.headers, columns.num_rows)
    largest = int(prepared.rest.max(initial=0)) + MAX_RECORD_OVERHEAD + HEADER.size
    if not len(rows) or largest > options.max_message_bytes or int(prepared.rest.sum()) > MAX_BYTES:
        return None
    first_row = _bounds(rows)
    times = columns.timestamp_ms
    bounds, first_batch = _split(prepared.rest, times, first_row, options)
    start, count = bounds[:-1], np.diff(bounds)
    first_times = times[start]
    records = lay_out(
        prepared,
        times - np.repeat(first_times, count),
        np.arange(len(times)) - np.repeat(start, count),
    )
    bodies, codecs = _bodies(records, bounds, first_batch, options)
    headers = np.zeros(len(count), HEADER_DTYPE)
    headers["base_offset"] = start - np.repeat(first_row[:-1], np.diff(first_batch))
    headers["attributes"] = codecs
    headers["last_offset_delta"] = count - 1
    headers["first_timestamp_ms"] = first_times
    headers["max_timestamp_ms"] = np.maximum.reduceat(times, start)
    headers["record_count"] = count
    return EncodedPartitions(batches=_joined(headers, bodies, options), first_batch=first_batch)


def _bounds(sizes: Int64Array) -> Int64Array:
    """Return the start of each, and the end of the last one."""
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def _split(
    rest: Int64Array, timestamp_ms: Int64Array, first_row: Int64Array, options: EncodeOptions
) -> tuple[Int64Array, Int64Array]:
    """As encode.split_rows for each partition: the starts of batches, and each partition's first batch."""
    start, count, limit = first_row[:-1], np.diff(first_row), records_limit(options)
    newest, oldest = np.maximum.reduceat(timestamp_ms, start), np.minimum.reduceat(timestamp_ms, start)
    span = newest.view(np.uint64) - oldest.view(np.uint64)  # modulo 2^64, so correct even if int64 overflows
    is_wide = span > np.uint64(MAX_OFFSET)
    time_bytes = varint_sizes(np.where(is_wide, MAX_OFFSET, span.view(np.int64)))
    offset_bytes = varint_sizes(np.minimum(count, limit))
    length_bytes = varint_sizes(np.maximum.reduceat(rest, start) + MAX_RECORD_OVERHEAD)
    size = np.add.reduceat(rest, start) + count * (length_bytes + 1 + time_bytes + offset_bytes)
    several = np.flatnonzero(size > limit)
    if not len(several):
        return first_row, np.arange(len(first_row))
    batches = np.ones(len(count), np.int64)
    inner: list[Int64Array] = []
    for partition in several.tolist():
        own = slice(int(first_row[partition]), int(first_row[partition + 1]))
        found = split_rows(rest[own], timestamp_ms[own], options)
        inner.append(found[1:-1] + own.start)
        batches[partition] = len(found) - 1
    return np.sort(np.concatenate([first_row, *inner])), _bounds(batches)


def _bodies(
    records: RowBytes, bounds: Int64Array, first_batch: Int64Array, options: EncodeOptions
) -> tuple[list[BytesLike], Int64Array]:
    """Return each batch's body, and its attributes."""
    cuts = records.start[bounds].tolist()
    bodies: list[BytesLike] = [records.body(start, end) for start, end in itertools.pairwise(cuts)]
    if options.codec is Codec.NONE:
        return bodies, np.full(len(bodies), attributes_of(Codec.NONE, options))
    attributes = np.empty(len(bodies), np.int64)
    firsts = set(first_batch.tolist())
    compressor = Compressor(options)
    for batch, body in enumerate(bodies):
        if batch in firsts:
            compressor = Compressor(options)  # it learns from the batches of one partition only
        bodies[batch], codec = compressor.compress(body)
        attributes[batch] = attributes_of(codec, options)
    return bodies, attributes


def _joined(
    headers: np.ndarray[tuple[int, ...], np.dtype[np.void]],
    bodies: Sequence[BytesLike],
    options: EncodeOptions,
) -> EncodedBatches:
    """Return the batches with the header fields that are equal in all, or follow from the bodies."""
    body_bytes = np.fromiter(map(len, bodies), np.int64, len(bodies))
    headers["batch_length"] = MIN_BATCH_LENGTH + body_bytes
    headers["partition_leader_epoch"] = options.partition_leader_epoch
    headers["magic"] = MAGIC
    headers["producer_id"] = options.producer_id
    headers["producer_epoch"] = options.producer_epoch
    offset = headers["base_offset"].astype(np.int64)
    headers["base_sequence"] = (
        NO_SEQUENCE
        if options.base_sequence == NO_SEQUENCE
        else (options.base_sequence + offset) % (MAX_INT32 + 1)
    )
    covered = memoryview(headers.tobytes())
    starts = range(0, len(covered), HEADER.size)
    headers["crc"] = [
        crc32c(body, crc32c(covered[start + CRC_START : start + HEADER.size]))
        for start, body in zip(starts, bodies, strict=True)
    ]
    packed = memoryview(headers.tobytes())
    data: list[BytesLike] = [
        chunk
        for start, body in zip(starts, bodies, strict=True)
        for chunk in (packed[start : start + HEADER.size], body)
    ]
    size = body_bytes + HEADER.size
    size_bytes = int(size.sum())
    if size_bytes < _SMALL_BATCH_BYTES * len(bodies):
        data = [b"".join(data)]
    count, newest = headers["record_count"].astype(np.int64), headers["max_timestamp_ms"].astype(np.int64)
    return EncodedBatches(
        data=data,
        size_bytes=size_bytes,
        record_count=int(count.sum()),
        max_timestamp_ms=int(newest.max()),
        position=_bounds(size)[:-1],
        size=size,
        base_offset=offset,
        batch_record_count=count,
        batch_max_timestamp_ms=newest,
    )
