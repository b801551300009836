"""Which partition a row goes to: the explicit one, else by its key's hash, else the sticky one.

Invariants: the same key goes to the same partition as with Kafka's Java client (murmur2), as long as
    the number of partitions stays; every result is in [0, partitions).
Sticky: rows without a key go to one partition for a run of about `run_bytes`, then to the next, so
    that batches stay large and, over time, all partitions get the same share.
Concurrency: `partition_rows` is pure but for the `StickyPartitioner` it advances; one thread at a time.
Sources: Kafka BuiltInPartitioner (KIP-480, KIP-794).
"""

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import InvalidRequestError
from sparklog.format.key_hashes import partition_for_keys

Int32Array = npt.NDArray[np.int32]
RUN_BYTES = 1 << 20  # one full record batch


@dataclasses.dataclass(slots=True, kw_only=True)
class StickyPartitioner:
    """Where rows without a key go next; `turn` counts runs and may start anywhere (at the task's number)."""

    turn: int = 0
    run_bytes: int = RUN_BYTES
    used_bytes: int = 0

    def assign(self, rows: int, row_bytes: float, partitions: int) -> Int32Array:
        """Partitions of the next `rows` rows of about `row_bytes` each, and advance."""
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
    """The partition of each row.

    Args:
        key: binary; null rows have no key. None: no row has one.
        explicit: integers; null rows leave the choice to the key. None: no row has one.
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
    """The rows of one partition after the other, for at least one row.

    Returns: the rows in that order, or None for "as they are, all of one partition"; the partitions that have
        rows, ascending; where the rows of each begin in that order, and where the last one's end.
    The sort is stable, so the order of a partition's rows is kept. No loop over rows.
    """
    if (partition == partition[0]).all():
        return None, partition[:1].astype(np.int64), np.array([0, partition.size], np.int64)
    narrow = partition.astype(np.int16) if partition.max() < 1 << 15 else partition  # sorts by radix
    order = np.argsort(narrow, kind="stable")
    ordered = partition[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return order, ordered[starts].astype(np.int64), np.append(starts, ordered.size)


def group_rows(partition: npt.NDArray[np.integer]) -> list[tuple[int, npt.NDArray[np.int64] | None]]:
    """(partition, its rows in order) for each partition that has rows; rows is None for "all of them"."""
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
