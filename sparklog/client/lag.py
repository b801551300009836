"""How far groups are behind: the age of what they have not read, and the last hour of lag and rates.

Lag in seconds is the age of the first unread record by its own timestamp. It is read from the log, and needs
neither broker nor history. `LagHistory` keeps samples in memory, for displays that run for a while.

Invariants: a history holds at most `max_partitions` times `samples` numbers for groups, and as many for log
    ends. Partitions that it has no room for are counted, not kept.
Not here: the display (cli, console), members of groups (group_coordinators.py).
Concurrency: a history has one lock; any thread may sample or read.
After a crash: a history is empty, and fills again.
Sources: KafkaOffsetMonitor; kafka_exporter's names.
"""

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sparklog.client import consumer
from sparklog.client.groups import TopicPartition
from sparklog.client.log import SparkLog
from sparklog.errors import SparklogError
from sparklog.metadata import Image

# --- lag in seconds ----------------------------------------------------------------------------------

_READERS: Final = 16
Remember = Callable[[Hashable, Callable[[], int]], int]


def lag_seconds(
    log: SparkLog,
    offsets: Iterable[tuple[str, int, int]],
    *,
    image: Image | None = None,
    remember: Remember = lambda _key, find: find(),
) -> dict[tuple[str, int, int], float | None]:
    """Return the age of the first record at or after each (topic, partition, offset).

    0 where everything is read. None where that is not known: the partition is gone, or cannot be read. Of
    each at most one record is read. `remember` returns the time of a record that was found before.
    """
    image = log.refresh() if image is None else image
    now_ms = log.clock.now_ms()
    wanted = list(dict.fromkeys(offsets))
    with ThreadPoolExecutor(_READERS) as pool:  # an object store takes tens of milliseconds for each
        found = pool.map(lambda one: _lag_seconds(log, image, one, now_ms, remember), wanted)
        return dict(zip(wanted, found, strict=True))


class _NoRecordError(Exception):
    """Records were compacted away, up to the end. It is not remembered: others may follow."""


def _lag_seconds(
    log: SparkLog, image: Image, at: tuple[str, int, int], now_ms: int, remember: Remember
) -> float | None:
    topic, partition, offset = at

    def find() -> int:
        found = consumer.read_table(log.metadata, image, topic, partition, start, max_records=1)
        if not found.num_rows:
            raise _NoRecordError
        timestamp_ms: int = found.column("timestamp").cast("int64")[0].as_py()
        return timestamp_ms

    try:
        state = image.partition(topic, partition)
        start = max(offset, state.log_start_offset)
        if start >= state.log_end_offset:
            return 0.0
        timestamp_ms = remember(("time", image.topics[topic].topic_id, partition, start), find)
    except SparklogError:  # gone meanwhile, or damaged: other rows are shown all the same
        return None
    except _NoRecordError:
        return 0.0
    return None if timestamp_ms < 0 else max(0, now_ms - timestamp_ms) / 1000


# --- history -----------------------------------------------------------------------------------------

HOUR_MS: Final = 3_600_000
_UNKNOWN: Final = -1
_Column = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LagPoint:
    """Of a group in one partition, or in several together.

    Fields:
        consumed_per_second, produced_per_second: records since the point before; None: there is none.
    """

    at_ms: int
    lag: int
    consumed_per_second: float | None
    produced_per_second: float | None


# By group and partition: the committed offset, and the log end.
Sample = Mapping[str, Mapping[TopicPartition, tuple[int, int]]]


