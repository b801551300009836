"""Groups of real clients whose coordinator dies, or stops, beside another broker: commits are in flight all
the time, offsets never go back, and no record is passed over.

The history is __consumer_offsets itself: every commit that ever took effect, in order. Records are appended
without a broker, so that nothing but the group depends on one.
"""

import contextlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.client.groups import partition_for_group
from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.format.consumer_group_records import decode_consumer_group_key, is_consumer_group_key
from sparklog.format.consumer_offsets import OffsetKey, decode_key, decode_offset_value
from tests.compat.group_members import ASSIGNORS, SERVER_SIDE, Member, joined
from tests.support.broker_process import BrokerProcess, until

SETTINGS = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "400",
    "group.initial.rebalance.delay.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "200",
    "log.cleaner.enable": "false",  # nothing of the history shall go
    "offsets.topic.num.partitions": "4",
}
PARTITIONS = 4
TOPIC = "t"
PATIENCE_S = 60
MEMBERS = [("confluent", SERVER_SIDE), *((name, "range") for name in ASSIGNORS)]
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::SyntaxWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:aiokafka"),
]


class Brokers:
    """Some of them on one root, and the root itself."""

    def __init__(self, root: Path, log: SparkLog, processes: dict[int, BrokerProcess]) -> None:
        self.root = root
        self.log = log
        self.processes = processes

    @property
    def bootstrap(self) -> str:
        return ",".join(one.bootstrap for one in self.processes.values())

    def coordinator(self, group: str) -> int:
        """Who leads the group's partition."""
        topic = self.log.refresh(force=True).topic(OFFSETS_TOPIC)
        return topic.partitions[partition_for_group(group, len(topic.partitions))].leadership.leader

    def commits(self, group: str) -> dict[int, list[int]]:
        """What the group has ever committed of TOPIC, in the order in which it took effect."""
        found: dict[int, list[int]] = defaultdict(list)
        topic = self.log.refresh(force=True).topics.get(OFFSETS_TOPIC)
        if topic is None:
            return found
        rows = self.log.read(OFFSETS_TOPIC, partition_for_group(group, len(topic.partitions)), 0)
        for key, value in zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True):
            if is_consumer_group_key(key):
                continue
            decoded = decode_key(key, where="here")
            if isinstance(decoded, OffsetKey) and decoded.group == group:
                found[decoded.partition].append(decode_offset_value(value, where="here").offset)
        return found

    def generations(self, group: str) -> int:
        """How often the group's members and assignments were written."""
        topic = self.log.refresh(force=True).topic(OFFSETS_TOPIC)
        rows = self.log.read(OFFSETS_TOPIC, partition_for_group(group, len(topic.partitions)), 0)
        stored = rows.column("key").to_pylist()
        epochs = [decode_consumer_group_key(key) for key in stored if is_consumer_group_key(key)]
        keys = [decode_key(key, where="here") for key in stored if not is_consumer_group_key(key)]
        classic = sum(not isinstance(key, OffsetKey) and key.group == group for key in keys)
        return classic + sum(key.group == group for key in epochs)


@contextlib.contextmanager
def serving(root: Path, count: int) -> Iterator[Brokers]:
    """So many brokers, started at once."""

    def start(node_id: int) -> BrokerProcess:
        return BrokerProcess(root, {**SETTINGS, "node.id": str(node_id)})

    nodes = range(1, count + 1)
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(count) as pool:
            processes = dict(zip(nodes, pool.map(start, nodes), strict=True))
        for one in processes.values():
            stack.callback(one.close)
        log = stack.enter_context(sparklog.open(str(root), create=False))
        log.create_topic(TOPIC, PARTITIONS)
        until(lambda: replicas(log) == {frozenset(nodes)}, what="a replica at every broker")
        yield Brokers(root, log, processes)


def replicas(log: SparkLog) -> set[frozenset[int]]:
    """Which brokers may lead the partitions of TOPIC."""
    partitions = log.refresh(force=True).topic(TOPIC).partitions
    return {frozenset(one.leadership.replicas) for one in partitions}


@contextlib.contextmanager
def appending(root: Path) -> Iterator[None]:
    """Records arrive in all partitions all the time, whoever is alive."""
    ending = threading.Event()

    def append() -> None:
        rows = pa.table({"value": [b"x"] * 3})
        with sparklog.open(str(root), create=False) as log:
            for partition in itertools.cycle(range(PARTITIONS)):
                log.append(TOPIC, rows, partition=partition)
                if ending.wait(0.02):
                    return

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def all_commit(brokers: Brokers, group: str) -> None:
    """Each partition gets further, from now on."""
    before = {partition: len(offsets) for partition, offsets in brokers.commits(group).items()}

    def further() -> bool:
        now = brokers.commits(group)
        return all(len(now[partition]) > before.get(partition, 0) + 1 for partition in range(PARTITIONS))

    until(further, PATIENCE_S, f"commits of {group} for every partition")


def everything_was_read(brokers: Brokers, group: str, members: Sequence[Member]) -> None:
    """No offset went back, every record was seen by somebody, and everything is committed."""
    ends = {partition: brokers.log.log_end_offset(TOPIC, partition) for partition in range(PARTITIONS)}

    def committed() -> bool:
        return {partition: offsets[-1] for partition, offsets in brokers.commits(group).items()} == ends

    until(committed, PATIENCE_S, f"{ends} to be committed")
    for partition, offsets in brokers.commits(group).items():
        assert offsets == sorted(offsets), f"committed offsets of partition {partition} went back"
    seen = set(itertools.chain.from_iterable(member.seen for member in members))
    expected = {(partition, offset) for partition, end in ends.items() for offset in range(end)}
    assert expected <= seen, sorted(expected - seen)[:5]


@contextlib.contextmanager
def two_members(brokers: Brokers, name: str, group: str, assignor: str = "range") -> Iterator[list[Member]]:
    """Who have begun to commit."""
    with contextlib.ExitStack() as stack:
        start = [joined(name, brokers.bootstrap, group, TOPIC, assignor) for _ in range(2)]
        members = [stack.enter_context(one) for one in start]
        with appending(brokers.root):
            all_commit(brokers, group)
            yield members
        everything_was_read(brokers, group, members)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "assignor"), MEMBERS)
def test_coordinators_are_killed_in_turn_with_commits_in_flight(
    tmp_path: Path, name: str, assignor: str
) -> None:
    group = f"group-of-{name}"
    with serving(tmp_path / "log", 3) as brokers, two_members(brokers, name, group, assignor):
        for _ in range(2):
            brokers.processes[brokers.coordinator(group)].kill()
            all_commit(brokers, group)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "assignor"), MEMBERS)
def test_a_coordinator_that_stops_hands_over_and_no_member_joins_again(
    tmp_path: Path, name: str, assignor: str
) -> None:
    group = f"group-of-{name}"
    with serving(tmp_path / "log", 2) as brokers, two_members(brokers, name, group, assignor) as members:
        until(lambda: [len(one.assigned()) for one in members] == [2, 2], PATIENCE_S, "two partitions each")
        all_commit(brokers, group)
        generations, revocations = brokers.generations(group), [one.revocations for one in members]
        stopping = brokers.processes[brokers.coordinator(group)]
        assert stopping.stop() == 0, stopping.errors()
        all_commit(brokers, group)
        assert brokers.generations(group) == generations
        assert [one.revocations for one in members] == revocations
