"""One segment opened for reading: exact reads, a walk over batch headers, and its index as hints.

Invariants: never reads past the given span; damaged bytes are raised with segment@position and the
    topic-partition; an index entry is used only after the batch header it points to has confirmed it.
Memory: reads with pread into buffers of bounded size; only the index is mapped (mapped pages count as
    resident memory).
Remote stores: size and existence come from reads, not from extra requests; headers are read in windows large
    enough for a round trip; the index is fetched only where it can save one.
Not here: the ownership of bytes (read_plan.py), records (reader.py).
Concurrency: one thread at a time.
Sources: docs/design.md; Kafka FileRecords, OffsetIndex.
"""

import collections
import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sparklog.closing import Closing
from sparklog.errors import CorruptLogError, DataLossError, NotFoundError, SparklogError, StorageError
from sparklog.format.batch_table import BatchTable, scan_batches
from sparklog.format.index import (
    OffsetIndex,
    TimeIndex,
    encode_offset_entries,
    parse_offset_entries,
    parse_time_entries,
)
from sparklog.format.record_batch import HEADER, LENGTH_END, BatchHeader, corrupt, header_error
from sparklog.metadata import ISOLATED, is_isolated, isolated_prefix
from sparklog.storage import ReadFile, Store

# --- names -------------------------------------------------------------------------------------------
#
# Names of segments and of their index files.
#
#     segments/<writer id>/<8 digits>.<born>.log      a process's own, extents of many partitions
#     <topic>-<p>/<20 digits>.<born>-<id>.log         merged, one partition, absolute offsets
#     isolated/<topic>/...                            the same, of an isolated topic
#
# The version <born> (metadata/model/sweeping.py) may be missing: the first sparklogs wrote none. Kafka's
# tools take the part before the first dot for the first offset, so it is a number.
#
# Sources: FORMAT.md#layout-of-a-root.


SEGMENTS = "segments"
# On object stores only segments of at least this size have an index, which is read only for such extents.
INDEXED_BYTES = 4 << 20
_MERGED = re.compile(r"/(\d{20})[.-][^/]+\.log$")
# All names that sparklog has ever given, and no others; the first names with <born> have a dash, not a dot.
_TOPIC = r"[A-Za-z0-9._-]{1,249}"
_PARTITION = rf"{_TOPIC}-(?:0|[1-9]\d{{0,5}})"
_ISOLATED = rf"{ISOLATED}/{_TOPIC}"
_WRITERS = re.compile(
    rf"((?:{_ISOLATED}/)?segments/[0-9a-f]{{32}}/\d{{8}}(?:[.-]\d{{1,18}})?)\.(?:log|index)", re.ASCII
)
_PARTITIONS = re.compile(
    rf"((?:{_ISOLATED}/)?{_PARTITION}/\d{{20}}(?:[.-]\d{{1,18}})?-[A-Za-z0-9_-]{{22}})"
    r"\.(?:log|index|timeindex)",
    re.ASCII,
)
# Not the directory of an isolated topic, whose access list would go with it.
_OWN_DIRECTORIES = re.compile(
    rf"(?:{_ISOLATED}/)?(?:segments/[0-9a-f]{{32}}|{_PARTITION})|{_ISOLATED}/segments", re.ASCII
)
_WALKED = re.compile(
    rf"(?:{_ISOLATED}/)?(?:segments(?:/[^/]+)?|{_PARTITION})|{ISOLATED}(?:/{_TOPIC})?", re.ASCII
)


def segment_name(writer_id: str, number: int, born: int | None = None, *, prefix: str = "") -> str:
    """Return the name of a process's segment.

    Args:
        born: the newest commit it has seen, if any.
        prefix: of an isolated topic.
    """
    birth = "" if born is None or born < 0 else f".{born}"
    return f"{prefix}{SEGMENTS}/{writer_id}/{number:08d}{birth}.log"


def merged_segment_name(
    topic: str, partition: int, base_offset: int, born: int, unique: str, *, isolated: bool = False
) -> str:
    """Return the name of a segment of one partition with absolute offsets; `unique`: an id."""
    prefix = isolated_prefix(topic) if isolated else ""
    return f"{prefix}{topic}-{partition}/{base_offset:020d}.{born}-{unique}.log"


