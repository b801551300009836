"""The extents of one partition, in offset order: an immutable list, mostly of columns.

A root may hold a million extents. As Python objects of some 400 bytes they would cost hundreds of megabytes,
and seconds to load; as columns they take 80, and an Arrow file provides them without copying. New extents are
added to a short packed tail, which becomes columns when it is full. It is short, since each append copies it.

Invariants: base offsets ascend and extents do not overlap (checked by the effects of actions, extents.py).
Concurrency: immutable; every change makes a new list that shares the columns.
"""

import bisect
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import crc32c
import msgspec
import numpy as np
import numpy.typing as npt

from sparklog.errors import InvalidRequestError
from sparklog.metadata.model.action import MAX_OFFSET, Int64
from sparklog.storage.base import validate_name

# --- extent ------------------------------------------------------------------------------------------
#
# An extent: consecutive batches of one partition in a segment, with and without their offsets.
#
# Invariants: only why_illegal_extent defines the bounds, for our own plans and for bytes from disk.
# Not here: the order of a partition's extents (extents.py).
# Sources: FORMAT.md#segments-and-extents.


NO_PRODUCER_ID = -1
_MIN_BATCH_BYTES = 61  # a record batch's header


class DraftExtent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Durable batches of one partition without offsets: in the segment they count from 0."""

    topic_id: str
    partition: Int64
    segment: str  # store name of the .log file
    position: Int64
    size: Int64
    record_count: Int64
    max_timestamp_ms: Int64
    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int64 = -1
    base_sequence: Int64 = -1


class Extent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A byte range of a segment that holds consecutive batches of one partition.

    record_count is the number of offsets spanned, also where compaction left gaps. A record's offset is
    the stored one plus offset_delta.
    """

    topic_id: str
    partition: Int64
    segment: str
    position: Int64
    size: Int64
    base_offset: Int64
    record_count: Int64
    max_timestamp_ms: Int64
    offset_delta: Int64
    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int64 = -1
    base_sequence: Int64 = -1

    @property
    def end_offset(self) -> int:
        """Exclusive."""
        return self.base_offset + self.record_count


def why_illegal_extent(extent: Extent) -> str | None:
    """Return why a field is out of bounds, or does not fit the others, or None."""
    try:
        validate_name(extent.segment)
    except InvalidRequestError as error:
        return error.message
    if extent.position < 0 or extent.position > MAX_OFFSET - extent.size:
        return f"position {extent.position} is out of range"
    if extent.size < _MIN_BATCH_BYTES:
        return f"size {extent.size} is below {_MIN_BATCH_BYTES}, the smallest record batch"
    if extent.base_offset < 0:
        return f"base_offset {extent.base_offset} is negative"
    if not 1 <= extent.record_count <= MAX_OFFSET - extent.base_offset:
        return f"record_count {extent.record_count} is out of range"
    if not -1 <= extent.max_timestamp_ms <= MAX_OFFSET:
        return f"max_timestamp_ms {extent.max_timestamp_ms} is out of range"
    if not -extent.base_offset <= extent.offset_delta <= extent.base_offset:
        return f"offset_delta {extent.offset_delta} does not fit base_offset {extent.base_offset}"
    return _why_illegal_producer(extent)


def _why_illegal_producer(extent: Extent) -> str | None:
    if extent.producer_id == NO_PRODUCER_ID:
        if extent.producer_epoch != -1 or extent.base_sequence != -1:
            return "a producer epoch or sequence without a producer id"
        return None
    if not 0 <= extent.producer_id <= MAX_OFFSET:
        return f"producer_id {extent.producer_id} is out of range"
    if not 0 <= extent.producer_epoch < 1 << 15:
        return f"producer_epoch {extent.producer_epoch} is out of range"
    if not 0 <= extent.base_sequence < 1 << 31:
        return f"base_sequence {extent.base_sequence} is out of range"
    return None


# --- packed extents ----------------------------------------------------------------------------------
#
# An extent as an object takes 415 bytes, its nine numbers here 72. With 200,000 partitions of a few new
# extents each, that is the difference between 1.2 GB and 250 MB.
#
# Invariants: the numbers are those of the extents, in the order of their fields.
# Concurrency: immutable.


NUMBERS = 9  # the fields of an extent from `position` on
_ROW = struct.Struct(f"={NUMBERS}q")
_OFFSET_AND_COUNT = struct.Struct("=qq")
_PACKED_EXTENTS_SIZE, _PACKED_EXTENTS_BASE_OFFSET = (
    1,
    2,
)  # indices of numbers in a row; the count follows the offset


