"""Members of a group that consume, transform and produce, each of its transactions with the group's offsets.

A role is a process of an application; all are members of one group, and have a transactional id each, which
the next process takes over. What a member is given it reads from where the group has committed, as far as
that is stable, makes one record of each, and commits those with its new offset. It may be given up, and come
back, in the midst of all that. Each speaks one of Kafka's protocols. With the first, some take a new epoch
after they have aborted something of which they do not know whether it arrives; others keep theirs, and the
sequences of what was not acknowledged, as kafkajs does, and librdkafka where only offsets are in doubt.
Those begin the next one at once, while what they have given up still waits somewhere.

Invariants, for tests/history: a record of the source has one record that was made of it, however often that
    was tried; and it is there if, and only if, the group's offset is above.
Not here: the coordinators, which are real (coordinators.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from sparklog.client import SparkLog
from sparklog.errors import FencedError, InvalidRequestError, SparklogError, UnknownTopicError
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog.metadata import NO_NODE, Image, plan_abort_transactions, timed_out
from sparklog_server.coordination.staging import StagedBy
from sparklog_server.groups.offsets import OffsetToCommit
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.publish.parts import AppendPart, InTransaction, PartOutcome
from sparklog_server.transactions.coordinator import Producer
from tests.history.recorder import History, Operation
from tests.simulation.broker_life import Sent
from tests.simulation.in_group import (
    ANOTHERS,
    GROUP,
    MADE,
    OVER,
    PATIENCE_MS,
    REBALANCE_MS,
    SESSION_MS,
    SOURCE,
    Grouped,
    NoAnswerError,
    Place,
)
from tests.simulation.processes import key_of
from tests.simulation.world import SimProcess


@dataclass
class _Open:
    """A transaction, and how far it is."""

    source: int  # partition
    end: int  # offset to be committed
    values: dict[Place, list[str]]
    left: list[tuple[Place, list[str]]]
    history: History
    sending: Operation
    is_added: bool = False
    has_offsets: bool = False
    commits: bool | None = None
    committing: Operation | None = None  # of the offset, once a commit was asked for


@dataclass
class Member(Grouped):
    """See the module's docstring."""

    second: bool = False
    keeps_epoch: bool = False  # after an abort, in the first protocol
    timeout_ms: int = 60_000
    producer: Producer | None = None
    sequences: dict[Place, int] = field(default_factory=dict)
    open: _Open | None = None
    made_in: int | None = None  # a partition that most records are made in
    given_up: int | None = None  # of a transaction that was aborted: its source
    attempts: int = 0
    settled: bool = False  # has committed, or found nothing to do, since the last fault

    def live(self, process: SimProcess) -> None:
        self.member_id, self.producer, self.open = "", None, None
        self.rejoin()
        super().live(process)

    @property
    def has_recovered(self) -> bool:
        """It has its partitions, and has caught up, or made something of what is there."""
        return self.done_before is not None and self.settled

    def act(self, log: SparkLog, history: History, process: SimProcess) -> bool:
        image = log.refresh()
        if SOURCE not in image.topics or MADE not in image.topics:
            return False
        self._abort_what_takes_too_long(log, process)
        try:
            return self._step(log, history, process)
        except NoAnswerError:
            return False

    def _step(self, log: SparkLog, history: History, process: SimProcess) -> bool:
        if self.producer is None:
            self.producer = self.ask(
                process,
                self.any_broker(),
                lambda c: c.transactions.initialise(self.name, self.timeout_ms, None),
            )
            self.sequences = {}
            return True
        if self.open is not None:
            return self._go_on(self.open, log, process)
        if self.generation < 0:
            return self.join(process)
        if self.setting.dice.random() < 0.3 and not self.is_still_member(process):
            return False
        missing = [one for one in self.assigned if one not in self.positions]
        if missing:
            return self.find_position(history, process, missing[0])
        return self._begin(log, history)

    # --- a transaction -----------------------------------------------------------------------------------

    def _begin(self, log: SparkLog, history: History) -> bool:
        dice = self.setting.dice
        ends = {one: log.log_end_offset(SOURCE, one) for one in self.assigned}
        behind = [one for one in self.assigned if self.positions[one] < ends[one]]
        if not behind:
            self.settled = self.settled or self.done_before is not None
            return False
        if self.given_up in behind and len(behind) > 1 and dice.random() < 0.7:
            behind.remove(self.given_up)  # first something else
        source, self.given_up = dice.choice(behind), None
        start = self.positions[source]
        most = 2 if self.keeps_epoch and dice.random() < 0.7 else dice.choice((1, 2, 5, 50))
        table = log.read(SOURCE, source, start, max_records=most)
        offsets = table["offset"].to_pylist()
        assert offsets == list(range(start, start + len(offsets))), (source, start, offsets)
        self.attempts += 1
        values: dict[Place, list[str]] = {}
        if self.made_in is None or dice.random() < 0.3:
            self.made_in = dice.randrange(self.setting.partitions)
        spreads = not self.keeps_epoch or dice.random() < 0.2  # else what is given up was for the same place
        for offset in offsets:
            text = f"{MADE}/{self.name}-{self.lives}-{self.attempts}/{source}/{offset}"
            made_in = dice.randrange(self.setting.partitions) if spreads else self.made_in
            values.setdefault((MADE, made_in), []).append(text)
            history.begin("make", group=GROUP, key=key_of((SOURCE, source))).ok(offset=offset, value=[text])
        sending = history.send({key_of(place): texts for place, texts in values.items()})
        self.open = _Open(source, offsets[-1] + 1, values, list(values.items()), history, sending)
        return True

    def _go_on(self, opened: _Open, log: SparkLog, process: SimProcess) -> bool:
        assert self.producer is not None
        if opened.commits is None and self.setting.dice.random() < 0.03:
            if not self.second and not opened.is_added:  # there is nothing to be aborted
                opened.sending.fail("not begun")
                self.open = None
                return True
            opened.commits = False
        try:
            if opened.commits is not None:
                return self._end(opened, self.producer, process)
            if not self.second and not opened.is_added:
                places = [(log.image.topic(topic).topic_id, number) for topic, number in opened.values]
                producer = self.producer
                asked = self.another_broker()  # clients ask one for all, as long as it answers
                self.ask(process, asked, lambda c: c.transactions.add_partitions(self.name, producer, places))
                self.ask(process, asked, lambda c: c.transactions.add_group(self.name, producer, GROUP))
                opened.is_added = True
            elif opened.left:
                self._send(opened, self.producer, process)
            elif not opened.has_offsets:
                self._stand_still(process)
                self._send_offset(opened, self.producer, process)
            else:
                self._stand_still(process)
                opened.commits = True
        except NoAnswerError:
            if opened.commits is None and not self.second:
                opened.commits = False  # it does not know whether something arrives late
                self.setting.world.met["aborted in doubt"] += 1
            raise
        except (FencedError, InvalidRequestError, UnknownTopicError) as error:
            self._lose(opened, error)
        return True

    def _stand_still(self, process: SimProcess) -> None:
        """Perhaps for longer than it is waited for."""
        if process.world.chance(0.1, "member stands still"):
            process.sleep_ms(self.setting.dice.choice((SESSION_MS, 2 * SESSION_MS + REBALANCE_MS)))

    def _send(self, opened: _Open, producer: Producer, process: SimProcess) -> None:
        place, texts = opened.left[0]
        sequence = self.sequences.get(place, 0)
        part = partial(_part, self._said(producer, process), producer, place, texts, sequence)
        node = self.any_broker().believed_leader(place[1], MADE)
        broker = next((one for one in self.brokers if one.node == node != NO_NODE), None)
        if broker is None:
            process.sleep_ms(20)
            return
        answers: list[PartOutcome] = []

        def told(outcome: PartOutcome) -> None:
            answers.append(outcome)
            process.call()

        sent = Sent(part, place[1], told, MADE)
        self.wait(process, broker, sent, answers, self._patience_ms())
        error = answers[0].error
        if error is None:
            opened.left.pop(0)
            self.sequences[place] = sequence + len(texts)
        elif (
            isinstance(error, FencedError | InvalidRequestError | UnknownTopicError)
            and error.code not in ANOTHERS
        ):
            raise error

    def _send_offset(self, opened: _Open, producer: Producer, process: SimProcess) -> None:
        said = self._said(producer, process, group=GROUP)

        def by(image: Image) -> StagedBy:
            return StagedBy(**producer._asdict(), transaction=said(image))

        offset = OffsetToCommit(topic=SOURCE, partition=opened.source, offset=opened.end)
        member_id, generation = self.member_id, self.generation
        error = self.ask(
            process,
            self.coordinator(),
            lambda c: c.groups.stage(
                GROUP, [offset], by(c.root.image), member_id=member_id, generation_id=generation
            ),
            patience_ms=self._patience_ms(),
        )
        if not error:
            opened.has_offsets = True
        elif error in OVER:
            if error == ErrorCode.unknown_member_id:
                self.member_id = ""
            self.rejoin()
            opened.commits = False
            self.setting.world.met["offsets refused, of a member that was given up"] += 1

    def _patience_ms(self) -> int:
        return self.setting.dice.choice((300, PATIENCE_MS, 2_800)) if self.keeps_epoch else PATIENCE_MS

    def _said(
        self, producer: Producer, process: SimProcess, *, group: str | None = None
    ) -> Callable[[Image], InTransaction]:
        """What a request says, by the image of the broker when it reads it."""
        name, now_ms = self.name, process.now_ms()
        if self.second:
            return lambda _: InTransaction(transactional_id=name, opens_ms=now_ms)
        return lambda image: InTransaction.of_first_protocol(image, name, *producer, group=group)

    def _end(self, opened: _Open, producer: Producer, process: SimProcess) -> bool:
        commits = opened.commits is True
        if commits and opened.committing is None:
            opened.committing = opened.history.commit(GROUP, key_of((SOURCE, opened.source)), opened.end)
        try:
            self.producer = self.ask(
                process,
                self.another_broker(),
                lambda c: c.transactions.end(self.name, producer, commits=commits, raises=self.second),
            )
        except (FencedError, InvalidRequestError):
            raise
        except SparklogError:
            return False  # it may have been done; asked again
        self.open = None
        if self.second:
            self.sequences = {}
        if commits:
            opened.sending.ok({key_of(place): (texts, None) for place, texts in opened.values.items()})
            assert opened.committing is not None
            opened.committing.ok()
            if opened.source in self.positions:
                self.positions[opened.source] = opened.end
            self.settled = self.settled or self.done_before is not None
            self.setting.world.met["transaction committed, with offsets"] += 1
        else:
            opened.sending.fail("aborted")
            if self.keeps_epoch:  # it also remembers where it was, and goes on at once
                self.given_up = opened.source
            else:
                self.positions.pop(opened.source, None)
                self.producer = self.producer if self.second else None
            self.setting.world.met["transaction aborted"] += 1
        return True

    def _lose(self, opened: _Open, error: SparklogError) -> None:
        """It was aborted by others; unless its commit was asked for before, and not answered."""
        if opened.committing is not None:
            opened.sending.info(error)
            opened.committing.info(error)
        else:
            opened.sending.fail(error)
        self.setting.world.met[f"producer lost its transaction ({error.code})"] += 1
        self.open, self.producer = None, None
        self.positions.pop(opened.source, None)

    def _abort_what_takes_too_long(self, log: SparkLog, process: SimProcess) -> None:
        now_ms = process.now_ms()
        if timed_out(log.image, now_ms) and self.setting.dice.random() < 0.3:
            log.metadata.publish(
                lambda image: plan_abort_transactions(image, timed_out(image, now_ms), now_ms=now_ms)
            )
            self.setting.world.met["transaction that took too long"] += 1


def _part(
    said: Callable[[Image], InTransaction],
    producer: Producer,
    place: Place,
    texts: list[str],
    sequence: int,
    image: Image,
    topic_id: str,
    leader_epoch: int,
) -> AppendPart:
    ids = EncodeOptions(
        producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, base_sequence=sequence
    )
    columns = RecordColumns(
        key=None,
        value=pa.array([one.encode() for one in texts], pa.binary()),
        timestamp_ms=np.zeros(len(texts), np.int64),
    )
    return AppendPart(
        topic_id=topic_id,
        topic=place[0],
        partition=place[1],
        encoded=encode_batches(columns, ids),
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        leader_epoch=leader_epoch,
        transaction=said(image),
    )
