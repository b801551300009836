"""Random lives of idempotent producers against a model: lost answers, repeats, reorders, full disks, power
cuts, other writers. Whatever happened, every record that was acknowledged is there once, at the offset that
was told, in its producer's order.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog.log.config import TopicConfig
from sparklog.metadata import Image
from sparklog.storage import MemoryStore
from sparklog_server.publish.group_commit import GroupCommitter
from sparklog_server.publish.parts import AppendPart
from tests.support.roots import opened
from tests.support.several_brokers import take_over

PARTITIONS = 2
IN_FLIGHT = 5
NEAR_THE_WRAP = 2**31 - 7
CONFIG = TopicConfig.parse({})


@dataclass
class Batch:
    """What a producer has sent, or will send, for one partition."""

    producer: "Producer"
    epoch: int
    partition: int
    sequence: int
    values: list[bytes]
    offset: int | None = None  # once acknowledged
    time_ms: int = 1_700_000_000_000
    producer_id: int = field(init=False)  # of then

    def __post_init__(self) -> None:
        self.producer_id = self.producer.producer_id

    def part(self, image: Image) -> AppendPart:
        columns = RecordColumns(
            key=None,
            value=pa.array(self.values, pa.binary()),
            timestamp_ms=np.full(len(self.values), self.time_ms),
        )
        ids = EncodeOptions(
            producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=self.sequence
        )
        return AppendPart(
            topic_id=image.topic("t").topic_id,
            topic="t",
            partition=self.partition,
            encoded=encode_batches(columns, ids),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            leader_epoch=image.partition("t", self.partition).leadership.leader_epoch,
        )


@dataclass
class Producer:
    producer_id: int
    epoch: int = 0
    sequences: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    waiting: list[list[Batch]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])


class ProduceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = MemoryStore("produce", clock=self.clock)
        self.producers = [Producer(number) for number in range(3)]
        self.acknowledged: list[Batch] = []
        self.number = 0
        self.others = 0

    @initialize(near_the_wrap=st.booleans())
    def begin(self, near_the_wrap: bool) -> None:
        with opened(self.store, self.clock) as log:
            log.create_topic("t", PARTITIONS)
        self.open()
        if near_the_wrap:
            for producer in self.producers:
                producer.sequences = [NEAR_THE_WRAP] * PARTITIONS

    def open(self) -> None:
        self.log = opened(self.store, self.clock)
        registration = take_over(self.log)
        self.writer = GroupCommitter(self.log, lambda: registration, lambda topic: CONFIG)

    # --- producers -----------------------------------------------------------------------------------

    @rule(producer=st.integers(0, 2), partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 4))
    def produce(self, producer: int, partition: int, count: int) -> None:
        one = self.producers[producer]
        if len(one.waiting[partition]) >= IN_FLIGHT:
            return
        values = []
        for _ in range(count):
            values.append(b"t/%d/%d/%d" % (partition, producer, self.number))
            self.number += 1
        one.waiting[partition].append(Batch(one, one.epoch, partition, one.sequences[partition], values))
        one.sequences[partition] = (one.sequences[partition] + count) % (1 << 31)

    def is_known(self, batch: Batch) -> bool:
        state = self.log.image.partition("t", batch.partition)
        known = state.producers.get(batch.producer.producer_id)
        return known is not None and known.producer_epoch == batch.epoch

    def chosen(self, data: st.DataObject) -> list[Batch]:
        """A group commit: what producers send at about the same time."""
        queues: list[list[Batch]] = []
        for producer in self.producers:
            for waiting in producer.waiting:
                if not waiting:
                    continue
                queue = waiting[: data.draw(st.integers(0, len(waiting)))]
                # A client keeps its order on a connection; over several, or with its first batch lost on the
                # way, later ones may come first. For a new producer Kafka could not tell, nor can we.
                if queue and self.is_known(queue[0]) and data.draw(st.booleans()):
                    queue = data.draw(st.permutations(queue))
                queues.append(queue)
        old = [one for one in self.acknowledged if one.epoch == one.producer.epoch]
        repeats: bool = data.draw(st.booleans())
        if old and repeats:
            queues.append(data.draw(st.lists(st.sampled_from(old), max_size=3)))
        group: list[Batch] = []
        while any(queues):
            queue = data.draw(st.sampled_from([one for one in queues if one]))
            group.append(queue.pop(0))
        return group

    @rule(data=st.data(), failing=st.sampled_from(["", "", "", "", "write", "sync", "put_if_absent"]))
    def send(self, data: st.DataObject, failing: str) -> None:
        self.write(self.chosen(data), data, failing)

    def write(self, group: list[Batch], data: st.DataObject | None, failing: str = "") -> None:
        after = data.draw(st.integers(0, 2)) if failing and data is not None else 0

        def hook(operation: str, name: str) -> None:
            nonlocal after
            if operation == failing and (operation != "put_if_absent" or name.endswith(".json")):
                after -= 1
                if after < 0:
                    raise StorageError("STORAGE_FULL", "no space", fix="make some")

        self.store.hook = hook
        try:
            outcomes = self.writer.write([batch.part(self.log.image) for batch in group])
        finally:
            self.store.hook = None
        for batch, outcome in zip(group, outcomes, strict=True):
            if outcome.error is not None:
                self.refused(batch, getattr(outcome.error, "code", str(outcome.error)))
                continue
            if batch.offset is not None:
                assert outcome.base_offset == batch.offset
                assert outcome.duplicate
            elif data is None or data.draw(st.integers(0, 3)):  # else the answer is lost
                self.acknowledge(batch, outcome.base_offset)

    def refused(self, batch: Batch, code: str) -> None:
        assert code in {"STORAGE_FULL", "OUT_OF_ORDER_SEQUENCE"}, code
        assert batch.offset is None or code == "STORAGE_FULL", "a duplicate was not recognised"

    def acknowledge(self, batch: Batch, offset: int) -> None:
        batch.offset = offset
        batch.producer.waiting[batch.partition].remove(batch)
        self.acknowledged.append(batch)

    @rule(producer=st.integers(0, 2))
    def bump_epoch(self, producer: int) -> None:
        """A client does so once nothing of it is under way; sequences begin again."""
        one = self.producers[producer]
        if not any(one.waiting):
            one.epoch += 1
            one.sequences = [0] * PARTITIONS

    # --- the rest of the world -----------------------------------------------------------------------

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def spark_appends(self, partition: int) -> None:
        self.others += 1
        with opened(self.store, self.clock) as other:
            other.append("t", pa.table({"value": [b"spark %d" % self.others]}), partition=partition)

    @rule(snapshot=st.booleans())
    def restart(self, snapshot: bool) -> None:
        if snapshot:
            self.log.metadata.write_snapshot()
        self.store.crash()
        self.open()

    @precondition(lambda self: self.acknowledged)
    @rule(data=st.data())
    def old_epochs_are_fenced(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.acknowledged))
        if batch.epoch == batch.producer.epoch or not any(
            one.epoch > batch.epoch and one.producer is batch.producer and one.partition == batch.partition
            for one in self.acknowledged
        ):
            return
        (outcome,) = self.writer.write([batch.part(self.log.image)])
        assert getattr(outcome.error, "code", None) == "PRODUCER_FENCED"

    # --- the end -------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        self.restart(False)
        for producer in self.producers:
            for waiting in producer.waiting:
                for batch in list(waiting):
                    self.write([batch], None)
                assert not waiting, "a batch in order was refused"
        self.check()

    def check(self) -> None:
        for partition in range(PARTITIONS):
            found = self.log.read("t", partition, 0).column("value").to_pylist()
            ours = [value for value in found if not value.startswith(b"spark")]
            expected = sorted(
                (batch for batch in self.acknowledged if batch.partition == partition),
                key=lambda batch: batch.offset or 0,
            )
            for batch in expected:
                assert batch.offset is not None
                assert found[batch.offset : batch.offset + len(batch.values)] == batch.values
            assert len(ours) == len(set(ours)) == sum(len(batch.values) for batch in expected)
            for producer in self.producers:
                prefix = b"t/%d/%d/" % (partition, producer.producer_id)
                numbers = [int(value.split(b"/")[3]) for value in ours if value.startswith(prefix)]
                assert numbers == sorted(numbers)
        assert sum(self.log.log_end_offset("t", p) for p in range(PARTITIONS)) == self.number + self.others


TestProduceModel = ProduceMachine.TestCase
TestProduceModel.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