class PackedExtents:
    """A few extents of one partition in little memory: their numbers in a bytes object."""

    __slots__ = ("numbers", "segments")

    def __init__(self, segments: tuple[str, ...] = (), numbers: bytes = b"") -> None:
        self.segments = segments
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.segments)

    def joined(self, extents: Sequence[Extent]) -> "PackedExtents":
        """Return these, followed by `extents`. Each segment name is kept once in the process."""
        rows = [
            _ROW.pack(
                extent.position,
                extent.size,
                extent.base_offset,
                extent.record_count,
                extent.max_timestamp_ms,
                extent.offset_delta,
                extent.producer_id,
                extent.producer_epoch,
                extent.base_sequence,
            )
            for extent in extents
        ]
        names = [sys.intern(extent.segment) for extent in extents]
        return PackedExtents((*self.segments, *names), b"".join((self.numbers, *rows)))

    def slice(self, start: int, stop: int) -> "PackedExtents":
        """Return the extents [start:stop], 0 <= start <= stop."""
        return PackedExtents(self.segments[start:stop], self.numbers[_ROW.size * start : _ROW.size * stop])

    def extents(self, topic_id: str, partition: int, start: int = 0, stop: int | None = None) -> list[Extent]:
        """Return extents as objects, from `start` on."""
        last = len(self) if stop is None else stop
        return [
            Extent(
                topic_id=topic_id,
                partition=partition,
                segment=segment,
                position=position,
                size=size,
                base_offset=base_offset,
                record_count=record_count,
                max_timestamp_ms=max_timestamp_ms,
                offset_delta=offset_delta,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
            )
            for segment, (
                position,
                size,
                base_offset,
                record_count,
                max_timestamp_ms,
                offset_delta,
                producer_id,
                producer_epoch,
                base_sequence,
            ) in zip(
                self.segments[start:last],
                _ROW.iter_unpack(self.numbers[_ROW.size * start : _ROW.size * last]),
                strict=True,
            )
        ]

    def index_after(self, offset: int) -> int:
        """Return the index of the first extent that ends after `offset`; len() if there is none."""
        index = bisect.bisect_right(self._column(_PACKED_EXTENTS_BASE_OFFSET), offset)
        if index:
            # Ends ascend as well, so only the extent that starts at or before `offset` needs a check.
            start, count = _OFFSET_AND_COUNT.unpack_from(
                self.numbers, _ROW.size * (index - 1) + 8 * _PACKED_EXTENTS_BASE_OFFSET
            )
            if offset < start + count:
                return index - 1
        return index

    def index_from(self, offset: int) -> int:
        """Return the index of the first extent that starts at or after `offset`."""
        return bisect.bisect_left(self._column(_PACKED_EXTENTS_BASE_OFFSET), offset)

    def bytes_from(self, offset: int) -> int:
        """Return the stored bytes from `offset` on; see ExtentList.bytes_from."""
        index = self.index_after(offset)
        if index == len(self):
            return 0
        _, size, base_offset, record_count, *_ = _ROW.unpack_from(self.numbers, _ROW.size * index)
        return share_of(size, base_offset, record_count, offset) + sum(
            self._column(_PACKED_EXTENTS_SIZE)[index + 1 :]
        )

    def _column(self, number: int) -> memoryview:
        return memoryview(self.numbers).cast("q")[number::NUMBERS]


