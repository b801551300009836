"""A fleet of librdkafka's consumers goes over to the consumer protocol (KIP-848) and back, one by one."""

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.broker_process import BrokerProcess, until

SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    # Who leaves before its first answer does not know itself yet, and is missed only after a session.
    "group.consumer.min.session.timeout.ms": "10000",
    "group.consumer.session.timeout.ms": "10000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.assignment.interval.ms": "100",
    "offsets.topic.num.partitions": "3",
}
PARTITIONS, FLEET = 12, 6
COOPERATIVE, EAGER = "cooperative-sticky", "range"
_numbers = itertools.count(1)
Place = tuple[str, int]


class Ledger:
    """Who has which partition, as the members are told; what they have read."""

    def __init__(self) -> None:
        self.read: set[tuple[int, bytes]] = set()
        self.fewest = 0  # partitions that had an owner, since it was last set
        self.twice: list[str] = []
        self._owners: dict[Place, str] = {}
        self._lock = threading.Lock()

    def take(self, name: str, places: list[TopicPartition]) -> None:
        with self._lock:
            for one in places:
                owner = self._owners.setdefault((one.topic, one.partition), name)
                if owner != name:
                    self.twice.append(f"{one.topic}-{one.partition}: {owner}, and {name}")

    def give_up(self, name: str, places: list[TopicPartition]) -> None:
        with self._lock:
            for one in places:
                if self._owners.get((one.topic, one.partition)) == name:
                    del self._owners[(one.topic, one.partition)]
            self.fewest = min(self.fewest, len(self._owners))

    def shares(self) -> list[int]:
        """How many partitions each has; no partition has had two owners."""
        with self._lock:
            assert not self.twice
            owners = list(self._owners.values())
        return sorted(owners.count(name) for name in set(owners))


class Member:
    """A consumer; it polls in a thread of its own."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, ledger: Ledger, protocol: str, **more: str
    ) -> None:
        self.name, self.protocol = f"{protocol}-{next(_numbers)}", protocol
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
            "fetch.wait.max.ms": 50,
            **more,
        }
        if protocol == "consumer":
            config["group.protocol"] = "consumer"
        else:
            config |= {
                "partition.assignment.strategy": protocol,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 150,
            }
        self._ledger = ledger
        self._consumer = Consumer(config)
        self._consumer.subscribe(
            [topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Leave the group."""
        self._ending.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._ledger.take(self.name, places)

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._ledger.give_up(self.name, places)

    def _run(self) -> None:
        while not self._ending.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self._ledger.read.add((message.partition() or 0, message.value() or b""))
        self._consumer.close()


class Writing:
    """Produces, to all partitions in turn, until it is ended."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: set[tuple[int, bytes]] = set()
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        for number in itertools.count():
            if self._ending.wait(0.01):
                break
            value, partition = b"%d" % number, number % PARTITIONS

            def acknowledged(error: object, _: object, one: tuple[int, bytes] = (partition, value)) -> None:
                if error is None:
                    self.acknowledged.add(one)

            self._producer.produce(self._topic, value, partition=partition, on_delivery=acknowledged)
            self._producer.poll(0)
        self._producer.flush(30)


class Fleet:
    """Six members of a group, and what is produced for them."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.ledger = Ledger()
        self.writing = Writing(bootstrap, topic)
        self.members: list[Member] = []
        self._bootstrap, self._topic = bootstrap, topic
        self._group = f"fleet-{topic}"
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def start(self, protocol: str, **more: str) -> None:
        self.members.append(Member(self._bootstrap, self._group, self._topic, self.ledger, protocol, **more))

    def settle(self) -> None:
        shares = [PARTITIONS // len(self.members)] * len(self.members)
        until(lambda: self.ledger.shares() == shares, 60, f"the partitions are shared: {shares}")

    def group_type(self) -> ConsumerGroupType | None:
        listed = self._admin.list_consumer_groups().result().valid
        return next((one.type for one in listed if one.group_id == self._group), None)

    def roll(self, protocol: str, *, is_static: bool = False) -> None:
        """Restart the members one by one, the oldest first, each when the one before has its share."""
        for number in range(FLEET):
            self.members.pop(0).end()
            self.start(protocol, **({"group.instance.id": f"i-{number}"} if is_static else {}))
            self.settle()

    def end(self) -> None:
        """Let the members read all that there is, and leave."""
        self.writing.end()
        until(lambda: self.ledger.read >= self.writing.acknowledged, 60, "all is read")
        assert self.ledger.twice == []
        self.close()

    def close(self) -> None:
        self.writing.end()
        for member in self.members:
            member.end()
        self.members.clear()


@pytest.fixture
def fleet(server: BrokerProcess, new_topic: Callable[..., str]) -> Iterator[Fleet]:
    one = Fleet(server.bootstrap, new_topic(PARTITIONS))
    yield one
    one.close()


@pytest.mark.parametrize("assignor", [COOPERATIVE, EAGER])
def test_a_fleet_is_rolled_to_the_consumer_protocol_and_back(fleet: Fleet, assignor: str) -> None:
    for _ in range(2):  # in two parts: cooperative members send user data when they join again
        for _ in range(FLEET // 2):
            fleet.start(assignor)
        fleet.settle()
    assert fleet.group_type() is ConsumerGroupType.CLASSIC
    fleet.ledger.fewest = PARTITIONS
    fleet.roll("consumer")
    assert fleet.group_type() is ConsumerGroupType.CONSUMER
    fleet.roll(assignor)
    assert fleet.group_type() is ConsumerGroupType.CLASSIC
    if assignor == COOPERATIVE:
        assert fleet.ledger.fewest >= PARTITIONS // 2, "the whole group has stopped"
    fleet.end()
    assert len(fleet.writing.acknowledged) > PARTITIONS


def test_static_members_change_their_protocol_in_their_place(fleet: Fleet) -> None:
    for number in range(FLEET):
        fleet.start(COOPERATIVE, **{"group.instance.id": f"i-{number}"})
    fleet.settle()
    fleet.roll("consumer", is_static=True)
    assert fleet.group_type() is ConsumerGroupType.CONSUMER
    fleet.roll(COOPERATIVE, is_static=True)
    assert fleet.group_type() is ConsumerGroupType.CLASSIC
    fleet.end()


def test_a_fleet_is_restarted_without_waiting(fleet: Fleet) -> None:
    """Members join while the group rebalances, and while it changes its protocol."""
    for _ in range(FLEET):
        fleet.start(COOPERATIVE)
    for protocol in ("consumer", COOPERATIVE):
        for _ in range(FLEET):
            fleet.members.pop(0).end()
            fleet.start(protocol)
    fleet.settle()
    assert fleet.group_type() is ConsumerGroupType.CLASSIC
    fleet.end()


def test_a_broker_that_is_killed_finds_a_group_of_both_protocols(fleet: Fleet, server: BrokerProcess) -> None:
    for _ in range(FLEET):
        fleet.start(COOPERATIVE)
    fleet.settle()
    for protocol in ("consumer", COOPERATIVE):
        for number in range(FLEET):
            fleet.members.pop(0).end()
            if number % 2:
                server.kill()  # in the rebalance
                server.start()
            fleet.start(protocol)
            fleet.settle()
    assert fleet.group_type() is ConsumerGroupType.CLASSIC
    fleet.end()
