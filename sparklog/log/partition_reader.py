"""Reading a partition by offsets, while its files may be removed.

A file without live extents may be removed at any time, also under a reader:
1. A reader has planned to read segment s, here or on another machine.
2. Its extents are merged into another segment, compacted, or expire: s is dead.
3. s is removed.
4. The reader misses s, refreshes the image, and plans again from its next offset on.

Invariants: records come in offset order, each once, whatever the number of plans. A missing segment is an
    error only if the newest image refers to it, for offsets that are still wanted: then records are lost.
    Expired offsets are out of range (or reported to `on_expired`, and skipped); a topic that was deleted, or
    deleted and created again, is missing. MAX_MISSES in a row without progress are a retriable error, so
    that the reader does not loop.
Not here: the source of the newest image; the broker's own reads (sparklog_server/fetch), which use
    `validate_missing`.
Concurrency: one thread. Open files stay readable on a directory; on an object store the next request after a
    removal fails.
Sources: FORMAT.md#segments-and-extents; adr/0019.
"""

import heapq
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

import numpy as np

from sparklog.errors import RetriableError, SparklogError, UnknownTopicError
from sparklog.format.decode import DecodedRecords
from sparklog.log.read_plan import ByteRange, RangePlan, plan_read
from sparklog.log.reader import STEP_BYTES, Fetched, read_ranges
from sparklog.log.segment_file import SegmentMissingError
from sparklog.log.time_lookup import offset_for_time, offset_of_max_timestamp
from sparklog.metadata import PartitionState
from sparklog.storage import Store

# --- read together -----------------------------------------------------------------------------------
#
# Reading several partitions together: objects that they share are fetched once.
#
# A broker that takes over many partitions reads each from its start. On an object store every small extent
# would be a request for each of its partitions; read together, by the time of their records, they need one
# request per object. Large extents are read separately, in their order.
#
# Invariants: the records of each partition come in the order of offsets, each once. An error ends its
#     partition only. A missing segment is such an error: the caller reads that partition again, separately,
#     with the newest metadata.
# Memory: WINDOW_BYTES of small extents, and reader.py's memory for a step.
# Concurrency: a generator belongs to one thread.