def share_of(size: int, base_offset: int, record_count: int, offset: int) -> int:
    """Return the share of an extent's bytes from `offset` on, which is before its end; at least one."""
    left = min(record_count, base_offset + record_count - offset)
    return max(1, size * left // record_count)


NO_EXTENTS = PackedExtents()


# --- extent list -------------------------------------------------------------------------------------


NUMBER_COLUMNS = (
    "position",
    "size",
    "base_offset",
    "record_count",
    "max_timestamp_ms",
    "offset_delta",
    "producer_id",
    "producer_epoch",
    "base_sequence",
)
_FIRST_NUMBER = Extent.__struct_fields__.index(NUMBER_COLUMNS[0])
assert Extent.__struct_fields__[_FIRST_NUMBER:] == NUMBER_COLUMNS
assert len(NUMBER_COLUMNS) == NUMBERS
_BASE_OFFSET = NUMBER_COLUMNS.index("base_offset")
_RECORD_COUNT = NUMBER_COLUMNS.index("record_count")
_OFFSET_DELTA = NUMBER_COLUMNS.index("offset_delta")
_SIZE = NUMBER_COLUMNS.index("size")
_PRODUCER = slice(NUMBER_COLUMNS.index("producer_id"), None)
TopicPartition = tuple[str, int]  # topic id, partition
SEQUENCES = 1 << 31  # of producers: 0 to 2^31-1, then 0 again
# Shorter: more arrays to create; longer: more to copy with each append.
_MAX_TAIL = 16
_MADE_AT_ONCE = 512  # numbers of a column converted to Python's at a time
_PACKED_AT_ONCE = 4096  # rows of columns
_ADDED_AT_ONCE = 64  # sizes: a NumPy call costs as much as adding some thirty numbers
# A block from a snapshot is never merged; younger ones merge up to this size.
_MAX_MERGED_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class ExtentColumns:
    """Extents of one partition as parallel arrays: segment names, and NUMBER_COLUMNS in that order.

    `numbers` is one array of as many rows, or a tuple of arrays.
    """

    segment: npt.NDArray[Any]
    numbers: npt.NDArray[np.int64] | tuple[npt.NDArray[np.int64], ...]

    def __len__(self) -> int:
        return len(self.segment)

    @property
    def base_offset(self) -> npt.NDArray[np.int64]:
        return self.numbers[_BASE_OFFSET]

    @property
    def end_offset(self) -> npt.NDArray[np.int64]:
        end: npt.NDArray[np.int64] = self.numbers[_BASE_OFFSET] + self.numbers[_RECORD_COUNT]
        return end

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """Return one of NUMBER_COLUMNS."""
        return self.numbers[NUMBER_COLUMNS.index(name)]

    @property
    def stored_bytes(self) -> int:
        """The exact sum of all sizes, which come from documents and may exceed an int64."""
        sizes = self.numbers[_SIZE]
        return (int((sizes >> 32).sum()) << 32) + int((sizes & 0xFFFF_FFFF).sum())

    def slice(self, start: int, stop: int) -> "ExtentColumns":
        return ExtentColumns(self.segment[start:stop], tuple(column[start:stop] for column in self.numbers))

    def extents(self, topic_id: str, partition: int) -> Iterator[Extent]:
        if len(self) > _MADE_AT_ONCE:
            for start in range(0, len(self), _MADE_AT_ONCE):
                yield from self.slice(start, start + _MADE_AT_ONCE).extents(topic_id, partition)
            return
        columns = (self.segment.tolist(), *(column.tolist() for column in self.numbers))
        for segment, *numbers in zip(*columns, strict=True):
            fields = dict(zip(NUMBER_COLUMNS, numbers, strict=True))
            yield Extent(topic_id=topic_id, partition=partition, segment=segment, **fields)


def why_disordered(rows: ExtentColumns, counts: Sequence[int]) -> tuple[int, str] | None:
    """Return the index of the first invalid list of extents, and why; None if all are valid.

    Args:
        rows: the extents of consecutive lists.
        counts: the number of rows of each list.
    """
    ends = rows.end_offset
    is_wrong = (ends <= rows.base_offset) | (rows.base_offset < 0)
    overlaps = rows.base_offset[1:] < ends[:-1]
    firsts = np.cumsum(np.array(counts, np.int64))
    overlaps[firsts[(firsts > 0) & (firsts < len(rows))] - 1] = False  # a list begins after it
    is_wrong[1:] |= overlaps
    if not is_wrong.any():
        return None
    row = int(np.argmax(is_wrong))
    return int(np.searchsorted(firsts, row, side="right")), "extents overlap, or have no offsets"


def lists_of(
    rows: ExtentColumns, parts: Iterable[tuple[TopicPartition, int]]
) -> Iterator[tuple[TopicPartition, "ExtentList"]]:
    """Yield the extents of many partitions. Short lists are packed, as a view costs a kilobyte.

    Args:
        parts: consecutive partitions, and the number of rows of each.
    """
    row = first = 0
    packed = NO_EXTENTS
    for place, count in parts:
        if not count:
            yield place, ExtentList(*place)
        elif count >= _MAX_TAIL:
            yield place, ExtentList(*place, (rows.slice(row, row + count),))
        else:
            if row + count > first + len(packed):
                first, packed = row, _packed(rows.slice(row, row + _PACKED_AT_ONCE))
            yield place, ExtentList(*place, (), packed.slice(row - first, row - first + count))
        row += count


def _packed(rows: ExtentColumns) -> PackedExtents:
    return PackedExtents(tuple(rows.segment.tolist()), np.stack(tuple(rows.numbers), axis=1).tobytes())


def checksum_of(columns: ExtentColumns) -> int:
    """Return the CRC-32C of every field of one partition's extents, in FORMAT.md's order
    (replace_extents).
    """
    crc = 0
    for column in columns.numbers:
        crc = crc32c.crc32c(np.ascontiguousarray(column, ">i8").view(np.uint8).data, crc)
    return int(crc32c.crc32c("\0".join(columns.segment.tolist()).encode(), crc))


def columns_of(extents: Sequence[Extent]) -> ExtentColumns:
    """Return columns of objects. Each segment name is kept once in the process."""
    return _unpacked(NO_EXTENTS.joined(extents))


def _unpacked(packed: PackedExtents) -> ExtentColumns:
    segment = np.empty(len(packed), dtype=object)
    segment[:] = packed.segments
    rows = np.frombuffer(packed.numbers, np.int64).reshape(len(packed), len(NUMBER_COLUMNS))
    return ExtentColumns(segment, np.ascontiguousarray(rows.T))


def concat_columns(blocks: Sequence[ExtentColumns]) -> ExtentColumns:
    """Concatenate blocks."""
    if len(blocks) == 1:
        return blocks[0]
    if not blocks:
        return columns_of(())
    numbers = np.empty((len(NUMBER_COLUMNS), sum(map(len, blocks))), np.int64)
    for row, parts in zip(numbers, zip(*(block.numbers for block in blocks), strict=True), strict=True):
        np.concatenate(parts, out=row)
    return ExtentColumns(np.concatenate([block.segment for block in blocks]), numbers)


_Parts = tuple[tuple[ExtentColumns, ...], PackedExtents]


class ExtentList(Sequence[Extent]):
    """Extents of one partition, ascending. Supports len, indexing, slicing, iteration."""

    __slots__ = ("_blocks", "_stored_bytes", "_tail", "partition", "topic_id")

    def __init__(
        self,
        topic_id: str,
        partition: int,
        blocks: tuple[ExtentColumns, ...] = (),
        tail: PackedExtents = NO_EXTENTS,
    ) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self._blocks = blocks  # none is empty
        self._tail = tail
        self._stored_bytes: int | None = None

    def __len__(self) -> int:
        return sum(map(len, self._blocks)) + len(self._tail)

    def __iter__(self) -> Iterator[Extent]:
        for block in self._blocks:
            yield from block.extents(self.topic_id, self.partition)
        yield from self._tail_extents()

    @overload
    def __getitem__(self, index: int) -> Extent: ...
    @overload
    def __getitem__(self, index: slice) -> list[Extent]: ...
    def __getitem__(self, index: int | slice) -> Extent | list[Extent]:
        count = len(self)
        if isinstance(index, slice):
            start, stop, step = index.indices(count)
            return self.range_of(start, stop) if step == 1 else list(self)[index]
        position = index + count if index < 0 else index
        if not 0 <= position < count:
            raise IndexError(index)
        return self.range_of(position, position + 1)[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExtentList) and len(self) == len(other) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash((self.topic_id, self.partition, len(self)))

    def __repr__(self) -> str:
        return f"ExtentList({self.topic_id!r}, {self.partition}, {len(self)} extents)"

    def between(self, start_offset: int, end_offset: int) -> list[Extent]:
        """Return the extents that hold any offset of [start_offset, end_offset)."""
        if start_offset >= end_offset:
            return []
        return self.range_of(self.index_after(start_offset), self.index_from(end_offset))

    def index_after(self, offset: int) -> int:
        """Return the index of the first extent that ends after `offset`; len() if there is none."""
        index = 0
        for block in self._blocks:
            if offset < _last_end(block):
                return index + _index_after(block, offset)
            index += len(block)
        return index + self._tail.index_after(offset)

    def bytes_from(self, offset: int, limit: int) -> int:
        """Return the stored bytes from `offset` on, or `limit` if there are more.

        An extent that is cut counts in proportion to its offsets, and at least one byte.
        """
        total = 0
        for block in self._blocks:
            if total >= limit:
                break
            if offset < _last_end(block):
                index = 0 if total else _index_after(block, offset)
                total += _bytes_from(block, index, offset, limit - total)
        if total < limit:
            total += self._tail.bytes_from(offset)
        return min(total, limit)

    def with_sequence(self, producer_id: int, producer_epoch: int, sequence: int) -> Extent | None:
        """Return the newest extent of this producer and epoch that has the record of this sequence number.

        Cost: a scan from the end; a millisecond for a million extents.
        """
        for extent in reversed(self._tail_extents()):
            if (
                extent.producer_id == producer_id
                and extent.producer_epoch == producer_epoch
                and (sequence - extent.base_sequence) % SEQUENCES < extent.record_count
            ):
                return extent
        for block in reversed(self._blocks):
            ids, epochs, bases = block.numbers[_PRODUCER]
            holds = (sequence - bases) % SEQUENCES < block.numbers[_RECORD_COUNT]
            found = np.flatnonzero((ids == producer_id) & (epochs == producer_epoch) & holds)
            if len(found):
                return self._extent(block, int(found[-1]))
        return None

    def refers_to(self, segment: str) -> bool:
        """True if an extent is in this segment. Cost: a scan."""
        return segment in self._tail.segments or any(
            bool(np.any(block.segment == segment)) for block in self._blocks
        )

    def last_of_producer(self, producer_id: int) -> Extent | None:
        """Return the newest extent of this producer. Cost: as `with_sequence`."""
        for extent in reversed(self._tail_extents()):
            if extent.producer_id == producer_id:
                return extent
        for block in reversed(self._blocks):
            found = np.flatnonzero(block.numbers[_PRODUCER][0] == producer_id)
            if len(found):
                return self._extent(block, int(found[-1]))
        return None

    def _extent(self, block: ExtentColumns, index: int) -> Extent:
        return next(block.slice(index, index + 1).extents(self.topic_id, self.partition))

    def columns_between(self, start: int, stop: int) -> ExtentColumns:
        """Return the extents [start:stop] as columns; do not modify."""
        return concat_columns(list(self._blocks_between(start, stop)))

    def bytes_of(self, start: int, stop: int) -> int:
        """Return the stored bytes of the extents [start:stop]."""
        return sum(block.stored_bytes for block in self._blocks_between(start, stop))

    @property
    def stored_bytes(self) -> int:
        """The stored bytes of all extents, cached: few of many partitions change between two calls."""
        if self._stored_bytes is None:
            self._stored_bytes = self.bytes_of(0, len(self))
        return self._stored_bytes

    def columns(self) -> ExtentColumns:
        """Return all extents as columns, copied; do not modify."""
        return concat_columns([block for _, block in self.column_blocks()])

    def _blocks_between(self, start: int, stop: int) -> Iterator[ExtentColumns]:
        for first, block in self.column_blocks():
            low, high = max(start - first, 0), min(stop - first, len(block))
            if low < high:
                yield block if high - low == len(block) else block.slice(low, high)

    def column_blocks(self) -> Iterator[tuple[int, ExtentColumns]]:
        """Yield all extents in the list's blocks of columns: (index of the first, block); do not modify."""
        index = 0
        for block in self._blocks:
            yield index, block
            index += len(block)
        if len(self._tail):
            yield index, _unpacked(self._tail)

    def appended(self, extents: Sequence[Extent]) -> "ExtentList":
        """Return a list with `extents` after these."""
        tail = self._tail.joined(extents)
        if len(tail) < _MAX_TAIL:
            return self._with(self._blocks, tail)
        return self._with(_merged(self._blocks, _unpacked(tail)), NO_EXTENTS)

    @property
    def end_offset(self) -> int:
        """The end of the last extent; 0 if there is none."""
        if len(self._tail):
            return self.range_of(len(self) - 1, len(self))[0].end_offset
        return _last_end(self._blocks[-1]) if self._blocks else 0

    def joined(self, staged: "ExtentList", base_offset: int) -> "ExtentList":
        """Return a list with `staged` after these, with offsets from `base_offset` on."""
        columns = staged.columns()
        numbers = list(columns.numbers)
        for column in (_BASE_OFFSET, _OFFSET_DELTA):
            numbers[column] = numbers[column] + base_offset
        moved = ExtentColumns(columns.segment, tuple(numbers))
        if len(moved) < _MAX_TAIL:
            return self.appended(list(moved.extents(self.topic_id, self.partition)))
        blocks = _merged(self._blocks, _unpacked(self._tail)) if len(self._tail) else self._blocks
        return self._with(_merged(blocks, moved), NO_EXTENTS)

    def dropped_before(self, offset: int) -> "ExtentList":
        """Return a list without the extents that end at or before `offset`."""
        return self._with(*self._split(self.index_after(offset))[1])

    def replaced(self, start: int, stop: int, added: Sequence[Extent]) -> "ExtentList":
        """Return a list with `added` instead of the extents [start:stop]."""
        (before, before_tail), rest = self._split(start)
        middle = before_tail.joined(added)
        after, after_tail = self._with(*rest)._split(stop - start)[1]
        if not after:
            return self._with(before, middle).appended(after_tail.extents(self.topic_id, self.partition))
        blocks = _merged(before, _unpacked(middle)) if len(middle) else before
        return self._with((*blocks, *after), after_tail)

    def _with(self, blocks: tuple[ExtentColumns, ...], tail: PackedExtents) -> "ExtentList":
        return ExtentList(self.topic_id, self.partition, blocks, tail)

    def _tail_extents(self) -> list[Extent]:
        return self._tail.extents(self.topic_id, self.partition)

    def index_from(self, offset: int) -> int:
        """Return the index of the first extent that starts at or after `offset`."""
        index = 0
        for block in self._blocks:
            if offset <= int(block.base_offset[-1]):
                return index + int(np.searchsorted(block.base_offset, offset, side="left"))
            index += len(block)
        return index + self._tail.index_from(offset)

    def range_of(self, start: int, stop: int) -> list[Extent]:
        found: list[Extent] = []
        for block in self._blocks:
            if stop <= 0:
                return found
            if start < len(block):
                part = block.slice(max(start, 0), min(stop, len(block)))
                found.extend(part.extents(self.topic_id, self.partition))
            start -= len(block)
            stop -= len(block)
        if stop > 0:
            found.extend(self._tail.extents(self.topic_id, self.partition, max(start, 0), stop))
        return found

    def _split(self, index: int) -> tuple[_Parts, _Parts]:
        before: list[ExtentColumns] = []
        for number, block in enumerate(self._blocks):
            if index < len(block):
                if index:
                    before.append(block.slice(0, index))
                after = (block.slice(index, len(block)), *self._blocks[number + 1 :])
                return (tuple(before), NO_EXTENTS), (after, self._tail)
            before.append(block)
            index -= len(block)
        before_tail, after_tail = self._tail.slice(0, index), self._tail.slice(index, len(self._tail))
        return (tuple(before), before_tail), ((), after_tail)


def _last_end(block: ExtentColumns) -> int:
    return int(block.base_offset[-1]) + int(block.numbers[_RECORD_COUNT][-1])


def _index_after(block: ExtentColumns, offset: int) -> int:
    """Return the index of the first extent that ends after `offset`, which is before the last one's end."""
    index = int(np.searchsorted(block.base_offset, offset, side="right"))
    # Ends ascend as well, so only the extent that starts at or before `offset` needs a check.
    if index and offset < int(block.base_offset[index - 1]) + int(block.numbers[_RECORD_COUNT][index - 1]):
        return index - 1
    return index


def _bytes_from(block: ExtentColumns, index: int, offset: int, limit: int) -> int:
    """Return the bytes of the extents from `index` on, the first perhaps cut; not many more than `limit`."""
    sizes, counts = block.numbers[_SIZE], block.numbers[_RECORD_COUNT]
    total = share_of(int(sizes[index]), int(block.base_offset[index]), int(counts[index]), offset)
    index += 1
    while total < limit and index < len(block):
        total += int(sizes[index : index + _ADDED_AT_ONCE].sum())
        index += _ADDED_AT_ONCE
    return total


def _merged(blocks: tuple[ExtentColumns, ...], block: ExtentColumns) -> tuple[ExtentColumns, ...]:
    """Append a block, merging it with neighbours of its size: few blocks, each extent copied log n times."""
    parts = [block]
    size = len(block)
    while blocks and len(blocks[-1]) <= 2 * size and len(blocks[-1]) + size <= _MAX_MERGED_BLOCK:
        size += len(blocks[-1])
        parts.insert(0, blocks[-1])
        blocks = blocks[:-1]
    return (*blocks, concat_columns(parts))
