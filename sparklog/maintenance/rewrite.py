"""Reads, checks and re-encodes the batches of a piece.

A batch that is large enough keeps its bytes: only its base offset is set, which no CRC covers. Consecutive
small ones are decoded and joined to full ones: a batch per record costs 61 bytes each and nine tenths of the
read speed.

Invariants: every record keeps its offset, key, value, headers, timestamp and type of timestamp; the CRC of
    every batch is verified before it is written anywhere. Batches with more information
    than their records (markers, batches with a delete horizon, with gaps) keep their bytes, as do batches
    that cannot be decoded, and batches with header keys that are not UTF-8, which decoding would replace. The
    transactional bit has no meaning once the records are in the log.
    With log append time a batch has one timestamp for all records: such batches are never joined.
Memory: a few times `step_bytes`, MAX_EXPANDED_BYTES, and the decompressed size of one batch.
Not here: which extents (choose.py), writing the batches (merging.py).
Concurrency: a generator belongs to one thread; it holds a few open files.
"""

import bisect
import contextlib
import dataclasses
import logging
import os
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from operator import itemgetter
from typing import IO, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.closing import Closing
from sparklog.errors import CorruptLogError, DataLossError, SparklogError, as_value
from sparklog.format.batch_table import BatchTable
from sparklog.format.codec import Codec
from sparklog.format.decode import decode_records
from sparklog.format.encode import EncodedBatches, EncodeOptions, encode_batches
from sparklog.format.record_batch import (
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    MAX_INT32,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    set_base_offsets,
)
from sparklog.format.schema import RecordColumns
from sparklog.log.read_plan import extent_span
from sparklog.log.reader import Fetched, joined_ranges, plain_parts, read_step
from sparklog.log.segment_file import (
    AHEAD_BYTES,
    AHEAD_CHUNKS,
    ReadAhead,
    SegmentFile,
    SegmentFiles,
    Span,
    Stretches,
    UnreadableSegmentError,
    scan_stretches,
    took_patience,
)
from sparklog.maintenance.choose import MergeWork, Piece, Work
from sparklog.metadata import Extent
from sparklog.storage import Store

# --- spool -------------------------------------------------------------------------------------------
#
# Small extents of several works, fetched from an object store by object, before the works run.
#
# A publish creates an object with a little of each partition, but works are by partition: each read of an
# extent would be a request of its own. So consecutive works that read the same objects are grouped; their
# small extents are fetched together, and kept on the local disk.
#
# Invariants: the bytes are those of the objects, which never change. Extents that could not be fetched, or
#     had no room, are left out: their reader requests them from the store, and gets the error. An unreadable
#     object is requested once: all its readers get the same error.
#     The file has no name: it belongs to this process alone, and ends with it.
# Memory: AHEAD_BYTES in transfer, and about 400 bytes for each of MAX_SPANS.
# Disk: at most SPOOL_BYTES, and a quarter of the free space of TMPDIR; and a quarter of that for the gaps
#     between extents.
# Not here: large extents, which are worth a request each (log/segment_file.py); directories, which need none.
# Concurrency: one thread.


SPOOL_BYTES = 1 << 30
MAX_SPANS = 65_536
SMALL_BYTES = 256 << 10  # larger extents are one request or several each
_FREE_SHARE = 4
_LEAST_SAVED = 2  # the least reads per request that are worth the use of the disk
_log = logging.getLogger("sparklog.maintenance")
WorkT = TypeVar("WorkT", bound=Work)
OnBytes = Callable[[int], None]  # called with stored bytes that were read or rewritten; may rest, or raise


def ignore_bytes(_size: int) -> None:
    pass


