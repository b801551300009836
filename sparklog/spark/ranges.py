"""Offset ranges of a query, limited by rate and size, and split and joined into tasks.

Pure functions over positions. The arithmetic follows Kafka's connector, so that the same options give the
same micro-batches and tasks. Joining ranges is our own: `join_neighbours` for maxPartitions; `balance` if the
number of tasks that run at a time is known; `join_small` if it is not, and there are many ranges.
Sources: KafkaMicroBatchStream.rateLimit, KafkaOffsetRangeCalculator.
"""

import heapq
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeVar

from sparklog.client import SparkLog
from sparklog.clock import Clock
from sparklog.errors import (
    DataLossError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RetriableError,
    StorageError,
)
from sparklog.log.read_plan import bytes_between, end_offset_for_bytes
from sparklog.metadata import Image, PartitionState
from sparklog.spark.options import SourceOptions
from sparklog.spark.stream_offset import EARLIEST_OFFSET, LATEST_OFFSET, OffsetSpec, Positions, StreamOffset

# --- resolve -----------------------------------------------------------------------------------------
#
# Resolves an OffsetSpec to offsets in a root, for the start and the end of a query.
#
# The rules follow Kafka's connector: offsets or timestamps by partition must name all partitions that are
# read. A timestamp after the last record is an error for a start (unless the strategy is latest), and the
# log's end for an end. A group's position outside the log is subject to failOnDataLoss.


TopicPartition = tuple[str, int]
_NAMED = 10


def partition_state(image: Image, tp: TopicPartition) -> PartitionState:
    """Return the state of an existing partition."""
    return image.topics[tp[0]].partitions[tp[1]]


def log_starts(image: Image, tps: Sequence[TopicPartition]) -> Positions:
    """Return the log start offsets."""
    return {tp: partition_state(image, tp).log_start_offset for tp in tps}


def log_ends(image: Image, tps: Sequence[TopicPartition]) -> Positions:
    """Return the log end offsets."""
    return {tp: partition_state(image, tp).log_end_offset for tp in tps}


class OffsetResolver:
    """Resolves a query's start and end against one image: positions of two images may be inconsistent."""

    def __init__(
        self,
        log: SparkLog,
        image: Image,
        tps: Sequence[TopicPartition],
        *,
        group_id: str | None,
        report: Callable[[str], None],
    ) -> None:
        """Resolve for these partitions.

        Args:
            tps: the partitions that are read.
            report: called for lost records; raises if the query has to fail.
        """
        self._log = log
        self._image = image
        self._tps = tps
        self._group_id = group_id or ""
        self._report = report
        self._starts, self._ends = log_starts(image, tps), log_ends(image, tps)

    def starting(self, spec: OffsetSpec) -> Positions:
        """Return the start of a new query in each partition.

        Raises:
            InvalidRequestError: the named partitions are not those that are read; no record has the timestamp
                or a later one.
            DataLossError: by `report`.
        """
        return self._resolve(spec, side="starting")

    def ending(self, spec: OffsetSpec) -> Positions:
        """Return the end (exclusive) of a batch query in each partition; raises as `starting`."""
        return self._resolve(spec, side="ending")

    def _resolve(self, spec: OffsetSpec, *, side: Literal["starting", "ending"]) -> Positions:
        starts, ends = self._starts, self._ends
        if spec.kind == "earliest":
            return starts
        if spec.kind == "latest":
            return ends
        if spec.kind == "group":
            committed = self._log.committed_offsets(self._group_id, image=self._image)
            # A partition without a committed offset is read from its start.
            return {
                tp: self._of_group(tp, committed[tp], side) if tp in committed else starts[tp]
                for tp in self._tps
            }
        given = {tp: spec.by_topic[tp[0]] for tp in self._tps if tp[0] in spec.by_topic} | spec.by_partition
        if spec.timestamp_ms is None:
            _check_partitions(set(given), set(self._tps), side)
            _check_topics(set(spec.by_topic), {topic for topic, _ in self._tps}, side)
        if spec.kind == "offsets":
            special = {EARLIEST_OFFSET: starts, LATEST_OFFSET: ends}
            return {tp: special[given[tp]][tp] if given[tp] < 0 else given[tp] for tp in self._tps}
        return {tp: self._at_time(spec, tp) for tp in self._tps}

    def _of_group(self, tp: TopicPartition, committed: int, side: Literal["starting", "ending"]) -> int:
        """Return the group's position, moved into the log if necessary."""
        start, end = self._starts[tp], self._ends[tp]
        if start <= committed <= end:
            return committed
        where = f"{tp[0]}-{tp[1]}: group {self._group_id} has committed offset {committed}"
        if committed < start:
            self._report(f"{where}, and the log starts at {start}")
            return start
        self._report(f"{where}, and the log ends at {end}; was the topic deleted and created again?")
        # The position belongs to another log, so assume that nothing of this one was read.
        return start if side == "starting" else end

    def _at_time(self, spec: OffsetSpec, tp: TopicPartition) -> int:
        timestamp_ms = spec.by_partition.get(tp, spec.timestamp_ms)
        assert timestamp_ms is not None, "a timestamp for every partition was checked"
        found = self._log.offset_for_time(*tp, timestamp_ms, image=self._image)
        if found is not None:
            # It may be of a newer image, if files were deleted: the image's own records have expired then.
            return min(found, self._ends[tp])
        if spec.no_match_is_latest:
            return self._ends[tp]
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"{tp[0]}-{tp[1]} has no record with a timestamp of {timestamp_ms} or later",
            fix="choose an earlier timestamp, or set startingOffsetsByTimestampStrategy=latest",
        )


