"""Byte ranges to decoded records, in bounded memory.

Invariants: every batch's CRC is verified; records come in offset order, each once; what breaks FORMAT.md
    or the plan is raised with topic-partition, segment and position, never skipped.
Memory: stored bytes are read in steps of whole batches of about `step_bytes`, and decoded in groups whose
    uncompressed size is estimated to be about as much; a batch larger than that is read by itself.
Not here: which bytes to read (read_plan.py, which needs the metadata; this needs only the storage).
Concurrency: a generator belongs to one thread; it holds one open file.
Sources: design.md section 3; reliability.md section 1.
"""

from collections.abc import Iterable, Iterator

from sparklog.errors import CorruptLogError
from sparklog.format.batch_table import BatchTable, scan_batches
from sparklog.format.decode import DecodedRecords, decode_records
from sparklog.format.record_batch import CODEC_MASK, HEADER, LENGTH_END
from sparklog.log.read_plan import ByteRange, plan_read
from sparklog.log.segment_file import SegmentFile, Span
from sparklog.storage.base import Store

__all__ = ["STEP_BYTES", "ByteRange", "plan_read", "read_ranges"]

STEP_BYTES = 4 << 20
_FIRST_RATIO = 8.0  # assumed for compressed batches until some have been decoded
_MIN_RATIO = 1.5


def read_ranges(
    store: Store,
    ranges: Iterable[ByteRange],
    *,
    include_headers: bool = False,
    step_bytes: int = STEP_BYTES,
) -> Iterator[DecodedRecords]:
    """Decode the records of planned ranges, step by step.

    Args:
        step_bytes: about how many stored, and how many uncompressed, bytes are in memory at a time.

    Raises:
        DataLossError: a segment is gone.
        CorruptLogError: truncated, damaged, or not what the plan describes.

    Shape: parts of 1 or more records, offsets ascending over all parts of a partition.
    """
    opened: SegmentFile | None = None
    ratio = _Ratio()
    try:
        for one in ranges:
            if opened is None or opened.name != one.segment:
                if opened is not None:
                    opened.close()
                opened = SegmentFile.open(store, one.span)
            yield from _read_range(opened, one, include_headers, step_bytes, ratio)
    finally:
        if opened is not None:
            opened.close()


class _Ratio:
    """How far compressed batches expand, as seen so far; lags behind by one group."""

    def __init__(self) -> None:
        self.value = _FIRST_RATIO

    def learn(self, stored_bytes: int, decoded_bytes: int) -> None:
        self.value = max(_MIN_RATIO, decoded_bytes / max(1, stored_bytes))


def _read_range(
    segment: SegmentFile, one: ByteRange, include_headers: bool, step_bytes: int, ratio: _Ratio
) -> Iterator[DecodedRecords]:
    span = one.span
    position = span.position
    next_offset = one.start_offset
    while position < span.end_position:
        data = _read_step(segment, span, position, step_bytes)
        table = scan_batches(data, where=span.where, position=position)
        next_offset = _validate_table(table, one, position, next_offset)
        for start, end in _groups(table, step_bytes, ratio):
            records = decode_records(
                data,
                table.select(slice(start, end)),
                offset_delta=one.offset_delta,
                start_offset=one.start_offset,
                end_offset=one.end_offset,
                include_headers=include_headers,
                where=span.where,
            )
            _learn(table, start, end, records, ratio)
            if records.num_rows:
                yield records
            del records
        position += len(data)
        del data, table


def _read_step(segment: SegmentFile, span: Span, position: int, step_bytes: int) -> memoryview:
    """Whole batches from `position`: as many as fit into the step, at least one."""
    left = span.end_position - position
    data = memoryview(segment.read_exactly(span, position, min(max(step_bytes, HEADER.size), left)))
    whole = _whole_batches_bytes(data)
    if whole:
        return data[:whole]
    needed = (
        LENGTH_END + int.from_bytes(data[8:LENGTH_END], "big", signed=True) if len(data) >= LENGTH_END else 0
    )
    if not HEADER.size <= needed <= left:
        raise CorruptLogError(
            "EXTENT_MISMATCH",
            f"{span.where}@{position}: found a batch of {needed} bytes, "
            f"expected {HEADER.size} to {left}, the rest of the extent",
            fix="restore the segment from a copy; `sparklog dump-log` shows what is left",
        )
    del data
    return memoryview(segment.read_exactly(span, position, needed))


def _whole_batches_bytes(data: memoryview) -> int:
    """Where the last batch ends that is whole in `data`, going by the batches' lengths alone."""
    position, size = 0, len(data)
    while position + LENGTH_END <= size:
        length = int.from_bytes(data[position + 8 : position + LENGTH_END], "big", signed=True)
        end = position + LENGTH_END + length
        if length <= 0 or end > size:
            break
        position = end
    return position


def _validate_table(table: BatchTable, one: ByteRange, position: int, next_offset: int) -> int:
    """Every batch must belong to the range, and ascend; returns the offset after the last."""
    base = table.base_offset + one.offset_delta
    last = table.last_offset + one.offset_delta
    bad = (last < one.start_offset) | (base >= one.end_offset)
    bad[1:] |= base[1:] <= last[:-1]
    bad[0] |= last[0] < next_offset
    if bad.any():
        at = int(bad.argmax())
        where = f"{one.span.where}@{position + int(table.position[at])}"
        raise CorruptLogError(
            "EXTENT_MISMATCH",
            f"{where}: found a batch of offsets {int(base[at])} to {int(last[at])}, expected it after those "
            f"before and within {one.start_offset} to {one.end_offset - 1}",
            fix="restore the segment from a copy; `sparklog dump-log` shows what is left",
        )
    return int(last[-1]) + 1


def _groups(table: BatchTable, step_bytes: int, ratio: _Ratio) -> Iterator[tuple[int, int]]:
    """Index ranges of batches that are decoded together."""
    start, count = 0, len(table)
    compressed = (table.attributes & CODEC_MASK) != 0
    if not compressed.any():
        yield 0, count
        return
    ends = table.size.cumsum()
    while start < count:
        done = int(ends[start - 1]) if start else 0
        end = int(ends.searchsorted(done + step_bytes / ratio.value, "right"))
        end = max(start + 1, min(end, count))
        yield start, end
        start = end


def _learn(table: BatchTable, start: int, end: int, records: DecodedRecords, ratio: _Ratio) -> None:
    if (table.attributes[start] & CODEC_MASK) != 0 and records.num_rows:
        decoded = records.key.nbytes + records.value.nbytes + 16 * records.num_rows
        share = records.num_rows / max(1, int(table.record_count[start:end].sum()))
        ratio.learn(int(table.size[start:end].sum()), int(decoded / share))
