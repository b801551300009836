"""The tail cache: the newest batches of every partition, as consumers see them, in bounded memory.

Consumers without lag do not touch the disk. Appends of this broker are copied in, with their absolute
offsets, if the partition has consumers; other new batches are inserted by their first read.

A partition's batches are in consecutive blocks; small appends share a block, so that a slightly later reader
gets few chunks. Blocks begin small and double up to BLOCK_BYTES, because
most of ten thousand partitions are idle.

Invariants: a block's bytes, once visible, never change, so chunks need no lock and outlive eviction; the
    capacity of all blocks is at most `limit_bytes`; the least recently used block is evicted first.
Not here: reading from storage (reader.py); compaction, which does not update the cache: reads below the first
    dirty offset of a partition must bypass it (service.py).
Concurrency: any thread, one lock.
"""

import bisect
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.format.encode import EncodedBatches
from sparklog.format.record_batch import set_base_offsets
from sparklog_server.protocol.wire import Chunk

# --- batches -----------------------------------------------------------------------------------------
#
# Whole record batches of one partition, ready for a consumer, with their positions and offsets.
#
# Invariants: `chunks` are whole batches with absolute base offsets, ascending; they may begin before the
#     requested offset, at the start of its batch.
# Concurrency: immutable; chunks are never written to again.


Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatches:
    """Bytes of consecutive batches.

    Args:
        next_offset: the offset of the next read: after the last batch, or after a gap.
        release: free the chunks' buffers or files after sending; None: nothing to do.
        is_cut: more was requested and exists, but not in the same source.
    """

    chunks: Sequence[Chunk]
    size: int
    next_offset: int
    release: Callable[[], None] | None = None
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBlock:
    """Batches in one buffer: position and absolute base offset of each, and where the last one ends."""

    data: memoryview
    position: Int64Array
    base_offset: Int64Array
    end_offset: int


# --- followed ----------------------------------------------------------------------------------------
#
# Which partitions have consumers, so that only their appends are copied into memory.
#
# Copying every append took 7 % of the time under the interpreter's lock while Kafka's perf test produced and
# nobody consumed. The first consumer reads from storage; from then on the partition is followed.
#
# Invariants: bounded by the partitions read within FOLLOWED_MS and as long again.
# Concurrency: `note` in the event loop, `is_followed` in any thread.


FOLLOWED_MS = 300_000  # after the last read


