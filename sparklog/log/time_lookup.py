"""ListOffsets by time: the earliest offset whose record is at or after a time.

Timestamps need not ascend (CreateTime): extents and then batches are passed over only if their largest
timestamp is older; within a batch every record is looked at.
Not here: many partitions at once (times_together.py).
A merged segment has a time index, which says where to begin.
Concurrency: any thread; reads only.
Sources: Kafka UnifiedLog.fetchOffsetByTimestamp, LogSegment.findOffsetByTimestamp.
"""

from collections.abc import Iterator

import numpy as np

from sparklog.format.record_times import record_times
from sparklog.log.read_plan import extent_span
from sparklog.log.segment_file import SegmentFile
from sparklog.metadata import NUMBER_COLUMNS, Extent, PartitionState
from sparklog.storage import Store

_MAX_TIMESTAMP = NUMBER_COLUMNS.index("max_timestamp_ms")


def offset_for_time(
    store: Store, state: PartitionState, timestamp_ms: int, *, topic: str | None = None
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record, by offset, with a timestamp >= `timestamp_ms`; None if none.

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
    """Those that may hold a record as young as that, in the order of their offsets."""
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
