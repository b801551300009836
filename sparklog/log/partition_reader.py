"""Reading a partition by offsets, while its files may go away.

A file that no extent refers to any more is removed, at any time, whoever is about to read it:
1. A reader has planned to read segment s, here or on another machine.
2. Its extents are merged into another segment, compacted, or expire: s is dead.
3. s is removed.
4. The reader misses s, looks at the newest image, and plans again by offsets, from the next one on.

Invariants: records come in offset order, each once, however often it was planned. That a segment is missing
    is an error only if the newest image refers to it, for offsets that are still wanted: then records are
    lost. What has expired is out of range (or told to `on_expired`, and passed over); a topic that was
    deleted, or deleted and created again, is missing. MAX_MISSES in a row without a record between them are
    an error that may be tried again, so that nobody looks for ever.
Not here: where the newest image comes from; the broker's own reads (sparklog_server/fetch), which take from
    here how to look again.
Concurrency: one thread. Files that are open stay readable on a directory; an object that is removed in the
    midst is missing from the next request on.
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
from sparklog.log.time_lookup import offset_for_time
from sparklog.metadata import PartitionState
from sparklog.storage import Store

# --- read together -----------------------------------------------------------------------------------
#
# Several partitions read at once: what they share, the objects that a publish left, is fetched once.
#
# Who takes partitions over, all at a time, reads each from its start. On an object store every small extent
# would be a request for each partition that it belongs to; read together, by the time of their records, they
# need one request an object. Extents that are large are read by themselves, in their turn.
#
# Invariants: of each partition the records come in the order of offsets, each once. An error ends its
#     partition and no other one. A segment that is missing is such an error: whoever knows the newest
#     metadata reads that partition again, by itself.
# Memory: WINDOW_BYTES of small extents, and what reader.py needs for a step.
# Concurrency: a generator belongs to one thread.


WINDOW_BYTES = 8 << 20
WINDOW_RANGES = 4096
LARGE_BYTES = 256 << 10  # such an extent is a request, or several, by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Offsets [start, end) of a partition, which its state has."""

    topic: str
    state: PartitionState
    start: int
    end: int


_Timed = tuple[int, int, ByteRange]  # a time in it, the stretch's number
_Outcome = DecodedRecords | SparklogError | None


def read_together(store: Store, stretches: Sequence[Stretch]) -> Iterator[tuple[int, _Outcome]]:
    """(number of the stretch, its next records), in any order between stretches.

    The last that is told of each stretch is None, when everything was read, or what went wrong.
    """
    timed: list[Iterator[_Timed]] = []
    left: dict[int, int] = {}
    for number, one in enumerate(stretches):
        try:
            plan = plan_read(store, one.state, one.start, one.end, topic=one.topic)
        except SparklogError as error:
            yield number, error
            continue
        left[number] = len(plan)
        timed.append(_timed(number, one, plan))
        if not plan:
            yield number, None
    for window in _windows(heapq.merge(*timed, key=itemgetter(0))):
        of_stretch: dict[int, list[ByteRange]] = defaultdict(list)
        for _, number, wanted in window:
            if left[number]:
                of_stretch[number].append(wanted)
        fetched = None
        if store.traits.is_remote and len(window) > 1:
            fetched = Fetched(store, (one.span for ranges in of_stretch.values() for one in ranges))
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


def _timed(number: int, one: Stretch, plan: RangePlan) -> Iterator[_Timed]:
    """The ranges, each with a time: when the last of its records was made, as its client says."""
    extents = one.state.extents
    first = extents.index_after(one.start) + (not plan.first)  # of which nothing is wanted, if it is left out
    times = extents.columns_between(first, first + len(plan)).column("max_timestamp_ms")
    yield from zip(times, itertools.repeat(number), plan, strict=False)


def _windows(timed: Iterator[_Timed]) -> Iterator[list[_Timed]]:
    """Small ranges that are fetched at once; a large one is alone."""
    window: list[_Timed] = []
    size = 0
    for one in timed:
        is_large = one[2].size >= LARGE_BYTES
        if window and (is_large or size + one[2].size > WINDOW_BYTES or len(window) == WINDOW_RANGES):
            yield window
            window, size = [], 0
        window.append(one)
        size += one[2].size
        if is_large:
            yield window
            window, size = [], 0
    if window:
        yield window


# --- partition reader --------------------------------------------------------------------------------


_log = logging.getLogger("sparklog.log")
MAX_MISSES = 16  # each needs a commit that came after the one before
Newest = Callable[[], PartitionState]  # looks for new commits; UnknownTopicError if the partition is gone
T = TypeVar("T")


class PartitionReader:
    """Reads one partition. See the module's docstring."""

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
        state: the partition as the caller knows it; None: looked for when it is needed.
        on_expired: is told that offsets [from, to) have expired while they were wanted, and the rest is
            read; without it that is OFFSET_OUT_OF_RANGE.
        """
        self._store = store
        self._newest = newest
        self._topic = topic
        self._partition = partition
        self._state = state
        self._on_expired = on_expired

    @property
    def state(self) -> PartitionState:
        """As of the last look."""
        if self._state is None:
            self._state = self._look()
        return self._state

    def plan(self, start: int, end: int) -> RangePlan:
        """The byte ranges of [start, end), as plan_read."""
        return self.looking_again(lambda _: self._plan(start, end)[1], start, end)

    def read(
        self,
        start: int,
        end: int,
        *,
        plan: Iterable[ByteRange] | None = None,
        include_headers: bool = False,
        step_bytes: int = STEP_BYTES,
    ) -> Iterator[DecodedRecords]:
        """The records of [start, end), step by step; arguments and errors as read_ranges and plan_read.

        Args:
            plan: what `plan` said of the same offsets, here or elsewhere.
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
                    del records  # before the next step is in memory, too
            except SegmentMissingError as error:
                misses += 1
                self._state = self._look_again(error, next_offset, end, misses)
                plan = None
            else:
                return

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after a time, as time_lookup.py."""
        return self.looking_again(
            lambda state: offset_for_time(self._store, state, timestamp_ms, topic=self._topic)
        )

    def looking_again(self, work: Callable[[PartitionState], T], start: int = 0, end: int | None = None) -> T:
        """What `work` makes of the partition's state; done again if a segment is missing meanwhile.

        Args:
            start, end: the offsets that it looks at; None: to the log's end.
        """
        misses = 0
        while True:
            try:
                return work(self.state)
            except SegmentMissingError as error:
                misses += 1
                self._state = self._look_again(error, start, end, misses)

    def _plan(self, start: int, end: int) -> tuple[int, RangePlan]:
        """What is left of the range, from where on."""
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
                fix="look the topic up again, and decide whether a new one of this name is meant",
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
    """Return if `newest` shows that the offsets from `start` on are elsewhere now, or have expired.

    Args:
        newest: looked for after the segment was missed.
        misses: how often one was missed, without progress.

    Raises:
        SegmentMissingError: `error`, the segment should be there.
        RetriableError: READ_OVERTAKEN, it has been so too often.
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
            fix="read again; do not have a vacuum retain less than its week while somebody reads",
        ) from error
    _log.info("%s: %s is not there any more, going on from offset %d elsewhere", where, error.segment, start)