def index_name(segment: str) -> str:
    """Return the name of a segment's offset index."""
    return segment.removesuffix(".log") + ".index"


def time_index_name(segment: str) -> str:
    """Return the name of a merged segment's time index."""
    return segment.removesuffix(".log") + ".timeindex"


def segment_of(file: str) -> str | None:
    """Return the segment of a file: itself, or that of an index; None for a name that is not sparklog's."""
    match = _WRITERS.fullmatch(file) or _PARTITIONS.fullmatch(file)
    return f"{match[1]}.log" if match else None


def may_hold_segments(directory: str) -> bool:
    """True if the directory, from the root, may have segments in it, or below it."""
    return _WALKED.fullmatch(directory) is not None


def is_segment_directory(directory: str) -> bool:
    """True if the name is that of a directory that sparklog creates for segments."""
    return _OWN_DIRECTORIES.fullmatch(directory) is not None


def is_merged(segment: str) -> bool:
    """True if the segment belongs to one partition, with absolute offsets, and a time index."""
    return _MERGED.search(segment) is not None


def is_dense(segment: str) -> bool:
    """True if the segment's batches have no gaps between their offsets, as before compaction."""
    if is_isolated(segment):
        return segment.split("/", 3)[2] == SEGMENTS
    return segment.startswith(f"{SEGMENTS}/")


def index_base_offset(segment: str) -> int:
    """Return the stored offset from which the relative offsets of a segment's index count."""
    match = _MERGED.search(segment)
    return int(match[1]) if match else 0


