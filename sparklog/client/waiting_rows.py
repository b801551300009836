"""Buffers the rows of one topic until they are encoded; chooses their partitions; spools encoded batches.

Rows of one `add` are sorted by partition and stay together as a piece. `take_all` returns small partitions
in groups, as many as are encoded in one call (format/encode_partitions.py), and large ones by themselves.

Invariants: each row is returned once; rows of a partition in the order in which they were added.
Not here: encoding and budgets (appender.py).
Memory: keys and values stay in the caller's buffers, which a piece keeps alive until all its rows are taken.
    `take_all` needs 40 bytes a row more while it gathers rows of several pieces.
Concurrency: one thread.
"""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from sparklog.client.rows import Piece
from sparklog.closing import Closing
from sparklog.errors import InvalidRequestError, StorageError
from sparklog.format.encode import EncodedBatches
from sparklog.format.encode_partitions import MAX_ROWS, EncodedPartitions
from sparklog.format.key_hashes import partition_for_keys
from sparklog.format.record_batch import set_base_offsets
from sparklog.storage.local_files import write_all

# --- partitioner -------------------------------------------------------------------------------------
#
# The partition of a row: the explicit one, else by its key's hash, else the sticky one.
#
# Invariants: the same key goes to the same partition as with Kafka's Java client (murmur2), as long as
#     the number of partitions stays; every result is in [0, partitions).
# Sticky: rows without a key go to one partition for a run of about `run_bytes`, then to the next, so
#     that batches stay large and, over time, all partitions get the same share.
# Concurrency: `partition_rows` is pure, but advances the `StickyPartitioner`; one thread at a time.
# Sources: Kafka BuiltInPartitioner (KIP-480, KIP-794).


Int32Array = npt.NDArray[np.int32]
RUN_BYTES = 1 << 20  # one full record batch


