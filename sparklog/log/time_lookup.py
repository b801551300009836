"""ListOffsets by time: the earliest offset whose record is at or after a time; the largest timestamp.

Timestamps need not ascend (CreateTime): extents and then batches are skipped only if their largest timestamp
is older; within a batch every record is checked. A merged segment has a time index, which gives a start.
Concurrency: any thread; reads only.
Sources: Kafka UnifiedLog.fetchOffsetByTimestamp, LogSegment.findOffsetByTimestamp; KIP-734 (max timestamp).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sparklog.errors import SparklogError
from sparklog.format.batch_table import scan_batches
from sparklog.format.codec import Codec, decompress
from sparklog.format.decode import decode_bodies, record_times
from sparklog.format.record_batch import HEADER, BatchHeader, header_error
from sparklog.log.read_plan import extent_span, plan_read
from sparklog.log.reader import read_ranges
from sparklog.log.segment_file import SegmentFile, SegmentFiles, Span
from sparklog.metadata import NUMBER_COLUMNS, Extent, PartitionState
from sparklog.storage import Store

_MAX_TIMESTAMP = NUMBER_COLUMNS.index("max_timestamp_ms")


def offset_for_time(
    store: Store, state: PartitionState, timestamp_ms: int, *, topic: str | None = None
) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record, by offset, at or after `timestamp_ms`; None if none.

    Args:
        topic: the topic's name, for error messages.

    Cost: no I/O for extents that are older; headers of one extent, usually, and one batch.
    """
    for extent in extents_at_or_after(state, timestamp_ms):
        found = _search_extent(store, topic or state.topic_id, extent, state.log_start_offset, timestamp_ms)
        if found is not None:
            return found
    return None


def extents_at_or_after(state: PartitionState, timestamp_ms: int) -> Iterator[Extent]:
    """Yield the extents that may hold such a record, in the order of their offsets."""
    for first, block in state.extents.column_blocks():
        newest = block.numbers[_MAX_TIMESTAMP]
        candidates = np.flatnonzero((newest >= timestamp_ms) & (block.end_offset > state.log_start_offset))
        for index in candidates.tolist():
            yield state.extents[first + index]


def _search_extent(
    store: Store, topic: str, extent: Extent, log_start: int, timestamp_ms: int
) -> tuple[int, int] | None:
    span = extent_span(topic, extent)
    first = max(log_start, extent.base_offset)
    with SegmentFile.open(store, span) as segment:
        older = segment.older_than(span, timestamp_ms)
        if older is not None:
            first = max(first, older + 1 + extent.offset_delta)
        start, at_start = segment.locate(span, first - extent.offset_delta)
        next_offset = at_start.base_offset if at_start else None
        for position, header in segment.headers(span, start, next_offset):
            if header.max_timestamp_ms < timestamp_ms or header.is_control:
                continue
            data = segment.read_exactly(span, position, header.size)
            offsets, times = record_times(data, header, where=span.where, position=position)
            offsets = offsets + extent.offset_delta
            hits = np.flatnonzero(
                (times >= timestamp_ms) & (offsets >= first) & (offsets < extent.end_offset)
            )
            if hits.size:
                return int(offsets[hits[0]]), int(times[hits[0]])
    return None


# --- the largest timestamp ---------------------------------------------------------------------------


def offset_of_max_timestamp(store: Store, state: PartitionState, topic: str) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record that has the partition's largest timestamp; None: no record.

    Extents know their largest timestamp. The first may begin before the log's start, where its largest may
    lie: what is left of it is read.
    """
    if not len(state.extents):
        return None
    log_start, largest = state.log_start_offset, largest_of_whole_extents(state)
    cut = state.extents[0]
    if cut.base_offset < log_start and (largest is None or cut.max_timestamp_ms > largest):
        ranges = plan_read(store, state, log_start, cut.end_offset, topic=topic)
        for records in read_ranges(store, ranges):
            found = int(np.max(records.timestamp_ms))
            largest = found if largest is None else max(largest, found)
    return None if largest is None else offset_for_time(store, state, largest, topic=topic)


def largest_of_whole_extents(state: PartitionState) -> int | None:
    """The largest timestamp in the extents that begin at the log's start or after it; None: there is none."""
    largest: int | None = None
    for _, block in state.extents.column_blocks():
        whole = block.numbers[_MAX_TIMESTAMP][block.base_offset >= state.log_start_offset]
        if len(whole):
            newest = int(whole.max())
            largest = newest if largest is None else max(largest, newest)
    return largest