def _check_partitions(given: set[TopicPartition], read: set[TopicPartition], side: str) -> None:
    if given == read:
        return
    missing, extra = sorted(read - given), sorted(given - read)
    problems = [
        f"{verb} {', '.join(f'{t}-{p}' for t, p in tps)}"
        for verb, tps in (("lacks", missing), ("also names", extra))
        if tps
    ]
    raise InvalidRequestError(
        "INVALID_OPTION",
        f"{side} offsets must name exactly the partitions that are read; it {' and '.join(problems)}",
        fix='name every partition (-2: earliest, -1: latest), or a whole topic: {"topic": "earliest"}',
    )


def _check_topics(given: set[str], read: set[str], side: str) -> None:
    if extra := sorted(given - read):
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"{side} offsets name topics that are not read: {', '.join(extra)}",
            fix="correct the names, or subscribe to the topics",
        )


def check_in_log(positions: Positions, image: Image, option: str) -> None:
    """Check that offsets of the user are inside the log.

    Raises:
        OffsetOutOfRangeError: an offset is outside.
    """
    for tp, offset in positions.items():
        state = partition_state(image, tp)
        if not state.log_start_offset <= offset <= state.log_end_offset:
            raise OffsetOutOfRangeError(
                "OFFSET_OUT_OF_RANGE",
                f"{option}: {tp[0]}-{tp[1]} has no offset {offset}; "
                f"its log reaches from {state.log_start_offset} to {state.log_end_offset}",
                fix="choose an offset in that range, or earliest or latest",
            )


def check_ends_after_start(begin: Positions, end: Positions, image: Image) -> None:
    """Check that a batch query does not end before it starts, as Kafka's connector does.

    An end before the log start offset is data loss, and not an error here.

    Raises:
        InvalidRequestError: a partition's end is before its start.
    """
    wrong = sorted(
        tp
        for tp, offset in begin.items()
        if offset > max(end[tp], partition_state(image, tp).log_start_offset)
    )
    if not wrong:
        return
    named = ", ".join(f"{t}-{p} from {begin[t, p]} to {end[t, p]}" for t, p in wrong[:_NAMED])
    more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    raise InvalidRequestError(
        "INVALID_OPTION",
        f"found a start after the end, expected it at or before: {named}{more} (offsets, also for options "
        "with timestamps or a group)",
        fix="choose a later end, or an earlier start",
    )


