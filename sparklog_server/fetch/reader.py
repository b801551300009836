"""Reads stored bytes of a partition from an offset on, with the offsets that consumers see.

Invariants: only whole batches of the partition's own extents are returned: every header is checked, each
    batch lies within its extent, and base offsets are consecutive, so that a damaged length never exposes
    foreign bytes; damaged or missing data is an error with segment@position, never skipped. The client checks
    the CRCs of the records.
Memory: one buffer per read, of about max_bytes. np.empty does not touch the pages; bytearray would.
Read-ahead is left to the kernel: measured with a consumer that needs 2 ms per MB, cold reads took 0.15 ms
    each, with and without posix_fadvise.
Not here: waiting fetches (runtime/timing.py), cached bytes (cache.py).
Concurrency: any storage thread.
Sources: docs/design.md; KIP-74 (the first batch is returned even if it is larger).
"""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from time import monotonic
from types import TracebackType
from typing import Self

import numpy as np

from sparklog.errors import CorruptLogError, DataLossError, StorageError, UnsupportedVersionError
from sparklog.format.record_batch import HEADER, set_base_offsets, whole_batches_bytes
from sparklog.log.read_plan import extent_span
from sparklog.log.reader import Fetched, sequence_few
from sparklog.log.segment_file import (
    SegmentFile,
    Span,
    Stretches,
    UnreadableSegmentError,
    first_batch_bytes,
    scan_stretches,
    took_patience,
)
from sparklog.metadata import Extent, PartitionState
from sparklog.storage import Store
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.fetch.cache import BatchBlock, FetchedBatches
from sparklog_server.protocol.wire import FileRegion

# --- away --------------------------------------------------------------------------------------------
#
# Unavailable segments are refused immediately for a while, without a request to the store. If only some
# objects are unavailable (of a disk set without a quorum), each fetch that needs one of them would otherwise
# take minutes, for all of its partitions, and so would the next one: the consumer has given up long before.
#
# Memory: one entry for each time-out of the store, for AWAY_SECONDS.
# Concurrency: any storage thread.


AWAY_SECONDS = 30.0


class StillAwayError(UnreadableSegmentError):
    """The recent error of a segment, raised again without a request to the store."""


class AwaySegments:
    """Segments that an object store has not returned within its time-out (minutes)."""

    def __init__(self) -> None:
        self._away: dict[str, tuple[float, UnreadableSegmentError]] = {}  # (expiry, error)

    def refuse(self, segment: str) -> None:
        """Raise StillAwayError if the segment was unavailable lately."""
        until, why = self._away.get(segment, (0.0, None))
        if why is not None and monotonic() < until:
            raise StillAwayError(why.code, why.message, fix=why.fix)

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Remember a segment whose read, within the with block, fails with the store's time-out."""
        try:
            yield
        except UnreadableSegmentError as error:
            if took_patience(error) and not isinstance(error, StillAwayError):
                now = monotonic()
                kept = {segment: one for segment, one in self._away.items() if one[0] > now}
                self._away = {**kept, error.segment: (now + AWAY_SECONDS, error)}
            raise


# --- open segments -----------------------------------------------------------------------------------
#
# Segments kept open, shared by the storage threads and by responses that are still being sent.
#
# Invariants: a leased segment stays open until the last lease is released, even if it is evicted or deleted;
#     in addition at most `limit` idle ones are open.
# Concurrency: any thread; files are opened outside the lock.
# Sources: log/segment_file.py.


class Lease:
    """The right to use an open segment, until `release` or the end of the with block."""

    __slots__ = ("_held", "_owner", "segment")

    def __init__(self, owner: "OpenSegments", held: "_Held") -> None:
        self._owner = owner
        self._held: _Held | None = held
        self.segment = held.segment

    def release(self) -> None:
        """Idempotent."""
        held, self._held = self._held, None
        if held is not None:
            self._owner._give_back(held)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Held:
    __slots__ = ("kept", "leases", "segment")

    def __init__(self, segment: SegmentFile) -> None:
        self.segment = segment
        self.leases = 0
        self.kept = True  # in the table: others may lease it


