"""From offsets to byte ranges: everything that a reader needs, so that it needs no metadata.

Invariants: every batch of a planned range holds at least one offset of [start_offset, end_offset) and the
    ranges of a plan ascend; the plan is picklable and refers to immutable bytes.
Not here: decoding (reader.py).
Concurrency: pure, except for reading index and headers of the first and last extent.
Sources: docs/design.md.
"""

import dataclasses
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sparklog.errors import OffsetOutOfRangeError
from sparklog.log.segment_file import SegmentFile, Span
from sparklog.metadata import NUMBER_COLUMNS, Extent, PartitionState
from sparklog.storage import Store

# --- byte range --------------------------------------------------------------------------------------
#
# A byte range: batches of one partition in one segment, and the offsets that are wanted.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """Batches of one partition in one segment, and the offsets that are wanted."""

    topic: str
    partition: int
    segment: str
    position: int
    size: int
    offset_delta: int  # stored offset + offset_delta = offset
    start_offset: int
    end_offset: int

    @property
    def span(self) -> Span:
        """The location of the bytes, without the offsets."""
        return Span(
            topic=self.topic,
            partition=self.partition,
            segment=self.segment,
            position=self.position,
            size=self.size,
        )


# --- range plan --------------------------------------------------------------------------------------
#
# The byte ranges of a large read, as columns: built without a pass over the extents, small when pickled.
#
# A partition with a publish each second has 100,000s of extents. As objects they would take a second and
# 100 MB before the first record is read, and megabytes on their way to an executor. A read may cut only its
# first and last extent, which are opened; those between are read whole, and stay columns of the image until
# they are read.
#
# Invariants: iterating gives the ranges ascending, repeatedly; no range is empty.
# Concurrency: immutable.


_AT_ONCE = 1024  # objects created at a time
_NAMES = ("position", "size", "base_offset", "record_count", "offset_delta")
_COLUMNS = tuple(NUMBER_COLUMNS.index(name) for name in _NAMES)
_SIZE = _NAMES.index("size")
_Numbers = tuple[npt.NDArray[np.int64], ...]


