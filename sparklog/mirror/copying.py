"""Copies topics of a source into a root: what to do first, then records, exactly once.

    mirror = Mirror(log, source)
    plans = mirror.plan(lambda name: name == "orders")     # changes nothing
    mirror.prepare(plans)                                   # topics, partitions
    mirror.copy(stop)                                       # up to the ends as they were, or until stopped

Invariants:
    1. A commit appends copied records and their position (positions.py): both or neither.
    2. A commit is refused unless each of its partitions ends where the last commit has left it. So nobody
       else writes in between, nor a second mirror; and `end` of a position is the offset of the next record.
    3. The source's topics are asked for their ids after the records of a commit were fetched. So a topic that
       is deleted and made again meanwhile ends the mirror before records of the new topic are committed
       as the continuation of the old one's.
    4. Where the source's offsets have no gaps and begin at 0, records have the same offsets here.
Not here: groups (group_offsets.py), what a source is (source.py).
Concurrency: one thread. Two mirrors of one topic: the first commit wins, the other ends (MIRROR_DIVERGED).
After a crash: run it again.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa

from sparklog.client.appender import AppendOptions, StagedAppend
from sparklog.client.log import SparkLog
from sparklog.client.publish import plan_publish
from sparklog.errors import DataLossError, InvalidRequestError, RetriableError, SparklogError
from sparklog.log.config import validate_topic_configs
from sparklog.metadata import Action, Image
from sparklog.mirror.positions import (
    Anchors,
    Position,
    anchor_key,
    position_rows,
    positions_topic,
    read_positions,
)
from sparklog.mirror.source import Fetched, Source, SourceTopic, TopicPartition

COMMIT_BYTES = 64 << 20
COMMIT_RECORDS = 500_000
COMMIT_S, FOLLOW_COMMIT_S = 5.0, 1.0
_WAIT_S = 0.2
_ATTEMPTS = 3
# Kafka's MirrorMaker leaves these out, too: records would get the time of the copy.
_NOT_COPIED = {"message.timestamp.type": "records keep their times; set it when producers have moved"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """What is to be done for a topic.

    Fields:
        is_new: it is created, with `configs`.
        configs, left_out: settings of the source's topic that exist here; the others, and why not.
        positions: the next offset of each partition to copy, and the end here.
        ends: the end of each partition at the source.
        lost: offsets that are gone at the source and were never copied, by partition.
    """

    source: SourceTopic
    is_new: bool
    configs: Mapping[str, str]
    left_out: Mapping[str, str]
    positions: Mapping[TopicPartition, Position]
    ends: Mapping[TopicPartition, int]
    lost: Mapping[TopicPartition, int]

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def offsets_to_copy(self) -> int:
        """The number of offsets; records are at most as many."""
        return sum(max(0, end - self.positions[at].position) for at, end in self.ends.items())


class Stop(Protocol):
    def is_asked(self) -> bool: ...


@dataclass(slots=True)
class _Pending:
    """Fetched records that are not committed yet."""

    tables: list[pa.RecordBatch] = field(default_factory=list)
    counts: dict[TopicPartition, int] = field(default_factory=dict)
    moved: set[TopicPartition] = field(default_factory=set)
    records: int = 0
    size_bytes: int = 0
    since_s: float | None = None


class Mirror:
    """See the module's docstring."""

    def __init__(
        self,
        log: SparkLog,
        source: Source,
        *,
        compression: str = "none",
        allow_data_loss: bool = False,
        timeout_s: float = 60.0,
    ) -> None:
        """Mirror into `log`.

        Args:
            allow_data_loss: go on where the source has removed records before they were copied.
            timeout_s: SOURCE_UNREACHABLE if nothing comes for so long, though there are records.

        Raises:
            InvalidRequestError: INVALID_OPTION, the source is served from this root.
        """
        if source.cluster_id == log.cluster_id:
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"the source is this root itself: both have the cluster id {log.cluster_id}",
                fix="name another source with --from, or another --root",
            )
        self._log = log
        self._source = source
        self._options = AppendOptions(compression=compression, auto_create_topics=False)
        self._allow_data_loss = allow_data_loss
        self._timeout_s = timeout_s
        self.on_progress: Callable[[int], object] = lambda _offsets: None  # how many were copied
        self._positions_topic = positions_topic(source.cluster_id)
        self._committed, self.anchors = read_positions(log, self._positions_topic)
        self.positions: dict[TopicPartition, Position] = {}  # of the partitions that are copied
        self._next: dict[TopicPartition, int] = {}  # offsets of the source, what is pending included
        self._ends: dict[TopicPartition, int] = {}
        self._pending = _Pending()
        self._copied = 0  # offsets of the source
        self.records = self.commits = 0
        self.untimed = 0

    # Plans

    def plan(self, is_wanted: Callable[[str], bool]) -> list[TopicPlan]:
        """Plan to mirror topics of the source, by name.

        Raises:
            InvalidRequestError: MIRROR_DIVERGED, see _position.
            DataLossError: DATA_LOSS, offsets are gone at the source and were never copied.
        """
        topics = [topic for name, topic in sorted(self._source.topics().items()) if is_wanted(name)]
        topics = [topic for topic in topics if topic.name != self._positions_topic]
        places = [(topic.name, number) for topic in topics for number in range(topic.partitions)]
        ranges = self._source.ranges(places)
        image = self._log.refresh(force=True)
        return [self._plan_topic(image, topic, ranges) for topic in self._source.with_configs(topics)]

    def _plan_topic(
        self, image: Image, topic: SourceTopic, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> TopicPlan:
        configs, left_out = split_configs(topic.configs)
        places = [(topic.name, number) for number in range(topic.partitions)]
        positions, lost = {}, {}
        for at in places:
            start, end = ranges[at]
            positions[at], gone = self._position(image, at, topic, start, end)
            if gone:
                lost[at] = gone
        if lost and not self._allow_data_loss:
            at, gone = next(iter(lost.items()))
            raise DataLossError(
                "DATA_LOSS",
                f"{at[0]}-{at[1]}: the source has removed offsets {positions[at].position - gone} to "
                f"{positions[at].position - 1} before they were copied",
                fix="raise retention.ms at the source, and run the mirror more often; --allow-data-loss goes "
                "on without them",
            )
        return TopicPlan(
            source=topic,
            is_new=topic.name not in image.topics,
            configs=configs,
            left_out=left_out,
            positions=positions,
            ends={at: ranges[at][1] for at in places},
            lost=lost,
        )

    def _position(
        self, image: Image, at: TopicPartition, topic: SourceTopic, start: int, end: int
    ) -> tuple[Position, int]:
        """Return where to go on, and how many offsets are lost before it.

        Raises:
            InvalidRequestError: MIRROR_DIVERGED: the partition here has other records than the mirror's, or
                the source's topic is another one.
        """
        known = self.positions.get(at) or self._committed.get(at)
        here = image.topics.get(at[0])
        log_end = 0
        if here is not None and at[1] < len(here.partitions):
            log_end = here.partitions[at[1]].log_end_offset
        if known is None or here is None or known.topic_id != here.topic_id:
            if log_end:
                raise _diverged(at, f"it ends at {log_end}, and no mirror of this cluster has written to it")
            topic_id = "" if here is None else here.topic_id
            return Position(position=start, end=0, topic_id=topic_id, source_topic_id=topic.topic_id), 0
        if topic.topic_id and known.source_topic_id and topic.topic_id != known.source_topic_id:
            raise _made_again(at)
        if log_end != known.end:
            raise _diverged(at, f"it ends at {log_end}, expected {known.end}: others have written to it")
        if end < known.position:
            raise _diverged(at, f"the source ends at {end}, and it is copied up to {known.position}")
        if start <= known.position:
            return known, 0
        return msgspec.structs.replace(known, position=start), start - known.position

    def prepare(self, plans: Sequence[TopicPlan]) -> None:
        """Create topics and add partitions; then take the plans over."""
        self._log.create_topic(self._positions_topic, 1, {"cleanup.policy": "compact"}, if_not_exists=True)
        positions = {}
        self._ends = {}
        for plan in plans:
            partitions = plan.source.partitions
            if plan.is_new:
                self._log.create_topic(plan.name, partitions, plan.configs)
            elif self._log.partition_count(plan.name) < partitions:
                self._log.add_partitions(plan.name, partitions)
            topic_id = self._log.image.topic(plan.name).topic_id
            for at, found in plan.positions.items():
                positions[at] = msgspec.structs.replace(found, topic_id=topic_id)
            self._ends.update(plan.ends)
        self.positions = positions

    # Records

    def copy(self, stop: Stop, *, follow_s: float | None = None) -> bool:
        """Copy up to the planned ends, or with `follow_s` for so long; return False if stopped before.

        What was fetched is committed at the end, also after a stop.
        """
        self._pending = _Pending()  # of a copy that failed: it is fetched again
        self._next = {at: position.position for at, position in self.positions.items()}
        before = self._copied - sum(self._next.values())
        wanted = {
            at: offset for at, offset in self._next.items() if follow_s is not None or offset < self._ends[at]
        }
        self._source.assign(wanted)
        begin_s = heard_s = time.monotonic()
        while wanted and not stop.is_asked():
            fetched = self._source.fetch(_WAIT_S)
            self._take(fetched)
            now_s = time.monotonic()
            if fetched.offsets or fetched.reached or follow_s is not None:
                heard_s = now_s
            if follow_s is None:
                self._finish_partitions(wanted)
            self._copied = before + sum(self._next.values())
            self.on_progress(self._copied)
            if self._is_due(now_s, COMMIT_S if follow_s is None else FOLLOW_COMMIT_S):
                self._commit()
            if follow_s is not None and now_s - begin_s >= follow_s:
                break
            if now_s - heard_s > self._timeout_s:
                raise self._source.unreachable()
        self._commit()
        return not stop.is_asked() or not wanted

    def _finish_partitions(self, wanted: dict[TopicPartition, int]) -> None:
        done = [at for at in wanted if self._next[at] >= self._ends[at]]
        if done:
            self._source.pause(done)
        for at in done:
            del wanted[at]

    def _take(self, fetched: Fetched) -> None:
        pending = self._pending
        for at, offsets in fetched.offsets.items():
            if offsets[0] < self._next[at] or (np.diff(offsets) <= 0).any():
                raise _diverged(
                    at, f"the source sends offset {offsets[0]} after {self._next[at] - 1}, or out of order"
                )
            self._next[at] = int(offsets[-1]) + 1
            pending.counts[at] = pending.counts.get(at, 0) + offsets.size
            pending.moved.add(at)
        for at, end in fetched.reached.items():
            if end > self._next[at]:  # what follows the last record is no record: ends of transactions
                self._next[at] = end
                pending.moved.add(at)
        if fetched.rows is not None:
            pending.tables.append(fetched.rows)
            pending.records += fetched.rows.num_rows
            pending.size_bytes += fetched.rows.nbytes
            self.untimed += fetched.rows.column("timestamp").null_count
            pending.since_s = pending.since_s or time.monotonic()

    def _is_due(self, now_s: float, commit_s: float) -> bool:
        pending = self._pending
        return pending.since_s is not None and (
            pending.size_bytes >= COMMIT_BYTES
            or pending.records >= COMMIT_RECORDS
            or now_s - pending.since_s >= commit_s
        )

    def _commit(self) -> None:
        pending = self._pending
        if not pending.moved:
            return
        self._refuse_replaced(pending.moved)
        positions = {
            at: msgspec.structs.replace(
                self.positions[at],
                position=self._next[at],
                end=self.positions[at].end + pending.counts.get(at, 0),
            )
            for at in sorted(pending.moved)
        }
        for attempt in range(_ATTEMPTS):
            self._log.refresh(force=attempt > 0)
            try:
                self._publish(self._staged(pending, positions), positions)
                break
            except RetriableError as error:  # a sweep took the segment
                if error.code != "STAGING_EXPIRED" or attempt == _ATTEMPTS - 1:
                    raise
        self.positions.update(positions)
        for at, position in positions.items():
            key = anchor_key(at, position)
            self.anchors.setdefault(key, Anchors()).add(position.position, position.end)
        self.records += pending.records
        self.commits += 1
        self._pending = _Pending()

    def _refuse_replaced(self, places: Collection[TopicPartition]) -> None:
        """Raise MIRROR_DIVERGED if a topic was made again since it was planned, see the third invariant.

        A topic that is gone is not refused: what was fetched of it may be committed.
        """
        known = {at[0]: self.positions[at].source_topic_id for at in places}
        now = self._source.topic_ids([name for name, topic_id in sorted(known.items()) if topic_id])
        for at in sorted(places):
            if now.get(at[0]) not in {None, "", known[at[0]]}:
                raise _made_again(at)

    def _staged(self, pending: _Pending, positions: Mapping[TopicPartition, Position]) -> StagedAppend:
        with self._log.appender(self._options) as appender:
            for rows in pending.tables:
                appender.add(rows)
            appender.add(position_rows(positions), self._positions_topic)
            return appender.finish()

    def _publish(self, staged: StagedAppend, positions: Mapping[TopicPartition, Position]) -> None:
        def plan(image: Image) -> list[Action]:
            for at, position in positions.items():
                log_end = image.partition_of(position.topic_id, at[1]).log_end_offset
                if log_end != self.positions[at].end:
                    raise _diverged(
                        at,
                        f"it ends at {log_end}, expected {self.positions[at].end}: others, or a second "
                        "mirror, write to it",
                    )
            return plan_publish(image, [staged], None)

        self._log.metadata.publish(plan)


def split_configs(configs: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings that a topic can have here, and the others with the reasons."""
    taken, left_out = {}, {}
    for key, value in configs.items():
        why = _NOT_COPIED.get(key)
        if why is None:
            try:
                validate_topic_configs({key: value})
            except InvalidRequestError as error:
                why = error.message
        if why is None:
            taken[key] = value
        else:
            left_out[key] = why
    return taken, left_out


def _made_again(at: TopicPartition) -> SparklogError:
    return _diverged(at, "the source's topic was deleted, and made again")


def _diverged(at: TopicPartition, why: str) -> SparklogError:
    return InvalidRequestError(
        "MIRROR_DIVERGED",
        f"{at[0]}-{at[1]}: {why}",
        fix="leave the topic to one mirror alone: if others write to it, end them, and run it again; if that "
        "is refused, too, delete it here (sparklog topics delete), with all that others have written to it, "
        "and run the mirror again: it copies it from the beginning",
    )
