"""Clients of simulated brokers: idempotent producers with several batches in flight, who ask for the leader.

A role is a client; what it knows outlives its process. Of each partition it sends up to IN_FLIGHT batches, in
order, to whom some broker takes for the leader; what is refused, or not answered in time, is sent again with
all that came after it, until every batch is acknowledged. Requests on a connection that breaks are lost from
some place on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sparklog.client import SparkLog
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog.metadata import NO_NODE, Image
from sparklog_server.publish.parts import AppendPart, PartOutcome
from tests.history.recorder import History, Operation
from tests.simulation.broker_life import Node, Sent
from tests.simulation.processes import Role, key_of
from tests.simulation.setting import TOPICS
from tests.simulation.world import SimProcess

IN_FLIGHT = 5
_PATIENCE_MS = 3_000
_EPOCH = 0


@dataclass(eq=False)
class _Batch:
    """One that was sent, and is not known to be appended."""

    partition: int
    sequence: int
    values: list[str]
    operation: Operation
    offset: int | None = None  # once it is known


@dataclass
class _Lane:
    """A partition, as one client sees it."""

    sequence: int = 0
    open: list[_Batch] = field(default_factory=list)
    waiting: int = 0  # batches without an answer
    asked_ms: int = 0
    turn: int = 0  # answers to an earlier sending say nothing of this one, but for offsets


@dataclass
class Client(Role):
    """See the module's docstring."""

    producer_id: int = 0
    brokers: list[Node] = field(default_factory=list)
    lanes: dict[int, _Lane] = field(default_factory=dict)
    sent: int = 0

    def act(self, log: SparkLog, history: History, process: SimProcess) -> bool:
        del log  # a client has none: it knows what brokers tell it
        acknowledged = self._take_answers()
        unanswered = [number for number, one in self.lanes.items() if one.open]
        begins = self.done_before is None or self.done == self.done_before
        choices = range(self.setting.partitions) if begins or not unanswered else unanswered
        partition = self.setting.dice.choice(choices)
        lane = self.lanes.setdefault(partition, _Lane())
        now_ms = process.monotonic_ms()
        if lane.waiting and now_ms - lane.asked_ms < _PATIENCE_MS:
            return acknowledged
        broker = self._leader(partition)
        if broker is None:
            return acknowledged
        if begins:
            self._begin_batches(partition, lane, history)
        if not lane.open:
            return acknowledged
        lane.asked_ms = now_ms
        lane.turn += 1
        lane.waiting = len(lane.open)
        lost_from = len(lane.open)
        if process.world.chance(0.05, "connection to a broker lost"):
            lost_from = self.setting.dice.randrange(len(lane.open))
        for batch in lane.open[:lost_from]:
            broker.inbox.append(Sent(self._part_of(batch), partition, self._told(lane, batch, process)))
        return acknowledged

    @property
    def has_recovered(self) -> bool:
        """Everything that it has sent is acknowledged, and something was since the last fault."""
        return super().has_recovered and not any(lane.open for lane in self.lanes.values())

    def _leader(self, partition: int) -> Node | None:
        """As any broker says, which may be wrong by now."""
        node = self.setting.dice.choice(self.brokers).believed_leader(partition)
        return next((one for one in self.brokers if one.node == node != NO_NODE), None)

    def _begin_batches(self, partition: int, lane: _Lane, history: History) -> None:
        dice = self.setting.dice
        for _ in range(dice.randint(0 if lane.open else 1, IN_FLIGHT)):
            if len(lane.open) >= IN_FLIGHT:
                return
            count = dice.choice((1, 1, 3))
            values = [f"{TOPICS[0]}/{self.name}/{self.sent + number}" for number in range(count)]
            self.sent += count
            operation = history.send({key_of((TOPICS[0], partition)): values})
            lane.open.append(_Batch(partition, lane.sequence, values, operation))
            lane.sequence += count

    def _told(self, lane: _Lane, batch: _Batch, process: SimProcess) -> Callable[[PartOutcome], None]:
        turn = lane.turn

        def told(outcome: PartOutcome) -> None:
            if outcome.error is None:
                known = batch.offset
                assert known in {None, outcome.base_offset}, f"{batch.values}: {outcome}, {known}"
                batch.offset = outcome.base_offset
            if turn == lane.turn:
                lane.waiting -= 1
            process.call()

        return told

    def _take_answers(self) -> bool:
        found = False
        for partition, lane in self.lanes.items():
            while lane.open and lane.open[0].offset is not None:  # in order, as histories are written
                batch = lane.open.pop(0)
                assert batch.offset is not None
                offsets = range(batch.offset, batch.offset + len(batch.values))
                batch.operation.ok({key_of((TOPICS[0], partition)): (batch.values, offsets)})
                found = True
        return found

    def _part_of(self, batch: _Batch) -> Callable[[Image, str, int], AppendPart]:
        ids = EncodeOptions(producer_id=self.producer_id, producer_epoch=_EPOCH, base_sequence=batch.sequence)

        def part(_image: Image, topic_id: str, leader_epoch: int) -> AppendPart:
            columns = RecordColumns(
                key=None,
                value=pa.array([one.encode() for one in batch.values], pa.binary()),
                timestamp_ms=np.zeros(len(batch.values), np.int64),
            )
            return AppendPart(
                topic_id=topic_id,
                topic=TOPICS[0],
                partition=batch.partition,
                encoded=encode_batches(columns, ids),
                producer_id=self.producer_id,
                producer_epoch=_EPOCH,
                base_sequence=batch.sequence,
                leader_epoch=leader_epoch,
            )

        return part