@dataclass(frozen=True, slots=True)
class WholeExtents:
    """Extents of a partition that are read whole: segment names, and the columns of _NAMES."""

    segment: npt.NDArray[Any]
    numbers: _Numbers

    def ranges(self, topic: str, partition: int) -> Iterator[ByteRange]:
        """Yield the ranges, created a few at a time."""
        for start in range(0, len(self.segment), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            rows = zip(self.segment[part], *(column[part].tolist() for column in self.numbers), strict=True)
            for segment, position, size, base_offset, record_count, offset_delta in rows:
                yield ByteRange(
                    topic=topic,
                    partition=partition,
                    segment=segment,
                    position=position,
                    size=size,
                    offset_delta=offset_delta,
                    start_offset=base_offset,
                    end_offset=base_offset + record_count,
                )

    def __reduce__(self) -> tuple[Any, ...]:
        names: dict[str, int] = {}  # in the order of their first use
        rows = len(self.segment)
        codes = np.fromiter((names.setdefault(name, len(names)) for name in self.segment), np.int64, rows)
        columns = (codes, *self.numbers)
        # Differences of neighbours are small and repeat: 5 to 20 times smaller.
        differences = [np.diff(column, prepend=np.int64(0)).astype(np.int64).tobytes() for column in columns]
        packed = zlib.compress(b"".join((*differences, msgspec.json.encode(list(names)))), 1)
        return _unpacked, (rows, packed)


def _unpacked(rows: int, packed: bytes) -> WholeExtents:
    data = zlib.decompress(packed)
    columns = np.frombuffer(data, np.int64, rows * (1 + len(_NAMES))).reshape(1 + len(_NAMES), rows)
    codes, *numbers = np.cumsum(columns, axis=1)
    names = np.array([*msgspec.json.decode(data[columns.nbytes :], type=list[str]), None], object)
    return WholeExtents(names[codes], tuple(numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class RangePlan:
    """The ranges of one read of one partition; picklable. Has the topic's id, so that a reader that misses a
    file can refresh the locations of its offsets.
    """

    topic: str
    topic_id: str
    partition: int
    first: tuple[ByteRange, ...] = ()
    whole: tuple[WholeExtents, ...] = ()
    last: tuple[ByteRange, ...] = ()

    def __iter__(self) -> Iterator[ByteRange]:
        between = chain.from_iterable(block.ranges(self.topic, self.partition) for block in self.whole)
        return chain(self.first, between, self.last)

    def __len__(self) -> int:
        return len(self.first) + sum(len(block.segment) for block in self.whole) + len(self.last)

    @property
    def size_bytes(self) -> int:
        """The stored bytes of all ranges."""
        cut = sum(byte_range.size for byte_range in (*self.first, *self.last))
        return cut + sum(int(block.numbers[_SIZE].sum()) for block in self.whole)


def whole_extents(state: PartitionState, start: int, stop: int) -> tuple[WholeExtents, ...]:
    """Return the extents of these indices, as views of the image's columns."""
    found = []
    for index, block in state.extents.column_blocks():
        part = block.slice(max(start - index, 0), max(stop - index, 0))
        if len(part):
            found.append(WholeExtents(part.segment, tuple(part.numbers[at] for at in _COLUMNS)))
    return tuple(found)


# --- read plan ---------------------------------------------------------------------------------------


_AT_ONCE = 1024


def extent_span(topic: str, extent: Extent) -> Span:
    """Return the location of the extent's batches."""
    return Span(
        topic=topic,
        partition=extent.partition,
        segment=extent.segment,
        position=extent.position,
        size=extent.size,
        first_offset=extent.base_offset - extent.offset_delta,
    )


def validate_range(topic: str | None, state: PartitionState, start: int, end: int) -> None:
    """Refuse offsets outside the log."""
    low, high = state.log_start_offset, state.log_end_offset
    for name, offset in (("start", start), ("end", end)):
        if not low <= offset <= high:
            where = f"{topic}-{state.partition}" if topic else f"partition {state.partition}"
            raise OffsetOutOfRangeError(
                "OFFSET_OUT_OF_RANGE",
                f"{where}: found {name} offset {offset}, expected {low} to {high}",
                fix=f"Reset the position to {low} (earliest) or {high} (latest)",
            )


def plan_read(
    store: Store, state: PartitionState, start: int, end: int, *, topic: str | None = None
) -> RangePlan:
    """Return the byte ranges of the records with offsets in [start, end), in offset order.

    Args:
        topic: the topic's name, for error messages; without it they name the topic's id.

    Raises:
        OffsetOutOfRangeError: start or end outside [log_start_offset, log_end_offset].
        DataLossError, CorruptLogError: the first or last extent cannot be read.

    Cost: two binary searches over extents; index and a few headers of the extents that are cut.
    """
    validate_range(topic, state, start, end)
    name = topic or state.topic_id
    low = state.extents.index_after(start)
    high = state.extents.index_from(end) if start < end else low

    def cut(index: int) -> tuple[ByteRange, ...]:
        planned = _plan_extent(store, name, state.extents[index], start, end)
        return (planned,) if planned.size else ()

    return RangePlan(
        topic=name,
        topic_id=state.topic_id,
        partition=state.partition,
        first=cut(low) if low < high else (),
        whole=whole_extents(state, low + 1, high - 1) if low + 1 < high - 1 else (),
        last=cut(high - 1) if low < high - 1 else (),
    )


def _plan_extent(store: Store, topic: str, extent: Extent, start: int, end: int) -> ByteRange:
    span = extent_span(topic, extent)
    first, last = max(start, extent.base_offset), min(end, extent.end_offset)
    low, high = span.position, span.end_position
    cut_start, cut_end = first > extent.base_offset, last < extent.end_offset
    if cut_start or cut_end:
        with SegmentFile.open(store, span) as segment:
            if cut_start:
                low, _ = segment.locate(span, first - extent.offset_delta)
            if cut_end:
                high = _end_position(segment, span, last - extent.offset_delta)
    return ByteRange(
        topic=topic,
        partition=extent.partition,
        segment=extent.segment,
        position=low,
        size=max(0, high - low),
        offset_delta=extent.offset_delta,
        start_offset=first,
        end_offset=last,
    )


def _end_position(segment: SegmentFile, span: Span, end: int) -> int:
    """Return the position of the first batch that begins at or after the stored offset `end`."""
    position, header = segment.locate(span, end - 1)
    if header is None:
        return span.end_position
    return position if header.base_offset >= end else position + header.size


def bytes_between(state: PartitionState, start: int, end: int) -> int:
    """Return about how many stored bytes [start, end) takes; extents that are cut count in proportion."""
    if start >= end:
        return 0
    low, high = state.extents.index_after(start), state.extents.index_from(end)
    if low >= high:
        return 0
    # By columns: a stream with a limit calls this for its whole backlog before each micro-batch.
    total = float(state.extents.bytes_of(low, high))
    for index in {low, high - 1}:
        extent = state.extents[index]
        inside = min(end, extent.end_offset) - max(start, extent.base_offset)
        total -= extent.size * (extent.record_count - inside) / extent.record_count
    return round(total)


def end_offset_for_bytes(state: PartitionState, start: int, max_bytes: int) -> int:
    """Return the end of a range from `start` that takes about `max_bytes` stored bytes; at least one offset.

    No I/O: assumes that an extent's bytes are spread evenly over its offsets.
    """
    left = float(max_bytes)
    position = start
    for extent in _extents_between(state, start, state.log_end_offset):
        low, end = max(start, extent.base_offset), extent.end_offset
        per_offset = extent.size / extent.record_count
        if per_offset * (end - low) > left:
            return max(start + 1, low + round(left / per_offset))
        left -= per_offset * (end - low)
        position = end
    return max(position, min(start, state.log_end_offset))


def _extents_between(state: PartitionState, start: int, end: int) -> Iterator[Extent]:
    """Yield extents a few at a time: the caller may stop early."""
    if start >= end:
        return
    stop = state.extents.index_from(end)
    for index in range(state.extents.index_after(start), stop, _AT_ONCE):
        yield from state.extents[index : min(index + _AT_ONCE, stop)]
