"""Idempotent producers, five in flight, while leaderships move, come back and end: between accepting
and writing, between the data and the commit, between a commit and its answer. Clients retry as Java's does.
Whatever happened, every record is there once, at the offset that was told, in its producer's order; and no
client is refused what it cannot repeat.

One thing is left out, which Kafka does not promise either: a partition that knows nothing of a producer takes
whatever sequence comes first (it may have known it, and forgotten). So a producer that begins while the
leadership moves may have its second batch taken by the next leader before the first one is refused by the
last. Clients here wait for their first batch before they send to another broker.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from sparklog.clock import ManualClock
from sparklog.log.config import TopicConfig
from sparklog.metadata import NO_NODE
from sparklog.storage import MemoryStore
from sparklog_server.publish.group_commit import GroupCommitter
from sparklog_server.publish.parts import AppendPart, PartOutcome
from tests.server.publish.batches import batch as encoded
from tests.server.publish.batches import part
from tests.support.roots import opened
from tests.support.several_brokers import SeveralBrokers

NODES = (1, 2)
IN_FLIGHT = 5
CONFIG = TopicConfig.parse({})
RETRIED = {"NOT_LEADER", "BROKER_FENCED", "OUT_OF_ORDER_SEQUENCE"}


@dataclass(eq=False)
class Batch:
    """Of one producer: in flight, or to be sent (again)."""

    producer: "Producer"
    sequence: int
    count: int
    is_in_flight: bool = False
    sent_to: int = NO_NODE  # the last time
    is_retry: bool = False
    offset: int | None = None  # once acknowledged

    @property
    def values(self) -> list[bytes]:
        return [b"%d/%d" % (self.producer.producer_id, self.sequence + n) for n in range(self.count)]


@dataclass(eq=False)
class Producer:
    """Writes to one partition."""

    producer_id: int
    sequence: int = 0
    unacknowledged: list[Batch] = field(default_factory=list)

    def next_to_send(self) -> Batch | None:
        """In order; what is repeated goes alone, before what comes behind it."""
        for number, batch in enumerate(self.unacknowledged[:IN_FLIGHT]):
            if not batch.is_in_flight:
                return None if batch.is_retry and number else batch
        return None

    def begins_at_another(self, node_id: int) -> bool:
        """Its very first batch is in flight to another broker."""
        first = self.unacknowledged[0]
        return first.sequence == 0 and first.is_in_flight and first.sent_to != node_id


class Node:
    """A broker: what it has accepted, in the epochs of its image."""

    def __init__(self, node_id: int, store: MemoryStore, clock: ManualClock, brokers: SeveralBrokers) -> None:
        self.node_id = node_id
        self.log = opened(store, clock)
        self.registration = brokers.join(node_id, self.log)
        self.writer = GroupCommitter(self.log, lambda: self.registration, lambda topic: CONFIG)
        self.accepted: list[tuple[Batch, AppendPart]] = []

    def accept(self, batch: Batch) -> bool:
        """As of the image that it has; an older one may say what is over."""
        topic = self.log.image.topic("t")
        leadership = topic.partitions[0].leadership
        if leadership.leader != self.node_id:
            return False
        data = encoded(
            batch.values,
            producer_id=batch.producer.producer_id,
            producer_epoch=0,
            base_sequence=batch.sequence,
        )
        made = part(data, topic_id=topic.topic_id, topic="t")
        self.accepted.append((batch, msgspec.structs.replace(made, leader_epoch=leadership.leader_epoch)))
        return True

    def write(self) -> list[tuple[Batch, PartOutcome]]:
        batches, parts = [one for one, _ in self.accepted], [one for _, one in self.accepted]
        self.accepted = []
        return list(zip(batches, self.writer.write(parts), strict=True))


class LeadershipMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        clock, self.acknowledged = ManualClock(), list[Batch]()
        self.store = MemoryStore("leaderships", clock=clock)
        with opened(self.store, clock) as log:
            log.create_topic("t", 1)
        self.brokers = SeveralBrokers(self.store, clock)
        self.nodes = {node: Node(node, self.store, clock, self.brokers) for node in NODES}
        self.producers, self.ended = [Producer(number) for number in range(2)], list[Producer]()
        self.brokers.assign(NODES, "t")
        self.move(NODES[0])

    # --- leaderships ---------------------------------------------------------------------------------

    @rule(node_id=st.sampled_from((*NODES, NO_NODE)))
    def move(self, node_id: int) -> None:
        image = self.brokers.log.refresh()
        leads = image.partition("t", 0).leadership.leader
        if node_id != leads and (node_id == NO_NODE or not image.brokers[node_id].is_fenced):
            self.brokers.lead(node_id, "t")

    def move_and_back(self, node_id: int) -> None:
        """Nobody has looked in between."""
        (other,) = (one for one in NODES if one != node_id)
        self.move(other)
        self.move(node_id)
        self.look(node_id)

    @rule(node_id=st.sampled_from(NODES))
    def fence(self, node_id: int) -> None:
        if not self.brokers.log.refresh().brokers[node_id].is_fenced:
            self.brokers.fence(node_id)

    @rule(node_id=st.sampled_from(NODES))
    def join_again(self, node_id: int) -> None:
        node = self.nodes[node_id]
        if self.brokers.log.refresh().brokers[node_id].is_fenced:
            node.registration = self.brokers.join(node_id, node.log)

    @rule(node_id=st.sampled_from(NODES))
    def look(self, node_id: int) -> None:
        self.nodes[node_id].log.refresh()

    # --- clients -------------------------------------------------------------------------------------

    @rule(producer=st.integers(0, 1), counts=st.lists(st.integers(1, 3), min_size=2, max_size=IN_FLIGHT))
    def produce(self, producer: int, counts: Sequence[int]) -> None:
        one = self.producers[producer]
        if one.sequence and not one.unacknowledged:  # a partition knows nothing of a new one
            self.ended.append(one)
            one = self.producers[producer] = Producer(len(self.ended) + len(self.producers))
        for count in counts:
            one.unacknowledged.append(Batch(one, one.sequence, count))
            one.sequence += count

    @rule(
        producer=st.integers(0, 1),
        node_id=st.sampled_from(NODES),
        batches=st.integers(1, IN_FLIGHT),
        moves_after=st.integers(0, IN_FLIGHT - 1),
        is_led=st.booleans(),
    )
    def send(
        self, producer: int, node_id: int, batches: int, moves_after: int = 0, *, is_led: bool = True
    ) -> None:
        """After so many of them, which are in flight then, the leadership goes and comes back.

        `is_led`: to the leader of now; else perhaps to one that is over, and does not know.
        """
        if is_led:
            self.join_again(node_id)
            self.move(node_id)
            self.look(node_id)
        for number in range(batches):
            if number == moves_after > 0:
                self.move_and_back(node_id)
            batch = self.producers[producer].next_to_send()
            if (
                batch is None
                or batch.producer.begins_at_another(node_id)
                or not self.nodes[node_id].accept(batch)
            ):
                return
            batch.is_in_flight, batch.sent_to = True, node_id

    # --- brokers -------------------------------------------------------------------------------------

    @rule(
        node_id=st.sampled_from(NODES),
        moves=st.lists(st.sampled_from(NODES), max_size=3),
        lost=st.booleans(),
        others=st.booleans(),
    )
    def write(self, node_id: int, moves: Sequence[int], lost: bool, others: bool) -> None:
        """`moves` and the other's writing happen between the data and the commit."""
        (other,) = (one for one in NODES if one != node_id)

        def meanwhile() -> None:
            for mover in moves:
                self.move(mover)
                if others:
                    self.answer(self.nodes[other], lost=False)

        self.answer(self.nodes[node_id], lost=lost, meanwhile=meanwhile if moves else None)

    def answer(self, node: Node, *, lost: bool, meanwhile: Callable[[], None] | None = None) -> None:
        def hook(operation: str, name: str) -> None:
            if operation == "sync" and meanwhile is not None:
                self.store.hook = None
                meanwhile()

        self.store.hook = hook
        try:
            outcomes = node.write()
        finally:
            self.store.hook = None
        for batch, outcome in outcomes:
            batch.is_in_flight = False
            if lost:
                batch.is_retry = True
            elif outcome.error is None:
                batch.offset = outcome.base_offset
                self.acknowledged.append(batch)
            else:
                code = getattr(outcome.error, "code", str(outcome.error))
                assert code in RETRIED, code
                behind = batch.producer.unacknowledged[0] is not batch
                assert behind or code != "OUT_OF_ORDER_SEQUENCE", "a client would give up"
                batch.is_retry = True
        for producer in self.producers:
            producer.unacknowledged = [one for one in producer.unacknowledged if one.offset is None]

    # --- the end -------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "nodes"):
            return
        for node_id in NODES:
            self.join_again(node_id)
            self.answer(self.nodes[node_id], lost=False)
        self.move(NODES[0])
        self.look(NODES[0])
        for _ in range(1000):
            if not any(producer.unacknowledged for producer in self.producers):
                break
            for number in range(len(self.producers)):
                self.send(number, NODES[0], IN_FLIGHT)
            self.answer(self.nodes[NODES[0]], lost=False)
        self.check()

    def check(self) -> None:
        log = self.brokers.log
        log.refresh()
        found: list[bytes] = log.read("t", 0, 0).column("value").to_pylist()
        for batch in self.acknowledged:
            assert batch.offset is not None
            assert found[batch.offset : batch.offset + batch.count] == batch.values
        for producer in (*self.producers, *self.ended):
            assert not producer.unacknowledged
            prefix = b"%d/" % producer.producer_id
            numbers = [int(value.split(b"/")[1]) for value in found if value.startswith(prefix)]
            assert numbers == list(range(producer.sequence))


TestLeadershipModel = LeadershipMachine.TestCase
TestLeadershipModel.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