WINDOW_BYTES = 8 << 20
WINDOW_RANGES = 4096
LARGE_BYTES = 256 << 10  # such an extent is one request, or several


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Offsets [start, end) of a partition with this state."""

    topic: str
    state: PartitionState
    start: int
    end: int


_Timed = tuple[int, int, ByteRange]  # a time in it, the stretch's number
_Outcome = DecodedRecords | SparklogError | None


def read_together(store: Store, stretches: Sequence[Stretch]) -> Iterator[tuple[int, _Outcome]]:
    """Yield (number of the stretch, its next records), in any order between stretches.

    The last item of each stretch is None, if everything was read, or the error.
    """
    timed: list[Iterator[_Timed]] = []
    left: dict[int, int] = {}
    for number, stretch in enumerate(stretches):
        try:
            plan = plan_read(store, stretch.state, stretch.start, stretch.end, topic=stretch.topic)
        except SparklogError as error:
            yield number, error
            continue
        left[number] = len(plan)
        timed.append(_timed(number, stretch, plan))
        if not plan:
            yield number, None
    for window in _windows(heapq.merge(*timed, key=itemgetter(0))):
        of_stretch: dict[int, list[ByteRange]] = defaultdict(list)
        for _, number, wanted in window:
            if left[number]:
                of_stretch[number].append(wanted)
        fetched = None
        if store.traits.is_remote and len(window) > 1:
            fetched = Fetched(store, (needed.span for ranges in of_stretch.values() for needed in ranges))
        for number, ranges in of_stretch.items():
            left[number] -= len(ranges)
            try:
                for records in read_ranges(store, ranges, fetched=fetched):
                    yield number, records
            except SparklogError as error:
                left[number] = 0
                yield number, error
            else:
                if not left[number]:
                    yield number, None


def _timed(number: int, stretch: Stretch, plan: RangePlan) -> Iterator[_Timed]:
    """Yield the ranges, each with the time of its last record, as its client set it."""
    extents = stretch.state.extents
    first = extents.index_after(stretch.start) + (not plan.first)  # the plan may skip the first extent
    times = extents.columns_between(first, first + len(plan)).column("max_timestamp_ms")
    yield from zip(times, itertools.repeat(number), plan, strict=False)


def _windows(timed: Iterator[_Timed]) -> Iterator[list[_Timed]]:
    """Group small ranges that are fetched together; a large one is alone."""
    window: list[_Timed] = []
    size = 0
    for item in timed:
        is_large = item[2].size >= LARGE_BYTES
        if window and (is_large or size + item[2].size > WINDOW_BYTES or len(window) == WINDOW_RANGES):
            yield window
            window, size = [], 0
        window.append(item)
        size += item[2].size
        if is_large:
            yield window
            window, size = [], 0
    if window:
        yield window


# --- partition reader --------------------------------------------------------------------------------


_log = logging.getLogger("sparklog.log")
MAX_MISSES = 16  # each needs a newer commit than the one before
Newest = Callable[[], PartitionState]  # refreshes the image; UnknownTopicError if the partition is gone
T = TypeVar("T")


class PartitionReader:
    """Reads one partition; see the module's docstring."""

    def __init__(
        self,
        store: Store,
        newest: Newest,
        *,
        topic: str,
        partition: int,
        state: PartitionState | None = None,
        on_expired: Callable[[int, int], None] | None = None,
    ) -> None:
        """Args:
        topic: its name, for messages.
        state: the partition as the caller knows it; None: refresh when it is needed.
        on_expired: called when wanted offsets [from, to) have expired; the rest is read. Without it
            that is OFFSET_OUT_OF_RANGE.
        """
        self._store = store
        self._newest = newest
        self._topic = topic
        self._partition = partition
        self._state = state
        self._on_expired = on_expired

    @property
    def state(self) -> PartitionState:
        """The state as of the last refresh."""
        if self._state is None:
            self._state = self._look()
        return self._state

    def plan(self, start: int, end: int) -> RangePlan:
        """Return the byte ranges of [start, end); see plan_read."""
        return self.with_refresh(lambda _: self._plan(start, end)[1], start, end)

    def read(
        self,
        start: int,
        end: int,
        *,
        plan: Iterable[ByteRange] | None = None,
        include_headers: bool = False,
        step_bytes: int = STEP_BYTES,
    ) -> Iterator[DecodedRecords]:
        """Yield the records of [start, end), step by step; arguments and errors as read_ranges and plan_read.

        Args:
            plan: the result of `plan` for the same offsets, from any process.
        """
        next_offset, misses = start, 0
        while True:
            try:
                if plan is None:
                    next_offset, plan = self._plan(next_offset, end)
                for records in read_ranges(
                    self._store, plan, include_headers=include_headers, step_bytes=step_bytes
                ):
                    next_offset, misses = int(records.offset[-1]) + 1, 0
                    yield records
                    del records  # before the next step is in memory
            except SegmentMissingError as error:
                misses += 1
                self._state = self._look_again(error, next_offset, end, misses)
                plan = None
            else:
                return

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after a time; see time_lookup.py."""
        return self.with_refresh(
            lambda state: offset_for_time(self._store, state, timestamp_ms, topic=self._topic)
        )

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record with the largest timestamp; None if none."""
        return self.with_refresh(lambda state: offset_of_max_timestamp(self._store, state, self._topic))

    def with_refresh(self, work: Callable[[PartitionState], T], start: int = 0, end: int | None = None) -> T:
        """Return `work` of the partition's state; refresh and repeat it if a segment is missing.

        Args:
            start, end: the offsets that it reads; None: to the log's end.
        """
        misses = 0
        while True:
            try:
                return work(self.state)
            except SegmentMissingError as error:
                misses += 1
                self._state = self._look_again(error, start, end, misses)

    def _plan(self, start: int, end: int) -> tuple[int, RangePlan]:
        """Return the next offset, and the plan for the rest of the range."""
        state = self.state
        if start < state.log_start_offset and self._on_expired is not None:
            low = min(max(end, start), state.log_start_offset)
            if start < low:
                self._on_expired(start, low)
            if low == end:
                return end, RangePlan(topic=self._topic, topic_id=state.topic_id, partition=state.partition)
            start = low
        return start, plan_read(self._store, state, start, end, topic=self._topic)

    def _look(self) -> PartitionState:
        try:
            return self._newest()
        except UnknownTopicError as error:
            raise UnknownTopicError(
                error.code,
                f"{self._topic}-{self._partition}: found its files removed, and the topic deleted, or "
                "deleted and created again, while it was read",
                fix="Look the topic up again, and decide whether a new topic of this name is the wanted one",
            ) from error

    def _look_again(
        self, error: SegmentMissingError, start: int, end: int | None, misses: int
    ) -> PartitionState:
        found = self._look()
        validate_missing(error, found, start, end, misses, topic=self._topic)
        return found


def validate_missing(
    error: SegmentMissingError,
    newest: PartitionState,
    start: int,
    end: int | None = None,
    misses: int = 1,
    *,
    topic: str,
) -> None:
    """Return if `newest` shows that the offsets from `start` on have moved, or have expired.

    Args:
        newest: the state, refreshed after the segment was missed.
        misses: the number of missed segments in a row.

    Raises:
        SegmentMissingError: `error`, the segment should exist.
        RetriableError: READ_OVERTAKEN, too many misses.
    """
    low = newest.extents.index_after(start)
    high = len(newest.extents) if end is None else newest.extents.index_from(end)
    where = f"{topic}-{newest.partition}"
    if low < high and np.any(newest.extents.columns_between(low, high).segment == error.segment):
        raise error
    if misses > MAX_MISSES:
        raise RetriableError(
            "READ_OVERTAKEN",
            f"{where}: found its segments removed {misses} times in a row before offset {start} could be "
            "read, expected maintenance to be slower than a reader",
            fix="Read again; do not let a vacuum retain less than its week while there are readers",
        ) from error
    _log.info("%s: %s is removed; continuing from offset %d in another segment", where, error.segment, start)
