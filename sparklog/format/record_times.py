"""Offsets and timestamps of one batch's records: their keys and values stay where they are.

Who looks for a time reads a whole batch for the sake of one record. The columns of keys and values, and the
places of all fields, were most of what that took.
Invariants: what is told is what decode_records tells of the same batch, errors included.
Memory: 25 bytes a record; where compaction has removed some, some 90.
Concurrency: pure functions.
Sources: FORMAT.md#records; benchmarks/README.md (Requests for what was made before).
"""

import numpy as np

from sparklog.format import kernels
from sparklog.format.batch_table import scan_batches
from sparklog.format.byte_views import Int64Array
from sparklog.format.codec import DEFAULT_MAX_DECOMPRESSED_BYTES, BytesLike, decompress
from sparklog.format.decode import parse_bodies, stored_timestamps
from sparklog.format.record_batch import HEADER, BatchHeader
from sparklog.format.records import MIN_RECORD_BYTES
from sparklog.format.schema import TimestampType

Times = tuple[Int64Array, Int64Array]


def record_times(
    batch: BytesLike,
    header: BatchHeader,
    *,
    where: str,
    position: int = 0,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Times:
    """Offsets, as they are stored, and timestamps in ms since 1970, of the records of one batch.

    Args:
        header: the one that `batch` begins with.
        where, position, max_decompressed_bytes: as decode_records.

    Raises:
        CorruptLogError: CORRUPT_BATCH, BATCH_TOO_LARGE.
    """
    table = scan_batches(batch, where=where, position=position)
    if not header.record_count:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if header.record_count == header.last_offset_delta + 1:
        found = _times_of_whole(batch, header, f"{where}@{position}", max_decompressed_bytes)
        if found is not None:
            return found
    parsed = parse_bodies(
        batch, table, where=where, position=position, max_decompressed_bytes=max_decompressed_bytes
    )
    return header.base_offset + parsed.fields.offset_delta, stored_timestamps(parsed, table)


def _times_of_whole(batch: BytesLike, header: BatchHeader, where: str, max_bytes: int) -> Times | None:
    """None: something is wrong with it, which is not for us to say."""
    packed = memoryview(batch).cast("B")[HEADER.size : header.size]
    body = decompress(header.codec, packed, max_bytes=max_bytes, where=where)
    count = header.record_count
    if count * MIN_RECORD_BYTES > len(body):  # a claim, for which nothing is allocated
        return None
    right, stopped, deltas, _ = kernels.inspect_records(np.frombuffer(body, np.uint8), count)
    if right < count or stopped < len(body):
        return None
    times = deltas + header.first_timestamp_ms
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        times[:] = header.max_timestamp_ms
    if np.any(times > header.max_timestamp_ms):
        return None
    return header.base_offset + np.arange(count), times
