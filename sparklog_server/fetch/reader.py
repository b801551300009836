"""Stored bytes of a partition from an offset on, with the offsets that consumers see.

Invariants: only whole batches of the partition's own extents leave: every header is checked, each batch lies
    within its extent, and base offsets continue each other, so that a damaged length can never show foreign
    bytes; what is damaged or gone is raised with segment@position, never skipped. The CRCs of the records
    are left to the client.
Memory: one buffer per read, of about max_bytes. np.empty does not touch the pages; bytearray would.
Read-ahead is left to the kernel: measured with a consumer that needs 2 ms per MB, cold reads took 0.15 ms
    each, with and without posix_fadvise.
Not here: who waits (runtime/purgatory.py), which bytes are in memory already (cache.py).
Concurrency: any storage thread.
Sources: docs/design.md; KIP-74 (the first batch is returned even if it is larger).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sparklog.errors import CorruptLogError, SparklogError
from sparklog.format.batch_table import BatchTable, scan_batches
from sparklog.format.record_batch import HEADER, LENGTH_END, whole_batches_bytes
from sparklog.log.names import is_dense
from sparklog.log.read_plan import extent_span
from sparklog.log.segment_file import Span
from sparklog.metadata import Extent, PartitionState
from sparklog.storage import Store
from sparklog_server.fetch.batches import BatchBlock, FetchedBatches, Int64Array, set_base_offsets
from sparklog_server.fetch.open_segments import Lease, OpenSegments
from sparklog_server.protocol.wire import FileRegion

MAX_PIECES = 4096
EXTENTS_AT_ONCE = 64
MIN_SENDFILE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of an extent: from the batch that holds the first wanted offset on."""

    extent: Extent
    span: Span
    position: int
    size: int

    @property
    def is_rest(self) -> bool:
        """Does it reach the extent's end?"""
        return self.position + self.size == self.span.end_position