# --- times together ----------------------------------------------------------------------------------
#
# Offsets by time of many partitions in one batch, where that is cheap.
#
# ListOffsets for thousands of partitions mostly asks for the first record of a small extent, and the extents
# of one publish share a segment. Opening a file and decoding a small batch for each took 0.7 ms. Here files
# stay open for all, and the batches are decoded together. Of an extent with one record the image knows offset
# and timestamp, unless it was compacted.
# Invariants: the results equal those of `offset_for_time`. Anything large, unusual or damaged is left to it.
# Memory: WINDOW_BYTES of each, and MOST_DECOMPRESSED_BYTES if they are compressed.
# Concurrency: one thread; reads only.


WINDOW_BYTES = 4096
MOST_DECOMPRESSED_BYTES = 64 << 10
Found = tuple[int, int] | None  # offset and timestamp; None: no record is that young


class Wanted(NamedTuple):
    """A partition, and the time to look up."""

    topic: str
    state: PartitionState
    timestamp_ms: int


class _Batch(NamedTuple):
    """The batch that must hold the record."""

    number: int
    data: bytearray
    timestamp_ms: int
    offset_delta: int


def offsets_for_times(store: Store, wanted: Sequence[Wanted]) -> dict[int, Found]:
    """Return (offset, timestamp) of the first record by request index, where the fast path applies."""
    found: dict[int, Found] = {}
    batches: list[_Batch] = []
    with SegmentFiles(store) as files:
        for number, lookup in enumerate(wanted):
            extent = next(extents_at_or_after(lookup.state, lookup.timestamp_ms), None)
            if extent is None:
                found[number] = None
            elif extent.base_offset < lookup.state.log_start_offset:
                continue
            elif extent.record_count == 1 and extent.base_offset >= lookup.state.cleaned.first_dirty_offset:
                found[number] = extent.base_offset, extent.max_timestamp_ms
            elif not store.traits.is_remote:  # where a read is a round trip, this one of 4 KB saves nothing
                data = _first_batch(files, lookup, extent)
                if data is not None:
                    batches.append(_Batch(number, data, lookup.timestamp_ms, extent.offset_delta))
    if batches:
        found |= _decoded(batches)
    return found


def _first_batch(files: SegmentFiles, lookup: Wanted, extent: Extent) -> bytearray | None:
    """Return the first batch that is young enough; None if it is not in the extent's first bytes."""
    span = extent_span(lookup.topic, extent)
    try:
        data = files.open(span).read_exactly(span, span.position, min(span.size, WINDOW_BYTES))
        return _young_batch(data, span, lookup.timestamp_ms)
    except SparklogError:
        return None


def _young_batch(data: bytearray, span: Span, timestamp_ms: int) -> bytearray | None:
    at, next_offset = 0, span.first_offset
    while at + HEADER.size <= len(data):
        header = BatchHeader(*HEADER.unpack_from(data, at))
        if header_error(header, span.where) is not None or header.base_offset != next_offset:
            return None
        end = at + header.size
        if end > len(data) or header.is_control:
            return None
        if header.max_timestamp_ms >= timestamp_ms:
            batch = data[at:end]
            _check_size(header, batch)
            return batch
        at, next_offset = end, header.last_offset + 1
    return None


def _check_size(header: BatchHeader, batch: bytearray) -> None:
    """Reject large batches: a few bytes may become gigabytes, and sixty batches are in memory.

    The bytes decompressed for this check are decompressed again later: some 10 us per batch.

    Raises:
        CorruptLogError: too large for this fast path, which the caller handles.
    """
    if header.codec is not Codec.NONE:
        packed = memoryview(batch)[HEADER.size :]
        decompress(header.codec, packed, max_bytes=MOST_DECOMPRESSED_BYTES, where="")


def _decoded(batches: Sequence[_Batch]) -> dict[int, Found]:
    """Decode the batches; return the records of those that hold what their headers promise."""
    data = b"".join([batch.data for batch in batches])
    where = "batches read by time"
    try:
        table = scan_batches(data, where=where)
        deltas = np.array([batch.offset_delta for batch in batches], np.int64)
        records = decode_bodies(data, table, offset_delta=deltas, where=where)
    except SparklogError:
        return {}
    batch_of = np.repeat(np.arange(len(table)), table.record_count)
    times = np.array([batch.timestamp_ms for batch in batches], np.int64)
    young = np.flatnonzero(records.timestamp_ms >= times[batch_of])
    hit, place = np.unique(batch_of[young], return_index=True)
    rows = young[place]
    return {
        batches[index].number: (offset, timestamp)
        for index, offset, timestamp in zip(
            hit.tolist(), records.offset[rows].tolist(), records.timestamp_ms[rows].tolist(), strict=True
        )
    }
