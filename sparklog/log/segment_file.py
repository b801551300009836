"""One segment opened for reading: exact reads, a walk over batch headers, and its index as hints.

Invariants: never reads past the span it was given; whatever is wrong with the bytes is raised with
    segment@position and the topic-partition; an index entry is used only after the batch header it points
    to has confirmed it.
Memory: reads with pread into buffers of bounded size; only the index is mapped (mapped pages count as
    resident memory).
Remote stores: nothing is asked that a read does not tell as well (size, existence); headers are looked for in
    windows large enough for a round trip; the index is fetched only where it can save one.
Not here: which bytes belong to whom (read_plan.py), records (reader.py).
Concurrency: one thread at a time.
Sources: docs/design.md; Kafka FileRecords, OffsetIndex.
"""

import contextlib
import os
from collections.abc import Iterator

import numpy as np

from sparklog.closing import Closing
from sparklog.errors import CorruptLogError, NotFoundError, SparklogError, StorageError
from sparklog.format.index import (
    OffsetIndex,
    TimeIndex,
    encode_offset_entries,
    parse_offset_entries,
    parse_time_entries,
)
from sparklog.format.record_batch import HEADER, BatchHeader, corrupt, header_error
from sparklog.log.missing_segment import missing_segment, unreadable_segment
from sparklog.log.names import (
    INDEXED_BYTES,
    index_base_offset,
    index_name,
    is_dense,
    is_merged,
    time_index_name,
)
from sparklog.log.span import Span
from sparklog.log.stored_batches import extent_mismatch, validate_next
from sparklog.storage import ReadFile, Store

WINDOW_BYTES = 4096
MAX_WINDOW_BYTES = 64 * 1024
REMOTE_WINDOW_BYTES = 1 << 20
OPEN_FILES, OPEN_REMOTE_FILES = 8, 64
USELESS_INDEX_HEADERS = 256  # after walking so many headers in vain, the index is rebuilt
REBUILT_INTERVAL_BYTES = 4096