class Spool(Closing):
    """Bytes of objects, on the local disk."""

    def __init__(self, store: Store, *, limit_bytes: int | None = None) -> None:
        """`limit_bytes`: by default SPOOL_BYTES, or a quarter of the free space."""
        self._store = store
        self._file: IO[bytes] | None = None
        self._starts: dict[str, list[int]] = {}  # by segment, of ranges, ascending
        self._ranges: dict[str, list[tuple[int, int]]] = {}  # (end, place in the file) of the same
        self._refused: dict[str, UnreadableSegmentError] = {}  # by segment
        self.room = _room() if limit_bytes is None else limit_bytes

    def fill(self, spans: Sequence[Span], reads: int, on_bytes: OnBytes = ignore_bytes) -> None:
        """Fetch these spans, and drop all others; fetch nothing if that saves few requests.

        Args:
            reads: the number of times that each is going to be read.
        """
        self.close()
        ranges = joined_ranges(spans)
        if not ranges or len(ranges) * _LEAST_SAVED > len(spans) * reads:
            return
        try:
            self._file = tempfile.TemporaryFile(prefix="sparklog-", buffering=0)  # noqa: SIM115 - `close`
            self._fetch(self._file, ranges, on_bytes)
        except OSError as error:  # the fetched spans stay usable
            _log.info("no room on the local disk; requesting extents one by one: %s", error)

    def has(self, span: Span) -> bool:
        """True if all of the span was fetched, or is known to be unreadable."""
        return span.segment in self._refused or self._place(span) is not None

    def read_into(self, span: Span, buffer: memoryview) -> bool:
        """Fill the buffer with the span; False if it was not fetched. Raises: UnreadableSegmentError."""
        if span.segment in self._refused:
            raise as_value(self._refused[span.segment])
        place = self._place(span)
        if place is None or self._file is None:
            return False
        try:
            return os.preadv(self._file.fileno(), [buffer], place) == span.size
        except OSError:
            return False

    def close(self) -> None:
        """Drop all bytes; `fill` may be called again."""
        self._starts, self._ranges, self._refused = {}, {}, {}
        if self._file is not None:
            self._file.close()
            self._file = None

    def _fetch(self, file: IO[bytes], ranges: Sequence[Span], on_bytes: OnBytes) -> None:
        announced: deque[Span] = deque()
        size = 0
        with SegmentFiles(self._store) as files:
            for span in ranges:
                if any(took_patience(error) for error in self._refused.values()):
                    break
                with contextlib.suppress(DataLossError, UnreadableSegmentError):
                    files.open(span).will_need(span.position, span.size)
                announced.append(span)
                size += span.size
                # Half of the open segments, since each is opened when it is announced, and when it is read.
                while size > AHEAD_BYTES or len(announced) >= AHEAD_CHUNKS:
                    size -= announced[0].size
                    self._take(files, file, announced.popleft(), on_bytes)
            while announced:
                self._take(files, file, announced.popleft(), on_bytes)

    def _take(self, files: SegmentFiles, file: IO[bytes], span: Span, on_bytes: OnBytes) -> None:
        if span.segment in self._refused:
            return
        try:
            data = files.open(span).read_exactly(span, span.position, span.size)
        except (CorruptLogError, DataLossError):
            return
        except UnreadableSegmentError as error:
            self._refused[span.segment] = as_value(error)
            return
        place = file.tell()
        _write(file, data)
        self._starts.setdefault(span.segment, []).append(span.position)
        self._ranges.setdefault(span.segment, []).append((span.end_position, place))
        on_bytes(span.size)

    def _place(self, span: Span) -> int | None:
        starts = self._starts.get(span.segment, [])
        number = bisect.bisect_right(starts, span.position) - 1
        if number < 0:
            return None
        end, place = self._ranges[span.segment][number]
        return place + span.position - starts[number] if span.end_position <= end else None


def with_spool(
    store: Store,
    works: Sequence[WorkT],
    *,
    on_read_ahead: OnBytes = ignore_bytes,
    limit_bytes: int | None = None,
) -> Generator[tuple[WorkT, Spool | None]]:
    """Yield the works, in order, each with the spool that has its fetched bytes."""
    if not store.traits.is_remote:
        yield from ((work, None) for work in works)
        return
    with Spool(store, limit_bytes=limit_bytes) as spool:
        for group in groups(store, works, spool.room):
            spool.close()
            reads = group[0].reads
            if len(group) > 1 or reads > 1:
                spans = (span for work in group for span in _small_spans(work.pieces))
                spool.fill(_within(spans, spool.room), reads, on_read_ahead)
            for work in group:
                yield work, spool


