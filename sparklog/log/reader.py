"""Byte ranges to decoded records, in bounded memory.

Invariants: every batch's CRC is verified; records come in offset order, each once; what breaks FORMAT.md
    or the plan is raised with topic-partition, segment and position, never skipped.
Memory: stored bytes are read in steps of whole batches of about `step_bytes`, and decoded in groups whose
    uncompressed size is estimated to be about as much; a batch larger than that is read by itself.
Small ranges (a streaming query leaves one per micro-batch) are gathered and decoded together; if anything
    about them is not as expected, each is read by itself, which tells exactly what is wrong and where.
Not here: which bytes to read (read_plan.py, which needs the metadata; this needs only the storage).
Concurrency: a generator belongs to one thread; it holds a few open files.
Sources: design.md section 3; reliability.md section 1.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sparklog.errors import CorruptLogError, SparklogError
from sparklog.format.batch_table import BatchTable, scan_batches
from sparklog.format.codec import BytesLike
from sparklog.format.decode import DecodedRecords, decode_records
from sparklog.format.record_batch import CODEC_MASK, HEADER, LENGTH_END
from sparklog.log.names import is_dense
from sparklog.log.read_plan import ByteRange, plan_read
from sparklog.log.segment_file import SegmentFile, SegmentFiles, Span
from sparklog.storage import Store

__all__ = ["STEP_BYTES", "ByteRange", "plan_read", "read_ranges"]

STEP_BYTES = 4 << 20
GATHERED_RANGES = 2048
_FIRST_RATIO = 8.0  # assumed for compressed batches until some have been decoded
_MIN_RATIO = 1.5
_ROW_BYTES = 24  # offset, timestamp, positions


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
    with SegmentFiles(store) as files:
        reader = _Reader(files, include_headers, step_bytes)
        for group in _gather(ranges, step_bytes):
            if len(group) == 1:
                yield from reader.read_range(group[0])
            else:
                yield from reader.read_group(group)


def _gather(ranges: Iterable[ByteRange], step_bytes: int) -> Iterator[list[ByteRange]]:
    """Consecutive ranges of a partition that together fit into a step; a large one stays alone."""
    group: list[ByteRange] = []
    size = 0
    for one in ranges:
        last = group[-1] if group else one
        follows = (one.topic, one.partition, one.start_offset) == (
            last.topic,
            last.partition,
            last.end_offset,
        )
        if group and (not follows or size + one.size > step_bytes or len(group) == GATHERED_RANGES):
            yield group
            group, size = [], 0
        group.append(one)
        size += one.size
    if group:
        yield group


class _Reader:
    """Reads and decodes; remembers how far compressed batches expand, one group behind."""

    def __init__(self, files: SegmentFiles, include_headers: bool, step_bytes: int) -> None:
        self._files = files
        self._include_headers = include_headers
        self._step_bytes = step_bytes
        self._ratio = _FIRST_RATIO

    def read_range(self, one: ByteRange) -> Iterator[DecodedRecords]:
        """One range, step by step."""
        span = one.span
        position = span.position
        next_offset: int | None = None
        segment = self._files.open(span)
        while position < span.end_position:
            data = _read_step(segment, span, position, self._step_bytes)
            table = scan_batches(data, where=span.where, position=position)
            next_offset = _validate_table(table, one, position, next_offset)
            deltas = np.full(len(table), one.offset_delta, np.int64)
            yield from self._decode(data, table, deltas, one, one.end_offset)
            position += len(data)
            del data, table
        if is_dense(one.segment) and (next_offset is None or next_offset < one.end_offset):
            raise CorruptLogError(
                "EXTENT_MISMATCH",
                f"{span.where}@{position}: found the end at offset {next_offset}, expected {one.end_offset}",
                fix="restore the segment from a copy; `sparklog dump-log` shows what is left",
            )

    def read_group(self, group: Sequence[ByteRange]) -> Iterator[DecodedRecords]:
        """Small ranges that follow each other, at once."""
        data = b"".join(
            [self._files.open(one.span).read_exactly(one.span, one.position, one.size) for one in group]
        )
        try:
            table = scan_batches(data, where="gathered ranges")
        except SparklogError:
            yield from self._read_each(group)
            return
        deltas = _group_deltas(table, group)
        if deltas is None:
            yield from self._read_each(group)
            return
        try:
            yield from self._decode(data, table, deltas, group[0], group[-1].end_offset)
        except SparklogError:
            for _ in self._read_each(group):
                pass  # to raise the same error with its position
            raise

    def _read_each(self, group: Sequence[ByteRange]) -> Iterator[DecodedRecords]:
        for one in group:
            yield from self.read_range(one)

    def _decode(
        self,
        data: BytesLike,
        table: BatchTable,
        deltas: npt.NDArray[np.int64],
        first: ByteRange,
        end_offset: int,
    ) -> Iterator[DecodedRecords]:
        for start, end in self._parts(table):
            part = table.select(slice(start, end))
            records = decode_records(
                data,
                part,
                offset_delta=deltas[start:end],
                start_offset=first.start_offset,
                end_offset=end_offset,
                include_headers=self._include_headers,
                where=first.span.where,
            )
            self._learn(part, records)
            if records.num_rows:
                yield records
            del records

    def _parts(self, table: BatchTable) -> Iterator[tuple[int, int]]:
        """Index ranges of batches that are decoded together."""
        start, count = 0, len(table)
        if not table.codec.any():
            yield 0, count
            return
        ends = table.size.cumsum()
        while start < count:
            done = int(ends[start - 1]) if start else 0
            end = int(ends.searchsorted(done + self._step_bytes / self._ratio, "right"))
            end = max(start + 1, min(end, count))
            yield start, end
            start = end

    def _learn(self, table: BatchTable, records: DecodedRecords) -> None:
        if records.num_rows and (table.attributes[0] & CODEC_MASK) != 0:
            decoded = records.key.nbytes + records.value.nbytes + _ROW_BYTES * records.num_rows
            share = records.num_rows / max(1, int(table.record_count.sum()))
            self._ratio = max(_MIN_RATIO, decoded / share / int(table.size.sum()))


def _read_step(segment: SegmentFile, span: Span, position: int, step_bytes: int) -> memoryview:
    """Whole batches from `position`: as many as fit into the step, at least one."""
    left = span.end_position - position
    data = memoryview(segment.read_exactly(span, position, min(max(step_bytes, HEADER.size), left)))
    whole = _whole_batches_bytes(data)
    if whole:
        return data[:whole]
    length = int.from_bytes(data[8:LENGTH_END], "big", signed=True) if len(data) >= LENGTH_END else 0
    needed = LENGTH_END + length
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


def _validate_table(table: BatchTable, one: ByteRange, position: int, next_offset: int | None) -> int:
    """Every batch must belong to the range and continue the one before; returns the offset after the last.

    No CRC covers base offsets, but where there are no gaps, they follow from each other.
    """
    base = table.base_offset + one.offset_delta
    last = table.last_offset + one.offset_delta
    bad = (last < one.start_offset) | (base >= one.end_offset)
    if is_dense(one.segment):
        bad[1:] |= base[1:] != last[:-1] + 1
        bad[0] |= base[0] > one.start_offset if next_offset is None else base[0] != next_offset
    else:
        bad[1:] |= base[1:] <= last[:-1]
        bad[0] |= next_offset is not None and base[0] < next_offset
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


def _group_deltas(table: BatchTable, group: Sequence[ByteRange]) -> npt.NDArray[np.int64] | None:
    """Each batch's offset delta; None if the batches are not what the ranges say, or have gaps."""
    ends = np.cumsum([one.size for one in group])
    of_range = ends.searchsorted(table.position, "right")
    same_range = ends.searchsorted(table.position + table.size - 1, "right")
    deltas = np.array([one.offset_delta for one in group], np.int64)[of_range]
    base, last = table.base_offset + deltas, table.last_offset + deltas
    starts = np.array([one.start_offset for one in group], np.int64)[of_range]
    stops = np.array([one.end_offset for one in group], np.int64)[of_range]
    fine = (of_range == same_range) & (last >= starts) & (base < stops)
    # Only the group's own first and last offsets may cut a batch.
    fine &= (base >= starts) | (of_range == 0)
    fine &= (last < stops) | (of_range == len(group) - 1)
    whole = base[0] <= group[0].start_offset and last[-1] + 1 >= group[-1].end_offset
    return deltas if fine.all() and whole and (base[1:] == last[:-1] + 1).all() else None
