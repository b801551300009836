"""Idempotent producers: each repeats a batch until it knows where it is, however long that takes.

A role is a producer, and its process the broker that it is connected to: the producer lives on when that is
killed, and asks the next one, perhaps after a while. There are more of them than an image remembers, and in
some histories silent ones are forgotten, far too early. The same is planned here as in the broker's publisher
(sparklog_server/publish), with the same functions. What a partition cannot tell from a repetition any more is
given up, and the producer begins anew with another id, as librdkafka does.
"""

from dataclasses import dataclass, field

import msgspec

from sparklog.client import SparkLog
from sparklog.errors import InvalidRequestError, RetriableError, StorageError
from sparklog.metadata import Action, AppendExtents, DraftExtent, Image, appended_offset, plan_append
from tests.history.recorder import History
from tests.simulation.keyed import KEYED
from tests.simulation.processes import Role, end_open, key_of, stage
from tests.simulation.setting import TOPICS
from tests.simulation.world import SimProcess

_EPOCH = 0
_IDS = 1000  # more than there are producers


@dataclass
class _Batch:
    """One that was sent, and is not known to be appended."""

    place: tuple[str, int]
    sequence: int
    values: list[str]
    time_ms: int  # each attempt is the same bytes


@dataclass
class Producer(Role):
    """See the module's docstring."""

    producer_id: int = 0
    sent: int = 0
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)  # the next ones
    pending: _Batch | None = None

    def act(self, log: SparkLog, history: History, process: SimProcess) -> bool:
        if self.pending is None:
            place = self._topic(), self.setting.dice.randrange(min(2, self.setting.partitions))
            if place[0] not in log.refresh().topics:
                return False
            self.pending = self._next_batch(place, process)
        elif self.setting.dice.random() < 0.7 and not process.world.calm:
            return False
        self._produce(log, history, self.pending)
        return True

    def _topic(self) -> str:
        if self.setting.compaction is None or self.setting.dice.random() < 0.3:
            return TOPICS[0]
        return KEYED

    def _next_batch(self, place: tuple[str, int], process: SimProcess) -> _Batch:
        count = self.setting.dice.choice((1, 1, 3))
        values = [self.setting.new_text(place[0], self.name, self.sent + number) for number in range(count)]
        self.sent += count
        time_ms = process.now_ms() if self.setting.producers_of_now else 0
        self.setting.witness.stamps.update(dict.fromkeys(values, time_ms))
        return _Batch(place, self.sequences.get(place, 0), values, time_ms)

    def _produce(self, log: SparkLog, history: History, batch: _Batch) -> None:
        values = {key_of(batch.place): batch.values}
        sending = history.send(values, txn=f"{self.producer_id}/{batch.place}/{batch.sequence}")
        try:
            drafts = stage(self.setting, log, log.writer, values).drafts
            log.writer.sync(drafts)
            base_offset = self._publish(log, batch, self._marked(drafts, batch))
        except InvalidRequestError as error:
            if error.code != "UNKNOWN_PRODUCER" or not self.setting.forgets:
                raise
            sending.info("the partition has forgotten the producer")
            self.setting.world.met["batch given up, as its producer was forgotten"] += 1
            self._begin_anew()
            return
        except StorageError as error:
            end_open(sending, error)
            raise
        except RetriableError as error:
            sending.fail(error)
            raise
        if self.setting.world.chance(0.1, "acknowledgement lost"):
            sending.info("the connection to the broker was lost")
            return
        offsets = range(base_offset, base_offset + len(batch.values))
        sending.ok({key_of(batch.place): (batch.values, offsets)})
        self.sequences[batch.place] = batch.sequence + len(batch.values)
        self.pending = None

    def _begin_anew(self) -> None:
        self.producer_id += _IDS
        self.sequences.clear()
        self.pending = None

    def _marked(self, drafts: tuple[DraftExtent, ...], batch: _Batch) -> list[DraftExtent]:
        (draft,) = drafts
        fields = {
            "producer_id": self.producer_id,
            "producer_epoch": _EPOCH,
            "base_sequence": batch.sequence,
            "max_timestamp_ms": batch.time_ms,
        }
        return [msgspec.structs.replace(draft, **fields)]

    def _publish(self, log: SparkLog, batch: _Batch, drafts: list[DraftExtent]) -> int:
        """The batch's first offset, from this attempt or from an earlier one."""

        def plan(image: Image) -> list[Action]:
            return [plan_append(image, drafts)]

        try:
            (appended,) = log.metadata.publish(plan).actions
        except InvalidRequestError as error:
            if error.code != "DUPLICATE_SEQUENCE":
                raise
            state = log.image.partition(*batch.place)
            offset = appended_offset(state, self.producer_id, _EPOCH, batch.sequence, len(batch.values))
            if offset is None:
                raise AssertionError(f"{self.name}: {error}, and it is nowhere") from error
            self.setting.world.met["batch repeated after it was appended"] += 1
            return offset
        assert isinstance(appended, AppendExtents)
        return appended.extents[0].base_offset
