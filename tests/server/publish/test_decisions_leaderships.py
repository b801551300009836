"""Group commits of one of several brokers: parts whose leadership is lost go out, the rest is published."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import FencedError
from sparklog.log.config import TopicConfig
from sparklog.metadata import NO_NODE, plan_create_topic
from sparklog.storage import MemoryStore
from sparklog_server.cluster.membership import Registration
from sparklog_server.protocol.apis import ErrorCode, error_code
from sparklog_server.publish.group_commit import GroupCommitter
from sparklog_server.publish.parts import AppendPart
from tests.server.publish.surroundings import Surroundings
from tests.server.publish.test_group_commit import offsets, orders, values
from tests.server.publish.test_group_commit_races import before_first_commit
from tests.support.roots import opened
from tests.support.several_brokers import SeveralBrokers

A, B = 1, 2


class Node:
    """A broker's publisher, as its own process has it."""

    def __init__(self, log: SparkLog, registration: Registration) -> None:
        self.log, self.registration = log, registration
        self.committer = GroupCommitter(
            log, lambda: self.registration, lambda topic: TopicConfig.parse(topic.configs, log.image.configs)
        )

    def accept(self, sequence: int | None = None, partition: int = 0, *, count: int = 2) -> AppendPart:
        """A part as it is accepted now; of producer 5."""
        self.log.refresh()
        epoch = self.log.image.partition("orders", partition).leadership.leader_epoch
        producer = None if sequence is None else (5, 0, sequence)
        part = orders(self.log, partition, count=count, producer=producer)
        return msgspec.structs.replace(part, leader_epoch=epoch)

    def write(self, *parts: AppendPart) -> list[int | str]:
        return offsets(self.committer.write(parts))


@pytest.fixture
def brokers(store: MemoryStore, clock: ManualClock, log: SparkLog) -> SeveralBrokers:
    """The root has the topic `orders` with 3 partitions."""
    return SeveralBrokers(store, clock)


@pytest.fixture
def nodes(
    store: MemoryStore, clock: ManualClock, log: SparkLog, brokers: SeveralBrokers
) -> Iterator[tuple[Node, Node]]:
    """Brokers A and B; A leads all partitions of `orders`."""
    with opened(store, clock) as other:
        joined = brokers.join(A, log), brokers.join(B, other)
        for partition in range(3):
            brokers.lead(A, partition=partition)
        yield Node(log, joined[0]), Node(other, joined[1])


def test_a_leader_appends_what_it_accepts(nodes: tuple[Node, Node]) -> None:
    a, _ = nodes
    assert a.write(a.accept(0), a.accept(2), a.accept(partition=1)) == [0, 2, 0]
    assert a.write(a.accept(0), a.accept(4)) == [0, 4]


def test_who_does_not_lead_appends_nothing(nodes: tuple[Node, Node]) -> None:
    _, b = nodes
    before = b.log.refresh().commit
    assert b.write(b.accept(0), b.accept()) == ["NOT_LEADER"] * 2
    assert b.log.refresh().commit == before


def test_a_leadership_that_went_and_came_back_is_another_one(
    nodes: tuple[Node, Node], brokers: SeveralBrokers
) -> None:
    """The four steps of docs/adr/0026."""
    a, b = nodes
    accepted = a.accept()  # 1. A accepts, and stalls
    brokers.lead(B)  # 2. B leads; the client sends it there
    assert b.write(b.accept()) == [0]
    brokers.lead(A)  # 3. A leads again ...
    a.log.refresh()
    assert a.write(accepted) == ["NOT_LEADER"]  # 4. ... and wakes up
    assert len(values(a.log)) == 2


def test_it_went_and_came_back_between_the_data_and_the_commit(
    nodes: tuple[Node, Node], brokers: SeveralBrokers, store: MemoryStore
) -> None:
    a, b = nodes

    def move() -> None:
        brokers.lead(B)
        b.write(b.accept(count=1))
        brokers.lead(A)

    parts = a.accept(), a.accept(partition=1), a.accept()
    before_first_commit(store, move)
    assert a.write(*parts) == ["NOT_LEADER", 0, "NOT_LEADER"]
    assert len(values(a.log)) == 1
    assert len(values(a.log, partition=1)) == 2


def test_a_lost_part_is_answered_with_the_leader(nodes: tuple[Node, Node], brokers: SeveralBrokers) -> None:
    a, _ = nodes
    accepted = a.accept()
    brokers.lead(B)
    a.log.refresh()
    (outcome,) = a.committer.write([accepted])
    assert outcome.error is not None
    assert "found leader 2 in epoch 2" in str(outcome.error)
    assert error_code(outcome.error) is ErrorCode.not_leader_or_follower


def test_a_partition_that_nobody_leads_takes_nothing(
    nodes: tuple[Node, Node], brokers: SeveralBrokers
) -> None:
    a, _ = nodes
    accepted = a.accept()
    brokers.lead(NO_NODE)
    assert a.write(accepted, a.accept()) == ["NOT_LEADER"] * 2


