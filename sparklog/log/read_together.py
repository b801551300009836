"""Several partitions read at once: what they share, the objects that a publish left, is fetched once.

Who takes partitions over, all at a time, reads each from its start. On an object store every small extent
would be a request for each partition that it belongs to; read together, by the time of their records, they
need one request an object. Extents that are large are read by themselves, in their turn.

Invariants: of each partition the records come in the order of offsets, each once. An error ends its partition
    and no other one. A segment that is missing is such an error: whoever knows the newest metadata reads that
    partition again, by itself (partition_reader.py).
Memory: WINDOW_BYTES of small extents, and what reader.py needs for a step.
Concurrency: a generator belongs to one thread.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from sparklog.errors import SparklogError
from sparklog.format.decode import DecodedRecords
from sparklog.log.byte_range import ByteRange
from sparklog.log.fetched import Fetched
from sparklog.log.range_plan import RangePlan
from sparklog.log.read_plan import plan_read
from sparklog.log.reader import read_ranges
from sparklog.metadata import PartitionState
from sparklog.storage import Store

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
