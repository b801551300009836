"""Offset ranges of a query, and how they are cut: by rate, by size, by number of tasks.

Pure functions over positions. The arithmetic follows Kafka's connector, so that the same options
give the same micro-batches and tasks. What puts partitions together is ours: maxPartitions (join_neighbours);
balance where it is known how many tasks run at a time, and join_small where it is not, and there are many.
Sources: KafkaMicroBatchStream.rateLimit, KafkaOffsetRangeCalculator.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sparklog.spark.stream_offset import Positions

MANY_TASKS = 200  # as many as Spark makes of a shuffle
SMALL_BYTES = 4 << 20  # what Spark takes the opening of a file to cost, in bytes read
RECORD_BYTES = 200  # what a record costs beside its bytes: 0.5 us, where a byte costs 2.4 to 3.4 ns
LARGE_BYTES = 256 << 20  # records included: 1.5 s of a copy, beside which a task's own 65 ms are little


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets [start, end) of one partition of a topic."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        return self.end_offset - self.start_offset


def backlog(start: Positions, end: Positions) -> dict[tuple[str, int], int]:
    """Offsets to read by partition, where there are any."""
    return {tp: end[tp] - start[tp] for tp in end if tp in start and end[tp] > start[tp]}


def limit_records(start: Positions, end: Positions, max_records: int) -> Positions:
    """Move `end` back so that about `max_records` lie between, each partition getting its share.

    A partition with a backlog always gets at least one record, so that none starves.
    """
    sizes = backlog(start, end)
    total = sum(sizes.values())
    if total <= max_records:
        return dict(end)
    limited = dict(end)
    for tp, size in sizes.items():
        share = max_records * (size / total)
        records = math.ceil(share) if share < 1 else math.floor(share)
        limited[tp] = min(end[tp], start[tp] + records)
    return limited


def split_ranges(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Cut ranges so that no task reads more than `max_records`, and there are about `min_partitions`.

    Empty ranges are left out; order by topic, partition and offset is kept.
    """
    pieces = [piece for r in ranges if r.size > 0 for piece in _cut(r, _parts_for(r.size, max_records))]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    total = sum(piece.size for piece in pieces)
    # Small ranges stay whole; only what the large ones hold counts for sharing out the rest.
    parts = [_share(piece.size, total, min_partitions) for piece in pieces]
    whole = [i for i, count in enumerate(parts) if count == 1]
    large_total = total - sum(pieces[i].size for i in whole)
    large_min = max(min_partitions - len(whole), 1)
    result = []
    for piece, count in zip(pieces, parts, strict=True):
        if count > 1:
            result.extend(_cut(piece, _share(piece.size, large_total, large_min)))
        else:
            result.append(piece)
    return result


def join_neighbours(
    ranges: Sequence[OffsetRange], *, max_partitions: int | None, max_records: int | None
) -> list[list[OffsetRange]]:
    """Which ranges one task reads: each its own, or neighbours together so that there are at most
    `max_partitions` tasks of about the same size. More only where `max_records` for one task asks for it.
    """
    if max_partitions is None or len(ranges) <= max_partitions:
        return [[r] for r in ranges]
    total = sum(r.size for r in ranges)
    tasks: list[list[OffsetRange]] = []
    before = in_task = 0
    last_share = -1
    for r in ranges:
        share = (2 * before + r.size) * max_partitions // (2 * total)  # where the middle of the range lies
        if share != last_share or (max_records is not None and in_task + r.size > max_records):
            tasks.append([])
            in_task, last_share = 0, share
        tasks[-1].append(r)
        in_task += r.size
        before += r.size
    return tasks


def join_small(
    pieces: Sequence[tuple[OffsetRange, int]], *, max_records: int | None
) -> list[list[OffsetRange]]:
    """Which of very many ranges one task reads, where nobody has said how many tasks there are to be.

    A task costs some 15 ms, whatever it reads. From 2 * MANY_TASKS ranges on, neighbours are put together up
    to SMALL_BYTES, into no fewer than MANY_TASKS tasks; below, and for a range of that size, it is one task a
    range.

    Args:
        pieces: ranges, and the bytes that they have on storage.
    """
    most = max(1, len(pieces) // MANY_TASKS)
    tasks: list[list[OffsetRange]] = []
    count = held_bytes = records = 0
    for piece, size_bytes in pieces:
        fits = count < most and held_bytes + size_bytes <= SMALL_BYTES
        if not tasks or not fits or (max_records is not None and records + piece.size > max_records):
            tasks.append([])
            count = held_bytes = records = 0
        tasks[-1].append(piece)
        count, held_bytes, records = count + 1, held_bytes + size_bytes, records + piece.size
    return tasks


def balance(
    pieces: Sequence[tuple[OffsetRange, int]], *, slots: int, max_records: int | None
) -> list[list[OffsetRange]]:
    """Which ranges one task reads, where `slots` tasks run at the same time and nobody has said how many
    there are to be: as many as run at the same time, or a multiple, so that each has about the same to do,
    and ranges that share a task hold no more than LARGE_BYTES and `max_records`. No range is cut; those of a
    task keep their order. The heaviest first, each to the task with the least (Graham 1969: at most a third
    more than the best).

    Args:
        pieces: ranges, and the bytes that they have on storage.
    """
    if len(pieces) <= slots:
        return [[piece] for piece, _ in pieces]
    weights = [size_bytes + RECORD_BYTES * piece.size for piece, size_bytes in pieces]
    count = slots * -(-sum(weights) // (slots * LARGE_BYTES))
    tasks: list[list[int]] = []  # numbers of pieces
    lightest: list[tuple[int, int, int]] = []  # weight, number of the task, records
    for at in sorted(range(len(pieces)), key=lambda at: (-weights[at], at)):
        weight, records = weights[at], pieces[at][0].size
        if len(tasks) >= count and _has_room(lightest[0], weight, records, max_records):
            before, number, records_before = lightest[0]
            tasks[number].append(at)
            heapq.heapreplace(lightest, (before + weight, number, records_before + records))
        else:
            heapq.heappush(lightest, (weight, len(tasks), records))
            tasks.append([at])
    return [[pieces[at][0] for at in task] for task in sorted(sorted(task) for task in tasks)]


def _has_room(task: tuple[int, int, int], weight: int, records: int, max_records: int | None) -> bool:
    """May a task of this weight, number and records take more?"""
    return task[0] + weight <= LARGE_BYTES and (max_records is None or task[2] + records <= max_records)


def _share(size: int, total: int, parts: int) -> int:
    """Return how many of `parts` a range of this size gets: at least one, and a half is rounded up."""
    return max(1, math.floor(size / total * parts + 0.5))


def _parts_for(size: int, max_records: int | None) -> int:
    return 1 if max_records is None else -(-size // max_records)


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Cut into `parts` ranges whose sizes differ by at most one; at most one per offset."""
    parts = max(1, min(parts, whole.size))
    bounds = [whole.start_offset + whole.size * i // parts for i in range(parts + 1)]
    return [replace(whole, start_offset=low, end_offset=high) for low, high in pairwise(bounds)]


def ranges_between(start: Positions, end: Mapping[tuple[str, int], int]) -> list[OffsetRange]:
    """The ranges with something to read, by topic and partition."""
    return [
        OffsetRange(topic=topic, partition=partition, start_offset=start[topic, partition], end_offset=last)
        for (topic, partition), last in sorted(end.items())
        if last > start[topic, partition]
    ]
