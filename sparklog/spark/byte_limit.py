"""maxBytesPerTrigger: how far a micro-batch may read for so many stored bytes.

Bytes are those on storage, compressed as they are; extents know their sizes, so no data is read.
"""

from sparklog.log.read_plan import bytes_between, end_offset_for_bytes
from sparklog.metadata import Image
from sparklog.spark.ranges import backlog
from sparklog.spark.resolve import partition_state
from sparklog.spark.stream_offset import Positions


def limit_bytes(start: Positions, end: Positions, image: Image, max_bytes: int) -> Positions:
    """Move `end` back so that about `max_bytes` lie between, each partition getting its share.

    A partition with a backlog always gets at least one record, so that none starves.
    """
    states = {tp: partition_state(image, tp) for tp in backlog(start, end)}
    sizes = {tp: bytes_between(states[tp], start[tp], end[tp]) for tp in states}
    total = sum(sizes.values())
    if total <= max_bytes:
        return dict(end)
    limited = dict(end)
    for tp, size in sizes.items():
        share = int(max_bytes * size / total)
        limited[tp] = min(end[tp], end_offset_for_bytes(states[tp], start[tp], share))
    return limited
