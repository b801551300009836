"""Byte ranges to decoded records, in bounded memory.

Invariants: every batch's CRC is verified; records come in offset order, each once; what breaks FORMAT.md
    or the plan is raised with topic-partition, segment and position, never skipped.
Memory: stored bytes are read in steps of whole batches of about `step_bytes`, and decoded in parts of about
    as many uncompressed bytes; a batch larger than that is read, or decoded, by itself.
Small ranges (a streaming query leaves one per micro-batch) are gathered and decoded together; if anything
    about them is not as expected, each is read by itself, which tells exactly what is wrong and where.
Not here: which bytes to read (read_plan.py, which needs the metadata; this needs only the storage).
Concurrency: a generator belongs to one thread; it holds a few open files.
Sources: docs/design.md.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sparklog.errors import SparklogError
from sparklog.format.batch_table import BatchTable, scan_batches
from sparklog.format.codec import BytesLike
from sparklog.format.decode import DecodedRecords, decode_records
from sparklog.format.record_batch import HEADER, whole_batches_bytes
from sparklog.log.byte_range import ByteRange
from sparklog.log.fetched import Fetched
from sparklog.log.plain_parts import plain_parts
from sparklog.log.read_ahead import ReadAhead
from sparklog.log.read_plan import plan_read
from sparklog.log.segment_file import SegmentFile, SegmentFiles
from sparklog.log.span import Span
from sparklog.log.stored_batches import Stretches, first_batch_bytes, validate_batches
from sparklog.storage import Store

__all__ = ["STEP_BYTES", "ByteRange", "plan_read", "read_ranges", "read_step"]

STEP_BYTES = 4 << 20
GATHERED_RANGES = 2048


def read_ranges(
    store: Store,
    ranges: Iterable[ByteRange],
    *,
    include_headers: bool = False,
    step_bytes: int = STEP_BYTES,
    fetched: Fetched | None = None,
) -> Iterator[DecodedRecords]:
    """Decode the records of planned ranges, step by step.

    Args:
        fetched: what of it is in memory already; the rest is read here.
        step_bytes: about how many stored, and how many uncompressed, bytes are in memory at a time.

    Raises:
        DataLossError: a segment is gone.
        CorruptLogError: truncated, damaged, or not what the plan describes.

    Shape: parts of 1 or more records, offsets ascending over all parts of a partition.
    """
    with SegmentFiles(store) as files:
        ahead: ReadAhead | None = None
        if store.traits.is_remote:
            announced, ranges = itertools.tee(ranges)
            spans = (one.span for one in announced)
            ahead = ReadAhead(files, (one for one in spans if fetched is None or not fetched.has(one)))
        reader = _Reader(files, include_headers, step_bytes, ahead, fetched)
        for gathered in _gather(ranges, step_bytes):
            if len(gathered) == 1:
                yield from reader.read_range(gathered[0])
            else:
                yield from reader.read_gathered(gathered)


def _gather(ranges: Iterable[ByteRange], step_bytes: int) -> Iterator[list[ByteRange]]:
    """Consecutive ranges of a partition that together fit into a step; a large one stays alone."""
    gathered: list[ByteRange] = []
    size = 0
    for one in ranges:
        last = gathered[-1] if gathered else one
        follows = (one.topic, one.partition, one.start_offset) == (
            last.topic,
            last.partition,
            last.end_offset,
        )
        if gathered and (not follows or size + one.size > step_bytes or len(gathered) == GATHERED_RANGES):
            yield gathered
            gathered, size = [], 0
        gathered.append(one)
        size += one.size
    if gathered:
        yield gathered


class _Reader:
    """Reads and decodes with given options."""

    def __init__(
        self,
        files: SegmentFiles,
        include_headers: bool,
        step_bytes: int,
        ahead: ReadAhead | None,
        fetched: Fetched | None,
    ) -> None:
        self._files = files
        self._ahead = ahead
        self._fetched = fetched
        self._include_headers = include_headers
        self._step_bytes = step_bytes

    def read_range(self, one: ByteRange) -> Iterator[DecodedRecords]:
        """One range, step by step."""
        span = one.span
        position = span.position
        next_offset: int | None = None
        while position < span.end_position:
            data = self._step(span, position)
            table = scan_batches(data, where=span.where, position=position)
            deltas = validate_batches(table, _stretches([one], position, [len(data)], next_offset))
            next_offset = int(table.last_offset[-1]) + one.offset_delta + 1
            wanted = (one.start_offset, one.end_offset)
            try:
                yield from self._decode(data, table, deltas, wanted, span.where)
            except SparklogError:
                self._locate_error(data, table, span, position)
                raise
            position += len(data)
            del data, table

    def read_gathered(self, gathered: Sequence[ByteRange]) -> Iterator[DecodedRecords]:
        """Small ranges that follow each other, at once."""
        data = b"".join([self._read_whole(one) for one in gathered])
        try:
            table = scan_batches(data, where="gathered ranges")
            deltas = validate_batches(
                table, _stretches(gathered, gathered[0].position, [one.size for one in gathered], None)
            )
        except SparklogError:
            yield from self._read_each(gathered)
            return
        try:
            wanted = (gathered[0].start_offset, gathered[-1].end_offset)
            yield from self._decode(data, table, deltas, wanted, gathered[0].span.where)
        except SparklogError:
            for _ in self._read_each(gathered):
                pass  # to raise the same error with its position
            raise

    def _step(self, span: Span, position: int) -> memoryview:
        """Whole batches from `position` on."""
        if position == span.position and self._fetched is not None and self._fetched.has(span):
            return memoryview(self._fetched.read(span))
        if self._ahead is not None:
            self._ahead.reached(span, position)
        return read_step(self._files.open(span), span, position, self._step_bytes)

    def _read_whole(self, one: ByteRange) -> bytearray:
        span = one.span
        if self._fetched is not None and self._fetched.has(span):
            return self._fetched.read(span)
        if self._ahead is not None:
            self._ahead.reached(span, span.position)
        return self._files.open(span).read_exactly(span, span.position, span.size)

    def _locate_error(self, data: BytesLike, table: BatchTable, span: Span, position: int) -> None:
        """Decode batch by batch, so that the error names the position of its batch in the segment."""
        for batch in range(len(table)):
            where = f"{span.where}@{position + int(table.position[batch])}, in the batch"
            one = dataclasses.replace(table.select(slice(batch, batch + 1)), position=np.zeros(1, np.int64))
            first = int(table.position[batch])
            decode_records(
                memoryview(data)[first : first + int(table.size[batch])],
                one,
                include_headers=True,
                where=where,
            )

    def _read_each(self, gathered: Sequence[ByteRange]) -> Iterator[DecodedRecords]:
        for one in gathered:
            yield from self.read_range(one)

    def _decode(
        self,
        data: BytesLike,
        table: BatchTable,
        deltas: npt.NDArray[np.int64],
        wanted: tuple[int, int],
        where: str,
    ) -> Iterator[DecodedRecords]:
        for part_data, part, indices in plain_parts(data, table, self._step_bytes, where):
            records = decode_records(
                part_data,
                part,
                offset_delta=deltas[indices],
                start_offset=wanted[0],
                end_offset=wanted[1],
                include_headers=self._include_headers,
                where=where,
            )
            if records.num_rows:
                yield records
            del records, part_data


def read_step(segment: SegmentFile, span: Span, position: int, step_bytes: int) -> memoryview:
    """Whole batches from `position`: as many as fit into the step, at least one."""
    left = span.end_position - position
    data = memoryview(segment.read_exactly(span, position, min(max(step_bytes, HEADER.size), left)))
    whole = whole_batches_bytes(data)
    if whole:
        return data[:whole]
    needed = first_batch_bytes(data, span, position)
    del data
    return memoryview(segment.read_exactly(span, position, needed))


def _stretches(
    gathered: Sequence[ByteRange], position: int, sizes: list[int], next_offset: int | None
) -> Stretches:
    """Batches of ranges, the first from `position` on; `next_offset` comes after those before, if any did."""
    last = gathered[-1]
    start = last.position if len(gathered) > 1 else position

    def place(index: int) -> tuple[Span, int]:
        return gathered[index].span, gathered[index].position if index else position

    return Stretches(
        size=sizes,
        offset_delta=[one.offset_delta for one in gathered],
        segment=[one.segment for one in gathered],
        start_offset=[one.start_offset for one in gathered],
        end_offset=[one.end_offset for one in gathered],
        begins_at=next_offset,
        reaches_end=start + sizes[-1] == last.position + last.size,
        is_cut=True,
        place=place,
    )
