"""Random lives of brokers on an object store that publish for each other, and of the producers behind them.

While a broker waits, others go on: they publish, leaderships move, brokers are fenced and join again,
requests and their answers are lost. Clients send a batch again, to whoever leads by then, before they have
heard of the first time. Whatever happened: every batch is there once, at the offset that its client was
told, in its producer's order.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sparklog.client import SparkLog
from sparklog.errors import FencedError, StorageError
from sparklog.metadata import RequestApplied
from sparklog.metadata.documents.properties import REQUESTS
from sparklog.metadata.loading import read_commits
from sparklog.storage import IndefinitePutError, MemoryStore
from sparklog_server.publish.parts import AppendPart
from tests.metadata.combining_publishers import REMOTE, SleepyClock
from tests.server.publish.batches import batch, part
from tests.server.publish.test_decisions_leaderships import Node
from tests.server.publish.test_group_commit import values
from tests.support.roots import opened
from tests.support.several_brokers import SeveralBrokers

NODES, PARTITIONS, PRODUCERS = (1, 2, 3), 3, 2
FAILING = ("put_hint", "list", "open_read", "put_if_absent", "put_if_absent:done")
STEPS = 25


@dataclass
class Producer:
    """It sends batches of two records to one partition, and goes on when both in flight are answered."""

    producer_id: int
    partition: int
    sequence: int = 0
    waiting: list[int] = field(default_factory=list)  # base sequences
    told: dict[int, int] = field(default_factory=dict)  # by base sequence: the offset

    def texts(self, sequence: int) -> list[bytes]:
        return [b"%d/%d" % (self.producer_id, sequence + number) for number in range(2)]

    def parts(self, node: Node, epoch: int) -> list[AppendPart]:
        """All that it waits for, or something new."""
        if not self.waiting:
            self.waiting = [self.sequence, self.sequence + 2]
            self.sequence += 4
        topic_id = node.log.image.topic("orders").topic_id
        return [
            replace(
                part(
                    batch(
                        self.texts(sequence),
                        producer_id=self.producer_id,
                        producer_epoch=0,
                        base_sequence=sequence,
                    ),
                    topic_id=topic_id,
                    partition=self.partition,
                ),
                leader_epoch=epoch,
            )
            for sequence in self.waiting
        ]

    def hear(self, sequence: int, offset: int) -> None:
        assert self.told.setdefault(sequence, offset) == offset, (self, sequence, offset)
        if sequence in self.waiting:
            self.waiting.remove(sequence)


class Life:
    """A root, its brokers, and what happens to them."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.clock = dice, SleepyClock()
        self.store = MemoryStore("life", clock=self.clock, traits=REMOTE)
        self.met: Counter[str] = Counter()
        self.busy: list[int] = []  # brokers in whose call we are
        self.calm = False
        first = opened(self.store, self.clock)
        first.create_topic("orders", PARTITIONS)
        self.brokers = SeveralBrokers(self.store, self.clock)
        logs: dict[int, SparkLog] = {node: opened(self.store, self.clock) for node in NODES}
        self.nodes = {node: Node(log, self.brokers.join(node, log)) for node, log in logs.items()}
        for partition in range(PARTITIONS):
            self.brokers.lead(dice.choice(NODES), partition=partition)
        self.producers = [
            Producer(10 * partition + number, partition)
            for partition in range(PARTITIONS)
            for number in range(PRODUCERS)
        ]
        self.store.hook = self.fail

    def fail(self, operation: str, name: str) -> None:
        """Sometimes a request or its answer is lost."""
        if self.calm or not self.busy or operation not in FAILING or self.dice.random() > 0.03:
            return
        self.met["lost"] += 1
        if operation == "put_if_absent:done" and not name.startswith(REQUESTS):
            raise IndefinitePutError("STORE_UNAVAILABLE", "no answer", fix="wait")
        raise StorageError("STORE_UNAVAILABLE", "away", fix="wait")

    def step(self) -> None:
        """Something happens; while somebody waits, other things do."""
        if len(self.busy) > 2:
            return
        kind = self.dice.choice(("write", "write", "write", "write", "move", "fence"))
        free = [node for node in NODES if node not in self.busy]
        if kind == "write" and free:
            self.write(self.dice.choice(free))
        elif kind == "move":
            self.undisturbed(self.move)
        elif kind == "fence" and self.dice.random() < 0.3:
            self.undisturbed(lambda: self.fence(self.dice.choice(NODES)))

    def undisturbed(self, action: object) -> None:
        """The controller is in order."""
        busy, self.busy = self.busy, []
        meanwhile, self.clock.meanwhile = self.clock.meanwhile, []
        try:
            action()  # type: ignore[operator]
        finally:
            self.busy, self.clock.meanwhile = busy, meanwhile

    def move(self) -> None:
        image, partition = self.brokers.log.refresh(), self.dice.randrange(PARTITIONS)
        alive = [node for node in NODES if not image.brokers[node].is_fenced]
        now = image.partition("orders", partition).leadership.leader
        others = [node for node in alive if node != now]
        if others:
            self.brokers.lead(self.dice.choice(others), partition=partition)

    def fence(self, node: int) -> None:
        if not self.brokers.log.refresh().brokers[node].is_fenced:
            self.brokers.fence(node)
            self.met["fenced"] += 1

    def write(self, number: int) -> None:
        """A broker publishes what clients send it."""
        node = self.nodes[number]
        if self.brokers.log.refresh().brokers[number].is_fenced:
            if node.log.refresh().brokers[number].is_fenced:
                self.undisturbed(lambda: self.join(node))
            return
        image = node.log.image if self.dice.random() < 0.5 else node.log.refresh()
        parts: list[tuple[Producer, AppendPart]] = []
        for producer in self.producers:
            led = image.partition("orders", producer.partition).leadership
            if led.leader == number and self.dice.random() < 0.8:
                parts += [(producer, one) for one in producer.parts(node, led.leader_epoch)]
        if not parts:
            return
        if self.dice.random() < 0.7:
            node.log.metadata.combiner.contention.note_costly(60_000)
        meanwhile, self.clock.meanwhile = self.clock.meanwhile, []
        self.clock.meanwhile += [self.step] * self.dice.randrange(4)
        self.busy.append(number)
        try:
            outcomes = node.committer.write([one for _, one in parts])
        finally:
            self.busy.pop()
            self.clock.meanwhile = meanwhile
        for (producer, one), outcome in zip(parts, outcomes, strict=True):
            if outcome.error is None:
                producer.hear(one.base_sequence, outcome.base_offset)
            self.met[getattr(outcome.error, "code", "duplicate" if outcome.duplicate else "appended")] += 1

    def join(self, node: Node) -> None:
        try:
            node.registration = self.brokers.join(node.registration.node_id, node.log)
        except FencedError:
            return

    def come_to_an_end(self) -> None:
        """Nothing fails any more: all that clients wait for is published."""
        self.calm, self.clock.meanwhile = True, []
        for number, node in self.nodes.items():
            if self.brokers.log.refresh().brokers[number].is_fenced:
                self.join(node)
        for _ in range(20):
            for partition in range(PARTITIONS):
                if self.brokers.log.refresh().partition("orders", partition).leadership.leader < 0:
                    self.move()
            for number, node in self.nodes.items():
                node.log.refresh(force=True)
                if any(producer.waiting for producer in self.producers):
                    self.write(number)
        log = self.brokers.log
        log.refresh(force=True)
        for producer in self.producers:
            there = values(log, partition=producer.partition)
            own = [text for text in there if text.startswith(b"%d/" % producer.producer_id)]
            sent = [b"%d/%d" % (producer.producer_id, number) for number in range(len(own))]
            assert own == sent, (producer, own)
            assert not [one for one in producer.waiting if one in producer.told]
            for sequence, offset in producer.told.items():
                assert there[offset : offset + 2] == producer.texts(sequence), (producer, sequence, there)

    def combined(self) -> int:
        """Requests that others than their publishers have applied."""
        image = self.brokers.log.image
        commits = read_commits(self.store, range(image.commit + 1), image.cluster_id)
        return sum(
            max(0, sum(isinstance(one, RequestApplied) and one.actions > 0 for one in actions) - 1)
            for _, actions in commits
        )


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1 << 40))
def test_each_batch_is_there_once_where_its_client_was_told(seed: int) -> None:
    life = Life(random.Random(seed))
    for _ in range(STEPS):
        life.step()
        life.clock.advance_ms(life.dice.choice((1, 50, 6_000)))
    life.come_to_an_end()
    event(f"combined: {min(life.combined(), 5)}")
    for what in life.met:
        event(what)
