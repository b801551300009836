"""Decode byte ranges to records, in bounded memory.

Invariants: every batch's CRC is verified; records come in offset order, each once; a violation of FORMAT.md
    or of the plan is raised with topic-partition, segment and position, never skipped.
Memory: stored bytes are read in steps of whole batches of about `step_bytes`, and decoded in parts of about
    as many uncompressed bytes; a batch larger than that is read, or decoded, alone.
Small ranges (a streaming query leaves one per micro-batch) are gathered and decoded together; after any error
    each is read alone, which locates the error exactly.
Not here: which bytes to read (read_plan.py, which needs the metadata; this needs only the storage).
Concurrency: a generator belongs to one thread; it holds a few open files.
Sources: docs/design.md.
"""

import bisect
import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparklog.errors import CorruptLogError, DataLossError, SparklogError
from sparklog.format.batch_table import BatchTable, scan_batches
from sparklog.format.codec import BytesLike, Codec, decompress
from sparklog.format.decode import DEFAULT_MAX_DECOMPRESSED_BYTES, DecodedRecords, decode_records
from sparklog.format.record_batch import (
    CODEC_MASK,
    HEADER,
    BatchHeader,
    header_error,
    set_base_offset,
    whole_batches_bytes,
)
from sparklog.log.read_plan import ByteRange, plan_read
from sparklog.log.segment_file import (
    AHEAD_CHUNKS,
    CHUNK_BYTES,
    ReadAhead,
    SegmentFile,
    SegmentFiles,
    Span,
    Stretches,
    UnreadableSegmentError,
    first_batch_bytes,
    is_dense,
    took_patience,
    validate_batches,
)
from sparklog.storage import Store

# --- fetched -----------------------------------------------------------------------------------------
#
# Small spans of several partitions, fetched from an object store with as few requests as possible.
#
# A publish leaves an object with a little of each partition; readers read by partition. One request per
# extent would be a request for each partition of each publish, more than the publish cost. So a reader
# announces all the spans that it will need. They are fetched object by object, neighbouring spans in one
# request, several requests at a time, in the order of the first use.
#
# Invariants: the bytes returned are those of the objects. A range that cannot be fetched completely, or in
#     time, is left out: the caller reads it directly, and gets the error of its extent. But a store that does
#     not answer gets no second request.
# Memory: all spans, and at most a quarter more for the gaps between; so only for bounded reads.
# Concurrency: one thread fetches, and the store, in its own threads, some ranges ahead; any thread reads.


_GAP_SHARE = 4  # a gap is fetched if the bytes before it are this many times as large


def _never() -> bool:
    return False


class Fetched:
    """Fetched spans; see the comment at the head of this section."""

    def __init__(
        self, store: Store, spans: Iterable[Span], *, is_time_over: Callable[[], bool] = _never
    ) -> None:
        """`is_time_over`: true stops fetching; called after each request but the first."""
        self._starts: dict[str, list[int]] = {}
        self._buffers: dict[str, list[memoryview]] = {}
        ranges = joined_ranges(spans)
        announced: collections.deque[Span] = collections.deque()
        with SegmentFiles(store) as files:
            for number, span in enumerate([*ranges, *[None] * AHEAD_CHUNKS]):
                if span is not None:
                    with contextlib.suppress(DataLossError, UnreadableSegmentError):
                        files.open(span).will_need(span.position, span.size)
                    announced.append(span)
                if number >= AHEAD_CHUNKS - 1 and announced:
                    self._take(files, announced.popleft())
                    if is_time_over():
                        return

    def _take(self, files: SegmentFiles, span: Span) -> None:
        try:
            data = files.open(span).read_exactly(span, span.position, span.size)
        except (CorruptLogError, DataLossError):
            return
        except UnreadableSegmentError as error:
            if took_patience(error):
                raise
            return
        starts = self._starts.setdefault(span.segment, [])
        at = bisect.bisect_right(starts, span.position)
        starts.insert(at, span.position)
        self._buffers.setdefault(span.segment, []).insert(at, memoryview(data))

    def has(self, span: Span) -> bool:
        """True if the whole span was fetched."""
        return self._found(span) is not None

    def read_into(self, span: Span, buffer: memoryview) -> bool:
        """Fill the buffer with the span; False if it was not fetched."""
        found = self._found(span)
        if found is None:
            return False
        buffer[:] = found
        return True

    def read(self, span: Span) -> bytearray:
        """Return a copy of a fetched span."""
        found = self._found(span)
        assert found is not None
        return bytearray(found)

    def _found(self, span: Span) -> memoryview | None:
        starts = self._starts.get(span.segment, [])
        number = bisect.bisect_right(starts, span.position) - 1
        if number < 0:
            return None
        data, at = self._buffers[span.segment][number], span.position - starts[number]
        return data[at : at + span.size] if at + span.size <= len(data) else None