class SegmentFile(Closing):
    """A segment's bytes, as far as spans refer to them."""

    def __init__(self, store: Store, name: str, file: ReadFile) -> None:
        self._store = store
        self.name = name
        self._file = file
        self._index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._is_remote = store.traits.is_remote
        self._rebuilt = self._is_remote  # nobody reads a whole object for the sake of its index
        self.bytes_read = 0

    @classmethod
    def open(cls, store: Store, span: Span) -> "SegmentFile":
        """Open the span's segment; SegmentMissingError if it is gone."""
        try:
            return cls(store, span.segment, store.open_read(span.segment))
        except NotFoundError as error:
            raise missing_segment(span) from error
        except StorageError as error:
            raise unreadable_segment(span, error) from error

    def will_need(self, position: int, size: int) -> None:
        """These bytes will be read soon."""
        self._file.will_need(position, size)

    def holds(self, span: Span) -> bool:
        """Is the file, as it was opened, long enough? Objects never grow; what they lack a read will tell."""
        return self._is_remote or self.file_bytes >= span.end_position

    @property
    def file_bytes(self) -> int:
        """Size of the file when it was opened."""
        return self._file.size

    def close(self) -> None:
        """Release the file. The index's mapping goes with its last user."""
        self._index = self._time_index = None
        self._file.close()

    @property
    def descriptor(self) -> int | None:
        """The open file's descriptor, for sendfile; None where the storage has none. Closed by `close`."""
        return self._file.descriptor

    @property
    def is_removed(self) -> bool:
        """Was the file removed while it is open here, which keeps its space? Object stores do not say."""
        descriptor = self._file.descriptor
        return descriptor is not None and os.fstat(descriptor).st_nlink == 0

    def read_exactly(self, span: Span, position: int, size: int) -> bytearray:
        """`size` bytes within the span; CorruptLogError if the file ends before."""
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
                fix="restore the segment from a copy; `sparklog dump-log` shows what is left",
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
                fix="restore the segment from a copy; `sparklog dump-log` shows what is left",
            )

    def headers(
        self,
        span: Span,
        position: int,
        next_offset: int | None = None,
        *,
        within: tuple[int, int] | None = None,
    ) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from `position` to the span's end.

        Args:
            next_offset: the stored offset at which the first begins, if that is known.
            within: stored offsets, the second exclusive, beyond which no batch may go.
                Without both, batches need not follow each other: they may be of several partitions.
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
        """The first batch of the span whose last stored offset is >= `offset`; (end, None) if there is none.

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
        """A stored offset up to which every record of the span is older, as the time index says; None if it
        says nothing.

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
        # An entry names a batch that has its timestamp; one that does not is damaged, or of another file.
        fits = header is not None and (header.last_offset, header.max_timestamp_ms) == (offset, named_ms)
        return offset if fits else None

    def _load_time_index(self) -> TimeIndex:
        if self._time_index is None:
            name = time_index_name(self.name)
            self._time_index = _NO_TIMES
            with contextlib.suppress(NotFoundError, CorruptLogError), self._store.open_read(name) as file:
                self._time_index = parse_time_entries(file.map(), name)
        return self._time_index

    def _hint(self, span: Span, offset: int) -> tuple[int, int | None]:
        """Where to start walking, and the offset there: as the index says, if the header there agrees."""
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
        """The header that an index entry points to, if it fits the entry."""
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
            try:
                with self._store.open_read(name) as file:
                    mapped = file.map()
                # A last entry may be half written: its writer may be at work.
                self._index = parse_offset_entries(mapped[: len(mapped) // 8 * 8], name)
            except NotFoundError:
                self._index = _EMPTY
        return self._index

    def _rebuild_index(self) -> None:
        """Derive the index from the batch headers, and leave it for the next reader."""
        self._rebuilt = True
        entries = rebuild_entries(self, self.name, self._file.size)
        self._index = parse_offset_entries(entries, self.name)
        with contextlib.suppress(StorageError):  # read-only storage: this reader has it in memory
            # Unless it was removed since it was opened, and its index with it.
            if self._store.exists(self.name):
                self._store.put_hint(index_name(self.name), entries)


class SegmentFiles(Closing):
    """A few segments kept open, for readers that go back and forth between writers' segments."""

    def __init__(self, store: Store, *, limit: int | None = None) -> None:
        self._store = store
        self._limit = limit or (OPEN_REMOTE_FILES if store.traits.is_remote else OPEN_FILES)
        self._opened: dict[str, SegmentFile] = {}  # least recently used first

    def open(self, span: Span) -> SegmentFile:
        """The span's segment; stays open until others push it out, or `close`."""
        segment = self._opened.pop(span.segment, None)
        if segment is not None and not segment.holds(span):
            segment.close()  # it has grown since it was opened, or it is truncated: look again
            segment = None
        if segment is None:
            segment = SegmentFile.open(self._store, span)
            if len(self._opened) >= self._limit:
                self._opened.pop(next(iter(self._opened))).close()
        self._opened[span.segment] = segment
        return segment

    def close(self) -> None:
        """Close them all."""
        while self._opened:
            self._opened.popitem()[1].close()


def _header_at(window: bytearray, at: int, where: str) -> BatchHeader:
    """As parse_header, but `where` already names the position in the segment."""
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
    """Index entries for all whole batches from the segment's start. Torn bytes at its end are left out."""
    everything = Span(topic="(any)", partition=-1, segment=name, position=0, size=file_bytes)
    base = index_base_offset(name)
    offsets: list[int] = []
    positions: list[int] = []
    try:
        next_offset = 0
        for position, header in segment.headers(everything, 0):
            relative = header.base_offset - base
            due = not positions or position - positions[-1] > REBUILT_INTERVAL_BYTES
            # An offset that continues nothing may be damaged, and must not become a witness of itself.
            sound = not is_dense(name) or header.base_offset in {0, next_offset}
            next_offset = header.last_offset + 1
            if due and sound and 0 <= relative < 1 << 31 and position < 1 << 31:
                offsets.append(relative)
                positions.append(position)
    except SparklogError:
        pass  # no extent refers to what follows; if one does, reading it reports the damage
    return encode_offset_entries(np.array(offsets, np.int64), np.array(positions, np.int64))