# --- data loss ---------------------------------------------------------------------------------------
#
# failOnDataLoss: if records to read are gone, either fail, or warn and continue with the next record.


logger = logging.getLogger("sparklog.spark")


class DataLossPolicy:
    """Reports each loss once; raises if the query has to fail."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._reported: set[str] = set()

    def report(self, what: str) -> None:
        """Log a loss, once.

        Raises:
            DataLossError: failOnDataLoss is true.
        """
        if self._fail:
            raise DataLossError(
                "DATA_LOSS",
                what,
                fix="find the cause (retention, a deleted or re-created topic, another root's checkpoint), "
                "and set failOnDataLoss=false to continue without them",
            )
        if what not in self._reported:
            self._reported.add(what)
            logger.warning("data loss ignored (failOnDataLoss=false): %s", what)

    def clamp_start(self, start: Positions, end: Positions, image: Image) -> Positions:
        """Return starting positions moved into the log; report every move."""
        moved = {}
        for tp, offset in start.items():
            if tp not in end or tp[0] not in image.topics:
                continue
            low = partition_state(image, tp).log_start_offset
            if offset < low and offset < end[tp]:
                self.report(f"{tp[0]}-{tp[1]}: offsets {offset} to {low} are gone, the log starts at {low}")
            moved[tp] = max(offset, low)
        return moved

    def move_into_log(self, positions: Positions, image: Image, option: str) -> Positions:
        """Return the user's offsets moved to the nearest in the log; report every move."""
        moved = {}
        for tp, offset in positions.items():
            state = partition_state(image, tp)
            low, high = state.log_start_offset, state.log_end_offset
            if not low <= offset <= high:
                side = f"starts at {low}" if offset < low else f"ends at {high}"
                self.report(f"{tp[0]}-{tp[1]}: {option} says {offset}, and the log {side}")
            moved[tp] = min(max(offset, low), high)
        return moved

    def existing(self, offset: StreamOffset, image: Image) -> Positions:
        """Return the positions of topics that still exist, with the same id; report the others."""
        kept: Positions = {}
        for (topic, partition), position in offset.positions.items():
            current = image.topics.get(topic)
            if current is None:
                self.report(f"{topic}-{partition} was deleted after offset {position} was reached")
            elif current.topic_id != offset.topic_ids.get(topic, current.topic_id):
                self.report(f"{topic} was deleted and created again since the checkpoint was written")
            elif partition >= len(current.partitions):
                self.report(
                    f"{topic}-{partition} is gone; the topic has {len(current.partitions)} partitions"
                )
            else:
                kept[topic, partition] = position
        return kept


# --- retry -------------------------------------------------------------------------------------------
#
# fetchOffset.numRetries and .retryIntervalMs: retries of a plan while the storage is unavailable.
#
# Not here: the store's own retries of one request (storage/), which come in addition.


T = TypeVar("T")


def retrying(options: SourceOptions, clock: Clock, call: Callable[[], T]) -> T:
    """Retry `call` after a RetriableError, or while the store does not answer, as the options say.

    `call` must be repeatable.
    """
    for _ in range(options.retries):
        try:
            return call()
        except RetriableError:
            pass
        except StorageError as error:
            if error.code != "STORE_UNAVAILABLE":
                raise
        clock.sleep_ms(options.retry_interval_ms)
    return call()


# --- ranges ------------------------------------------------------------------------------------------


