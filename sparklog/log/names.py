"""Names of segments and of the files beside them.

    segments/<writer id>/<8 digits>.<born>.log      a process's own, extents of many partitions
    <topic>-<p>/<20 digits>.<born>-<id>.log         merged, one partition, absolute offsets

Births (metadata/model/sweeping.py) may be missing: the first sparklogs gave none. Kafka's tools take what
stands before the first dot for the first offset, so there is a number.

Sources: FORMAT.md#layout-of-a-root.
"""

import re

SEGMENTS = "segments"
# On object stores only segments of such a size have an index, and only for extents of such a size it is read.
INDEXED_BYTES = 4 << 20
_MERGED = re.compile(r"/(\d{20})[.-][^/]+\.log$")
# Whatever sparklog has ever named so, and nothing else; the first names with births have a dash for the dot.
_PARTITION = r"[A-Za-z0-9._-]{1,249}-(?:0|[1-9]\d{0,5})"
_WRITERS = re.compile(r"(segments/[0-9a-f]{32}/\d{8}(?:[.-]\d{1,18})?)\.(?:log|index)", re.ASCII)
_PARTITIONS = re.compile(
    rf"({_PARTITION}/\d{{20}}(?:[.-]\d{{1,18}})?-[A-Za-z0-9_-]{{22}})\.(?:log|index|timeindex)", re.ASCII
)
_OWN_DIRECTORIES = re.compile(rf"segments/[0-9a-f]{{32}}|{_PARTITION}", re.ASCII)
_WALKED = re.compile(rf"segments(?:/[^/]+)?|{_PARTITION}", re.ASCII)


def segment_name(writer_id: str, number: int, born: int | None = None) -> str:
    """A process's segment; `born`: by the newest image that the process has seen, if it has seen any."""
    birth = "" if born is None or born < 0 else f".{born}"
    return f"{SEGMENTS}/{writer_id}/{number:08d}{birth}.log"


def merged_segment_name(topic: str, partition: int, base_offset: int, born: int, unique: str) -> str:
    """A segment of one partition whose offsets are absolute; `unique`: an id."""
    return f"{topic}-{partition}/{base_offset:020d}.{born}-{unique}.log"


def index_name(segment: str) -> str:
    """The offset index beside a segment."""
    return segment.removesuffix(".log") + ".index"


def time_index_name(segment: str) -> str:
    """The time index beside a merged segment."""
    return segment.removesuffix(".log") + ".timeindex"


def segment_of(file: str) -> str | None:
    """The segment that a file is, or is an index of; None for names that sparklog has never given one."""
    match = _WRITERS.fullmatch(file) or _PARTITIONS.fullmatch(file)
    return f"{match[1]}.log" if match else None


def may_hold_segments(directory: str) -> bool:
    """May a directory of this name, from the root, have segments in it, or below it?"""
    return _WALKED.fullmatch(directory) is not None


def is_segment_directory(directory: str) -> bool:
    """Is a directory, by its name, one that sparklog has made for segments?"""
    return _OWN_DIRECTORIES.fullmatch(directory) is not None


def is_merged(segment: str) -> bool:
    """Does the segment belong to one partition, with absolute offsets, and a time index?"""
    return _MERGED.search(segment) is not None


def is_dense(segment: str) -> bool:
    """Have the segment's batches no gaps between their offsets? So it is before compaction."""
    return segment.startswith(f"{SEGMENTS}/")


def index_base_offset(segment: str) -> int:
    """What the relative offsets of a segment's index count from, in terms of its stored offsets."""
    match = _MERGED.search(segment)
    return int(match[1]) if match else 0
