"""Names of segments and of the files beside them.

    segments/<writer id>/<8 digits>.log      a process's own, extents of many partitions
    <topic>-<p>/<20 digits>-<id>.log         merged, one partition, absolute offsets

Sources: FORMAT.md#layout-of-a-root.
"""

import re

SEGMENTS = "segments"
# On object stores only segments of such a size have an index, and only for extents of such a size it is read.
INDEXED_BYTES = 4 << 20
_MERGED = re.compile(r"/(\d{20})-[^/]+\.log$")


def segment_name(writer_id: str, number: int) -> str:
    """A process's segment."""
    return f"{SEGMENTS}/{writer_id}/{number:08d}.log"


def index_name(segment: str) -> str:
    """The offset index beside a segment."""
    return segment.removesuffix(".log") + ".index"


def is_dense(segment: str) -> bool:
    """Have the segment's batches no gaps between their offsets? So it is before compaction."""
    return segment.startswith(f"{SEGMENTS}/")


def index_base_offset(segment: str) -> int:
    """What the relative offsets of a segment's index count from, in terms of its stored offsets."""
    match = _MERGED.search(segment)
    return int(match[1]) if match else 0
