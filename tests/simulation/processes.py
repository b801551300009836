"""What the processes of a simulated history do: the real client code, over a simulated store.

Each role keeps, over the lives of its processes, what a real one keeps outside of the log (a query's
checkpoint, a name). An operation whose process is killed stays open in the history.

What an error means is taken from the documentation of `publish` at its word: after RetriableError and
plain StorageError nothing was published (fail); PUBLISH_UNRESOLVED and FatalStorageError leave it open.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from sparklog.client import AppendOptions, PartitionedAppender, SparkLog, StagedAppend
from sparklog.client.publish import AppendResult
from sparklog.errors import (
    DataLossError,
    FatalStorageError,
    OffsetOutOfRangeError,
    RetriableError,
    StorageError,
    UnknownTopicError,
)
from sparklog.log.writer import LogWriter
from sparklog.metadata import MetadataLog
from tests.history.recorder import History, Operation
from tests.simulation.compacted import Look
from tests.simulation.keyed import KEYED, keyed_rows, texts_in
from tests.simulation.setting import HOUR_MS, MINUTE_MS, Setting
from tests.simulation.world import SimProcess

MAX_IDLE_MS = 10_000


@dataclass
class Seen:
    """What a writer goes by for the births of its segments."""

    metadata: MetadataLog

    def __call__(self) -> tuple[int, int]:
        return self.metadata.image.commit, self.metadata.image.sweep_horizon


@dataclass
class Role:
    """What is common to all: `live` is the main function of one life of the process."""

    name: str
    setting: Setting
    lives: int = 0
    done: int = 0  # operations that ended well, over all lives
    done_before: int | None = None  # as of the last fault
    log: SparkLog | None = None  # of the life that goes on
    resumes: SparkLog | None = None  # a copy of another's memory, to go on with
    is_clone: bool = False
    rest_ms: float = 0  # after each operation, besides

    def live(self, process: SimProcess) -> None:
        self.lives += 1
        life = f"{self.name}-{self.lives}"
        history = History(life, self.setting.events.extend, lambda: process.world.now_us)
        self.log = None
        try:
            log = self.opened(process) if self.resumes is None else self.resumes
        except (RetriableError, StorageError):
            return  # ends, and is started again
        self.log, self.resumes = log, None
        idle_ms = 0.0
        while not self.setting.is_over:
            process.think_ms(idle_ms + self._think_ms())
            if self.has_recovered:
                process.sleep_ms(500)
                continue
            try:
                found_work = self.act(log, history, process)
            except FatalStorageError:
                return
            except (RetriableError, StorageError) as error:
                if error.code == "CLOCK_SKEWED" and not process.world.calm:
                    process.think_ms(MINUTE_MS)
                continue
            idle_ms = 0 if found_work else min(MAX_IDLE_MS, 2 * idle_ms + 1)
            self.done += 1
            self.setting.operations += found_work

    def _think_ms(self) -> float:
        setting = self.setting
        if self.done_before is not None:
            return setting.think_ms[0]
        idle_ms = max(0, setting.idle_until_us - setting.world.now_us) / 1000
        return idle_ms + self.rest_ms + setting.dice.choice(setting.think_ms)

    @property
    def has_recovered(self) -> bool:
        """Has it done something after the last fault?"""
        return self.done_before is not None and self.done > self.done_before

    def opened(self, process: SimProcess) -> SparkLog:
        store = self.setting.store(process)
        metadata = MetadataLog.open(store, process, create=True, settings=self.setting.settings)
        writer = LogWriter(store, process, segment_ms=HOUR_MS, seen=Seen(metadata))
        return SparkLog(store, metadata, process, writer=writer)

    def act(self, log: SparkLog, history: History, process: SimProcess) -> bool:
        """One operation; false when there was nothing to do."""
        raise NotImplementedError


@dataclass
class Reader(Role):
    """Reads partitions from where its group committed, and commits."""

    positions: dict[tuple[str, int], int] = field(default_factory=dict)

    def live(self, process: SimProcess) -> None:
        self.positions = {}
        super().live(process)

    def act(self, log: SparkLog, history: History, process: SimProcess) -> bool:
        dice = self.setting.dice
        place = self.setting.throw_topic(), dice.randrange(self.setting.partitions)
        try:
            if place not in self.positions:
                self.positions[place] = self._committed(log, history, place)
            elif dice.random() < 0.2:
                self._commit(log, history, place)
            elif place[0] == KEYED:
                return self._look(log, history, place)
            else:
                return self._poll(log, history, place)
        except UnknownTopicError:
            return False
        return True

    def _poll(self, log: SparkLog, history: History, place: tuple[str, int]) -> bool:
        key = key_of(place)
        polling = history.poll()
        try:
            if self.setting.dice.random() < 0.3:
                end = log.log_end_offset(*place)
                history.begin("end", key=key).ok(offset=end)
            table = log.read(
                *place, self.positions[place], max_records=self.setting.dice.choice((2, 5, 1000))
            )
        except OffsetOutOfRangeError:
            self._seek_start(log, history, place)
            return True
        except DataLossError:
            # Expired while it was read? Else it is what the message says.
            if self.positions[place] >= log.metadata.refresh().partition(*place).log_start_offset:
                raise
            self._seek_start(log, history, place)
            return True
        if table.num_rows:
            offsets = table["offset"].to_pylist()
            polling.ok({key: ([value.decode() for value in table["value"].to_pylist()], offsets)})
            self.positions[place] = offsets[-1] + 1
        return bool(table.num_rows)

    def _look(self, log: SparkLog, history: History, place: tuple[str, int]) -> bool:
        """Poll the compacted topic; now and then from its start on."""
        if self.setting.dice.random() < 0.3:
            self._seek_start(log, history, place, begins_anew=True)
        start = self.positions[place]
        most = self.setting.dice.choice((2, 5, 1000))
        try:
            self.positions[place] = look_at(log, history, place, self.setting, start, most=most)
        except OffsetOutOfRangeError:
            self._seek_start(log, history, place)
        except DataLossError:
            if start >= log.metadata.refresh().partition(*place).log_start_offset:
                raise
            self._seek_start(log, history, place)
        return self.positions[place] > start

    def _seek_start(
        self, log: SparkLog, history: History, place: tuple[str, int], *, begins_anew: bool = False
    ) -> None:
        start = log.log_start_offset(*place)
        if self.positions[place] > start and not begins_anew:
            raise AssertionError(f"{key_of(place)}: position {self.positions[place]}, start {start}, no end")
        self.positions[place] = start
        history.seek(key_of(place))

    def _committed(self, log: SparkLog, history: History, place: tuple[str, int]) -> int:
        fetching = history.begin("fetch-committed", group=self.name, key=key_of(place))
        if self.setting.lags:  # what it is shown may be as old as the refresh interval
            log.metadata.refresh(force=True)
        offset = log.committed_offsets(self.name).get(place)
        fetching.ok(offset=offset)
        return log.log_start_offset(*place) if offset is None else offset

    def _commit(self, log: SparkLog, history: History, place: tuple[str, int]) -> None:
        committing = history.commit(self.name, key_of(place), self.positions[place])
        try:
            log.commit_offsets(self.name, {place: self.positions[place]})
        except StorageError as error:
            end_open(committing, error)
            raise
        except RetriableError as error:
            committing.fail(error)
            raise
        committing.ok()


def look_at(
    log: SparkLog, history: History, place: tuple[str, int], setting: Setting, start: int, *, most: int
) -> int:
    """Read the compacted topic from an offset on, and note what was there; where to go on.

    Raises: as SparkLog.read.
    """
    polling = history.poll()
    end = log.log_end_offset(*place)
    table = log.read(*place, start, max_records=most, include_headers=True)
    texts, offsets = texts_in(table, setting.witness.stamps), table["offset"].to_pylist()
    if offsets:
        polling.ok({key_of(place): (texts, offsets)})
        end = offsets[-1] + 1 if len(offsets) == most else max(end, offsets[-1] + 1)
    setting.witness.looks.append(
        Look(
            who=f"{polling.proc}#{polling.i}",
            key=key_of(place),
            start=start,
            end=end,
            began_us=polling.t_inv,
            done_us=history.now_us(),
            found=dict(zip(offsets, texts, strict=True)),
        )
    )
    return end


def stage(setting: Setting, log: SparkLog, writer: LogWriter, values: dict[str, list[str]]) -> StagedAppend:
    """Write the rows of one topic, which is created if it is not there."""
    options = AppendOptions(num_partitions=setting.partitions)
    with PartitionedAppender(log.image, writer, log.clock, options) as appender:
        appender.add(rows_of(setting, log, values), topic_of(values))
        return appender.finish()


def end_open(operation: Operation, error: StorageError) -> bool:
    """Only these two leave open what happened; is it one of them?"""
    is_unknown = isinstance(error, FatalStorageError) or error.code == "PUBLISH_UNRESOLVED"
    if is_unknown:
        operation.info(error)
    else:
        operation.fail(error)
    return is_unknown


def key_of(place: tuple[str, int]) -> str:
    return f"{place[0]}-{place[1]}"


def topic_of(values: dict[str, list[str]]) -> str:
    return next(iter(values)).rpartition("-")[0]


def rows_of(setting: Setting, log: SparkLog, values: dict[str, list[str]]) -> pa.RecordBatch:
    """As they are appended; what is appended again has the time that it had at first."""
    texts = [text for one in values.values() for text in one]
    partitions = [int(key.rpartition("-")[2]) for key, one in values.items() for _ in one]
    if topic_of(values) == KEYED:
        for text in texts:
            setting.witness.stamps.setdefault(text, log.clock.now_ms())
        return keyed_rows(texts, partitions, setting.witness.stamps)
    return pa.RecordBatch.from_pydict({"value": texts, "partition": pa.array(partitions, pa.int32())})


def parts_of(
    values: dict[str, list[str]], result: AppendResult
) -> dict[str, tuple[Sequence[str], Sequence[int] | None]]:
    """Where each partition's values are."""
    parts: dict[str, tuple[Sequence[str], Sequence[int] | None]] = {}
    for place, appended in result.ranges.items():
        texts = values[key_of(place)]
        assert appended.record_count == len(texts), (values, result)
        parts[key_of(place)] = texts, range(appended.base_offset, appended.end_offset)
    assert parts.keys() == values.keys(), (values, result)
    return parts
