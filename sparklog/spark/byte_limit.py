"""maxBytesPerTrigger: how far a micro-batch may read for so many stored bytes.

Bytes are those on storage, compressed as they are. Extents know their size and number of records,
so no data is read; inside an extent, records are taken to be of equal size.
"""

import math
from collections.abc import Sequence

from sparklog.metadata import Extent, Image
from sparklog.spark.ranges import backlog
from sparklog.spark.resolve import partition_state
from sparklog.spark.stream_offset import Positions


def limit_bytes(start: Positions, end: Positions, image: Image, max_bytes: int) -> Positions:
    """Move `end` back so that about `max_bytes` lie between, each partition getting its share.

    A partition with a backlog always gets at least one record, so that none starves.
    """
    extents = {
        tp: partition_state(image, tp).extents_between(start[tp], end[tp]) for tp in backlog(start, end)
    }
    sizes = {tp: _bytes_between(extents[tp], start[tp], end[tp]) for tp in extents}
    total = sum(sizes.values())
    if total <= max_bytes:
        return dict(end)
    limited = dict(end)
    for tp, size in sizes.items():
        limited[tp] = _end_within(extents[tp], start[tp], end[tp], max_bytes * size / total)
    return limited


def _bytes_between(extents: Sequence[Extent], start: int, end: int) -> float:
    return sum(_part_of(extent, start, end) * extent.size for extent in extents)


def _part_of(extent: Extent, start: int, end: int) -> float:
    low = max(extent.base_offset, start)
    high = min(extent.base_offset + extent.record_count, end)
    return max(0, high - low) / extent.record_count


def _end_within(extents: Sequence[Extent], start: int, end: int, budget: float) -> int:
    for extent in extents:
        part = _part_of(extent, start, end) * extent.size
        if part > budget:
            low = max(extent.base_offset, start)
            records = math.floor(budget / extent.size * extent.record_count)
            return min(end, max(low + records, start + 1))
        budget -= part
    return end
