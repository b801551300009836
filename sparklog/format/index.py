"""Offset and time index entries, laid out as in Kafka's .index and .timeindex files.

Invariants: entries are hints, the segment is authoritative; within one extent (or one merged segment) offsets
    and positions strictly increase, and so do timestamps and offsets of a time index.
Not here: files, mmap, when to rebuild (log/).
Concurrency: pure functions over immutable bytes.
After a crash: an index that is not whole, or does not match its segment, is discarded and rebuilt by
recovery. Sources: FORMAT.md#offset-index, FORMAT.md#time-index; Kafka OffsetIndex, TimeIndex,
LogSegment.append.
"""

import bisect
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.errors import CorruptLogError
from sparklog.format.codec import BytesLike

OFFSET_ENTRY_FIELDS: tuple[tuple[str, str, str], ...] = (
    ("relative_offset", "i", "offset of the batch - base offset of the segment (or extent)"),
    ("position", "i", "where that batch starts in the segment"),
)
TIME_ENTRY_FIELDS: tuple[tuple[str, str, str], ...] = (
    ("timestamp_ms", "q", "largest timestamp of all batches up to and including this one"),
    (
        "relative_offset",
        "i",
        "offset of the last record of that batch - base offset of the segment (or extent)",
    ),
)
OFFSET_ENTRY = struct.Struct(">" + "".join(code for _, code, _ in OFFSET_ENTRY_FIELDS))
TIME_ENTRY = struct.Struct(">" + "".join(code for _, code, _ in TIME_ENTRY_FIELDS))
assert (OFFSET_ENTRY.size, TIME_ENTRY.size) == (8, 12)

_NUMPY_CODES = {"i": ">i4", "q": ">i8"}
OFFSET_ENTRY_DTYPE = np.dtype([(name, _NUMPY_CODES[code]) for name, code, _ in OFFSET_ENTRY_FIELDS])
TIME_ENTRY_DTYPE = np.dtype([(name, _NUMPY_CODES[code]) for name, code, _ in TIME_ENTRY_FIELDS])

IntArray = npt.NDArray[np.int64] | npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """A view of offset index entries; zero-copy over the bytes that it was parsed from."""

    relative_offset: npt.NDArray[
        np.int32
    ]  # big-endian views: index and compare, do not compute with whole columns
    position: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.position)

    def entries_between(self, start_position: int, end_position: int) -> "OffsetIndex":
        """Return one extent's entries: start_position <= position < end_position. Two binary searches."""
        low = bisect.bisect_left(self.position, start_position)
        high = bisect.bisect_left(self.position, end_position, low)
        return OffsetIndex(self.relative_offset[low:high], self.position[low:high])

    def floor(self, relative_offset: int) -> tuple[int, int] | None:
        """Return (relative offset, position) of the last entry at or before `relative_offset`, or None."""
        at = bisect.bisect_right(self.relative_offset, relative_offset) - 1
        return None if at < 0 else (int(self.relative_offset[at]), int(self.position[at]))


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """A view of time index entries; zero-copy over the bytes that it was parsed from."""

    timestamp_ms: npt.NDArray[np.int64]
    relative_offset: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.relative_offset)

    def floor(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return (timestamp, relative offset) of the last entry below `timestamp_ms`, or None.

        Every record up to and including that offset is older than `timestamp_ms`: search after it.
        """
        at = bisect.bisect_left(self.timestamp_ms, timestamp_ms) - 1
        return None if at < 0 else (int(self.timestamp_ms[at]), int(self.relative_offset[at]))


def encode_offset_entries(relative_offset: IntArray, position: IntArray) -> bytes:
    """8 bytes per entry; the caller keeps both columns ascending and below 2^31."""
    entries = np.empty(len(position), OFFSET_ENTRY_DTYPE)
    entries["relative_offset"], entries["position"] = relative_offset, position
    return entries.tobytes()


def encode_time_entries(timestamp_ms: IntArray, relative_offset: IntArray) -> bytes:
    """12 bytes per entry; the caller keeps both columns ascending."""
    entries = np.empty(len(relative_offset), TIME_ENTRY_DTYPE)
    entries["timestamp_ms"], entries["relative_offset"] = timestamp_ms, relative_offset
    return entries.tobytes()


def parse_offset_entries(buf: BytesLike, where: str) -> OffsetIndex:
    """View whole entries, zero-copy; only the size is checked here, see `offset_entries_are_sorted`."""
    entries = _entries(buf, OFFSET_ENTRY_DTYPE, where)
    return OffsetIndex(entries["relative_offset"], entries["position"])


def parse_time_entries(buf: BytesLike, where: str) -> TimeIndex:
    """View whole entries, zero-copy."""
    entries = _entries(buf, TIME_ENTRY_DTYPE, where)
    return TimeIndex(entries["timestamp_ms"], entries["relative_offset"])


def choose_entries(position: IntArray, size: IntArray, interval_bytes: int) -> npt.NDArray[np.int64]:
    """Return the batches that get an entry, as in Kafka: one after each `interval_bytes`.

    Args: position, size: of consecutive batches; the first batch always gets an entry.
    """
    if len(position) == 0:
        return np.zeros(0, np.int64)
    if int(np.min(size)) > interval_bytes:
        return np.arange(len(position))
    # Batch ends of an extent in intervals of interval_bytes: the first batch of each interval gets the entry.
    interval = (np.asarray(position, np.int64) - int(position[0])) // (interval_bytes + 1)
    return np.flatnonzero(np.diff(interval, prepend=-1))


def _entries(buf: BytesLike, dtype: np.dtype[np.void], where: str) -> npt.NDArray[np.void]:
    if len(buf) % dtype.itemsize:
        raise CorruptLogError(
            "CORRUPT_INDEX",
            f"{where}: found {len(buf)} bytes, expected a multiple of {dtype.itemsize}",
            fix="Delete the index file; it is rebuilt from its segment",
        )
    return np.frombuffer(buf, dtype)