# --- span --------------------------------------------------------------------------------------------
#
# The location of bytes of a partition: a range of a segment, and its partition.
#
# Invariants: immutable, picklable; `where` begins every error about the bytes.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive batches of one partition in a segment; offsets are as stored.

    Args:
        first_offset: of the batch at `position`, where it is known (at the start of an extent).
    """

    topic: str
    partition: int
    segment: str
    position: int
    size: int
    first_offset: int | None = None

    @property
    def end_position(self) -> int:
        """The byte after the last."""
        return self.position + self.size

    @property
    def where(self) -> str:
        """The prefix of error messages, before @position."""
        return f"{self.topic}-{self.partition} in {self.segment}"


# --- stored batches ----------------------------------------------------------------------------------
#
# Checks that stored batches are those that the metadata describe: consecutive, and within their extent.
#
# No CRC covers a batch's base offset, so that it can be set when the batch is stored; a flipped bit there
# would show records under the offsets of others. But offsets are constrained:
#     - a batch begins after the one before it, and right after it in a segment without gaps (a task's own;
#       compaction leaves gaps in merged ones);
#     - it lies within the offsets of its extent; where only some of the offsets are wanted, the first batch
#       may begin before them, and the last may end after them;
#     - in a segment without gaps, an extent's first batch begins where the extent begins, and its last one
#       ends where it ends.
# Invariants: a violation is EXTENT_MISMATCH, with segment and position; nothing is skipped.
# Not here: damage inside a batch (format/).
# Concurrency: pure functions.
# Sources: FORMAT.md#segments-and-extents.


Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """The metadata's description of a buffer of whole batches, of ascending extents of a partition.

    Offsets have offset_delta added.

    Fields:
        size, offset_delta, segment: of each extent's bytes, in the order of the buffer.
        start_offset, end_offset: of each extent, or of its wanted offsets. All extents but the first begin,
            and all but the last end, where their batches do.
        begins_at: where the first batch of all begins; None: unknown.
        reaches_end: the last batch of all ends at its end_offset, or beyond.
        is_cut: the first batch may begin before its start_offset, the last one end after its end_offset.
        place: span of the extent with this index, and the position of its bytes there, for error messages.
    """

    size: Sequence[int]
    offset_delta: Sequence[int]
    segment: Sequence[str]
    start_offset: Sequence[int]
    end_offset: Sequence[int]
    begins_at: int | None
    reaches_end: bool
    is_cut: bool
    place: Callable[[int], tuple[Span, int]]


def scan_stretches(
    data: memoryview, stretches: Stretches, *, verify_crc: bool = True
) -> tuple[BatchTable, Int64Array]:
    """Return the batches of a buffer, and the offset delta of each.

    Raises: CorruptLogError, UnsupportedVersionError, with the position in the segment.
    """
    try:
        table = scan_batches(data, where=f"{len(stretches.size)} extents", verify_crc=verify_crc)
    except SparklogError:
        at = 0
        for index, size in enumerate(stretches.size):
            span, position = stretches.place(index)
            scan_batches(data[at : at + size], where=span.where, position=position, verify_crc=verify_crc)
            at += size
        raise
    return table, validate_batches(table, stretches)


def validate_batches(table: BatchTable, stretches: Stretches) -> Int64Array:
    """Check the batches of a scanned buffer; return the offset delta of each batch.

    Cost: a few NumPy operations over the batches.
    """
    ends = np.cumsum(stretches.size)
    of_extent = ends.searchsorted(table.position, "right")
    deltas = np.array(stretches.offset_delta, np.int64)[of_extent]
    starts = np.array(stretches.start_offset, np.int64)[of_extent]
    stops = np.array(stretches.end_offset, np.int64)[of_extent]
    dense = np.array([is_dense(name) for name in stretches.segment])[of_extent]
    base, last = table.base_offset + deltas, table.last_offset + deltas

    not_before, not_beyond = base >= starts, last < stops
    if stretches.is_cut:
        not_before[0], not_beyond[-1] = last[0] >= starts[0], base[-1] < stops[-1]
    fine = (table.position + table.size <= ends[of_extent]) & not_before & not_beyond
    same = of_extent[1:] == of_extent[:-1]
    fine[1:] &= (base[1:] == last[:-1] + 1) | ((base[1:] > last[:-1]) & ~(dense[1:] & same))
    # In a segment without gaps, the batches of an extent begin and end as it does.
    fine[1:] &= same | ~dense[1:] | (base[1:] == starts[1:])
    short = np.zeros(len(fine), np.bool_)
    short[:-1] = ~same & dense[:-1] & (last[:-1] + 1 < stops[:-1])
    short[-1] = stretches.reaches_end and dense[-1] and last[-1] + 1 < stops[-1]
    fine[0] &= _begins_well(stretches, int(base[0]), dense=bool(dense[0]))
    if fine.all() and not short.any():
        return deltas
    at = int((~fine | short).argmax())
    raise _misplaced(table, stretches, at, is_short=bool(fine[at]))


def _begins_well(stretches: Stretches, base: int, *, dense: bool) -> bool:
    if stretches.begins_at is not None:
        return base == stretches.begins_at if dense else base >= stretches.begins_at
    # No wanted offset may be missing before the first batch.
    return not (dense and stretches.is_cut) or base <= stretches.start_offset[0]


def _misplaced(table: BatchTable, stretches: Stretches, at: int, *, is_short: bool) -> CorruptLogError:
    """Return the error for a batch of the table."""
    ends = np.cumsum(stretches.size)
    index = int(ends.searchsorted(table.position[at], "right"))
    span, position = stretches.place(index)
    position += int(table.position[at] - (ends[index] - stretches.size[index]))
    delta, end = stretches.offset_delta[index], stretches.end_offset[index]
    first, last = int(table.base_offset[at]) + delta, int(table.last_offset[at]) + delta
    if is_short:
        after = position + int(table.size[at])
        return extent_mismatch(span, after, f"the end at offset {last + 1}", str(end))
    return extent_mismatch(
        span,
        position,
        f"a batch of offsets {first} to {last}",
        f"it to continue the previous ones, within {stretches.start_offset[index]} to {end - 1}",
    )


def validate_next(
    span: Span, position: int, header: BatchHeader, next_offset: int | None, within: tuple[int, int] | None
) -> None:
    """Check one batch by the same rules; all offsets are as stored.

    Args:
        next_offset: the end of the batch before; None: unknown.
        within: the extent's offsets, the second exclusive; None: unknown.
    """
    found = header.base_offset
    if next_offset is not None and is_dense(span.segment) and found != next_offset:
        problem = f"a batch that begins at stored offset {found}"
        raise extent_mismatch(span, position, problem, str(next_offset))
    if within is not None:
        low = within[0] if next_offset is None else next_offset
        if found < low or header.last_offset >= within[1]:
            problem = f"a batch of offsets {found} to {header.last_offset}"
            raise extent_mismatch(span, position, problem, f"{low} to {within[1] - 1}")


def first_batch_bytes(data: memoryview, span: Span, position: int) -> int:
    """Return the size of the batch at `position`, which begins with `data`; it must fit into the span.

    A reader reads a first batch that is larger than its step whole, and alone.
    """
    left = span.end_position - position
    length = int.from_bytes(data[8:LENGTH_END], "big", signed=True) if len(data) >= LENGTH_END else 0
    needed = LENGTH_END + length
    if not HEADER.size <= needed <= left:
        raise extent_mismatch(
            span, position, f"a batch of {needed} bytes", f"{HEADER.size} to {left}, the rest of the extent"
        )
    return needed


def extent_mismatch(span: Span, position: int, found: str, expected: str) -> CorruptLogError:
    """The error for batches that differ from the metadata's description."""
    return CorruptLogError(
        "EXTENT_MISMATCH",
        f"{span.where}@{position}: found {found}, expected {expected}",
        fix="Restore the segment from a copy; `sparklog dump-log` shows what is left",
    )


