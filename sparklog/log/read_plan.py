"""From offsets to byte ranges: what a reader needs to know, so that it needs no metadata.

Invariants: every batch of a planned range holds at least one offset of [start_offset, end_offset) and the
    ranges of a plan ascend; the plan is picklable and refers to immutable bytes.
Not here: decoding (reader.py).
Concurrency: pure but for reading index and headers of the first and last extent.
Sources: docs/design.md.
"""

from collections.abc import Iterator

from sparklog.errors import OffsetOutOfRangeError
from sparklog.log.byte_range import ByteRange
from sparklog.log.range_plan import RangePlan, whole_extents
from sparklog.log.segment_file import SegmentFile
from sparklog.log.span import Span
from sparklog.metadata import Extent, PartitionState
from sparklog.storage import Store

_AT_ONCE = 1024


def extent_span(topic: str, extent: Extent) -> Span:
    """Where the extent's batches are."""
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
                fix=f"reset the position to {low} (earliest) or {high} (latest)",
            )


def plan_read(
    store: Store, state: PartitionState, start: int, end: int, *, topic: str | None = None
) -> RangePlan:
    """The byte ranges that hold the records with offsets in [start, end), in offset order.

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
    """Where the first batch starts that begins at or after the stored offset `end`."""
    position, header = segment.locate(span, end - 1)
    if header is None:
        return span.end_position
    return position if header.base_offset >= end else position + header.size


def bytes_between(state: PartitionState, start: int, end: int) -> int:
    """About how many stored bytes the records of [start, end) take; extents that are cut count by share."""
    if start >= end:
        return 0
    low, high = state.extents.index_after(start), state.extents.index_from(end)
    if low >= high:
        return 0
    # By columns: a stream with a limit asks for its whole backlog before each micro-batch.
    total = float(state.extents.bytes_of(low, high))
    for index in {low, high - 1}:
        extent = state.extents[index]
        inside = min(end, extent.end_offset) - max(start, extent.base_offset)
        total -= extent.size * (extent.record_count - inside) / extent.record_count
    return round(total)


def end_offset_for_bytes(state: PartitionState, start: int, max_bytes: int) -> int:
    """The end of a range from `start` that takes about `max_bytes` stored bytes; at least one offset.

    Costs no I/O: within an extent, bytes are taken to be spread evenly over its offsets.
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
    """A few at a time: who asks may soon have enough."""
    if start >= end:
        return
    stop = state.extents.index_from(end)
    for index in range(state.extents.index_after(start), stop, _AT_ONCE):
        yield from state.extents[index : min(index + _AT_ONCE, stop)]