MANY_TASKS = 200  # Spark's default number of shuffle partitions
SMALL_BYTES = 4 << 20  # Spark's estimate of the cost of opening a file, in bytes read
RECORD_BYTES = 200  # cost of a record besides its bytes: 0.5 us; a byte costs 2.4 to 3.4 ns
LARGE_BYTES = 256 << 20  # RECORD_BYTES included: 1.5 s of a copy; a task's overhead is 65 ms


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
    """Return the number of offsets to read by partition, if it is not 0."""
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
    """Split ranges into at least about `min_partitions`, none larger than `max_records`.

    Empty ranges are left out; the order is kept.
    """
    pieces = [piece for r in ranges if r.size > 0 for piece in _cut(r, _parts_for(r.size, max_records))]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    total = sum(piece.size for piece in pieces)
    # Small ranges stay whole; the other tasks are divided among the large ones by their size.
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
    """Join adjacent ranges to at most `max_partitions` tasks of about the same size; return their ranges.

    There are more tasks only if `max_records` of one task requires it. None: one range each.
    """
    if max_partitions is None or len(ranges) <= max_partitions:
        return [[r] for r in ranges]
    total = sum(r.size for r in ranges)
    tasks: list[list[OffsetRange]] = []
    before = in_task = 0
    last_share = -1
    for r in ranges:
        share = (2 * before + r.size) * max_partitions // (2 * total)  # by the middle of the range
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
    """Join very many ranges to fewer tasks, without a given number of tasks; return their ranges.

    A task costs about 15 ms, whatever it reads. From 2 * MANY_TASKS ranges on, adjacent ranges are joined up
    to SMALL_BYTES, to no fewer than MANY_TASKS tasks. Fewer ranges, and larger ones, are a task each.

    Args:
        pieces: (range, its bytes on storage).
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
    """Distribute ranges over `slots` tasks, which run at the same time, or a multiple; return their ranges.

    Tasks have about the same weight. Ranges that share a task have at most LARGE_BYTES and `max_records`. No
    range is split; those of a task keep their order. The heaviest range goes first, each to the lightest task
    (Graham 1969: at most a third more than the optimum).

    Args:
        pieces: (range, its bytes on storage).
    """
    if len(pieces) <= slots:
        return [[piece] for piece, _ in pieces]
    weights = [size_bytes + RECORD_BYTES * piece.size for piece, size_bytes in pieces]
    count = slots * -(-sum(weights) // (slots * LARGE_BYTES))
    tasks: list[list[int]] = []  # indexes of pieces
    lightest: list[tuple[int, int, int]] = []  # a heap of (weight, index of the task, records)
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
    """Return True if the task (weight, index, records) can take this range."""
    return task[0] + weight <= LARGE_BYTES and (max_records is None or task[2] + records <= max_records)


def _share(size: int, total: int, parts: int) -> int:
    """Return the number of `parts` for a range of this size: at least one, a half is rounded up."""
    return max(1, math.floor(size / total * parts + 0.5))


def _parts_for(size: int, max_records: int | None) -> int:
    return 1 if max_records is None else -(-size // max_records)


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Split into `parts` ranges whose sizes differ by at most one; at most one range per offset."""
    parts = max(1, min(parts, whole.size))
    bounds = [whole.start_offset + whole.size * i // parts for i in range(parts + 1)]
    return [replace(whole, start_offset=low, end_offset=high) for low, high in pairwise(bounds)]


def ranges_between(start: Positions, end: Mapping[tuple[str, int], int]) -> list[OffsetRange]:
    """Return the non-empty ranges, by topic and partition."""
    return [
        OffsetRange(topic=topic, partition=partition, start_offset=start[topic, partition], end_offset=last)
        for (topic, partition), last in sorted(end.items())
        if last > start[topic, partition]
    ]


# --- byte limit --------------------------------------------------------------------------------------
#
# maxBytesPerTrigger: limits a micro-batch by stored bytes.
#
# Bytes are compressed, as on storage; extents have their sizes, so no data is read.


def limit_bytes(start: Positions, end: Positions, image: Image, max_bytes: int) -> Positions:
    """Move `end` back so that about `max_bytes` lie between, each partition getting its share.

    A partition with a backlog always gets at least one record, so that none starves.
    """
    states = {tp: partition_state(image, tp) for tp in backlog(start, end)}
    sizes = {tp: bytes_between(states[tp], start[tp], end[tp]) for tp in states}
    total = sum(sizes.values())
    if total <= max_bytes:
        return dict(end)
    limited = dict(end)
    for tp, size in sizes.items():
        share = int(max_bytes * size / total)
        limited[tp] = min(end[tp], end_offset_for_bytes(states[tp], start[tp], share))
    return limited