def joined_ranges(spans: Iterable[Span]) -> list[Span]:
    """Join spans into ranges to request; no span is cut.

    Segments come in the order of their first span, their positions ascending, as files drop the bytes before
    a read.
    """
    ordered = sorted(enumerate(spans), key=lambda one: (one[1].segment, one[1].position))
    found: list[tuple[int, list[Span]]] = []
    for _, group in groupby(ordered, key=lambda one: one[1].segment):
        of_segment = list(group)
        found.append((min(number for number, _ in of_segment), list(_joined(one for _, one in of_segment))))
    return [span for _, joined in sorted(found, key=itemgetter(0)) for span in joined]


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Join the spans of one segment, which ascend."""
    joined: Span | None = None
    wanted = 0
    for span in spans:
        if joined is not None and _is_near(joined, span, wanted):
            joined, wanted = _until(joined, span.end_position), wanted + span.size
            continue
        if joined is not None:
            yield joined
        joined, wanted = span, span.size
    if joined is not None:
        yield joined


def _is_near(joined: Span, span: Span, wanted: int) -> bool:
    """True if `span` is close enough to join; `wanted`: the joined bytes that are no gap."""
    gaps = span.position - joined.position - wanted
    return gaps * _GAP_SHARE <= wanted and span.end_position - joined.position <= CHUNK_BYTES


def _until(joined: Span, end_position: int) -> Span:
    return Span(
        topic=joined.topic,
        partition=joined.partition,
        segment=joined.segment,
        position=joined.position,
        size=max(joined.end_position, end_position) - joined.position,
    )


# --- plain parts -------------------------------------------------------------------------------------
#
# Decompressing batches a part at a time: a batch's header does not give its decompressed size.
#
# Invariants: a part has the size that the caller requests, or is one batch, of at most
#     DEFAULT_MAX_DECOMPRESSED_BYTES.
# Not here: decoding the records (format/decode.py).
# Concurrency: a generator belongs to one thread.


_NO_HEADER = bytes(HEADER.size)


def plain_parts(
    data: BytesLike, table: BatchTable, step_bytes: int, where: str
) -> Iterator[tuple[BytesLike, BatchTable, slice]]:
    """Yield the parts to decode: (buffer, its batches, their indices in `table`).

    Batches are decompressed one by one until a part is full. The parts then hold plain batches, without
    header bytes; without compressed batches there is one part, and nothing is copied.
    """
    if not table.codec.any():
        yield data, table, slice(0, len(table))
        return
    view = memoryview(data).cast("B")
    chunks: list[BytesLike] = []
    sizes: list[int] = []
    start, size = 0, 0
    for batch, codec in enumerate(table.codec.tolist()):
        first, last = int(table.position[batch]), int(table.position[batch] + table.size[batch])
        body = decompress(
            Codec(codec),
            view[first + HEADER.size : last],
            max_bytes=DEFAULT_MAX_DECOMPRESSED_BYTES,
            where=f"{where}, batch@{first}",
        )
        chunks += (_NO_HEADER, body)
        sizes.append(HEADER.size + len(body))
        size += sizes[-1]
        if size >= step_bytes or batch == len(table) - 1:
            ends = np.cumsum(sizes, dtype=np.int64)
            indices = slice(start, batch + 1)
            part = dataclasses.replace(
                table.select(indices),
                position=ends - sizes,
                size=np.array(sizes, np.int64),
                attributes=table.attributes[indices] & ~CODEC_MASK,
            )
            del body
            joined = b"".join(chunks)
            chunks, sizes, start, size = [], [], batch + 1, 0
            yield joined, part, indices
            del joined


# --- few batches -------------------------------------------------------------------------------------
#
# A few stored batches, checked one by one: the small-read version of segment_file.py's arrays.
#
# Arrays cost 0.4 ms for one batch as for a hundred: more than the rest of a small read, and a consumer that
# lags makes thousands of them in one fetch.
# Invariants: the rules are those of segment_file.py. A violation, or more than MOST batches, is left to it;
#     the result, or the error, comes from there.
# Concurrency: pure; the buffer's base offsets and leader epochs are written in place.
# Sources: FORMAT.md#segments-and-extents.


MOST = 16  # from here on arrays are cheaper


class _Walked(NamedTuple):
    header: BatchHeader
    position: int
    base: int  # as consumers see it
    last: int


class FewBatches(NamedTuple):
    """Position and absolute base offset of each batch, and the end of the last one."""

    position: list[int]
    base_offset: list[int]
    end_offset: int


def sequence_few(data: memoryview, stretches: Stretches, leader_epoch: int) -> FewBatches | None:
    """Check the batches, except for CRCs, and write their absolute offsets and leader epochs.

    Returns None if nothing was done; then segment_file.py returns the batches, or raises the error.
    """
    walked = _walk(data, stretches)
    if walked is None:
        return None
    for header, position, base, _ in walked:
        if base != header.base_offset or header.partition_leader_epoch != leader_epoch:
            set_base_offset(data, position, base, leader_epoch)
    positions = [batch.position for batch in walked]
    return FewBatches(positions, [batch.base for batch in walked], walked[-1].last + 1)


def _walk(data: memoryview, stretches: Stretches) -> list[_Walked] | None:
    if stretches.is_cut:
        return None
    walked: list[_Walked] = []
    at = end = 0
    before = -1  # the last offset so far
    for index, size in enumerate(stretches.size):
        end += size
        dense = is_dense(stretches.segment[index])
        start, stop = stretches.start_offset[index], stretches.end_offset[index]
        expected = stretches.begins_at if index == 0 else start
        while at < end:
            batch = _batch_at(data, at, end, stretches.offset_delta[index])
            if batch is None or len(walked) == MOST or batch.base < start or batch.last >= stop:
                return None
            follows = expected is None or (batch.base == expected if dense else batch.base >= expected)
            if not follows or batch.base <= before:
                return None
            walked.append(batch)
            at += batch.header.size
            before, expected = batch.last, batch.last + 1
        is_whole = stretches.reaches_end or index + 1 < len(stretches.size)
        if dense and is_whole and before + 1 < stop:
            return None
    return walked if walked and at == len(data) else None


def _batch_at(data: memoryview, at: int, end: int, delta: int) -> _Walked | None:
    if at + HEADER.size > end:
        return None
    header = BatchHeader(*HEADER.unpack_from(data, at))
    if header_error(header, "") is not None or at + header.size > end:
        return None
    return _Walked(header, at, header.base_offset + delta, header.last_offset + delta)


# --- reader ------------------------------------------------------------------------------------------


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
        fetched: spans that are in memory already; the rest is read here.
        step_bytes: about how many stored, and how many uncompressed, bytes are in memory at a time.

    Raises:
        DataLossError: a segment is missing.
        CorruptLogError: truncated, damaged, or not what the plan describes.

    Shape: parts of 1 or more records, offsets ascending over all parts of a partition.
    """
    with SegmentFiles(store) as files:
        ahead: ReadAhead | None = None
        if store.traits.is_remote:
            announced, ranges = itertools.tee(ranges)
            spans = (byte_range.span for byte_range in announced)
            ahead = ReadAhead(files, (span for span in spans if fetched is None or not fetched.has(span)))
        reader = _Reader(files, include_headers, step_bytes, ahead, fetched)
        for gathered in _gather(ranges, step_bytes):
            if len(gathered) == 1:
                yield from reader.read_range(gathered[0])
            else:
                yield from reader.read_gathered(gathered)


