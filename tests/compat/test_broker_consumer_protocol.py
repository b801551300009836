"""librdkafka with the consumer protocol (KIP-848): joining, leaving, static members, patterns."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from sparklog.client import SparkLog
from tests.support.broker_process import BrokerProcess, until

SETTINGS = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "10000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "100",
    "offsets.topic.num.partitions": "3",
}
PARTITIONS = 6
_numbers = itertools.count(1)


class Member:
    """A consumer in a thread that polls; what it has, and what it has read."""

    def __init__(self, bootstrap: str, group: str, topic: str, **config: str) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 500,
                **config,
            }
        )
        self.consumer.subscribe([topic])
        self.seen: list[tuple[str, int, int]] = []
        self.assigned: frozenset[tuple[str, int]] = frozenset()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Commit and leave."""
        self._ending.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.is_set():
            message = self.consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.seen.append((message.topic() or "", message.partition() or 0, message.offset() or 0))
            self.assigned = frozenset((one.topic, one.partition) for one in self.consumer.assignment())
        self.consumer.close()


@contextmanager
def started(*members: Member) -> Iterator[Sequence[Member]]:
    try:
        yield members
    finally:
        for member in members:
            member.end()


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}"


def shares(*members: Member) -> list[int]:
    """How many partitions each has, if no partition is with two of them."""
    assigned = [member.assigned for member in members]
    together = frozenset[tuple[str, int]]().union(*assigned)
    return sorted(map(len, assigned)) if len(together) == sum(map(len, assigned)) else []


def produce(log: SparkLog, topic: str, count: int) -> None:
    for partition in range(log.partition_count(topic)):
        log.append(topic, pa.table({"value": [b"%d" % n for n in range(count)]}), partition=partition)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_the_partitions_and_go_on_where_others_have_committed(
    server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str], group: str, assignor: str
) -> None:
    topic = new_topic(PARTITIONS)
    produce(log, topic, 10)
    config = {"group.remote.assignor": assignor}
    first = Member(server.bootstrap, group, topic, **config)
    until(lambda: shares(first) == [6], 30, "the first gets all")
    second = Member(server.bootstrap, group, topic, **config)
    until(lambda: shares(first, second) == [3, 3], 30, "three each")
    until(lambda: len(first.seen) + len(second.seen) >= 60, 30, "all is read")
    first.end()
    until(lambda: shares(second) == [6], 30, "the other gets all")
    second.end()
    produce(log, topic, 1)
    with started(Member(server.bootstrap, group, topic, **config)) as (third,):
        until(lambda: len(third.seen) == 6, 30, "what is new is read")
        assert {offset for _, _, offset in third.seen} == {10}
        assert log.consumer_groups() >= {group}


def test_a_static_member_comes_back_to_its_partitions(
    server: BrokerProcess, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(PARTITIONS)
    with started(Member(server.bootstrap, group, topic)) as (other,):
        static = Member(server.bootstrap, group, topic, **{"group.instance.id": "i"})
        until(lambda: shares(other, static) == [3, 3], 30, "three each")
        before = static.assigned
        static.end()
        with started(Member(server.bootstrap, group, topic, **{"group.instance.id": "i"})) as (again,):
            until(lambda: again.assigned == before, 30, "it has them again")
            assert len(other.assigned) == 3


def test_a_pattern_finds_topics_that_are_made_later(
    server: BrokerProcess, log: SparkLog, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(1)
    with started(Member(server.bootstrap, group, f"^({topic}|{group}-.*)$")) as (member,):
        until(lambda: member.assigned == {(topic, 0)}, 30, "the topic is found")
        log.create_topic(f"{group}-later", 2)
        until(lambda: shares(member) == [3], 30, "the later one, too")


def test_an_embedded_commit_by_its_coordinator_is_refused_while_there_are_members(
    server: BrokerProcess, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(1)
    alone = Consumer({"bootstrap.servers": server.bootstrap, "group.id": group})
    with started(Member(server.bootstrap, group, topic)) as (member,):
        until(lambda: shares(member) == [1], 30, "it has the partition")
        with pytest.raises(KafkaException, match="UNKNOWN_MEMBER_ID"):
            alone.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    alone.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    alone.close()