def groups(
    store: Store, works: Sequence[WorkT], room: int, most_bytes: int | None = None
) -> Iterator[Sequence[WorkT]]:
    """Yield the works, in order, in groups whose extents are fetched together; one by one if the store is a
    directory.

    Args:
        room: bytes for their small extents.
        most_bytes: the limit of all that a group reads; None: no limit.
    """
    start = 0
    while start < len(works):
        stop = start + 1
        if store.traits.is_remote:
            stop = _group_end(works, start, room, most_bytes)
        yield works[start:stop]
        start = stop


def in_turns(works: Iterable[MergeWork]) -> list[MergeWork]:
    """Return the first works of all partitions, then the second ones, and so on: works of one partition read
    different extents.
    """
    seen: Counter[tuple[str, int]] = Counter()
    turns = []
    for work in works:
        key = (work.pieces[0].topic_id, work.pieces[0].partition)
        turns.append((seen[key], work))
        seen[key] += 1
    return [work for _, work in sorted(turns, key=itemgetter(0))]


def _group_end(works: Sequence[WorkT], start: int, room: int, most_bytes: int | None) -> int:
    """Return the end of the group from `start`: each work reads objects of earlier ones."""
    segments: set[str] = set()
    count = size = everything = 0
    for number in range(start, len(works)):
        small = [(piece, _is_small(piece)) for piece in works[number].pieces]
        found = {name for piece, which in small for name in piece.extents.segment[which].tolist()}
        count += sum(int(which.sum()) for _, which in small)
        size += sum(int(piece.extents.column("size")[which].sum()) for piece, which in small)
        everything += sum(piece.size for piece, _ in small)
        is_full = count > MAX_SPANS or size > room or (most_bytes is not None and everything > most_bytes)
        if number > start and (is_full or found.isdisjoint(segments)):
            return number
        segments |= found
    return len(works)


def _is_small(piece: Piece) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    # An extent that is read in steps is not read from here.
    small: np.ndarray[tuple[int], np.dtype[np.bool_]] = piece.extents.column("size") <= min(
        SMALL_BYTES, piece.config.segment_bytes
    )
    return small


def _small_spans(pieces: Sequence[Piece]) -> Iterator[Span]:
    for piece in pieces:
        extents = piece.extents.extents(piece.topic_id, piece.partition)
        for extent, is_small in zip(extents, _is_small(piece).tolist(), strict=True):
            if is_small:
                yield extent_span(piece.topic, extent)


def _within(spans: Iterator[Span], room: int) -> list[Span]:
    """Return the leading spans that fit."""
    taken = []
    for span in islice(spans, MAX_SPANS):
        room -= span.size
        if room < 0:
            break
        taken.append(span)
    return taken