class FollowedPartitions:
    """See the module's docstring.

    Args:
        now_ms: a monotonic clock.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._read_ms: dict[tuple[str, int], int] = {}
        self._sweep_ms = now_ms() + FOLLOWED_MS

    def __len__(self) -> int:
        """Return the number of remembered partitions."""
        return len(self._read_ms)

    def note(self, topic_id: str, partition: int) -> None:
        """Record a read of the partition."""
        now_ms = self._now_ms()
        self._read_ms[topic_id, partition] = now_ms
        if now_ms >= self._sweep_ms:
            self._sweep_ms = now_ms + FOLLOWED_MS
            since_ms = now_ms - FOLLOWED_MS
            self._read_ms = {key: ms for key, ms in self._read_ms.items() if ms >= since_ms}

    def is_followed(self, topic_id: str, partition: int) -> bool:
        """True if the partition has been read lately."""
        read_ms = self._read_ms.get((topic_id, partition))
        return read_ms is not None and self._now_ms() - read_ms <= FOLLOWED_MS


# --- cache -------------------------------------------------------------------------------------------


CacheKey = tuple[str, int]  # topic id, partition
MIN_BLOCK_BYTES = 4 << 10
BLOCK_BYTES = 1 << 20
BLOCK_OVERHEAD_BYTES = 1024  # approximate memory of a block in addition to its capacity
BATCH_OVERHEAD_BYTES = 16


class _Block:
    __slots__ = ("base_offset", "cost", "data", "end_offset", "key", "offsets", "positions", "used")

    def __init__(self, key: CacheKey, base_offset: int, data: memoryview) -> None:
        self.key = key
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.data = data
        self.used = 0
        self.offsets = array("q")
        self.positions = array("q")
        self.cost = len(data) + BLOCK_OVERHEAD_BYTES

    def add(self, positions: Sequence[int], offsets: Sequence[int], size: int, end_offset: int) -> None:
        self.positions.extend(positions)
        self.offsets.extend(offsets)
        self.used += size
        self.end_offset = end_offset


class _Partition:
    """Blocks by base offset; `bases`: their base offsets, for bisection."""

    __slots__ = ("bases", "blocks")

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.blocks: list[_Block] = []


class TailCache:
    """See the module's docstring."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._partitions: dict[CacheKey, _Partition] = {}
        self._recent: OrderedDict[int, _Block] = OrderedDict()  # by id(block), least recently used first
        self.size_bytes = 0

    def append(
        self, topic_id: str, partition: int, base_offset: int, encoded: EncodedBatches, *, leader_epoch: int
    ) -> None:
        """Add published batches: they count from 0, and `base_offset` is the offset of the first."""
        size = encoded.size_bytes
        if not encoded.batch_count or size > self._limit_bytes // 2:
            return
        end_offset = base_offset + encoded.record_count
        key = (topic_id, partition)
        with self._lock:
            block = self._block_for(key, base_offset, size)
            if block is None:
                return
            start = block.used
            target = np.frombuffer(block.data, np.uint8)
            at = start
            for chunk in encoded.data:
                target[at : at + len(chunk)] = np.frombuffer(chunk, np.uint8)
                at += len(chunk)
            positions = encoded.position + start
            offsets = encoded.base_offset + base_offset
            set_base_offsets(block.data, positions, offsets, leader_epoch=leader_epoch)
            block.add(positions.tolist(), offsets.tolist(), size, end_offset)
            self._charge(block, BATCH_OVERHEAD_BYTES * encoded.batch_count)
            self._evict()

    def insert(self, topic_id: str, partition: int, read: BatchBlock) -> None:
        """Add batches that were read from storage; no-op if any of them is cached."""
        if not len(read.position) or len(read.data) > self._limit_bytes // 2:
            return
        key = (topic_id, partition)
        base_offset = int(read.base_offset[0])
        with self._lock:
            if self._overlaps(key, base_offset, read.end_offset):
                return
            block = _Block(key, base_offset, read.data)
            block.add(read.position.tolist(), read.base_offset.tolist(), len(read.data), read.end_offset)
            block.cost += BATCH_OVERHEAD_BYTES * len(read.position)
            self._insert(block)
            self._evict()

    def read(
        self,
        topic_id: str,
        partition: int,
        offset: int,
        *,
        end_offset: int,
        max_bytes: int,
        at_least_one: bool = True,
    ) -> FetchedBatches | None:
        """Return cached batches from the one that holds `offset` on; None if it is not cached.

        Args:
            end_offset: the log's end as the reader knows it; batches from there on are not returned.
        """
        chunks: list[memoryview] = []
        size, next_offset, is_full = 0, offset, False
        with self._lock:
            held = self._partitions.get((topic_id, partition))
            if held is None:
                return None
            index = bisect.bisect_right(held.bases, offset) - 1
            if index < 0 or offset >= held.blocks[index].end_offset:
                return None
            for block in held.blocks[index:]:
                if block.base_offset > next_offset:
                    break  # a gap: evicted, or not read yet
                first = bisect.bisect_right(block.offsets, next_offset) - 1
                limit = max_bytes - size
                last = _last_batch(block, first, limit, end_offset, at_least_one and not size)
                if last < first:
                    is_full = True
                    break
                stop = block.used if last + 1 == len(block.positions) else block.positions[last + 1]
                start = block.positions[first]
                chunks.append(block.data[start:stop].toreadonly())
                size += stop - start
                self._recent.move_to_end(id(block))
                if last + 1 < len(block.positions):
                    next_offset, is_full = block.offsets[last + 1], True
                    break
                next_offset = block.end_offset
        is_cut = not is_full and next_offset < end_offset
        return FetchedBatches(chunks=chunks, size=size, next_offset=next_offset, is_cut=is_cut)

    def _block_for(self, key: CacheKey, base_offset: int, size: int) -> _Block | None:
        """Return the block for an append: the partition's last one, or a new one."""
        held = self._partitions.get(key)
        capacity = MIN_BLOCK_BYTES
        if held is not None and held.blocks:
            last = held.blocks[-1]
            if last.end_offset > base_offset:
                return None  # a reader was faster
            if last.end_offset == base_offset:
                if len(last.data) - last.used >= size:
                    self._recent.move_to_end(id(last))
                    return last
                capacity = min(BLOCK_BYTES, 2 * len(last.data))
        block = _Block(key, base_offset, np.empty(max(size, capacity), np.uint8).data)
        self._insert(block)
        return block

    def _overlaps(self, key: CacheKey, base_offset: int, end_offset: int) -> bool:
        held = self._partitions.get(key)
        if held is None:
            return False
        index = bisect.bisect_right(held.bases, base_offset)
        if index and held.blocks[index - 1].end_offset > base_offset:
            return True
        return index < len(held.bases) and held.bases[index] < end_offset

    def _insert(self, block: _Block) -> None:
        held = self._partitions.get(block.key)
        if held is None:
            held = self._partitions[block.key] = _Partition()
        index = bisect.bisect_right(held.bases, block.base_offset)
        held.bases.insert(index, block.base_offset)
        held.blocks.insert(index, block)
        self._recent[id(block)] = block
        self.size_bytes += block.cost

    def _charge(self, block: _Block, cost: int) -> None:
        block.cost += cost
        self.size_bytes += cost

    def _evict(self) -> None:
        while self.size_bytes > self._limit_bytes and self._recent:
            self._remove(next(iter(self._recent.values())))

    def _remove(self, block: _Block) -> None:
        del self._recent[id(block)]
        self.size_bytes -= block.cost
        held = self._partitions[block.key]
        index = bisect.bisect_left(held.bases, block.base_offset)
        del held.bases[index], held.blocks[index]
        if not held.blocks:
            del self._partitions[block.key]


def _last_batch(block: _Block, first: int, limit: int, end_offset: int, at_least_one: bool) -> int:
    """Return the index of the last batch within `limit` bytes of `first` that begins before `end_offset`."""
    start = block.positions[first]
    if block.used - start <= limit:
        last = len(block.positions) - 1
    else:
        # The last batch that begins within the limit may end beyond it: the one before it ends within.
        last = bisect.bisect_right(block.positions, start + max(limit, 0)) - 2
    if block.end_offset > end_offset:
        last = min(last, bisect.bisect_left(block.offsets, end_offset) - 1)
    return max(last, first) if at_least_one else last