class StoredReader:
    """Reads partitions of one root."""

    def __init__(self, store: Store, segments: OpenSegments | None = None) -> None:
        self._segments = segments if segments is not None else OpenSegments(store)

    def close(self) -> None:
        """Close the files that are open."""
        self._segments.close()

    def read(
        self, topic: str, state: PartitionState, offset: int, *, max_bytes: int, at_least_one: bool = True
    ) -> tuple[FetchedBatches, BatchBlock | None]:
        """Whole batches from `offset` on, up to `max_bytes`.

        Args:
            offset: log_start_offset <= it <= log_end_offset.
            at_least_one: return the first batch even if it is larger.
        Returns: the batches, and the same as a block for the cache, if they are in memory.
        Raises: DataLossError, CorruptLogError, UnsupportedVersionError, StorageError.
        """
        pieces, next_offset = self._plan(topic, state, offset, max_bytes)
        if not pieces:
            return FetchedBatches(chunks=(), size=0, next_offset=next_offset), None
        first = pieces[0]
        if first.extent.offset_delta == 0 and first.size >= MIN_SENDFILE_BYTES:
            region = self._region(first, max_bytes)
            if region is not None:
                return region, None
        data = self._load(pieces)
        whole = len(data) if pieces[-1].is_rest else self._cut(data, pieces, at_least_one=at_least_one)
        if whole == 0:
            if not at_least_one:
                return FetchedBatches(chunks=(), size=0, next_offset=offset), None
            pieces = [self._first_batch(first, data)]
            data = self._load(pieces)
            whole = len(data)
        block = self._block(data[:whole], pieces)
        return (
            FetchedBatches(chunks=(block.data.toreadonly(),), size=whole, next_offset=block.end_offset),
            block,
        )

    def _plan(
        self, topic: str, state: PartitionState, offset: int, max_bytes: int
    ) -> tuple[list[_Piece], int]:
        """What to read; without pieces, the offset to go on at."""
        pieces: list[_Piece] = []
        left = max(max_bytes, HEADER.size)
        for extent in _extents_from(state, offset):
            span = extent_span(topic, extent)
            position = span.position
            if offset > extent.base_offset and not pieces:
                with self._segments.lease(span) as lease:
                    position, header = lease.segment.locate(span, offset - extent.offset_delta)
                if header is None:
                    continue  # the extent's last offsets were compacted away
            size = min(span.end_position - position, left)
            pieces.append(_Piece(extent, span, position, size))
            left -= size
            if left < HEADER.size or len(pieces) == MAX_PIECES:
                break
        return pieces, state.log_end_offset

    def _load(self, pieces: Sequence[_Piece]) -> memoryview:
        """The pieces' bytes in one buffer; those that follow each other in a segment in one read."""
        total = sum(piece.size for piece in pieces)
        data = np.empty(total, np.uint8).data
        at = 0
        for span, position, size in _runs(pieces):
            with self._segments.lease(span) as lease:
                lease.segment.read_into(span, position, data[at : at + size])
            at += size
        return data

    def _cut(self, data: memoryview, pieces: list[_Piece], *, at_least_one: bool) -> int:
        """Where the last whole batch ends. The last piece is a part of its extent, and may cut a batch."""
        last = pieces[-1]
        start = len(data) - last.size
        whole = whole_batches_bytes(data[start:])
        if whole == 0:
            pieces.pop()
            if not pieces and not at_least_one:
                return 0
        else:
            pieces[-1] = _Piece(last.extent, last.span, last.position, whole)
        return start + whole

    def _first_batch(self, piece: _Piece, data: memoryview) -> _Piece:
        """The first batch alone, which is larger than what was read of it."""
        left = piece.span.end_position - piece.position
        length = int.from_bytes(data[8:LENGTH_END], "big", signed=True) if len(data) >= LENGTH_END else 0
        needed = LENGTH_END + length
        if not HEADER.size <= needed <= left:
            raise _mismatch(
                piece.span, piece.position, f"a batch of {needed} bytes", f"{HEADER.size} to {left}"
            )
        return _Piece(piece.extent, piece.span, piece.position, needed)

    def _block(self, data: memoryview, pieces: Sequence[_Piece]) -> BatchBlock:
        """Check the batches, and give them their absolute offsets."""
        ends = np.cumsum([piece.size for piece in pieces])
        try:
            table = scan_batches(data, where=f"{len(pieces)} extents", verify_crc=False)
            of_piece = ends.searchsorted(table.position, "right")
            deltas = np.array([piece.extent.offset_delta for piece in pieces], np.int64)[of_piece]
            base, last = table.base_offset + deltas, table.last_offset + deltas
            fine = _follows(table, pieces, ends, of_piece, base, last)
        except SparklogError:
            fine = False
        if not fine:
            _explain(data, pieces)  # raises, with the position
            raise _mismatch(pieces[0].span, pieces[0].position, "batches of other offsets", "its own")
        if deltas.any() or table.partition_leader_epoch.any():
            set_base_offsets(data, table.position, base)
        return BatchBlock(data=data, position=table.position, base_offset=base, end_offset=int(last[-1]) + 1)

    def _region(self, piece: _Piece, max_bytes: int) -> FetchedBatches | None:
        """Offsets are stored as they are: the network layer may send the bytes from the file itself.

        Only headers are read: their pages are few where batches are large. None: read the bytes instead.
        """
        lease = self._segments.lease(piece.span)
        region: FetchedBatches | None = None
        try:
            region = _walk_region(lease, piece, max_bytes)
        finally:
            if region is None:
                lease.release()
        return region


def _walk_region(lease: Lease, piece: _Piece, max_bytes: int) -> FetchedBatches | None:
    descriptor = lease.segment.descriptor
    if descriptor is None:
        return None
    extent, span = piece.extent, piece.span
    dense = is_dense(span.segment)
    end, next_offset = piece.position, None
    for position, header in lease.segment.headers(span, piece.position):
        low = extent.base_offset if next_offset is None else next_offset
        inside = low <= header.base_offset and header.last_offset < extent.end_offset
        if not inside or (dense and next_offset is not None and header.base_offset != next_offset):
            found = f"a batch of offsets {header.base_offset} to {header.last_offset}"
            raise _mismatch(span, position, found, f"{low} to {extent.end_offset - 1}")
        if header.partition_leader_epoch != 0:
            return None
        if position + header.size - piece.position > max_bytes:
            break
        end, next_offset = position + header.size, header.last_offset + 1
    size = end - piece.position
    if next_offset is None or size < MIN_SENDFILE_BYTES:
        return None
    region = FileRegion(descriptor, piece.position, size)
    next_offset = extent.end_offset if end == span.end_position else next_offset
    return FetchedBatches(chunks=(region,), size=size, next_offset=next_offset, release=lease.release)


