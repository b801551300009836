"""Rows of one topic that wait to be encoded, ordered by partition; no step for each while they gather.

What is added at once is sorted by partition once, and stays one piece. When rows are taken out, small
partitions come together, as many as are encoded at once (format/encode_partitions.py), and large ones alone.

Invariants: rows of a partition come out once, in the order in which they were added.
Not here: encoding and budgets (appender.py), which partition a row goes to (partitioner.py).
Memory: keys and values lie in the caller's buffers, which a piece keeps alive until all is taken. To gather
    rows of several pieces takes 40 bytes a row more, while `take_all` runs.
Concurrency: one thread.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sparklog.client.partitioner import order_rows
from sparklog.client.rows import Piece
from sparklog.format.encode_partitions import MAX_ROWS

Int64Array = npt.NDArray[np.int64]
GROUP_BYTES = 4 << 20  # of rows that are encoded at once
PIECE_BYTES = 2048  # objects of a piece, and 16 bytes a row for key, value and timestamp each
ROW_BYTES = 40
PARTITION_BYTES = 32  # of a piece


@dataclasses.dataclass(slots=True)
class _Sorted:
    """A piece whose rows are ordered by partition."""

    piece: Piece
    partition: Int64Array  # whose rows are in it, ascending
    first_row: Int64Array  # of each
    rows: Int64Array  # of each; none once they were taken


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRows:
    """The rows of one partition after the other.

    Args:
        partition: whose they are.
        rows: how many each partition has; at least one.
    """

    partition: Int64Array
    rows: Int64Array
    piece: Piece

    def split(self) -> Iterator[tuple[int, Piece]]:
        """Each partition by itself."""
        start = 0
        for partition, count in zip(self.partition.tolist(), self.rows.tolist(), strict=True):
            yield partition, self.piece.slice(start, start + count)
            start += count


class WaitingRows:
    """See the module's docstring."""

    def __init__(self, partitions: int) -> None:
        self._size_bytes = np.zeros(partitions, np.int64)
        self._sorted: list[_Sorted] = []

    def add(self, piece: Piece, partition: npt.NDArray[np.integer]) -> int:
        """Take rows and the partition of each; returns about how much memory they take by themselves."""
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
        """What waits, as it was added."""
        return [one.piece for one in self._sorted]

    @property
    def partitions(self) -> int:
        """How many have rows that wait."""
        return int(np.count_nonzero(self._size_bytes))

    def at_least(self, size_bytes: int) -> list[int]:
        """Partitions of the piece that was added last that hold as much as that."""
        if not self._sorted:
            return []
        last = self._sorted[-1].partition
        full: list[int] = last[self._size_bytes[last] >= size_bytes].tolist()
        return full

    def take(self, partition: int) -> Piece:
        """All rows of one partition that has some."""
        pieces = []
        for one in self._sorted:
            at = int(np.searchsorted(one.partition, partition))
            if at < len(one.partition) and one.partition[at] == partition and one.rows[at]:
                first, count = int(one.first_row[at]), int(one.rows[at])
                pieces.append(one.piece.slice(first, first + count))
                one.rows[at] = 0
        self._size_bytes[partition] = 0
        self._sorted = [one for one in self._sorted if one.rows.any()]
        return Piece.joined(pieces)

    def take_all(self) -> Iterator[PartitionRows]:
        """All rows, of one partition or several at once, ascending; none may be added meanwhile."""
        waiting = self._sorted  # `take` makes another list
        if not waiting:
            return
        partition = np.concatenate([one.partition for one in waiting])
        rows = np.concatenate([one.rows for one in waiting])
        offsets = np.cumsum([0, *(one.piece.num_rows for one in waiting[:-1])])
        first_row = np.concatenate(
            [one.first_row + offset for one, offset in zip(waiting, offsets.tolist(), strict=True)]
        )
        order = np.argsort(partition, kind="stable")
        order = order[rows[order] > 0]
        partition, rows, first_row = partition[order], rows[order], first_row[order]
        starts = np.flatnonzero(np.concatenate(([True], partition[1:] != partition[:-1])))
        found, count = partition[starts], np.add.reduceat(rows, starts)
        stretches = np.append(starts, len(partition))
        joined: Piece | None = None
        for start, end in _groups(count, self._size_bytes[found]):
            own = slice(start, end)
            if end - start == 1:
                yield PartitionRows(partition=found[own], rows=count[own], piece=self.take(int(found[start])))
                continue
            if joined is None:
                joined = Piece.joined([one.piece for one in waiting])
            stretch = slice(int(stretches[start]), int(stretches[end]))
            yield PartitionRows(
                partition=found[own],
                rows=count[own],
                piece=_gathered(joined, first_row[stretch], rows[stretch]),
            )
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._sorted.clear()
        self._size_bytes[:] = 0


def _groups(rows: Int64Array, size_bytes: Int64Array) -> Iterator[tuple[int, int]]:
    """Partitions that may be encoded together: at least one, and more while rows and bytes are few enough."""
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


def _gathered(piece: Piece, first_row: Int64Array, rows: Int64Array) -> Piece:
    """Stretches of rows, one after the other."""
    if (first_row[1:] == first_row[:-1] + rows[:-1]).all():
        return piece.slice(int(first_row[0]), int(first_row[-1] + rows[-1]))
    before = np.cumsum(rows) - rows
    return piece.take(np.repeat(first_row - before, rows) + np.arange(int(rows.sum())))