class OpenSegments:
    """A bounded cache of open segments."""

    def __init__(self, store: Store, *, limit: int = 256) -> None:
        self._store = store
        self._limit = limit
        self._lock = threading.Lock()
        self._table: dict[str, _Held] = {}  # least recently used first

    def lease(self, span: Span) -> Lease:
        """Lease the span's segment, and open it if necessary; DataLossError if it is gone."""
        with self._lock:
            held = self._table.get(span.segment)
            # Shorter than the span: it has grown since it was opened, or is truncated. Check again.
            if held is not None and held.segment.holds(span):
                del self._table[span.segment]
                self._table[span.segment] = held
                held.leases += 1
                return Lease(self, held)
        opened = _Held(SegmentFile.open(self._store, span))
        opened.leases = 1
        with self._lock:
            before = self._table.pop(span.segment, None)
            closing = [] if before is None else self._dropped([before])
            self._table[span.segment] = opened
            surplus = len(self._table) - self._limit
            closing += self._dropped([self._table.pop(name) for name in list(self._table)[: max(0, surplus)]])
        for segment in closing:
            segment.close()
        return Lease(self, opened)

    def close(self) -> None:
        """Close the idle segments; leased ones are closed when they are released."""
        with self._lock:
            closing = self._dropped(list(self._table.values()))
            self._table.clear()
        for segment in closing:
            segment.close()

    def close_removed(self) -> None:
        """Close idle segments whose files were removed: the disk only frees their space then."""
        with self._lock:
            removed = [
                name for name, held in self._table.items() if held.leases == 0 and held.segment.is_removed
            ]
            closing = self._dropped([self._table.pop(name) for name in removed])
        for segment in closing:
            segment.close()

    @property
    def leases(self) -> int:
        """Return the number of leases of shared segments."""
        with self._lock:
            return sum(held.leases for held in self._table.values())

    def __len__(self) -> int:
        return len(self._table)

    def _dropped(self, dropped: list[_Held]) -> list[SegmentFile]:
        """Return the dropped segments without leases, which can be closed immediately."""
        for held in dropped:
            held.kept = False
        return [held.segment for held in dropped if held.leases == 0]

    def _give_back(self, held: _Held) -> None:
        with self._lock:
            held.leases -= 1
            close = held.leases == 0 and not held.kept
        if close:
            held.segment.close()


# --- gathered ----------------------------------------------------------------------------------------
#
# A fetch names many partitions, and a lagging consumer needs many small extents of each. An object store
# takes a round trip for each request, and the extents of one publish are in one object: so they are requested
# by object, several at a time, the next ones of each partition first.
#
# Invariants: gathered bytes are those of the objects (log/reader.py). Bytes that are missing, or did not
#     arrive in time, are left out: the reader continues without them, or requests them alone and gets the
#     error.
# Memory: about the limit of one reading round (service.py), twice that during the copy.
# Concurrency: one storage thread.


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of an extent: from the batch that holds the first wanted offset on."""

    extent: Extent
    span: Span
    position: int
    size: int

    @property
    def is_rest(self) -> bool:
        """True if it reaches the extent's end."""
        return self.position + self.size == self.span.end_position

    @property
    def bytes_span(self) -> Span:
        """Return the span of its bytes."""
        span = self.span
        return Span(
            topic=span.topic,
            partition=span.partition,
            segment=span.segment,
            position=self.position,
            size=self.size,
        )


Plan = tuple[list[Piece], int]  # without pieces: the offset at which to continue


