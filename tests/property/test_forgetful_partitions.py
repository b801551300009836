"""As test_produce_model.py, with partitions that forget silent producers and merge what they wrote, at any
moment, far too early, and with records of any time: no record is there twice, none that was acknowledged is
lost, and a repetition has the offset that it was told, or is refused.

The producers do what librdkafka does when they hear UNKNOWN_PRODUCER_ID: they give up what they cannot be
sure of, and begin anew with another id.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from sparklog.maintenance import MergeLimits, optimize
from sparklog.metadata import ExpireProducers
from tests.property.test_produce_model import PARTITIONS, Batch, ProduceMachine

_LOST = {"STORAGE_FULL", "OUT_OF_ORDER_SEQUENCE", "UNKNOWN_PRODUCER"}


class ForgetfulMachine(ProduceMachine):
    def __init__(self) -> None:
        super().__init__()
        self.given_up: set[bytes] = set()
        self.has_forgotten = self.is_ending = False
        self.time_ms = 1_700_000_000_000

    @rule(producer=st.integers(0, 2), partition=st.integers(0, PARTITIONS - 1), later=st.integers(0, 1))
    def produce_at(self, producer: int, partition: int, later: int) -> None:
        """A record of now, or of then."""
        self.time_ms += later
        before = len(self.producers[producer].waiting[partition])
        self.produce(producer, partition, 1)
        for batch in self.producers[producer].waiting[partition][before:]:
            batch.time_ms = self.time_ms

    @rule(marks_only=st.booleans())
    def forget(self, marks_only: bool) -> None:
        self.has_forgotten |= not marks_only
        self.log.metadata.publish(lambda _: [ExpireProducers(time_ms=0, marks_only=marks_only)])

    @rule()
    def forget_all(self) -> None:
        self.forget(True)
        self.forget(False)

    @rule()
    def merge(self) -> None:
        optimize(self.log.metadata, self.clock, limits=MergeLimits(fan_in=None))

    def refused(self, batch: Batch, code: str) -> None:
        if not self.has_forgotten:
            super().refused(batch, code)
            return
        assert code in _LOST, code
        is_final = code == "UNKNOWN_PRODUCER" or self.is_ending
        if is_final and batch.offset is None and batch.producer_id == batch.producer.producer_id:
            self.give_up(batch)

    def acknowledge(self, batch: Batch, offset: int) -> None:
        if batch.producer_id == batch.producer.producer_id:  # else: nobody waits for it any more
            super().acknowledge(batch, offset)

    def give_up(self, batch: Batch) -> None:
        one = batch.producer
        for waiting in one.waiting:
            for other in waiting:
                self.given_up.update(other.values)
            waiting.clear()
        one.producer_id += 1000
        one.epoch = 0
        one.sequences = [0] * PARTITIONS

    @precondition(lambda self: self.acknowledged)
    @rule(data=st.data())
    def old_epochs_are_fenced(self, data: st.DataObject) -> None:
        """Or their epochs are forgotten, too: then they are repetitions all the same."""
        if not self.has_forgotten:
            super().old_epochs_are_fenced(data)

    def teardown(self) -> None:
        self.is_ending = True
        super().teardown()

    def check(self) -> None:
        for partition in range(PARTITIONS):
            found = self.log.read("t", partition, 0).column("value").to_pylist()
            ours = [value for value in found if not value.startswith(b"spark")]
            assert len(ours) == len(set(ours)), "a record is there twice"
            told = [batch for batch in self.acknowledged if batch.partition == partition]
            for batch in told:
                assert batch.offset is not None
                assert found[batch.offset : batch.offset + len(batch.values)] == batch.values
            assert set(ours) - self.given_up == {value for batch in told for value in batch.values}


TestForgetfulPartitions = ForgetfulMachine.TestCase
TestForgetfulPartitions.settings = settings(
    max_examples=80, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