def _gather(ranges: Iterable[ByteRange], step_bytes: int) -> Iterator[list[ByteRange]]:
    """Group consecutive ranges of a partition that fit into a step together; a large one stays alone."""
    gathered: list[ByteRange] = []
    size = 0
    for byte_range in ranges:
        last = gathered[-1] if gathered else byte_range
        follows = (byte_range.topic, byte_range.partition, byte_range.start_offset) == (
            last.topic,
            last.partition,
            last.end_offset,
        )
        is_full = size + byte_range.size > step_bytes or len(gathered) == GATHERED_RANGES
        if gathered and (not follows or is_full):
            yield gathered
            gathered, size = [], 0
        gathered.append(byte_range)
        size += byte_range.size
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

    def read_range(self, byte_range: ByteRange) -> Iterator[DecodedRecords]:
        """Yield the records of one range, step by step."""
        span = byte_range.span
        position = span.position
        next_offset: int | None = None
        while position < span.end_position:
            data = self._step(span, position)
            table = scan_batches(data, where=span.where, position=position)
            deltas = validate_batches(table, _stretches([byte_range], position, [len(data)], next_offset))
            next_offset = int(table.last_offset[-1]) + byte_range.offset_delta + 1
            wanted = (byte_range.start_offset, byte_range.end_offset)
            try:
                yield from self._decode(data, table, deltas, wanted, span.where)
            except SparklogError:
                self._locate_error(data, table, span, position)
                raise
            position += len(data)
            del data, table

    def read_gathered(self, gathered: Sequence[ByteRange]) -> Iterator[DecodedRecords]:
        """Yield the records of consecutive small ranges, decoded together."""
        data = b"".join([self._read_whole(byte_range) for byte_range in gathered])
        try:
            table = scan_batches(data, where="gathered ranges")
            sizes = [byte_range.size for byte_range in gathered]
            deltas = validate_batches(table, _stretches(gathered, gathered[0].position, sizes, None))
        except SparklogError:
            yield from self._read_each(gathered)
            return
        try:
            wanted = (gathered[0].start_offset, gathered[-1].end_offset)
            yield from self._decode(data, table, deltas, wanted, gathered[0].span.where)
        except SparklogError:
            for _ in self._read_each(gathered):
                pass  # read below, one by one, for the same error with its position
            raise

    def _step(self, span: Span, position: int) -> memoryview:
        """Read whole batches from `position` on."""
        if position == span.position and self._fetched is not None and self._fetched.has(span):
            return memoryview(self._fetched.read(span))
        if self._ahead is not None:
            self._ahead.reached(span, position)
        return read_step(self._files.open(span), span, position, self._step_bytes)

    def _read_whole(self, byte_range: ByteRange) -> bytearray:
        span = byte_range.span
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
        for byte_range in gathered:
            yield from self.read_range(byte_range)

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
    """Read whole batches from `position`: as many as fit into the step, at least one."""
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
    """The batches of ranges, the first from `position` on, expected to begin at `next_offset` if given."""
    last = gathered[-1]
    start = last.position if len(gathered) > 1 else position

    def place(index: int) -> tuple[Span, int]:
        return gathered[index].span, gathered[index].position if index else position

    return Stretches(
        size=sizes,
        offset_delta=[byte_range.offset_delta for byte_range in gathered],
        segment=[byte_range.segment for byte_range in gathered],
        start_offset=[byte_range.start_offset for byte_range in gathered],
        end_offset=[byte_range.end_offset for byte_range in gathered],
        begins_at=next_offset,
        reaches_end=start + sizes[-1] == last.position + last.size,
        is_cut=True,
        place=place,
    )
