"""Transactional producers: processes of one application, which fence each other, are slow, and are killed.

A role is a process of an application; those of one application have its transactional id. It initialises
itself, stages batches in several partitions, and commits or aborts; all of a transaction is one operation of
the history: done when it was committed, failed when it was aborted, or was fenced before it asked for a
commit. It repeats what it does not know the outcome of. Some copies of its requests arrive late, whatever has
become of their transaction. Anybody aborts what takes too long.

Some speak the first protocol of Kafka's clients, in which one goes on behind what it aborted, and has itself
initialised again when it does not know whether a record arrived; some the second, in which each end raises
the epoch. In half of the histories both are spoken with one id, and a process may go on with the other one.
The plans are those of brokers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from sparklog.client import SparkLog
from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError, StorageError
from sparklog.metadata import (
    NEVER_OPENS,
    NO_NUMBER,
    Action,
    Ended,
    Image,
    Staging,
    plan_abort_transactions,
    plan_add_to_transaction,
    plan_begin_producer,
    plan_end_transaction,
    plan_stage,
    timed_out,
    was_staged,
)
from tests.history.recorder import History, Operation
from tests.simulation.processes import Role, key_of, stage
from tests.simulation.setting import TOPICS
from tests.simulation.world import SimProcess

_MAX_LATE = 8
Place = tuple[str, int]
Plan = Callable[[Image], Sequence[Action]]


@dataclass
class _Open:
    """What a process has begun, and what of it is still to be staged."""

    operation: Operation
    values: dict[Place, list[str]]
    left: list[tuple[Place, list[str]]]
    added: set[Place] = field(default_factory=set)
    commits: bool | None = None  # once it has decided
    number: int = NO_NUMBER
    is_unknown: bool = False  # whether its end applied


@dataclass
class Transactor(Role):
    """See the module's docstring."""

    application: str = ""
    second: bool = False
    timeout_ms: int = 60_000
    producer: tuple[int, int] | None = None
    was: tuple[int, int] | None = None  # it goes on after an error
    is_in_doubt: bool = False  # a record that was not acknowledged may arrive
    sequences: dict[Place, int] = field(default_factory=dict)
    open: _Open | None = None
    sent: int = 0
    late: list[Plan] = field(default_factory=list)  # requests of which copies may still be under way

    def live(self, process: SimProcess) -> None:
        self._forget()
        self.was = None
        super().live(process)

    def act(self, log: SparkLog, history: History, process: SimProcess) -> bool:
        image = log.refresh()
        if not all(topic in image.topics for topic in TOPICS[:1]):
            return False
        self._abort_what_takes_too_long(log, process)
        self._let_a_copy_arrive(log)
        try:
            if self.producer is None:
                if self.was is None and self._lets_others(image):
                    return False
                self._begin(log, process)
            elif self.open is None:
                if self.setting.mixes_protocols and self.setting.dice.random() < 0.1:
                    self.second = not self.second
                    self.setting.world.met["went on with the other protocol"] += 1
                self._open(history)
            elif self.open.left and self.open.commits is None:
                self._stage(log, self.open, process)
            else:
                self._end(log, self.open, self.producer, process)
        except (FencedError, InvalidRequestError) as error:
            self._lose(error)
        return True

    def _lets_others(self, image: Image) -> bool:
        """So that they get something done; but not forever."""
        known = image.transactions.get(self.application)
        is_busy = known is not None and known.is_ongoing
        return self.setting.dice.random() < (0.97 if is_busy else 0.8)

    # --- what a producer does ----------------------------------------------------------------------------

    def _begin(self, log: SparkLog, process: SimProcess) -> None:
        was_id, was_epoch = self.was or (-1, -1)
        found: list[tuple[int, int]] = []

        def plan(image: Image) -> Sequence[Action]:
            begun = plan_begin_producer(
                image,
                self.application,
                timeout_ms=self.timeout_ms,
                now_ms=process.now_ms(),
                producer_id=was_id,
                producer_epoch=was_epoch,
            )
            found[:] = [(begun.producer_id, begun.producer_epoch)]
            return begun.actions

        log.metadata.publish(plan)
        (self.producer,) = found
        self.was, self.is_in_doubt = None, False
        self.sequences = {}

    def _open(self, history: History) -> None:
        dice = self.setting.dice
        left: list[tuple[Place, list[str]]] = []
        values: dict[Place, list[str]] = {}
        for _ in range(dice.choice((1, 2, 3, 5))):
            place = TOPICS[0], dice.randrange(self.setting.partitions)
            count = dice.choice((1, 1, 3))
            texts = [self.setting.new_text(place[0], self.name, self.sent + one) for one in range(count)]
            self.sent += count
            left.append((place, texts))
            values.setdefault(place, []).extend(texts)
        operation = history.send({key_of(place): texts for place, texts in values.items()})
        self.open = _Open(operation, values, left)

    def _stage(self, log: SparkLog, opened: _Open, process: SimProcess) -> None:
        if self.setting.dice.random() < 0.05:
            opened.commits = False
            return
        place, texts = opened.left[0]
        assert self.producer is not None
        now_ms = process.now_ms()
        (draft,) = stage(self.setting, log, log.writer, {key_of(place): texts}).drafts
        log.writer.sync([draft])
        draft = msgspec.structs.replace(
            draft,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=self.sequences.get(place, 0),
        )
        part = Staging(draft=draft, opens_ms=now_ms if self.second else NEVER_OPENS)

        def plan(image: Image) -> Sequence[Action]:
            return [plan_stage(image, [part])]

        self._remember(plan)
        try:
            if not self.second and place not in opened.added:
                self._add(log, place, draft.topic_id, self.producer, now_ms)
                opened.added.add(place)
            log.metadata.publish(plan)
        except InvalidRequestError as error:
            if error.code != "DUPLICATE_SEQUENCE":
                raise
            if not was_staged(log.image, draft):
                raise AssertionError(f"{self.name}: {error}, and it is nowhere") from error
            self.setting.world.met["batch repeated after it was staged"] += 1
        except (RetriableError, StorageError):
            self.is_in_doubt = True
            raise
        self.sequences[place] = self.sequences.get(place, 0) + len(texts)
        opened.left.pop(0)

    def _add(
        self, log: SparkLog, place: Place, topic_id: str, producer: tuple[int, int], now_ms: int
    ) -> None:
        places = [(topic_id, place[1])]
        log.metadata.publish(
            lambda image: plan_add_to_transaction(
                image, self.application, *producer, partitions=places, now_ms=now_ms
            )
        )

    def _end(self, log: SparkLog, opened: _Open, producer: tuple[int, int], process: SimProcess) -> None:
        if opened.commits is None:
            opened.commits = self.setting.dice.random() < 0.85
        if opened.number == NO_NUMBER and not self.second:
            opened.number = log.refresh(force=True).transactions[self.application].number
        commits, number, now_ms = opened.commits, opened.number, process.now_ms()
        second = self.second  # as it is now: a copy may arrive when the other protocol is spoken
        found: list[Ended] = []

        def plan(image: Image) -> Sequence[Action]:
            ended = plan_end_transaction(
                image,
                self.application,
                *producer,
                committed=commits,
                second=second,
                number=number,
                now_ms=now_ms,
            )
            found[:] = [ended]
            return ended.actions

        self._remember(plan)
        try:
            log.metadata.publish(plan)
        except StorageError:
            opened.is_unknown = True
            raise
        (ended,) = found
        if self.setting.world.chance(0.1, "answer to an end lost"):
            opened.is_unknown = True
            return
        self._note_end(log, opened, ended)
        self.producer = ended.producer_id, ended.producer_epoch
        if self.second:
            self.sequences = {}
        elif self.is_in_doubt:
            self.was, self.producer = self.producer, None

    def _note_end(self, log: SparkLog, opened: _Open, ended: Ended) -> None:
        self.open = None
        if not opened.commits:
            opened.operation.fail("aborted")
            self.setting.world.met["transaction aborted"] += 1
            return
        parts: dict[str, tuple[Sequence[str], Sequence[int] | None]] = {}
        for (topic, partition), texts in opened.values.items():
            found = ended.ranges.get((log.image.topic(topic).topic_id, partition))
            assert found is None or found[1] == len(texts), (opened, ended)
            offsets = None if found is None else range(found[0], found[0] + found[1])
            parts[key_of((topic, partition))] = texts, offsets
        opened.operation.ok(parts)
        self.setting.world.met["transaction committed"] += 1

    def _lose(self, error: SparklogError) -> None:
        """Another process has the id, or it took too long: nothing of it is committed but what is known."""
        opened = self.open
        if opened is not None:
            if opened.is_unknown and opened.commits:
                opened.operation.info(error)
            else:
                opened.operation.fail(error)
        self.setting.world.met[f"producer lost its transaction ({error.code})"] += 1
        self._forget()

    def _forget(self) -> None:
        self.producer, self.open, self.is_in_doubt = None, None, False
        self.sequences = {}

    # --- what others do, and what is late -----------------------------------------------------------------

    def _abort_what_takes_too_long(self, log: SparkLog, process: SimProcess) -> None:
        now_ms = process.now_ms()
        names = timed_out(log.image, now_ms)
        if names and self.setting.dice.random() < 0.3:
            log.metadata.publish(
                lambda image: plan_abort_transactions(image, timed_out(image, now_ms), now_ms=now_ms)
            )
            self.setting.world.met["transaction that took too long"] += 1

    def _remember(self, plan: Plan) -> None:
        self.late = [*self.late[1 - _MAX_LATE :], plan]

    def _let_a_copy_arrive(self, log: SparkLog) -> None:
        """Nobody waits for the answer."""
        if self.late and self.setting.world.chance(0.1, "late copy of a transaction's request"):
            plan = self.late.pop(self.setting.dice.randrange(len(self.late)))
            try:
                log.metadata.publish(plan)
            except (FencedError, InvalidRequestError):
                return
            self.setting.world.met["late copy that applied, or was answered"] += 1