# --- missing segment ---------------------------------------------------------------------------------
#
# Segments that cannot be read.
#
# A missing one was merged or has expired since the reader's last refresh, or is lost: a refresh decides which
# (partition_reader.py). One that exists and cannot be read is on a bad disk, in an archive, or not permitted;
# or the storage is unavailable.


class SegmentMissingError(DataLossError):
    """The segment with the wanted bytes does not exist."""

    segment: str = ""  # lost when the error is pickled


class UnreadableSegmentError(StorageError):
    """The storage cannot return the bytes of a segment; its code gives the reason."""

    segment: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), {"segment": self.segment})


def took_patience(error: SparklogError) -> bool:
    """True if the storage was retried until the timeout; other errors are immediate."""
    return error.code == "STORE_UNAVAILABLE"


# Errors of this process, not of a segment.
_OURS: Final = frozenset({"TOO_MANY_OPEN_FILES", "FILE_CLOSED"})


def unreadable_segment(span: Span, error: StorageError) -> StorageError:
    """Return the error for bytes that could not be read; errors of this process are unchanged."""
    if error.code in _OURS:
        return error
    unreadable = UnreadableSegmentError(error.code, error.message, fix=error.fix)
    unreadable.segment = span.segment
    return unreadable


def missing_segment(span: Span) -> SegmentMissingError:
    """Return the error for bytes of a missing segment."""
    error = SegmentMissingError(
        "SEGMENT_MISSING",
        f"{span.where}@{span.position}: found no such file, expected {span.size} bytes of batches",
        fix="Restore the file from a copy; if it was merged or has expired since, read again",
    )
    error.segment = span.segment
    return error


# --- segment file ------------------------------------------------------------------------------------


WINDOW_BYTES = 4096
MAX_WINDOW_BYTES = 64 * 1024
REMOTE_WINDOW_BYTES = 1 << 20
OPEN_FILES, OPEN_REMOTE_FILES = 8, 64
USELESS_INDEX_HEADERS = 256  # after a walk over this many headers the index is rebuilt
REBUILT_INTERVAL_BYTES = 4096