class LagHistory:
    """A ring of samples: what groups have committed, and where logs end. Older ones are overwritten.

    Fields:
        keep: is given each sample that is added, with its time.
    """

    def __init__(
        self, *, interval_ms: int = 10_000, keep_ms: int = HOUR_MS, max_partitions: int = 10_000
    ) -> None:
        """`max_partitions`: of all groups together. By default the numbers take 58 MB at most."""
        self._interval_ms = interval_ms
        self._samples = max(2, keep_ms // interval_ms + 1)
        self._max_partitions = max_partitions
        self._lock = threading.Lock()
        self._times = self._column()
        self._taken = 0  # samples so far
        self._ends: dict[TopicPartition, _Column] = {}
        self._committed: dict[str, dict[TopicPartition, _Column]] = {}
        self.left_out = 0  # partitions of groups that the last sample had no room for
        self.keep: Callable[[int, Sample], None] | None = None

    @property
    def interval_ms(self) -> int:
        return self._interval_ms

    def sample(self, log: SparkLog, *, image: Image | None = None) -> bool:
        """Take a sample of a log as it is now, unless the last one is younger than the interval.

        A tenth of the interval is allowed for timers that end early. `image`: to go by.
        """
        with self._lock:
            last_ms = self._times[(self._taken - 1) % self._samples] if self._taken else None
        now_ms = log.clock.now_ms()
        if last_ms is not None and 0 <= now_ms - last_ms < self._interval_ms * 9 // 10:
            return False
        image = log.refresh() if image is None else image
        names = log.groups(image=image)
        self.add(now_ms, image, {name: log.committed_offsets(name, image=image) for name in names})
        return True

    def add(self, at_ms: int, image: Image, committed: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        """Add a sample: what each group has committed. A group or partition that is missing is forgotten
        as its samples leave the ring.
        """
        sample = {
            group: {
                at: (offset, end)
                for at, offset in offsets.items()
                if (end := _log_end(image, at)) is not None
            }
            for group, offsets in committed.items()
        }
        self.put(at_ms, sample)
        if self.keep is not None:
            self.keep(at_ms, sample)

    def put(self, at_ms: int, sample: Sample) -> None:
        """Add a sample that was taken before; `keep` does not get it."""
        with self._lock:
            slot = self._taken % self._samples
            self._taken += 1
            self._times[slot] = at_ms
            for column in self._columns():
                column[slot] = _UNKNOWN
            self.left_out = 0
            room = self._max_partitions - sum(map(len, self._committed.values()))
            for group, offsets in sample.items():
                columns = self._committed.setdefault(group, {})
                for at, (offset, end) in offsets.items():
                    if at not in columns:
                        if room <= 0:
                            self.left_out += 1
                            continue
                        room -= 1
                        columns[at] = self._column()
                    columns[at][slot] = offset
                    self._ends.setdefault(at, self._column())[slot] = end
            self._forget()

    def groups(self) -> list[str]:
        """Names of the groups that have samples, sorted."""
        with self._lock:
            return sorted(self._committed)

    def partitions(self, group: str) -> list[TopicPartition]:
        """Those of a group that have samples, sorted."""
        with self._lock:
            return sorted(self._committed.get(group, ()))

    def points(
        self, group: str, at: TopicPartition | None = None, *, since_ms: int | None = None
    ) -> list[LagPoint]:
        """Return lag and rates by time, oldest first.

        Args:
            at: one partition; None: the sum of all. Partitions that have no number at a time do not count.
            since_ms: only points at or after it.
        """
        with self._lock:
            columns = self._committed.get(group, {})
            chosen = [one for one in columns if at in (None, one)]
            order = np.arange(max(0, self._taken - self._samples), self._taken) % self._samples
            times = self._times[order]
            shape = (len(chosen), len(order))
            committed = np.array([columns[one][order] for one in chosen], np.int64).reshape(shape)
            ends = np.array([self._ends[one][order] for one in chosen], np.int64).reshape(shape)
        return _points(times, committed, ends, since_ms)

    def _column(self) -> _Column:
        return np.full(self._samples, _UNKNOWN, np.int64)

    def _columns(self) -> Iterable[_Column]:
        yield from self._ends.values()
        for columns in self._committed.values():
            yield from columns.values()

    def _forget(self) -> None:
        """Drop what has no sample any more."""
        for group, columns in list(self._committed.items()):
            for at in [at for at, column in columns.items() if (column == _UNKNOWN).all()]:
                del columns[at]
            if not columns:
                del self._committed[group]
        for at in [at for at, column in self._ends.items() if (column == _UNKNOWN).all()]:
            del self._ends[at]


def _log_end(image: Image, at: TopicPartition) -> int | None:
    topic = image.topics.get(at[0])
    return topic.partitions[at[1]].log_end_offset if topic and 0 <= at[1] < len(topic.partitions) else None


def _points(times: _Column, committed: _Column, ends: _Column, since_ms: int | None) -> list[LagPoint]:
    """One for each time at which anything is known; a row of `committed` and `ends` is a partition."""
    known = (committed != _UNKNOWN) & (ends != _UNKNOWN)
    chosen = np.flatnonzero(known.any(axis=0))
    times, known, committed, ends = times[chosen], known[:, chosen], committed[:, chosen], ends[:, chosen]
    lags = np.where(known, np.maximum(ends - committed, 0), 0).sum(axis=0).tolist()
    seconds = (np.diff(times) / 1000).tolist()
    # A group that was reset backwards has consumed nothing; a topic made anew has produced nothing.
    both = known[:, 1:] & known[:, :-1]
    consumed, produced = (
        np.where(both, np.maximum(np.diff(offsets), 0), 0).sum(axis=0).tolist()
        for offsets in (committed, ends)
    )
    at_ms = times.tolist()
    return [
        LagPoint(
            at_ms=at_ms[at],
            lag=lags[at],
            consumed_per_second=consumed[at - 1] / seconds[at - 1] if at and seconds[at - 1] > 0 else None,
            produced_per_second=produced[at - 1] / seconds[at - 1] if at and seconds[at - 1] > 0 else None,
        )
        for at in range(len(at_ms))
        if since_ms is None or at_ms[at] >= since_ms
    ]