def _room() -> int:
    try:
        return min(SPOOL_BYTES, shutil.disk_usage(tempfile.gettempdir()).free // _FREE_SHARE)
    except OSError:
        return 0


def _write(file: IO[bytes], data: bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


# --- rewrite -----------------------------------------------------------------------------------------


STEP_BYTES = 4 << 20
SMALL_BATCH_BYTES = 8 << 10  # larger ones gain little: a header is less than a hundredth of them
# The written size of joined batches: larger only if compression.type has changed to a codec that compresses
# less. Larger: more memory; smaller: more batches keep their codec.
MAX_EXPANDED_BYTES = 64 << 20
_GATHERED = 2048
_KEPT = DELETE_HORIZON_MASK | CONTROL_MASK | TIMESTAMP_TYPE_MASK


class Source:
    """The segments of pieces. From a remote store, small pieces that the spool does not have are fetched
    first, in one batch, and large ones are read ahead, in order.
    """

    def __init__(self, store: Store, pieces: Sequence[Piece], spool: Spool | None = None) -> None:
        """`spool`: its bytes are not requested again."""
        self.files = SegmentFiles(store)
        self._spool = spool
        self._ahead: ReadAhead | None = None
        self._fetched: Fetched | None = None
        if store.traits.is_remote:
            spans = (
                extent_span(piece.topic, extent)
                for piece in pieces
                for extent in piece.extents.extents(piece.topic_id, piece.partition)
            )
            if spool is not None:
                spans = (span for span in spans if not spool.has(span))
            if all(piece.is_shared for piece in pieces):
                self._fetched = Fetched(store, spans)
            else:
                self._ahead = ReadAhead(self.files, spans)

    def open(self, span: Span, position: int) -> SegmentFile:
        """Open the span's segment, to read it from `position` on."""
        if self._ahead is not None:
            self._ahead.reached(span, position)
        return self.files.open(span)

    def read_into(self, span: Span, buffer: memoryview) -> None:
        """Read all of a span."""
        if self._spool is not None and self._spool.read_into(span, buffer):
            return
        if self._fetched is None or not self._fetched.read_into(span, buffer):
            self.open(span, span.position).read_into(span, span.position, buffer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.close()


def rewritten(
    source: Source, piece: Piece, *, origin: int = 0, step_bytes: int = STEP_BYTES
) -> Iterator[EncodedBatches]:
    """Yield the batches of all extents, in order, with base offsets relative to `origin`.

    Raises:
        DataLossError, CorruptLogError, UnsupportedVersionError: a segment is gone, does not match the
            metadata, or is newer. UnreadableSegmentError: it is unreadable.
    """
    for data, table in read_steps(source, piece, step_bytes):
        where = f"{piece.topic}-{piece.partition} from offset {int(table.base_offset[0])}"
        for run, is_small in _runs(table):
            part = table.select(run)
            made = _put_together(data, part, piece, where, step_bytes, origin) if is_small else None
            if made is None:
                yield kept_batches(data, part, origin)
            else:
                yield from made


# --- reading -----------------------------------------------------------------------------------------------


def read_steps(source: Source, piece: Piece, step_bytes: int) -> Iterator[tuple[memoryview, BatchTable]]:
    """Yield (buffer, its whole batches) of about `step_bytes`; offsets in the table are absolute."""
    group: list[Extent] = []
    size = 0
    for extent in piece.extents.extents(piece.topic_id, piece.partition):
        if extent.size > step_bytes:
            if group:
                yield _read_group(source, piece, group)
            group, size = [], 0
            yield from _read_large(source, piece, extent, step_bytes)
            continue
        if group and (size + extent.size > step_bytes or len(group) == _GATHERED):
            yield _read_group(source, piece, group)
            group, size = [], 0
        group.append(extent)
        size += extent.size
    if group:
        yield _read_group(source, piece, group)


def _read_group(source: Source, piece: Piece, group: Sequence[Extent]) -> tuple[memoryview, BatchTable]:
    """Read consecutive extents into one buffer."""
    data = memoryview(bytearray(sum(extent.size for extent in group)))
    at = 0
    for extent in group:
        span = extent_span(piece.topic, extent)
        source.read_into(span, data[at : at + extent.size])
        at += extent.size
    sizes = [extent.size for extent in group]
    stretches = _stretches(piece, group, sizes, group[0].position, begins_at=group[0].base_offset)
    return data, _absolute(*scan_stretches(data, stretches))


def _read_large(
    source: Source, piece: Piece, extent: Extent, step_bytes: int
) -> Iterator[tuple[memoryview, BatchTable]]:
    """Read one extent step by step."""
    span = extent_span(piece.topic, extent)
    position, begins_at = span.position, extent.base_offset
    while position < span.end_position:
        data = read_step(source.open(span, position), span, position, step_bytes)
        stretches = _stretches(piece, [extent], [len(data)], position, begins_at=begins_at)
        table = _absolute(*scan_stretches(data, stretches))
        position += len(data)
        begins_at = int(table.last_offset[-1]) + 1
        yield data, table


def _stretches(
    piece: Piece, group: Sequence[Extent], sizes: list[int], position: int, *, begins_at: int
) -> Stretches:
    """Return the expected ranges by the metadata: `sizes` of each extent, the first from `position` on."""
    last = group[-1]
    start = last.position if len(group) > 1 else position

    def place(index: int) -> tuple[Span, int]:
        return extent_span(piece.topic, group[index]), group[index].position if index else position

    return Stretches(
        size=sizes,
        offset_delta=[extent.offset_delta for extent in group],
        segment=[extent.segment for extent in group],
        start_offset=[extent.base_offset for extent in group],
        end_offset=[extent.end_offset for extent in group],
        begins_at=begins_at,
        reaches_end=start + sizes[-1] == last.position + last.size,
        is_cut=False,
        place=place,
    )


def _absolute(table: BatchTable, deltas: npt.NDArray[np.int64]) -> BatchTable:
    return dataclasses.replace(
        table, base_offset=table.base_offset + deltas, last_offset=table.last_offset + deltas
    )


# --- writing -----------------------------------------------------------------------------------------------


def _runs(table: BatchTable) -> Iterator[tuple[slice, bool]]:
    """Yield runs of batches to join (True), and the runs between them (False)."""
    small = (
        (table.size < SMALL_BATCH_BYTES)
        & (table.attributes & _KEPT == 0)
        & (table.record_count == table.last_offset - table.base_offset + 1)
    )
    same = table.attributes & ~TRANSACTIONAL_MASK
    joins = (
        small[1:]
        & small[:-1]
        & (same[1:] == same[:-1])
        & (table.base_offset[1:] == table.last_offset[:-1] + 1)
    )
    together = np.zeros(len(table), np.bool_)
    together[1:] |= joins
    together[:-1] |= joins
    # A run ends at a batch that cannot join it, unless both are kept unchanged.
    breaks = np.flatnonzero(~joins & (together[1:] | together[:-1])) + 1
    edges = [0, *breaks.tolist(), len(table)]
    for start, stop in pairwise(edges):
        yield slice(start, stop), bool(together[start])


def kept_batches(view: memoryview, table: BatchTable, origin: int) -> EncodedBatches:
    """Return consecutive batches, unchanged except for the base offset."""
    start, stop = int(table.position[0]), int(table.position[-1] + table.size[-1])
    data = view[start:stop]
    position, base_offset = table.position - start, table.base_offset - origin
    set_base_offsets(data, position, base_offset, leader_epoch=None)
    return EncodedBatches(
        data=[data],
        size_bytes=len(data),
        record_count=int(table.last_offset[-1] - table.base_offset[0]) + 1,
        max_timestamp_ms=int(table.max_timestamp_ms.max()),
        position=position,
        size=table.size,
        base_offset=base_offset,
        batch_record_count=table.last_offset - table.base_offset + 1,
        batch_max_timestamp_ms=table.max_timestamp_ms,
    )


def _put_together(
    view: memoryview, table: BatchTable, piece: Piece, where: str, step_bytes: int, origin: int
) -> list[EncodedBatches] | None:
    """Join small batches to full ones; None if they cannot be decoded, or joining would change them."""
    made, expanded = [], 0
    try:
        for data, part, indices in plain_parts(view, table, step_bytes, where):
            base = table.base_offset[indices]
            records = decode_records(data, part, include_headers=True, where=where)
            if records.headers is not None and _has_replaced_keys(records.headers):
                return None
            columns = RecordColumns(
                key=records.key,
                value=records.value,
                timestamp_ms=records.timestamp_ms,
                headers=records.headers,
            )
            made.append(encode_batches(columns, _options(piece, table), base_offset=int(base[0]) - origin))
            expanded += made[-1].size_bytes
            if expanded > MAX_EXPANDED_BYTES:
                return None
    except SparklogError:
        return None
    return made


def _has_replaced_keys(headers: pa.ListArray) -> bool:
    """True if a key has U+FFFD, which replaces bytes that are not UTF-8."""
    return bool(pc.any(pc.match_substring(headers.flatten().field("key"), "\ufffd")).as_py())


def _options(piece: Piece, table: BatchTable) -> EncodeOptions:
    """Return the options of the topic's writers, without their limit on the size of a record."""
    config = piece.config
    codec = Codec(int(table.codec[0]))
    if config.compression_type != "producer":
        codec = Codec.from_name(config.compression_type)
    return EncodeOptions(codec=codec, max_message_bytes=MAX_INT32)