class SegmentFile(Closing):
    """The bytes of a segment that spans refer to."""

    def __init__(self, store: Store, name: str, file: ReadFile) -> None:
        self._store = store
        self.name = name
        self._file = file
        self._index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._is_remote = store.traits.is_remote
        self._rebuilt = self._is_remote  # a whole object is too large to read for its index
        self.bytes_read = 0

    @classmethod
    def open(cls, store: Store, span: Span) -> "SegmentFile":
        """Open the span's segment. Raises SegmentMissingError."""
        try:
            return cls(store, span.segment, store.open_read(span.segment))
        except NotFoundError as error:
            raise missing_segment(span) from error
        except StorageError as error:
            raise unreadable_segment(span, error) from error

    def will_need(self, position: int, size: int) -> None:
        """Announce a read; see ReadFile."""
        self._file.will_need(position, size)

    def holds(self, span: Span) -> bool:
        """True if the file was long enough when it was opened; true for objects, where reads check."""
        return self._is_remote or self.file_bytes >= span.end_position

    @property
    def file_bytes(self) -> int:
        """Size of the file when it was opened."""
        return self._file.size

    def close(self) -> None:
        """Release the file. The index's mapping is freed with its last user."""
        self._index = self._time_index = None
        self._file.close()

    @property
    def descriptor(self) -> int | None:
        """The open file's descriptor, for sendfile; None where the storage has none. Closed by `close`."""
        return self._file.descriptor

    @property
    def is_removed(self) -> bool:
        """True if the file was removed while it is open, which keeps its space; object stores: False."""
        descriptor = self._file.descriptor
        return descriptor is not None and os.fstat(descriptor).st_nlink == 0

    def read_exactly(self, span: Span, position: int, size: int) -> bytearray:
        """Return `size` bytes within the span; CorruptLogError if the file ends before."""
        buffer = bytearray(size)
        self.read_into(span, position, memoryview(buffer))
        return buffer

    def read_into(self, span: Span, position: int, buffer: memoryview) -> None:
        """Fill the buffer with bytes of the span; CorruptLogError if the file ends before."""
        size = buffer.nbytes
        if not self.holds(span):
            raise CorruptLogError(
                "SEGMENT_TRUNCATED",
                f"{span.where}@{span.position}: found a file of {self._file.size} bytes, "
                f"expected at least {span.end_position}",
                fix="Restore the segment from a copy; `sparklog dump-log` shows what is left",
            )
        assert span.position <= position <= position + size <= span.end_position
        try:
            count = self._file.read_into(buffer, position)
        except NotFoundError as error:
            raise missing_segment(span) from error
        except StorageError as error:
            raise unreadable_segment(span, error) from error
        self.bytes_read += count
        if count < size:
            raise CorruptLogError(
                "SEGMENT_TRUNCATED",
                f"{span.where}@{position}: found {count} bytes, expected {size}",
                fix="Restore the segment from a copy; `sparklog dump-log` shows what is left",
            )

    def headers(
        self,
        span: Span,
        position: int,
        next_offset: int | None = None,
        *,
        within: tuple[int, int] | None = None,
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of the batches from `position` to the span's end.

        Args:
            next_offset: the stored offset at which the first begins, if known.
            within: stored offsets, the second exclusive, that bound all batches.
                Without both, batches need not be consecutive: they may be of several partitions.
        """
        is_checked = next_offset is not None or within is not None
        smallest, largest = WINDOW_BYTES, MAX_WINDOW_BYTES
        if self._is_remote:
            smallest = largest = REMOTE_WINDOW_BYTES
        window, start, window_bytes = bytearray(), position, smallest
        while position < span.end_position:
            at = position - start
            if at + HEADER.size > len(window):
                near = at <= len(window)
                window_bytes = min(largest, window_bytes * 4) if near and window else smallest
                window = self.read_exactly(span, position, min(window_bytes, span.end_position - position))
                start, at = position, 0
            header = _header_at(window, at, f"{span.where}@{position}")
            if position + header.size > span.end_position:
                raise extent_mismatch(
                    span,
                    position,
                    f"a batch of {header.size} bytes",
                    f"it to end by {span.end_position}",
                )
            if is_checked:
                validate_next(span, position, header, next_offset, within)
            yield position, header
            position += header.size
            next_offset = header.last_offset + 1

    def locate(self, span: Span, offset: int) -> tuple[int, BatchHeader | None]:
        """Return the first batch of the span whose last stored offset is >= `offset`, or (end, None).

        Cost: a binary search in the index, then the headers in one index interval.
        """
        start, next_offset = self._hint(span, offset)
        for walked, (position, header) in enumerate(self.headers(span, start, next_offset)):
            if header.last_offset >= offset:
                return position, header
            if walked == USELESS_INDEX_HEADERS and not self._rebuilt:
                self._rebuild_index()
                return self.locate(span, offset)
        return span.end_position, None

    def older_than(self, span: Span, timestamp_ms: int) -> int | None:
        """Return a stored offset up to which every record of the span is older, by the time index, or None.

        Cost: the index, mapped, and two headers. A remote one is fetched only for a large span.
        """
        if not is_merged(self.name) or (self._is_remote and span.size < INDEXED_BYTES):
            return None
        found = self._load_time_index().floor(timestamp_ms)
        if found is None:
            return None
        named_ms, relative_offset = found
        offset = relative_offset + index_base_offset(self.name)
        if offset < (span.first_offset or 0):
            return None
        _, header = self.locate(span, offset)
        # An entry names a batch that has its timestamp; otherwise it is damaged, or of another file.
        fits = header is not None and (header.last_offset, header.max_timestamp_ms) == (offset, named_ms)
        return offset if fits else None

    def _load_time_index(self) -> TimeIndex:
        if self._time_index is None:
            name = time_index_name(self.name)
            self._time_index = _NO_TIMES
            mapped = _mapped_hint(self._store, name)
            with contextlib.suppress(CorruptLogError):
                self._time_index = _NO_TIMES if mapped is None else parse_time_entries(mapped, name)
        return self._time_index

    def _hint(self, span: Span, offset: int) -> tuple[int, int | None]:
        """Return where to start walking, and the offset there: by the index, if the header there agrees."""
        if self._is_remote and span.size < INDEXED_BYTES:
            return span.position, span.first_offset
        index = self._load_index()
        entries = index.entries_between(span.position, span.end_position)
        base = index_base_offset(span.segment)
        found = entries.floor(offset - base)
        if found is not None:
            relative_offset, position = found
            header = self._confirmed(span, position, relative_offset + base)
            if header is not None:
                return position, header.base_offset
            if not self._rebuilt:
                self._rebuild_index()
        return span.position, span.first_offset

    def _confirmed(self, span: Span, position: int, offset: int) -> BatchHeader | None:
        """Return the header that an index entry points to, if it fits the entry."""
        if not span.position <= position <= span.end_position - HEADER.size:
            return None
        try:
            header = _header_at(self.read_exactly(span, position, HEADER.size), 0, span.where)
        except SparklogError as error:
            if error.code == "SEGMENT_TRUNCATED":
                raise
            return None
        # Kafka's entries name the last offset of a batch, ours the first.
        fits = position + header.size <= span.end_position
        return header if fits and offset in {header.base_offset, header.last_offset} else None

    def _load_index(self) -> OffsetIndex:
        if self._index is None:
            name = index_name(self.name)
            mapped = _mapped_hint(self._store, name)
            # The last entry may be half written: its writer may be running.
            whole = None if mapped is None else mapped[: len(mapped) // 8 * 8]
            self._index = _EMPTY if whole is None else parse_offset_entries(whole, name)
        return self._index

    def _rebuild_index(self) -> None:
        """Derive the index from the batch headers, and store it for the next reader."""
        self._rebuilt = True
        entries = rebuild_entries(self, self.name, self._file.size)
        self._index = parse_offset_entries(entries, self.name)
        with contextlib.suppress(StorageError):  # read-only storage: only this reader has it, in memory
            # Unless the segment was removed since it was opened, and its index with it.
            if self._store.exists(self.name):
                self._store.put_hint(index_name(self.name), entries)


def _mapped_hint(store: Store, name: str) -> memoryview | None:
    """Return an index; None: it is missing, or we may not read it. It is only a hint."""
    try:
        with store.open_read(name) as file:
            return file.map()
    except NotFoundError:
        return None
    except StorageError as error:
        if error.code != "STORAGE_REFUSED":
            raise
        return None


class SegmentFiles(Closing):
    """A few segments kept open, for readers that alternate between writers' segments."""

    def __init__(self, store: Store, *, limit: int | None = None) -> None:
        self._store = store
        self._limit = limit or (OPEN_REMOTE_FILES if store.traits.is_remote else OPEN_FILES)
        self._opened: dict[str, SegmentFile] = {}  # least recently used first

    def open(self, span: Span) -> SegmentFile:
        """Return the span's segment, open until it is evicted, or `close`."""
        segment = self._opened.pop(span.segment, None)
        if segment is not None and not segment.holds(span):
            segment.close()  # it has grown since it was opened, or is truncated: open it again
            segment = None
        if segment is None:
            segment = SegmentFile.open(self._store, span)
            if len(self._opened) >= self._limit:
                self._opened.pop(next(iter(self._opened))).close()
        self._opened[span.segment] = segment
        return segment

    def close(self) -> None:
        """Close all segments."""
        while self._opened:
            self._opened.popitem()[1].close()


def _header_at(window: bytearray, at: int, where: str) -> BatchHeader:
    """As parse_header, for a `where` that already names the position in the segment."""
    if at + HEADER.size > len(window):
        raise corrupt(where, f"{len(window) - at} bytes", f"a header of {HEADER.size} bytes")
    header = BatchHeader(*HEADER.unpack_from(window, at))
    error = header_error(header, where)
    if error is not None:
        raise error
    return header


_EMPTY = parse_offset_entries(b"", "no index")
_NO_TIMES = parse_time_entries(b"", "no index")


def rebuild_entries(segment: SegmentFile, name: str, file_bytes: int) -> bytes:
    """Return index entries for all whole batches of the segment. Torn bytes at its end are skipped."""
    everything = Span(topic="(any)", partition=-1, segment=name, position=0, size=file_bytes)
    base = index_base_offset(name)
    offsets: list[int] = []
    positions: list[int] = []
    try:
        next_offset = 0
        for position, header in segment.headers(everything, 0):
            relative = header.base_offset - base
            due = not positions or position - positions[-1] > REBUILT_INTERVAL_BYTES
            # An offset that does not continue the previous one may be damaged, and must not confirm itself.
            sound = not is_dense(name) or header.base_offset in {0, next_offset}
            next_offset = header.last_offset + 1
            if due and sound and 0 <= relative < 1 << 31 and position < 1 << 31:
                offsets.append(relative)
                positions.append(position)
    except SparklogError:
        pass  # no extent refers to the rest; if one does, reading it reports the damage
    return encode_offset_entries(np.array(offsets, np.int64), np.array(positions, np.int64))


# --- read ahead --------------------------------------------------------------------------------------
#
# Prefetching, on stores where each read is a round trip.
#
# The byte ranges of a read are announced in chunks (ReadFile.will_need), as far ahead as the budget allows;
# the store fetches them in parallel, in the background, while earlier ones are decoded. Consecutive ranges of
# a segment are fetched together.
#
# Invariants: at most AHEAD_BYTES, and AHEAD_CHUNKS, are announced and not reached yet.
# Not here: the fetching (storage).
# Concurrency: the reader's thread only.


AHEAD_BYTES = 32 << 20
AHEAD_CHUNKS = 32  # half the limit of SegmentFiles, so that no announced file is evicted
CHUNK_BYTES = 4 << 20


class ReadAhead:
    """Announces `spans` in chunks, to be read in their order."""

    def __init__(self, files: SegmentFiles, spans: Iterable[Span]) -> None:
        self._files = files
        self._chunks = _chunks(spans)
        self._announced: collections.deque[Span] = collections.deque()
        self._announced_bytes = 0
        self._next = next(self._chunks, None)

    def reached(self, span: Span, position: int) -> None:
        """Called before a read at `position`; drops the chunks before it."""
        while self._announced and not _lies_in(position, span, self._announced[0]):
            if not self._is_ahead(span, position):
                break
            self._announced_bytes -= self._announced.popleft().size
        while self._next is not None and self._has_room():
            chunk = self._next
            self._files.open(chunk).will_need(chunk.position, chunk.size)
            self._announced.append(chunk)
            self._announced_bytes += chunk.size
            self._next = next(self._chunks, None)

    def _has_room(self) -> bool:
        return not self._announced or (
            self._announced_bytes < AHEAD_BYTES and len(self._announced) < AHEAD_CHUNKS
        )

    def _is_ahead(self, span: Span, position: int) -> bool:
        """True if the position is in a chunk that is announced, or still to be."""
        return any(_lies_in(position, span, chunk) for chunk in self._announced) or self._next is not None


def _lies_in(position: int, span: Span, chunk: Span) -> bool:
    return chunk.segment == span.segment and chunk.position <= position < chunk.end_position


def _chunks(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the spans in chunks of at most CHUNK_BYTES; consecutive ones are joined."""
    joined: Span | None = None
    for span in spans:
        if (
            joined is not None
            and joined.segment == span.segment
            and joined.end_position == span.position
            and joined.size + span.size <= CHUNK_BYTES
        ):
            joined = _span(span, joined.position, joined.size + span.size)
            continue
        if joined is not None:
            yield joined
        position = span.position
        while span.end_position - position > CHUNK_BYTES:
            yield _span(span, position, CHUNK_BYTES)
            position += CHUNK_BYTES
        joined = _span(span, position, span.end_position - position)
    if joined is not None:
        yield joined


def _span(span: Span, position: int, size: int) -> Span:
    return Span(
        topic=span.topic, partition=span.partition, segment=span.segment, position=position, size=size
    )