def _extents_from(state: PartitionState, offset: int) -> Iterator[Extent]:
    """The extents that end after `offset`, a few at a time: a log may have a million."""
    extents = state.extents
    index, count = extents.index_after(offset), len(extents)
    while index < count:
        yield from extents[index : index + EXTENTS_AT_ONCE]
        index += EXTENTS_AT_ONCE


def _runs(pieces: Sequence[_Piece]) -> Iterator[tuple[Span, int, int]]:
    """(span, position, size) of reads: neighbours in a segment become one."""
    start = 0
    for index in range(1, len(pieces) + 1):
        before = pieces[index - 1]
        if index < len(pieces):
            after = pieces[index]
            adjacent = before.position + before.size == after.position
            if adjacent and before.span.segment == after.span.segment:
                continue
        first = pieces[start]
        end = before.span.end_position
        span = Span(
            topic=first.span.topic,
            partition=first.span.partition,
            segment=first.span.segment,
            position=first.span.position,
            size=end - first.span.position,
        )
        yield span, first.position, before.position + before.size - first.position
        start = index


def _follows(
    table: BatchTable,
    pieces: Sequence[_Piece],
    ends: Int64Array,
    of_piece: Int64Array,
    base: Int64Array,
    last: Int64Array,
) -> bool:
    """Is every batch inside its piece and its extent's offsets, in order, and without gaps if dense?"""
    starts = np.array([piece.extent.base_offset for piece in pieces], np.int64)[of_piece]
    stops = np.array([piece.extent.end_offset for piece in pieces], np.int64)[of_piece]
    dense = np.array([is_dense(piece.span.segment) for piece in pieces])[of_piece]
    fine = (table.position + table.size <= ends[of_piece]) & (base >= starts) & (last < stops)
    fine[1:] &= base[1:] > last[:-1]
    same = of_piece[1:] == of_piece[:-1]
    fine[1:] &= ~(dense[1:] & same) | (base[1:] == last[:-1] + 1)
    # Where an extent begins or ends with the piece, so do the offsets.
    fine[1:] &= ~(dense[1:] & ~same) | (base[1:] == starts[1:])
    fine[:-1] &= ~(dense[:-1] & ~same) | (last[:-1] + 1 == stops[:-1])
    head, tail = pieces[0], pieces[-1]
    if dense[0] and head.position == head.span.position:
        fine[0] &= base[0] == starts[0]
    if dense[-1] and tail.is_rest:
        fine[-1] &= last[-1] + 1 == stops[-1]
    return bool(fine.all()) and len(np.unique(of_piece)) == len(pieces)


def _explain(data: memoryview, pieces: Sequence[_Piece]) -> None:
    """Raise what is wrong with the first bad batch, with its position in its segment."""
    at = 0
    for piece in pieces:
        span, extent = piece.span, piece.extent
        table = scan_batches(
            data[at : at + piece.size], where=span.where, position=piece.position, verify_crc=False
        )
        at += piece.size
        base, last = table.base_offset + extent.offset_delta, table.last_offset + extent.offset_delta
        bad = (base < extent.base_offset) | (last >= extent.end_offset)
        bad[1:] |= base[1:] != last[:-1] + 1 if is_dense(span.segment) else base[1:] <= last[:-1]
        if is_dense(span.segment) and piece.position == span.position:
            bad[0] |= base[0] != extent.base_offset
        if is_dense(span.segment) and piece.is_rest:
            bad[-1] |= last[-1] + 1 != extent.end_offset
        if bad.any():
            worst = int(bad.argmax())
            found = f"a batch of offsets {int(base[worst])} to {int(last[worst])}"
            expected = f"it to continue those before, within {extent.base_offset} to {extent.end_offset - 1}"
            raise _mismatch(span, piece.position + int(table.position[worst]), found, expected)


def _mismatch(span: Span, position: int, found: str, expected: str) -> CorruptLogError:
    return CorruptLogError(
        "EXTENT_MISMATCH",
        f"{span.where}@{position}: found {found}, expected {expected}",
        fix="restore the segment from a copy; `sparklog dump-log` shows what is left",
    )