class Gathered:
    """The bytes that a reading round needs from an object store, for all partitions, fetched in one batch."""

    def __init__(
        self, store: Store, plans: Sequence[Plan | None], *, is_time_over: Callable[[], bool]
    ) -> None:
        """`plans`: for each partition; None: unknown."""
        self._plans = plans
        lists = [plan[0] for plan in plans if plan is not None]
        pieces = (piece for piece in chain.from_iterable(zip_longest(*lists)) if piece is not None)
        self._fetched = Fetched(store, (piece.bytes_span for piece in pieces), is_time_over=is_time_over)

    def plan_of(self, number: int, max_bytes: int) -> Plan | None:
        """Return the plan of a partition, limited to `max_bytes`."""
        plan = self._plans[number]
        if plan is None:
            return None
        pieces, next_offset = plan
        left, kept = max_bytes, []
        for piece in pieces:
            if left <= 0:
                break
            kept.append(Piece(piece.extent, piece.span, piece.position, min(piece.size, left)))
            left -= piece.size
        return kept, next_offset

    def has_any(self, number: int) -> bool:
        """True if any bytes of the partition were fetched."""
        plan = self._plans[number]
        return plan is not None and bool(plan[0]) and self.has(plan[0][0])

    def has(self, piece: Piece) -> bool:
        """True if all of the piece was fetched."""
        return self._fetched.has(piece.bytes_span)

    def read_into(self, piece: Piece, buffer: memoryview) -> bool:
        """Fill the buffer with the piece; return False if it was not fetched."""
        return self._fetched.read_into(piece.bytes_span, buffer)


# --- reader ------------------------------------------------------------------------------------------


MAX_PIECES = 4096
GATHERED_PIECES = 2048  # more than an object store returns in READ_SECONDS
EXTENTS_AT_ONCE = 64
READ_SECONDS = 1.0
FEW_BYTES = 16 << 10  # reads that may contain few batches
MIN_SENDFILE_BYTES = 64 << 10
MAX_WALKED = 10_000  # batches per response from a file: their headers take a tenth of a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The start and size of a read of a partition."""

    topic: str
    state: PartitionState
    offset: int
    max_bytes: int