def test_what_comes_behind_a_lost_part_does_not_take_its_place(
    nodes: tuple[Node, Node], brokers: SeveralBrokers
) -> None:
    """Five in flight; the first is accepted in an epoch that is over, the others in that of now."""
    a, _ = nodes
    lost = a.accept(0)
    brokers.lead(B)
    brokers.lead(A)
    behind = [a.accept(sequence) for sequence in (2, 4, 6, 8)]
    stranger = a.accept()
    assert a.write(lost, *behind[:3], stranger) == ["NOT_LEADER"] * 4 + [0]
    assert a.write(behind[3]) == ["OUT_OF_ORDER_SEQUENCE"]
    assert a.write(*[a.accept(sequence) for sequence in (0, 2, 4, 6, 8)]) == [2, 4, 6, 8, 10]


def test_a_repetition_in_the_commit_shares_the_fate(
    nodes: tuple[Node, Node], brokers: SeveralBrokers, store: MemoryStore
) -> None:
    a, _ = nodes
    parts = a.accept(0), a.accept(0)
    before_first_commit(store, lambda: brokers.lead(B))
    assert a.write(*parts) == ["NOT_LEADER"] * 2


def test_a_retry_finds_its_batch_at_the_new_leader(nodes: tuple[Node, Node], brokers: SeveralBrokers) -> None:
    """Acknowledgements were lost with broker A: their batches are in the image, whoever asks for them."""
    a, b = nodes
    assert a.write(a.accept(0), a.accept(2)) == [0, 2]
    brokers.lead(B)
    outcomes = b.committer.write([b.accept(sequence) for sequence in (0, 2, 4)])
    assert offsets(outcomes) == [0, 2, 4]
    assert [one.duplicate for one in outcomes] == [True, True, False]
    assert len(values(b.log)) == 6


# --- fenced ------------------------------------------------------------------------------------------


def test_a_fenced_broker_publishes_nothing_and_fails_nothing(
    nodes: tuple[Node, Node], brokers: SeveralBrokers, store: MemoryStore
) -> None:
    a, _ = nodes
    parts = a.accept(0), a.accept(partition=1)
    before_first_commit(store, lambda: brokers.fence(A))
    outcomes = a.committer.write(parts)
    assert offsets(outcomes) == ["BROKER_FENCED"] * 2
    assert [error_code(one.error) for one in outcomes if one.error] == [ErrorCode.not_leader_or_follower] * 2
    assert a.write(*parts) == ["NOT_LEADER"] * 2
    assert a.log.log_end_offset("orders", 0) == a.log.log_end_offset("orders", 1) == 0


def test_who_joins_again_publishes_nothing_of_before(
    nodes: tuple[Node, Node], brokers: SeveralBrokers
) -> None:
    a, _ = nodes
    accepted = a.accept(0)
    brokers.fence(A)
    a.log.refresh()
    a.registration = brokers.join(A, a.log)
    brokers.lead(A)
    assert a.write(accepted) == ["NOT_LEADER"]
    assert a.write(a.accept(0)) == [0]


def test_an_older_registration_of_the_node_publishes_nothing(
    nodes: tuple[Node, Node], brokers: SeveralBrokers
) -> None:
    """Its node leads, in an epoch that it can see: but it is another process that does."""
    a, _ = nodes
    brokers.fence(A)
    brokers.join(A)
    brokers.lead(A)
    assert a.write(a.accept(0)) == ["BROKER_FENCED"]


def test_what_was_published_is_acknowledged_though_the_broker_is_fenced_right_after(
    nodes: tuple[Node, Node], brokers: SeveralBrokers, store: MemoryStore
) -> None:
    """The commit is there, and every later image has it: a retry at the next leader is a repetition."""
    a, b = nodes
    accepted = a.accept(0)
    assert a.write(accepted) == [0]
    brokers.fence(A)
    brokers.lead(B)
    assert b.write(b.accept(0)) == [0]
    assert len(values(b.log)) == 2


def test_a_publisher_of_one_of_several_outlives_its_fence(
    nodes: tuple[Node, Node], brokers: SeveralBrokers
) -> None:
    """What it had accepted is refused, plans are too; when the broker has joined again it goes on."""
    a, _ = nodes
    surroundings = Surroundings(a.log)
    publisher, membership = surroundings.publisher, surroundings.membership
    membership.registration = a.registration
    image = a.log.image

    async def main() -> None:
        await publisher.start()
        accepted = a.accept(0)
        brokers.fence(A)
        with pytest.raises(FencedError, match="BROKER_FENCED"):
            await publisher.submit_plan(lambda image: [plan_create_topic(image, "new", 1, topic_id="N" * 22)])
        assert offsets(await publisher.submit([accepted])) == ["NOT_LEADER"]
        membership.registration = brokers.join(A)
        brokers.lead(A)
        assert offsets(await publisher.submit([a.accept(0)])) == [0]
        await publisher.submit_plan(lambda image: [plan_create_topic(image, "new", 1, topic_id="N" * 22)])
        await publisher.stop()

    asyncio.run(main())
    surroundings.root.close()
    assert surroundings.failures == []
    assert "new" in a.log.image.topics
    assert "new" not in image.topics
