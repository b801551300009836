"""Which segments a group commit goes to."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import ManualClock, SystemClock
from sparklog.errors import StorageError
from sparklog.log.config import TopicConfig
from sparklog.log.past_retention import INTERVAL_MS
from sparklog.log.writer import MAX_ISOLATED
from sparklog.storage import MemoryStore, open_store
from sparklog.storage.base import StoreTraits
from sparklog_server.cluster.membership import Registration
from sparklog_server.publish.group_commit import GroupCommitter
from sparklog_server.publish.parts import AppendPart
from tests.seaweed import MOST_KEY, MOST_ROOTS, MOST_SECRET, SeaweedServer
from tests.server.publish.batches import part
from tests.server.publish.test_group_commit import offsets, orders
from tests.server.publish.transactional_parts import leading, of
from tests.support.rights import closed
from tests.support.roots import opened
from tests.support.several_brokers import create_led, take_over
from tests.support.told import Told
from tests.support.transactional_producer import TransactionalProducer


def test_internal_topics_have_segments_of_their_own(
    committer: GroupCommitter, log: SparkLog, registration: Registration
) -> None:
    create_led(log, registration, "__consumer_offsets")
    internal = log.image.topic("__consumer_offsets").topic_id
    for _ in range(2):
        committer.write([orders(log), part(topic_id=internal, topic="__consumer_offsets"), orders(log, 1)])
    found = {
        topic: {extent.segment for state in log.image.topic(topic).partitions for extent in state.extents}
        for topic in ("orders", "__consumer_offsets")
    }
    assert [len(one) for one in found.values()] == [1, 1]
    assert found["orders"].isdisjoint(found["__consumer_offsets"])


# --- isolated topics ---------------------------------------------------------------------------------

ISOLATED = {"sparklog.segment.isolation": "true"}


def segments(log: SparkLog, topic: str) -> set[str]:
    return {extent.segment for state in log.image.topic(topic).partitions for extent in state.extents}


def test_isolated_topics_have_directories_of_their_own(
    committer: GroupCommitter, log: SparkLog, registration: Registration
) -> None:
    topics = [f"isolated-{number}" for number in range(MAX_ISOLATED + 2)]
    for topic in topics:
        create_led(log, registration, topic, 1, ISOLATED)
    parts = [part(topic_id=log.image.topic(topic).topic_id, topic=topic) for topic in topics]
    for _ in range(2):
        outcomes = committer.write([*parts, orders(log)])
        assert [outcome.error for outcome in outcomes] == [None] * (len(topics) + 1)
    for topic in topics:
        assert {name.startswith(f"isolated/{topic}/segments/") for name in segments(log, topic)} == {True}
        assert log.log_end_offset(topic, 0) == 4
    assert all(name.startswith("segments/") for name in segments(log, "orders"))


def test_a_transaction_stages_in_the_directory_of_its_topic(
    log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    log.alter_topic("orders", ISOLATED)
    committer = leading(log, store, clock)
    producer = TransactionalProducer(log).begin()
    producer.add(0)
    (outcome,) = committer.write([of(producer)])
    assert outcome.error is None
    (transaction,) = log.image.transactions.by_id.values()
    (staged,) = transaction.staged.values()
    assert {extent.segment.startswith("isolated/orders/segments/") for extent in staged} == {True}
    assert segments(log, "orders") == set()
    producer.end()
    assert {name.startswith("isolated/orders/segments/") for name in segments(log, "orders")} == {True}


# --- refused topics ----------------------------------------------------------------------------------

OBJECTS = StoreTraits(is_remote=True, appends_after_sync=False)
REFUSED = StorageError("STORAGE_REFUSED", "cannot put: 403", fix="check the credentials")


def isolated(log: SparkLog, registration: Registration, count: int) -> list[str]:
    """Isolated topics, in the order in which a group commit writes them."""
    topics = [f"isolated-{number}" for number in range(count)]
    for topic in topics:
        create_led(log, registration, topic, 1, ISOLATED)
    return sorted(topics, key=lambda topic: log.image.topic(topic).topic_id)


def of_topic(log: SparkLog, topic: str, **fields: object) -> AppendPart:
    return part(topic_id=log.image.topic(topic).topic_id, topic=topic, **fields)  # type: ignore[arg-type]


def test_a_topic_whose_directory_is_closed_fails_alone(unprivileged: Path) -> None:
    """It is written first: the others come after its failure."""
    with opened(open_store(unprivileged / "root", create=True), SystemClock()) as log:
        log.create_topic("orders", 3)
        registration = take_over(log)
        committer = GroupCommitter(
            log, lambda: registration, lambda topic: TopicConfig.parse(topic.configs, {})
        )
        first, *others = isolated(log, registration, 3)
        directory = unprivileged / "root/isolated" / first
        directory.mkdir(parents=True)
        parts = [of_topic(log, topic) for topic in (first, *others)]
        with closed(directory, 0o500):
            outcomes = committer.write([orders(log), *parts, orders(log, 1)])
        assert offsets(outcomes) == [0, "STORAGE_REFUSED", 0, 0, 0]
        assert f"isolated/{first}/ is closed to this process" in str(outcomes[1].error)
        assert [log.log_end_offset(topic, 0) for topic in (first, *others)] == [0, 2, 2]
        assert os.listdir(directory) == []
        assert offsets(committer.write(parts)) == [0, 2, 2]


@pytest.fixture
def refusals(clock: ManualClock) -> MemoryStore:
    """An object store, where only the sync shows that a topic is refused."""
    return MemoryStore("refusals", clock=clock, traits=OBJECTS)


@pytest.fixture
def leader(refusals: MemoryStore, clock: ManualClock) -> tuple[SparkLog, Registration, GroupCommitter]:
    log = opened(refusals, clock)
    log.create_topic("orders", 3)
    registration = take_over(log)
    committer = GroupCommitter(
        log, lambda: registration, lambda topic: TopicConfig.parse(topic.configs, log.image.configs)
    )
    return log, registration, committer


def refusing(store: MemoryStore, topic: str, times: int) -> Callable[[str, str], None]:
    """The first syncs of segments of this topic are refused."""
    left = [times]

    def hook(operation: str, name: str) -> None:
        if operation == "sync" and name.startswith(f"isolated/{topic}/") and left[0]:
            left[0] -= 1
            raise REFUSED

    return hook


def test_a_topic_whose_objects_are_refused_fails_alone(
    leader: tuple[SparkLog, Registration, GroupCommitter], refusals: MemoryStore
) -> None:
    log, registration, committer = leader
    first, second = isolated(log, registration, 2)
    parts = [of_topic(log, first), orders(log), of_topic(log, second), of_topic(log, first)]
    refusals.hook = refusing(refusals, first, 1)
    assert offsets(committer.write(parts)) == ["STORAGE_REFUSED", 0, 0, "STORAGE_REFUSED"]
    assert [log.log_end_offset(topic, 0) for topic in (first, second, "orders")] == [0, 2, 2]
    assert offsets(committer.write(parts)) == [0, 2, 2, 2]


def test_the_brokers_log_has_a_refused_topic_once_per_interval(
    leader: tuple[SparkLog, Registration, GroupCommitter],
    refusals: MemoryStore,
    clock: ManualClock,
    told: Told,
) -> None:
    log, registration, committer = leader
    first, second = isolated(log, registration, 2)
    for topic in (first, second):
        refusals.hook = refusing(refusals, topic, 2)
        for _ in range(2):
            committer.write([of_topic(log, topic), of_topic(log, topic)])
    assert len(told("sparklog_server.publish")) == 2
    assert f"isolated/{first}/ is closed to this process" in told("sparklog_server.publish")[0]
    clock.advance_ms(INTERVAL_MS)
    refusals.hook = refusing(refusals, first, 1)
    committer.write([of_topic(log, first)])
    assert len(told("sparklog_server.publish")) == 3


def test_no_later_run_of_a_refused_topic_is_published(
    leader: tuple[SparkLog, Registration, GroupCommitter], refusals: MemoryStore
) -> None:
    """1. the first segment of a partition is refused; 2. the second one, with the producer's next batches, is
    durable. Published, it would have taken the place of the first ones, which would then be refused."""
    log, registration, committer = leader
    (topic,) = isolated(log, registration, 1)
    size = of_topic(log, topic).size_bytes
    log.alter_topic(topic, {"segment.bytes": str(max(14, size))})
    mine = [of_topic(log, topic, producer=(1, 0, sequence)) for sequence in (0, 2)]
    between = of_topic(log, topic, producer=(2, 0, 0))  # so that these are three runs
    refusals.hook = refusing(refusals, topic, 1)
    outcomes = committer.write([mine[0], between, mine[1], orders(log)])
    assert offsets(outcomes) == ["STORAGE_REFUSED"] * 3 + [0]
    assert log.log_end_offset(topic, 0) == 0
    assert offsets(committer.write([mine[1], orders(log)])) == ["OUT_OF_ORDER_SEQUENCE", 2]
    assert offsets(committer.write(mine)) == [0, 2]


def test_a_shared_segment_that_is_refused_fails_all(
    leader: tuple[SparkLog, Registration, GroupCommitter], refusals: MemoryStore
) -> None:
    log, registration, committer = leader
    (topic,) = isolated(log, registration, 1)

    def hook(operation: str, name: str) -> None:
        if operation == "sync" and name.startswith("segments/"):
            raise REFUSED

    refusals.hook = hook
    assert offsets(committer.write([orders(log), of_topic(log, topic)])) == ["STORAGE_REFUSED"] * 2
    assert log.log_end_offset(topic, 0) == 0


def test_records_and_actions_of_one_commit_fail_together(
    leader: tuple[SparkLog, Registration, GroupCommitter], refusals: MemoryStore
) -> None:
    log, registration, committer = leader
    (topic,) = isolated(log, registration, 1)
    refusals.hook = refusing(refusals, topic, 1)
    with pytest.raises(StorageError, match=f"isolated/{topic}/ is closed"):
        committer.append_and_publish([of_topic(log, topic), orders(log)], lambda _image, drafts: (drafts, []))
    assert [log.log_end_offset(name, 0) for name in (topic, "orders")] == [0, 0]


def test_a_bucket_that_refuses_a_topic(s3_server: SeaweedServer) -> None:
    """Of a real store: only at the sync, an object for each topic."""
    with sparklog.open(MOST_ROOTS[0]) as owner:
        for topic in ("orders", "secret", "shared"):
            owner.create_topic(topic, 1, ISOLATED if topic != "shared" else {})
    options = {"key": MOST_KEY, "secret": MOST_SECRET, "endpoint_url": s3_server.endpoint_url}
    with sparklog.open(MOST_ROOTS[0], create=False, storage_options=options) as log:
        registration = take_over(log)
        committer = GroupCommitter(
            log, lambda: registration, lambda topic: TopicConfig.parse(topic.configs, {})
        )
        parts = [of_topic(log, topic) for topic in ("orders", "secret", "shared")]
        for attempt in range(2):
            outcomes = committer.write(parts)
            assert offsets(outcomes) == [2 * attempt, "STORAGE_REFUSED", 2 * attempt]
        assert "isolated/secret/ is closed to this process" in str(outcomes[1].error)
    with sparklog.open(MOST_ROOTS[0]) as owner:
        assert [owner.log_end_offset(topic, 0) for topic in ("orders", "secret", "shared")] == [4, 0, 4]
