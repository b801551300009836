"""Are stored batches those that metadata refer to? They follow each other, and lie within their extent.

No CRC covers a batch's base offset, so that it can be given one when it is stored; a flipped bit there would
show records under the offsets of others. But offsets follow from each other:

    - a batch begins after the one before it, and right after it in a segment without gaps (a task's own;
      compaction leaves gaps in merged ones);
    - it lies within the offsets of its extent; where only some of the offsets are wanted, the first batch may
      begin before them, and the last may end after them;
    - in a segment without gaps, an extent's first batch begins where the extent begins, and its last one ends
      where it ends.

Invariants: what breaks a rule is EXTENT_MISMATCH, with segment and position; nothing is skipped.
Not here: what is wrong inside a batch (format/), reading the bytes (segment_file.py).
Concurrency: pure functions.
Sources: FORMAT.md#segments-and-extents.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.errors import CorruptLogError, SparklogError
from sparklog.format.batch_table import BatchTable, scan_batches
from sparklog.format.record_batch import HEADER, LENGTH_END, BatchHeader
from sparklog.log.names import is_dense
from sparklog.log.span import Span

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """What metadata say of a buffer of whole batches, of one or more extents of a partition, which ascend.

    Offsets have offset_delta added.

    Fields:
        size, offset_delta, segment: of each extent's bytes, in the order of the buffer.
        start_offset, end_offset: of each extent, or of the offsets in it that are wanted. All but the first
            begin, and all but the last end, with their extents.
        begins_at: where the first batch of all begins; None: not known.
        reaches_end: the last batch of all ends at its end_offset, or beyond.
        is_cut: the first batch may begin before its start_offset, the last one end after its end_offset.
        place: span of the extent of this index, and the position of its bytes there, for error messages.
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
    """The batches of a buffer, and the offset delta of each.

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
    """Hold the batches of a scanned buffer against the rules; returns the offset delta of each batch.

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
    # Of offsets that are wanted, none may be missing before the first batch.
    return not (dense and stretches.is_cut) or base <= stretches.start_offset[0]


def _misplaced(table: BatchTable, stretches: Stretches, at: int, *, is_short: bool) -> CorruptLogError:
    """The error for a batch of the table."""
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
        f"it to continue those before, within {stretches.start_offset[index]} to {end - 1}",
    )


def validate_next(
    span: Span, position: int, header: BatchHeader, next_offset: int | None, within: tuple[int, int] | None
) -> None:
    """The same rules for batches that are met one by one; all offsets are as stored.

    Args:
        next_offset: after the batch before; None: not known.
        within: the extent's offsets, the second exclusive; None: not known.
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
    """How large the batch at `position` is, which begins with this data: the first one is read whole, alone,
    if it is larger than what a reader would take at once. It must fit into the span.
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
    """Batches that are not what metadata say of them."""
    return CorruptLogError(
        "EXTENT_MISMATCH",
        f"{span.where}@{position}: found {found}, expected {expected}",
        fix="restore the segment from a copy; `sparklog dump-log` shows what is left",
    )
