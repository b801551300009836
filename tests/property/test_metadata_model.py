"""Random histories of publishes against a model of plain dictionaries.

Several logs over one store publish, follow, snapshot, clean, sleep and reopen in any order; every one of
them must always agree with the model, and so must a replay of all commits from the first on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError, RetriableError, UnknownTopicError
from sparklog.metadata import (
    Action,
    BrokerListener,
    DraftExtent,
    Extent,
    FenceBroker,
    Image,
    MetadataLog,
    MetadataSettings,
    new_id,
    plan_add_partitions,
    plan_advance_log_start,
    plan_allocate_producer_ids,
    plan_append,
    plan_create_topic,
    plan_delete_topic,
    plan_join_broker,
    plan_set_configs,
    plan_writer_txn,
)
from sparklog.metadata.documents.document import decode_commit
from sparklog.metadata.documents.properties import commit_name
from sparklog.metadata.documents.snapshot import read_snapshot
from sparklog.metadata.model.actions import ImageBuilder
from sparklog.metadata.model.image import empty_image
from sparklog.storage import MemoryStore
from tests.replacing import plan_replacing

NAMES = st.sampled_from(["a", "b", "orders.eu", "c-1"])
APPLICATIONS = st.sampled_from(["q1", "q2"])
CONFIGS = st.dictionaries(st.sampled_from(["x", "y", "ü"]), st.none() | st.text(max_size=3), max_size=3)
COUNTS = st.integers(1, 1 << 40)
WRITERS = 3


@dataclass
class ModelPartition:
    start: int = 0
    end: int = 0
    extents: list[tuple[int, int, str]] = field(default_factory=list)  # base offset, end offset, segment


@dataclass
class ModelTopic:
    topic_id: str
    partitions: list[ModelPartition]
    configs: dict[str, str] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)


class MetadataMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.topics: dict[str, ModelTopic] = {}
        self.configs: dict[str, str] = {}
        self.brokers: dict[int, tuple[int, str, bool]] = {}  # epoch, incarnation, is fenced
        self.next_producer_id = 0
        self.commits: list[bytes] = []  # every commit there ever was, for the full replay
        self.logs: list[MetadataLog] = []
        self.number = 0

    @initialize()
    def open_logs(self) -> None:
        self.logs = [self.opened() for _ in range(WRITERS)]

    def opened(self) -> MetadataLog:
        settings_ = MetadataSettings(
            snapshot_bytes=7 * 4096, clean_grace_ms=-(1 << 60), clean_interval_ms=0, publish_timeout_ms=10_000
        )
        return MetadataLog.open(self.store, ManualClock(), create=True, settings=settings_)

    def publish(self, writer: int, plan: Callable[[Image], list[Action]]) -> bool:
        before = len(self.commits)
        held: dict[int, bytes] = {}

        def hook(operation: str, name: str) -> None:
            if operation == "put_if_absent:done" and name == commit_name(before):
                held[before] = self.store.read(name)  # before it may be cleaned

        self.store.hook = hook
        try:
            result = self.logs[writer].publish(plan)
        finally:
            self.store.hook = None
        if result.actions:
            assert result.commit == before  # dense
            self.commits.append(held[before])
        else:
            assert not held
        return bool(result.actions)

    # --- rules ---------------------------------------------------------------------------------------

    @rule(writer=st.integers(0, WRITERS - 1), name=NAMES, partitions=st.integers(1, 3))
    def create_topic(self, writer: int, name: str, partitions: int) -> None:
        topic_id = new_id()

        def plan(image: Image) -> list[Action]:
            return [plan_create_topic(image, name, partitions, topic_id=topic_id)]

        if name in self.topics:
            with pytest.raises(InvalidRequestError, match="exists already"):
                self.publish(writer, plan)
        else:
            assert self.publish(writer, plan)
            self.topics[name] = ModelTopic(topic_id, [ModelPartition() for _ in range(partitions)])

    @rule(writer=st.integers(0, WRITERS - 1), name=NAMES)
    def delete_topic(self, writer: int, name: str) -> None:
        if self.topics.pop(name, None) is None:
            with pytest.raises(UnknownTopicError):
                self.publish(writer, lambda image: [plan_delete_topic(image, name)])
        else:
            assert self.publish(writer, lambda image: [plan_delete_topic(image, name)])

    @precondition(lambda self: self.topics)
    @rule(writer=st.integers(0, WRITERS - 1), data=st.data())
    def add_partitions(self, writer: int, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        partitions = self.topics[name].partitions
        total = len(partitions) + data.draw(st.integers(0, 2))
        done = self.publish(writer, lambda image: only(plan_add_partitions(image, name, total)))
        assert done == (total > len(partitions))
        partitions += [ModelPartition() for _ in range(total - len(partitions))]

    @rule(writer=st.integers(0, WRITERS - 1), configs=CONFIGS, data=st.data())
    def set_configs(self, writer: int, configs: dict[str, str | None], data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([None, *sorted(self.topics)]))
        target = self.configs if name is None else self.topics[name].configs
        self.publish(writer, lambda image: only(plan_set_configs(image, name, configs)))
        for key, value in configs.items():
            if value is None:
                target.pop(key, None)
            else:
                target[key] = value

    @precondition(lambda self: self.topics)
    @rule(
        writer=st.integers(0, WRITERS - 1),
        counts=st.lists(COUNTS, min_size=1, max_size=4),
        txn=st.none() | st.tuples(APPLICATIONS, st.integers(0, 5)),
        data=st.data(),
    )
    def append(
        self, writer: int, counts: list[int], txn: tuple[str, int] | None, data: st.DataObject
    ) -> None:
        targets = []
        for count in counts:
            name = data.draw(st.sampled_from(sorted(self.topics)))
            targets.append((name, data.draw(st.integers(0, len(self.topics[name].partitions) - 1)), count))
        drafts = [self.draft(name, partition, count) for name, partition, count in targets]

        def plan(image: Image) -> list[Action]:
            if txn is None:
                return [plan_append(image, drafts)]
            action = plan_writer_txn(image, *txn, [draft.topic_id for draft in drafts])
            if action is None:
                return []
            left = [draft for draft in drafts if draft.topic_id in (action.topics or ())]
            return [plan_append(image, left), action]

        fresh = {
            name for name, _, _ in targets if txn is None or self.topics[name].txns.get(txn[0], -1) < txn[1]
        }
        if fresh and txn is not None and any(self.is_past(name, txn) for name, _, _ in targets):
            with pytest.raises(InvalidRequestError, match="VERSION_OUTDATED"):
                self.publish(writer, plan)
            return
        assert self.publish(writer, plan) == bool(fresh)
        if txn is not None:
            for name in fresh:
                self.topics[name].txns[txn[0]] = txn[1]
        for (name, partition, count), draft in zip(targets, drafts, strict=True):
            if name not in fresh:
                continue
            state = self.topics[name].partitions[partition]
            state.extents.append((state.end, state.end + count, draft.segment))
            state.end += count

    def is_past(self, name: str, txn: tuple[str, int]) -> bool:
        return self.topics[name].txns.get(txn[0], -1) > txn[1]

    def draft(self, name: str, partition: int, count: int) -> DraftExtent:
        self.number += 1
        return DraftExtent(
            topic_id=self.topics[name].topic_id,
            partition=partition,
            segment=f"segments/{self.number}.log",
            position=0,
            size=100,
            record_count=count,
            max_timestamp_ms=self.number,
        )

    @precondition(lambda self: self.topics)
    @rule(writer=st.integers(0, WRITERS - 1), data=st.data())
    def advance_log_start(self, writer: int, data: st.DataObject) -> None:
        name, partition, state = self.pick(data)
        offset = data.draw(st.integers(0, state.end))
        topic_id = self.topics[name].topic_id
        done = self.publish(
            writer, lambda image: only(plan_advance_log_start(image, topic_id, partition, offset))
        )
        assert done == (offset > state.start)
        if done:
            state.start = offset
            state.extents = [extent for extent in state.extents if extent[1] > offset]

    @precondition(lambda self: self.topics)
    @rule(writer=st.integers(0, WRITERS - 1), stale=st.booleans(), data=st.data())
    def replace(self, writer: int, stale: bool, data: st.DataObject) -> None:
        name, partition, state = self.pick(data)
        if not state.extents:
            return
        start = data.draw(st.integers(0, len(state.extents) - 1))
        stop = data.draw(st.integers(start + 1, len(state.extents)))
        removed = self.logs[0].refresh().partition(name, partition).extents[start:stop]
        self.number += 1
        segment = f"merged/{self.number}.log"
        first, last = removed[0], removed[-1]
        added = data.draw(
            st.sampled_from(
                [[], [(first.base_offset, last.end_offset)], [(first.base_offset, first.base_offset + 1)]]
            )
        )
        new = [extent_like(first, base, end, segment) for base, end in added]
        if stale:
            removed = [*removed[:-1], extent_like(last, last.base_offset, last.end_offset, "other")]
            with pytest.raises(RetriableError):
                self.publish(writer, lambda image: [plan_replacing(image, removed, new)])
            return
        assert self.publish(writer, lambda image: [plan_replacing(image, removed, new)])
        state.extents[start:stop] = [(base, end, segment) for base, end in added]

    def pick(self, data: st.DataObject) -> tuple[str, int, ModelPartition]:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        partition = data.draw(st.integers(0, len(self.topics[name].partitions) - 1))
        return name, partition, self.topics[name].partitions[partition]

    @rule(writer=st.integers(0, WRITERS - 1), node=st.integers(0, 2), port=st.integers(1, 65535))
    def join_or_fence(self, writer: int, node: int, port: int) -> None:
        epoch, incarnation, is_fenced = self.brokers.get(node, (0, "", True))
        if not is_fenced:
            fence = FenceBroker(node_id=node, broker_epoch=epoch)
            assert self.publish(writer, lambda image: [fence])
            self.brokers[node] = (epoch, incarnation, True)
            return
        incarnation, epoch = new_id(), len(self.commits)
        listeners = [BrokerListener(host="localhost", port=port)]
        assert self.publish(
            writer,
            lambda image: [plan_join_broker(image, node, incarnation_id=incarnation, listeners=listeners)],
        )
        self.brokers[node] = (epoch, incarnation, False)

    @rule(writer=st.integers(0, WRITERS - 1), count=st.integers(1, 1000))
    def allocate_producer_ids(self, writer: int, count: int) -> None:
        assert self.publish(writer, lambda image: [plan_allocate_producer_ids(image, count)])
        self.next_producer_id += count

    @rule(writer=st.integers(0, WRITERS - 1))
    def reopen(self, writer: int) -> None:
        self.logs[writer] = self.opened()

    @rule(writer=st.integers(0, WRITERS - 1))
    def snapshot(self, writer: int) -> None:
        commit = self.logs[writer].write_snapshot()
        if commit >= 0:
            assert (
                read_snapshot(self.store, commit, cluster_id=self.logs[0].cluster_id)
                == self.logs[writer].image
            )

    @rule(writer=st.integers(0, WRITERS - 1))
    def clean(self, writer: int) -> None:
        self.logs[writer].clean()

    @rule(writer=st.integers(0, WRITERS - 1))
    def follow(self, writer: int) -> None:
        """Only this one; the others sleep on, perhaps through a cleaning."""
        self.check(self.logs[writer].refresh())

    # --- checks --------------------------------------------------------------------------------------

    @invariant()
    def newest_log_agrees(self) -> None:
        if self.logs:
            self.check(max((log.image for log in self.logs), key=lambda image: image.commit), known=True)

    def check(self, image: Image, *, known: bool = False) -> None:
        if known and image.commit + 1 < len(self.commits):
            return
        assert image.commit + 1 == len(self.commits)
        assert image.configs == self.configs
        assert self.brokers == {
            node: (one.broker_epoch, one.incarnation_id, one.is_fenced) for node, one in image.brokers.items()
        }
        assert image.next_producer_id == self.next_producer_id
        assert set(image.topics) == set(self.topics)
        assert {topic.topic_id: topic for topic in image.topics.values()} == image.topic_by_id
        for name, topic in self.topics.items():
            found = image.topic(name)
            assert (found.topic_id, found.configs) == (topic.topic_id, topic.configs)
            assert {name: one.version for name, one in found.writer_txns.items()} == topic.txns
            for state, expected in zip(found.partitions, topic.partitions, strict=True):
                assert (state.log_start_offset, state.log_end_offset) == (expected.start, expected.end)
                assert [(e.base_offset, e.end_offset, e.segment) for e in state.extents] == expected.extents

    def teardown(self) -> None:
        if not self.logs:
            return
        images = [log.refresh() for log in self.logs]
        self.check(images[0])
        assert all(image == images[0] for image in images)
        assert self.opened().image == images[0]
        builder = ImageBuilder(empty_image(images[0].cluster_id))
        for number, data in enumerate(self.commits):
            header, actions = decode_commit(
                data, where="replay", commit=number, cluster_id=images[0].cluster_id
            )
            builder.apply(actions, commit=number, commit_uuid=header.uuid)
        assert builder.image() == images[0]


def only(action: Action | None) -> list[Action]:
    return [] if action is None else [action]


def extent_like(extent: Extent, base: int, end: int, segment: str) -> Extent:
    return Extent(
        topic_id=extent.topic_id,
        partition=extent.partition,
        segment=segment,
        position=0,
        size=100,
        base_offset=base,
        record_count=end - base,
        max_timestamp_ms=0,
        offset_delta=0,
    )


TestMetadataModel = MetadataMachine.TestCase
TestMetadataModel.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