@dataclasses.dataclass(slots=True, kw_only=True)
class StickyPartitioner:
    """The partition of the next rows without a key; `turn` counts runs and starts at the task's number."""

    turn: int = 0
    run_bytes: int = RUN_BYTES
    used_bytes: int = 0

    def assign(self, rows: int, row_bytes: float, partitions: int) -> Int32Array:
        """Return the partitions of the next `rows` rows of about `row_bytes` each, and advance."""
        ends = self.used_bytes + row_bytes * np.arange(rows, dtype=np.float64)
        runs = (ends // self.run_bytes).astype(np.int64)
        assigned = ((self.turn + runs) % partitions).astype(np.int32)
        turns, used = divmod(self.used_bytes + int(row_bytes * rows), self.run_bytes)
        self.turn += turns
        self.used_bytes = used
        return assigned


def partition_rows(
    key: pa.Array | None,
    explicit: pa.Array | None,
    partitions: int,
    sticky: StickyPartitioner,
    *,
    rows: int,
    row_bytes: float = 100.0,
    topic: str = "",
) -> Int32Array:
    """Return the partition of each row.

    Args:
        key: binary, null for a row without a key. None: no row has one.
        explicit: integers, null for a row without one. None: no row has one.
        row_bytes: average size of a row, to measure the sticky partition's run.
        topic: for the error.

    Raises:
        InvalidRequestError: an explicit partition outside [0, partitions); the first such row is named.
    Cost: vectorised; docs/adr/0012-compiled-loops.md has figures.
    """
    chosen = np.zeros(rows, dtype=np.int32)
    open_rows = np.ones(rows, dtype=np.bool_)
    if explicit is not None and explicit.null_count < rows:
        given = explicit.is_valid().to_numpy(zero_copy_only=False)
        wanted = explicit.fill_null(0).to_numpy(zero_copy_only=False)
        bad = np.flatnonzero(given & ((wanted < 0) | (wanted >= partitions)))
        if bad.size:
            raise InvalidRequestError(
                "PARTITION_OUT_OF_RANGE",
                f"{f'topic {topic}, ' if topic else ''}row {bad[0]}: found partition {wanted[bad[0]]}, "
                f"expected 0 to {partitions - 1}",
                fix="drop the column partition (rows read from another topic bring that one's), make it null "
                "where the key should decide, or give the topic as many partitions",
            )
        chosen[given] = wanted[given]
        open_rows &= ~given
    if key is not None and key.null_count < rows and open_rows.any():
        keyed = key.is_valid().to_numpy(zero_copy_only=False) & open_rows
        hashed = partition_for_keys(key, partitions)
        chosen[keyed] = hashed[keyed]
        open_rows &= ~keyed
    left = int(np.count_nonzero(open_rows))
    if left:
        chosen[open_rows] = sticky.assign(left, row_bytes, partitions)
    return chosen


def order_rows(
    partition: npt.NDArray[np.integer],
) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the order of at least one row by partition, vectorised.

    Returns: (order, partitions that have rows, ascending; bounds of each one's rows in that order). The
        sort is stable. None as the order: all rows are of one partition.
    """
    if (partition == partition[0]).all():
        return None, partition[:1].astype(np.int64), np.array([0, partition.size], np.int64)
    narrow = partition.astype(np.int16) if partition.max() < 1 << 15 else partition  # sorts by radix
    order = np.argsort(narrow, kind="stable")
    ordered = partition[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return order, ordered[starts].astype(np.int64), np.append(starts, ordered.size)


def group_rows(partition: npt.NDArray[np.integer]) -> list[tuple[int, npt.NDArray[np.int64] | None]]:
    """Return (partition, its rows in order) for each partition that has rows; None stands for all rows."""
    if partition.size == 0:
        return []
    order, found, bounds = order_rows(partition)
    if order is None:
        return [(int(found[0]), None)]
    cuts = bounds.tolist()
    return [
        (number, order[start:end])
        for number, start, end in zip(found.tolist(), cuts[:-1], cuts[1:], strict=True)
    ]


# --- partition spool ---------------------------------------------------------------------------------
#
# Each flush of an appender's buffer gives each partition that has rows an extent. A task of 256 MB with keys
# of 1,000 partitions would have 8,000 extents of 32 KB; 200 such tasks have more than a commit has room for.
# So batches of many extents wait here, and are written to the segment by partition: one extent for each,
# however often the buffer was full.
#
# Invariants: only base offsets of batches change: a partition's batches keep their order, and their offsets
#     count from the caller's number. Nothing is durable here.
#     The file has no name: only this process can open it, and it ends with the process.
# Memory: 40 bytes a batch, and 48 for each partition of each `add`; GROUP_BYTES while batches are read back.
# Disk: SPOOL_BYTES at most, and a sixteenth of the free space of TMPDIR, which each `add` checks: other
#     tasks fill the same disk, and the segment may lie there too.
# Not here: the decision to spool (appender.py).
# Concurrency: one thread.


SPOOL_BYTES = 1 << 30
_GROUP_PIECES = 1024
_FREE_SHARE = 16
_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Added:
    """The batches of one `add`, without their bytes."""

    position: int  # in the file
    partition: _Int64Array
    encoded: EncodedPartitions  # without data


@dataclass(frozen=True, slots=True)
class SpooledBatches:
    """Batches of one partition, in order."""

    batches: EncodedBatches

    def with_base_offset(self, base_offset: int) -> EncodedBatches:
        """Return the batches with offsets from `base_offset` on. Repeatable."""
        counts = self.batches.batch_record_count
        offsets = np.cumsum(counts) - counts + base_offset
        (data,) = self.batches.data
        set_base_offsets(memoryview(data), self.batches.position, offsets, leader_epoch=None)
        return replace(self.batches, base_offset=offsets)


class PartitionSpool(Closing):
    """Encoded batches of many partitions on the local disk, until they are written by partition."""

    def __init__(self, *, limit_bytes: int | None = None) -> None:
        """`limit_bytes`: None: SPOOL_BYTES."""
        self._limit_bytes = SPOOL_BYTES if limit_bytes is None else limit_bytes
        self._file: IO[bytes] | None = None
        self._end = 0
        self._added: dict[str, list[_Added]] = {}  # by topic id

    def add(self, topic_id: str, partitions: Sequence[int], encoded: EncodedPartitions) -> bool:
        """Write batches to the file; return False if there is no room."""
        size = encoded.batches.size_bytes
        if self._end + size > min(self._limit_bytes, _share(self._end)):
            return False
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="sparklog-", buffering=0)  # noqa: SIM115 - `close`
            write_all(self._file.fileno(), [memoryview(chunk) for chunk in encoded.batches.data], self._end)
        except OSError:  # the disk is full or missing: spool nothing more
            self._limit_bytes = 0
            return False
        kept = dataclasses.replace(encoded, batches=replace(encoded.batches, data=[]))
        added = _Added(self._end, np.array(partitions, np.int64), kept)
        self._added.setdefault(topic_id, []).append(added)
        self._end += size
        return True

    def take_all(self) -> Iterator[tuple[str, int, SpooledBatches]]:
        """Yield (topic id, partition, a group of its batches), in order, and empty the spool.

        Raises:
            StorageError: the file cannot be read.
        """
        for topic_id, added in self._added.items():
            for partition, group in _by_partition(added):
                yield topic_id, partition, SpooledBatches(self._read(group))
        self._added, self._end = {}, 0
        if self._file is not None:
            with contextlib.suppress(OSError):  # it only frees disk space early
                os.ftruncate(self._file.fileno(), 0)

    def close(self) -> None:
        """Drop all batches and the file."""
        self._added, self._end = {}, 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, group: Sequence[tuple[_Added, int]]) -> EncodedBatches:
        """Return the batches of these (added, index of a partition in it), concatenated."""
        assert self._file is not None, "something was added"
        own = [(added.encoded.batches, _batches_of(added.encoded, index)) for added, index in group]
        size = np.concatenate([batches.size[rows] for batches, rows in own])
        counts = np.concatenate([batches.batch_record_count[rows] for batches, rows in own])
        newest = np.concatenate([batches.batch_max_timestamp_ms[rows] for batches, rows in own])
        data, start = memoryview(bytearray(int(size.sum()))), 0
        for (added, _), (batches, rows) in zip(group, own, strict=True):
            end = start + int(batches.size[rows].sum())
            self._read_into(data[start:end], added.position + int(batches.position[rows.start]))
            start = end
        return EncodedBatches(
            data=[data],
            size_bytes=len(data),
            record_count=int(counts.sum()),
            max_timestamp_ms=int(newest.max()),
            position=np.cumsum(size) - size,
            size=size,
            base_offset=np.cumsum(counts) - counts,
            batch_record_count=counts,
            batch_max_timestamp_ms=newest,
        )

    def _read_into(self, buffer: memoryview, position: int) -> None:
        assert self._file is not None, "something was added"
        try:
            count = os.preadv(self._file.fileno(), [buffer], position)
        except OSError as error:
            raise _unreadable(str(error.strerror)) from error
        if count != len(buffer):
            raise _unreadable(f"found {count} bytes at {position}, expected {len(buffer)}")


def _by_partition(added: Sequence[_Added]) -> Iterator[tuple[int, list[tuple[_Added, int]]]]:
    """Yield (partition, a group of (added, index of the partition in it)), partitions ascending, in order."""
    partition = np.concatenate([call.partition for call in added])
    number = np.repeat(np.arange(len(added)), [len(call.partition) for call in added])
    index = np.concatenate([np.arange(len(call.partition)) for call in added])
    size = np.concatenate([call.encoded.size_bytes for call in added])
    order = np.argsort(partition, kind="stable")
    columns = (partition[order].tolist(), number[order].tolist(), index[order].tolist(), size[order].tolist())
    before, group, group_bytes = -1, list[tuple[_Added, int]](), 0
    for own, at, row, own_bytes in zip(*columns, strict=True):
        full = group_bytes + own_bytes > GROUP_BYTES or len(group) == _GROUP_PIECES
        if group and (own != before or full):
            yield before, group
            group, group_bytes = [], 0
        before = own
        group.append((added[at], row))
        group_bytes += own_bytes
    if group:
        yield before, group


def _batches_of(encoded: EncodedPartitions, index: int) -> slice:
    return slice(int(encoded.first_batch[index]), int(encoded.first_batch[index + 1]))


def _unreadable(problem: str) -> StorageError:
    return StorageError(
        "STORAGE_FAILED",
        f"{tempfile.gettempdir()}: cannot read a temporary file of this process: {problem}",
        fix="Check that disk, or set TMPDIR to another one, and write again; nothing was published",
    )


def _share(own_bytes: int) -> int:
    """Return this spool's share of the disk's free space, its own file included, in bytes."""
    try:
        return (shutil.disk_usage(tempfile.gettempdir()).free + own_bytes) // _FREE_SHARE
    except OSError:
        return 0


# --- waiting rows ------------------------------------------------------------------------------------


Int64Array = npt.NDArray[np.int64]
GROUP_BYTES = 4 << 20  # of rows that are encoded in one call
PIECE_BYTES = 2048  # objects of a piece, and 16 bytes a row for key, value and timestamp each
ROW_BYTES = 40
PARTITION_BYTES = 32  # of a piece


@dataclasses.dataclass(slots=True)
class _Sorted:
    """A piece whose rows are ordered by partition."""

    piece: Piece
    partition: Int64Array  # those with rows in it, ascending
    first_row: Int64Array  # of each partition
    rows: Int64Array  # number of rows of each partition; 0 once they were taken


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRows:
    """The rows of several partitions, concatenated.

    Fields:
        partition: the partitions, ascending.
        rows: the number of rows of each partition; at least one.
    """

    partition: Int64Array
    rows: Int64Array
    piece: Piece

    def split(self) -> Iterator[tuple[int, Piece]]:
        """Yield (partition, its rows)."""
        start = 0
        for partition, count in zip(self.partition.tolist(), self.rows.tolist(), strict=True):
            yield partition, self.piece.slice(start, start + count)
            start += count


class WaitingRows:
    """Buffered rows of one topic."""

    def __init__(self, partitions: int) -> None:
        self._size_bytes = np.zeros(partitions, np.int64)
        self._sorted: list[_Sorted] = []

    def add(self, piece: Piece, partition: npt.NDArray[np.integer]) -> int:
        """Buffer rows, given the partition of each; return the bytes of the buffer's own objects."""
        if not piece.num_rows:
            return 0
        order, found, bounds = order_rows(partition)
        if order is None:
            self._size_bytes[found] += piece.data_bytes
        else:
            piece = piece.take(order)
            self._size_bytes[found] += np.add.reduceat(piece.row_bytes(), bounds[:-1])
        self._sorted.append(_Sorted(piece, found, bounds[:-1], np.diff(bounds)))
        return PIECE_BYTES + ROW_BYTES * piece.num_rows + PARTITION_BYTES * len(found)

    @property
    def pieces(self) -> list[Piece]:
        """The buffered pieces, in the order of `add`."""
        return [part.piece for part in self._sorted]

    @property
    def partitions(self) -> int:
        """The number of partitions with buffered rows."""
        return int(np.count_nonzero(self._size_bytes))

    def at_least(self, size_bytes: int) -> list[int]:
        """Return those partitions of the last piece that have at least `size_bytes` of buffered rows."""
        if not self._sorted:
            return []
        last = self._sorted[-1].partition
        full: list[int] = last[self._size_bytes[last] >= size_bytes].tolist()
        return full

    def take(self, partition: int) -> Piece:
        """Remove and return all rows of one partition, which has at least one."""
        pieces = []
        for part in self._sorted:
            at = int(np.searchsorted(part.partition, partition))
            if at < len(part.partition) and part.partition[at] == partition and part.rows[at]:
                first, count = int(part.first_row[at]), int(part.rows[at])
                pieces.append(part.piece.slice(first, first + count))
                part.rows[at] = 0
        self._size_bytes[partition] = 0
        self._sorted = [part for part in self._sorted if part.rows.any()]
        return Piece.joined(pieces)

    def take_all(self) -> Iterator[PartitionRows]:
        """Remove and yield all rows, partitions ascending. No row may be added until the iterator ends."""
        waiting = self._sorted  # `take` makes another list
        if not waiting:
            return
        partition = np.concatenate([part.partition for part in waiting])
        rows = np.concatenate([part.rows for part in waiting])
        offsets = np.cumsum([0, *(part.piece.num_rows for part in waiting[:-1])])
        first_row = np.concatenate(
            [part.first_row + offset for part, offset in zip(waiting, offsets.tolist(), strict=True)]
        )
        order = np.argsort(partition, kind="stable")
        order = order[rows[order] > 0]
        partition, rows, first_row = partition[order], rows[order], first_row[order]
        starts = np.flatnonzero(np.concatenate(([True], partition[1:] != partition[:-1])))
        found, count = partition[starts], np.add.reduceat(rows, starts)
        bounds = np.append(starts, len(partition))
        joined: Piece | None = None
        for start, end in _groups(count, self._size_bytes[found]):
            own = slice(start, end)
            if end - start == 1:
                yield PartitionRows(partition=found[own], rows=count[own], piece=self.take(int(found[start])))
                continue
            if joined is None:
                joined = Piece.joined([part.piece for part in waiting])
            runs = slice(int(bounds[start]), int(bounds[end]))
            yield PartitionRows(
                partition=found[own],
                rows=count[own],
                piece=_gather_runs(joined, first_row[runs], rows[runs]),
            )
        self.clear()

    def clear(self) -> None:
        """Drop all rows."""
        self._sorted.clear()
        self._size_bytes[:] = 0


def _groups(rows: Int64Array, size_bytes: Int64Array) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of partitions to encode in one call: at least one, more while the limits allow."""
    all_rows, all_bytes = np.cumsum(rows), np.cumsum(size_bytes)
    start, done_rows, done_bytes = 0, 0, 0
    while start < len(rows):
        end = min(
            int(np.searchsorted(all_rows, done_rows + MAX_ROWS, side="right")),
            int(np.searchsorted(all_bytes, done_bytes + GROUP_BYTES, side="right")),
        )
        end = max(end, start + 1)
        yield start, end
        start, done_rows, done_bytes = end, int(all_rows[end - 1]), int(all_bytes[end - 1])


def _gather_runs(piece: Piece, first_row: Int64Array, rows: Int64Array) -> Piece:
    """Return runs of consecutive rows, concatenated."""
    if (first_row[1:] == first_row[:-1] + rows[:-1]).all():
        return piece.slice(int(first_row[0]), int(first_row[-1] + rows[-1]))
    before = np.cumsum(rows) - rows
    return piece.take(np.repeat(first_row - before, rows) + np.arange(int(rows.sum())))