class StoredReader:
    """Reads partitions of one root."""

    def __init__(self, store: Store, leadership: Leadership, segments: OpenSegments | None = None) -> None:
        self._store = store
        self._leadership = leadership
        self.segments = segments if segments is not None else OpenSegments(store)
        self._away = AwaySegments()

    def close(self) -> None:
        """Close all open files."""
        self.segments.close()

    def gather(self, places: Sequence[Place], *, max_bytes: int) -> Gathered | None:
        """Fetch the bytes that `read` will need for all places, in one batch; None if each read is cheap.

        Args:
            max_bytes: the total; bytes beyond it are left out.
        Raises: StorageError, if the store does not answer within its time-out.
        """
        if not self._store.traits.is_remote:
            return None
        with self._away.noting():
            return self._gather(places, max_bytes)

    def _gather(self, places: Sequence[Place], max_bytes: int) -> Gathered:
        plans: list[Plan | None] = []
        most = max(1, GATHERED_PIECES // max(1, len(places)))
        for place in places:
            plan = None
            if max_bytes > 0:
                try:
                    limit = min(max_bytes, place.max_bytes)
                    plan = self._plan(place.topic, place.state, place.offset, limit, most)
                    max_bytes -= sum(piece.size for piece in plan[0])
                except (DataLossError, CorruptLogError, UnsupportedVersionError, StillAwayError):
                    pass  # errors of a partition are raised by its read
                except StorageError as error:
                    if took_patience(error):
                        raise
            plans.append(plan)
        end = monotonic() + READ_SECONDS
        return Gathered(self._store, plans, is_time_over=lambda: monotonic() >= end)

    def read(
        self,
        topic: str,
        state: PartitionState,
        offset: int,
        *,
        max_bytes: int,
        at_least_one: bool = True,
        gathered: tuple[Gathered, int] | None = None,
    ) -> tuple[FetchedBatches, BatchBlock | None]:
        """Read whole batches from `offset` on, up to `max_bytes`.

        Args:
            offset: log_start_offset <= it <= log_end_offset.
            at_least_one: return the first batch even if it is larger.
            gathered: the bytes that were fetched in one batch, and this partition's number in it.
        Returns: the batches, and the same as a block for the cache, if they are in memory.
        Raises: DataLossError, CorruptLogError, UnsupportedVersionError, StorageError.
        """
        with self._away.noting():
            return self._read(topic, state, offset, max_bytes, at_least_one, gathered)

    def _read(
        self,
        topic: str,
        state: PartitionState,
        offset: int,
        max_bytes: int,
        at_least_one: bool,
        gathered: tuple[Gathered, int] | None,
    ) -> tuple[FetchedBatches, BatchBlock | None]:
        plan = None if gathered is None else gathered[0].plan_of(gathered[1], max(max_bytes, HEADER.size))
        pieces, next_offset = plan or self._plan(topic, state, offset, max_bytes)
        if not pieces:
            return FetchedBatches(chunks=(), size=0, next_offset=next_offset), None
        first = pieces[0]
        epoch = self._leadership.leader_of(state).epoch
        if first.extent.offset_delta == 0 and first.size >= MIN_SENDFILE_BYTES:
            region = self._region(first, max_bytes, epoch)
            if region is not None:
                return region, None
        data, pieces = self._load(pieces, None if gathered is None else gathered[0])
        whole = len(data) if pieces[-1].is_rest else self._cut(data, pieces, at_least_one=at_least_one)
        if whole == 0:
            if not at_least_one:
                return FetchedBatches(chunks=(), size=0, next_offset=offset), None
            needed = first_batch_bytes(data, first.span, first.position)
            pieces = [Piece(first.extent, first.span, first.position, needed)]
            data, pieces = self._load(pieces)
            whole = len(data)
        data = data[:whole]
        if whole < memoryview(data.obj).nbytes * 3 // 4:  # a view keeps the whole buffer alive
            data = memoryview(bytearray(data))
        block = self._block(data, pieces, epoch)
        return (
            FetchedBatches(chunks=(block.data.toreadonly(),), size=whole, next_offset=block.end_offset),
            block,
        )

    def _plan(
        self, topic: str, state: PartitionState, offset: int, max_bytes: int, most: int | None = None
    ) -> tuple[list[Piece], int]:
        """Return a limited number of pieces to read; without pieces, the offset at which to continue."""
        pieces: list[Piece] = []
        left = max(max_bytes, HEADER.size)
        for extent in _extents_from(state, offset):
            span = extent_span(topic, extent)
            try:
                self._away.refuse(span.segment)
            except StillAwayError:
                if not pieces:
                    raise
                break
            position = span.position
            if offset > extent.base_offset and not pieces:
                with self.segments.lease(span) as lease:
                    position, header = lease.segment.locate(span, offset - extent.offset_delta)
                if header is None:
                    continue  # the extent's last offsets were compacted away
            size = min(span.end_position - position, left)
            pieces.append(Piece(extent, span, position, size))
            left -= size
            if left < HEADER.size or len(pieces) == (most or MAX_PIECES):
                break
        return pieces, state.log_end_offset

    def _load(self, pieces: list[Piece], gathered: Gathered | None = None) -> tuple[memoryview, list[Piece]]:
        """Return the pieces' bytes in one buffer, and the pieces; neighbours in a segment take one read.

        Pieces that were not read in READ_SECONDS are left out: an object store takes a round trip for each
        read, and a consumer that has to wait for thousands times out, retries, and makes no progress.
        With gathered bytes, missing pieces are left out, except the first one.
        """
        if gathered is not None:
            if gathered.has(pieces[0]):
                return _copied(pieces, gathered)
            pieces = pieces[:1]
        total = sum(piece.size for piece in pieces)
        data = np.empty(total, np.uint8).data
        at, count, end = 0, 0, monotonic() + READ_SECONDS
        for span, position, size, joined in _runs(pieces):
            if count and monotonic() >= end:
                break
            with self.segments.lease(span) as lease:
                lease.segment.read_into(span, position, data[at : at + size])
            at += size
            count += joined
        return data[:at], pieces[:count]

    def _cut(self, data: memoryview, pieces: list[Piece], *, at_least_one: bool) -> int:
        """Return the end of the last whole batch. The last piece may cut a batch."""
        last = pieces[-1]
        start = len(data) - last.size
        whole = whole_batches_bytes(data[start:])
        if whole == 0:
            pieces.pop()
            if not pieces and not at_least_one:
                return 0
        else:
            pieces[-1] = Piece(last.extent, last.span, last.position, whole)
        return start + whole

    def _block(self, data: memoryview, pieces: Sequence[Piece], leader_epoch: int) -> BatchBlock:
        """Check the batches, and set their absolute offsets and their leader's epoch."""
        stretches = _stretches(pieces)
        few = sequence_few(data, stretches, leader_epoch) if len(data) <= FEW_BYTES else None
        if few is not None:
            position, offset = np.array(few.position, np.int64), np.array(few.base_offset, np.int64)
            return BatchBlock(data=data, position=position, base_offset=offset, end_offset=few.end_offset)
        table, deltas = scan_stretches(data, stretches, verify_crc=False)
        base = table.base_offset + deltas
        if deltas.any() or (table.partition_leader_epoch != leader_epoch).any():
            set_base_offsets(data, table.position, base, leader_epoch=leader_epoch)
        end_offset = int(table.last_offset[-1] + deltas[-1]) + 1
        return BatchBlock(data=data, position=table.position, base_offset=base, end_offset=end_offset)

    def _region(self, piece: Piece, max_bytes: int, leader_epoch: int) -> FetchedBatches | None:
        """Return the bytes in the file, if they have absolute offsets: the network layer sends them
        unchanged.

        Their epochs are sent unchanged, too, and may be those of older leaders, as in Kafka's logs.
        Only headers are read: their pages are few where batches are large. None: read the bytes instead.
        """
        lease = self.segments.lease(piece.span)
        region: FetchedBatches | None = None
        try:
            region = _walk_region(lease, piece, max_bytes, leader_epoch)
        finally:
            if region is None:
                lease.release()
        return region


def _copied(pieces: Sequence[Piece], gathered: Gathered) -> tuple[memoryview, list[Piece]]:
    """Return the leading pieces that were fetched, and their bytes."""
    here = list(itertools.takewhile(gathered.has, pieces))
    data = np.empty(sum(piece.size for piece in here), np.uint8).data
    at = 0
    for piece in here:
        gathered.read_into(piece, data[at : at + piece.size])
        at += piece.size
    return data, here


def _stretches(pieces: Sequence[Piece]) -> Stretches:
    """Return the expected places of the batches; the first start and the last end are open."""
    first, last = pieces[0], pieces[-1]
    return Stretches(
        size=[piece.size for piece in pieces],
        offset_delta=[piece.extent.offset_delta for piece in pieces],
        segment=[piece.extent.segment for piece in pieces],
        start_offset=[piece.extent.base_offset for piece in pieces],
        end_offset=[piece.extent.end_offset for piece in pieces],
        begins_at=first.extent.base_offset if first.position == first.span.position else None,
        reaches_end=last.is_rest,
        is_cut=False,
        place=lambda index: (pieces[index].span, pieces[index].position),
    )


def _walk_region(lease: Lease, piece: Piece, max_bytes: int, leader_epoch: int) -> FetchedBatches | None:
    descriptor = lease.segment.descriptor
    if descriptor is None:
        return None
    extent, span = piece.extent, piece.span
    end, next_offset = piece.position, None
    first = extent.base_offset if piece.position == span.position else None
    within = (extent.base_offset, extent.end_offset)
    headers = lease.segment.headers(span, piece.position, first, within=within)
    for position, header in itertools.islice(headers, MAX_WALKED):
        if not 0 <= header.partition_leader_epoch <= leader_epoch:
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
    """Yield the extents that end after `offset`, read a few at a time: a log may have a million."""
    extents = state.extents
    index, count = extents.index_after(offset), len(extents)
    step = 2  # one and the next are enough where they are large
    while index < count:
        yield from extents[index : index + step]
        index += step
        step = min(2 * step, EXTENTS_AT_ONCE)


def _runs(pieces: Sequence[Piece]) -> Iterator[tuple[Span, int, int, int]]:
    """Yield (span, position, size, number of pieces) of reads: neighbours in a segment become one."""
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
        yield span, first.position, before.position + before.size - first.position, index - start
        start = index
