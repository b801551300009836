"""Share groups: workers acquire messages from the leader of a partition, and acknowledge them or die.

The state of a message is in the root: available with a number of deliveries, acknowledged, or archived with
a dead letter. Acquisition locks are in the memory of the leader, and end by a timeout. Leadership moves,
brokers crash with all they remember, an administrator resets the group. Promises:
    twice        no two workers are answered that they have acknowledged the same message, and no message has
                 two dead letters
    both         no message is acknowledged and has a dead letter
    lost         a message ends only by an acknowledgement of a worker that got it since the last reset, or
                 with a dead letter
    stolen       the lock of a worker is ended by that worker, or by its timeout
    backwards    the number of deliveries in the root grows with each that ends, except by a reset

Bounds: messages, workers, moves, crashes, resets, deliveries. A worker acknowledges what it got, once.
Left out: reject (as the last release), renew (a later timeout), start offsets (what is not available below
them).
"""

from dataclasses import dataclass
from typing import NamedTuple

from tests.models.explorer import Model, Next, Violation, replaced, step, world

NOT_LEADING = -1
AVAILABLE, ACKNOWLEDGED, ARCHIVED = "available", "acknowledged", "archived"
ACCEPT, RELEASE, LETTER, ARCHIVE = "accept", "release", "letter", "archive"


class Message(NamedTuple):
    """Fields:
    accepted: workers that were answered so since the last reset.
    life: the number of resets so far.
    """

    state: str = AVAILABLE
    deliveries: int = 0
    letters: int = 0
    accepted: int = 0
    life: int = 0


class Lock(NamedTuple):
    """Of one message, in the memory of a broker: epoch, life and deliveries as of the acquisition."""

    worker: int
    epoch: int
    life: int
    deliveries: int


class Write(NamedTuple):
    """What a broker is about to commit."""

    message: int
    kind: str
    lock: Lock


class Broker(NamedTuple):
    """Fields:
    epoch: the one in which it believes to lead.
    view: of each message the state and the deliveries, as it knows them.
    """

    at: str = "up"
    epoch: int = NOT_LEADING
    life: int = 0
    view: tuple[tuple[str, int], ...] = ()
    locks: tuple[Lock | None, ...] = ()
    writes: tuple[Write, ...] = ()


class State(NamedTuple):
    processes: tuple[Broker, ...]
    holds: tuple[tuple[int, ...], ...]  # of each worker, by message: the broker that it got it from, or -1
    messages: tuple[Message, ...]
    leader: int = 0
    epoch: int = 0
    life: int = 0
    crashes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The safeguards, as they should be."""

    commit_checks_epoch: bool = True  # the leader epoch is checked by the commit itself
    commit_checks_life: bool = True  # and that the group was not reset since
    carries_epoch: bool = True  # the epoch of the acquisition, not that of the acknowledgement
    durable_first: bool = True  # a worker is answered after the commit
    checks_holder: bool = True  # only the holder of a lock acknowledges
    writing_is_busy: bool = True  # no timeout and no acquisition while a write is on its way
    letter_in_commit: bool = True  # the dead letter and the archival are one commit
    counts_on: bool = True  # deliveries count on from the root's number


class Sharing(Model):
    """See the module's docstring."""

    def __init__(
        self,
        rules: Rules,
        *,
        messages: int = 1,
        workers: int = 2,
        limit: int = 2,
        moves: int = 2,
        crashes: int = 1,
        resets: int = 0,
    ) -> None:
        super().__init__()
        self.rules, self.limit, self.moves, self.crashes, self.resets = rules, limit, moves, crashes, resets
        self.numbers = range(messages)
        self.workers = range(workers)
        self.process_names = ("broker 0", "broker 1")

    def initial(self) -> State:
        none = Broker(locks=(None,) * len(self.numbers))
        messages = tuple(Message() for _ in self.numbers)
        return State((none, none), ((-1,) * len(self.numbers),) * len(self.workers), messages)

    # --- brokers ------------------------------------------------------------------------------------------

    @step("learns the newest image", at="up", code="sparklog_server.share.service:ShareService.follow_image")
    def refresh(self, s: State, i: int, b: Broker) -> Next:
        view = tuple((one.state, one.deliveries) for one in s.messages)
        epoch = s.epoch if s.leader == i else NOT_LEADING
        after = b._replace(epoch=epoch, life=s.life, view=view)
        if after != b:
            # Locks of another epoch or life are dropped; in the mutants that would hide the loss.
            is_same = (epoch, s.life) == (b.epoch, b.life)
            if not is_same and self.rules.carries_epoch and self.rules.commit_checks_life:
                after = after._replace(locks=(None,) * len(self.numbers))
            yield "", s._replace(processes=replaced(s.processes, i, after))

    @step("gives out", at="up", code="sparklog_server.share.partition:SharePartition.acquire")
    def acquire(self, s: State, i: int, b: Broker) -> Next:
        for m in self.numbers:
            if b.epoch == NOT_LEADING or b.locks[m] is not None or b.view[m][0] != AVAILABLE:
                continue
            count = 1 + (b.view[m][1] if self.rules.counts_on else 0)
            if count > self.limit:
                continue
            for w in self.workers:
                if s.holds[w][m] < 0:
                    lock = Lock(w, b.epoch, b.life, count)
                    after = b._replace(locks=replaced(b.locks, m, lock))
                    yield (
                        f" message {m} to worker {w}",
                        s._replace(
                            processes=replaced(s.processes, i, after),
                            holds=replaced(s.holds, w, replaced(s.holds[w], m, i)),
                        ),
                    )

    @step(
        "is sent an acknowledgement",
        at="up",
        code="sparklog_server.share.partition:SharePartition.acknowledge",
    )
    def acknowledge(self, s: State, i: int, b: Broker) -> Next:
        for w in self.workers:
            for m in self.numbers:
                if s.holds[w][m] != i:
                    continue
                after = s._replace(holds=replaced(s.holds, w, replaced(s.holds[w], m, -1)))
                lock = b.locks[m]
                is_writing = any(one.message == m for one in b.writes) and self.rules.writing_is_busy
                if lock is None or is_writing or (lock.worker != w and self.rules.checks_holder):
                    yield f" of message {m} by worker {w}: refused", after
                    continue
                if lock.worker != w:
                    yield f" of message {m} by worker {w}", Violation(f"stolen: worker {lock.worker} has it")
                    continue
                if not self.rules.carries_epoch and b.epoch != NOT_LEADING:
                    lock = lock._replace(epoch=b.epoch)
                after = self._writing(after, i, Write(m, ACCEPT, lock))
                if not self.rules.durable_first:
                    done = self._accepted(after.messages[m], lock)
                    if isinstance(done, Violation):
                        yield f" of message {m} by worker {w}", done
                        continue
                    after = after._replace(messages=replaced(after.messages, m, done))
                yield f" of message {m} by worker {w}", after

    @step("finds a lock expired", at="up", code="sparklog_server.share.partition:SharePartition.expire")
    def expire(self, s: State, i: int, b: Broker) -> Next:
        for m in self.numbers:
            lock = b.locks[m]
            is_writing = any(one.message == m for one in b.writes)
            if lock is None or (is_writing and self.rules.writing_is_busy):
                continue
            if is_writing:  # the lock is gone while the acknowledgement is on its way
                yield f" of message {m}", self._unlocked(s, i, m)
            else:
                kind = LETTER if lock.deliveries >= self.limit else RELEASE
                yield f" of message {m}", self._writing(s, i, Write(m, kind, lock))

    @step("commits", at="up", code="sparklog.metadata.model.sharing:share_records")
    def commit(self, s: State, i: int, b: Broker) -> Next:
        if not b.writes:
            return
        write, lock = b.writes[0], b.writes[0].lock
        text = f" {write.kind} of message {write.message}"
        after = s._replace(processes=replaced(s.processes, i, b._replace(writes=b.writes[1:])))
        after = self._unlocked(after, i, write.message, lock)
        is_led = (s.leader, s.epoch) == (i, lock.epoch) or not self.rules.commit_checks_epoch
        if not is_led or (lock.life != s.life and self.rules.commit_checks_life):
            yield f"{text}: refused", after
            return
        found = self._applied(s.messages[write.message], write)
        if isinstance(found, Violation):
            yield text, found
            return
        after = after._replace(messages=replaced(after.messages, write.message, found))
        if write.kind == LETTER and not self.rules.letter_in_commit:
            after = self._writing(after, i, write._replace(kind=ARCHIVE))
        # What it has committed itself, it knows.
        known = after.processes[i]
        view = replaced(known.view, write.message, (found.state, found.deliveries)) if known.view else ()
        yield text, after._replace(processes=replaced(after.processes, i, known._replace(view=view)))

    def _applied(self, message: Message, write: Write) -> Message | Violation:
        """The effect of a commit on a message."""
        if write.kind == ACCEPT:
            done = message if not self.rules.durable_first else self._accepted(message, write.lock)
            return done if isinstance(done, Violation) else done._replace(state=ACKNOWLEDGED)
        if write.kind == RELEASE:
            if write.lock.deliveries <= message.deliveries:
                return Violation(f"backwards: {write.lock.deliveries} deliveries after {message.deliveries}")
            return message._replace(state=AVAILABLE, deliveries=write.lock.deliveries)
        if write.kind == ARCHIVE:
            return message._replace(state=ARCHIVED)
        if message.letters:
            return Violation("twice: a second dead letter")
        if message.accepted:
            return Violation("both: a dead letter of an acknowledged message")
        if not self.rules.letter_in_commit:
            return message._replace(letters=1)
        return message._replace(state=ARCHIVED, letters=1, deliveries=write.lock.deliveries)

    def _accepted(self, message: Message, lock: Lock) -> Message | Violation:
        """The worker is answered that it has acknowledged the message."""
        if message.accepted:
            return Violation("twice: two workers have acknowledged it")
        if message.letters:
            return Violation("both: an acknowledged message has a dead letter")
        if lock.life < message.life:
            return Violation("lost: acknowledged by a worker that got it before the reset")
        return message._replace(accepted=1)

    def _writing(self, s: State, i: int, write: Write) -> State:
        b = s.processes[i]
        return s._replace(processes=replaced(s.processes, i, b._replace(writes=(*b.writes, write))))

    def _unlocked(self, s: State, i: int, message: int, lock: Lock | None = None) -> State:
        b = s.processes[i]
        if lock is not None and b.locks[message] != lock and self.rules.carries_epoch:
            return s  # another worker's by now
        return s._replace(
            processes=replaced(s.processes, i, b._replace(locks=replaced(b.locks, message, None)))
        )

    # --- the world ----------------------------------------------------------------------------------------

    @world("the controller moves the leadership")
    def move(self, s: State) -> Next:
        if s.epoch < self.moves:
            yield f" to broker {1 - s.leader}", s._replace(leader=1 - s.leader, epoch=s.epoch + 1)

    @world("a broker crashes, and starts again")
    def crash(self, s: State) -> Next:
        """Its registration ends: the leader epoch is another one, whoever leads."""
        for i, b in enumerate(s.processes):
            if s.crashes < self.crashes and b != Broker(locks=(None,) * len(self.numbers)):
                after = s._replace(
                    processes=replaced(s.processes, i, Broker(locks=(None,) * len(self.numbers))),
                    crashes=s.crashes + 1,
                )
                yield f": broker {i}", after._replace(epoch=s.epoch + (s.leader == i))

    @world("an administrator resets the group")
    def reset(self, s: State) -> Next:
        """The effect of sparklog.metadata.model.sharing:begin_share: messages are delivered again."""
        if s.life < self.resets:
            messages = tuple(Message(life=s.life + 1) for _ in s.messages)
            yield "", s._replace(life=s.life + 1, messages=messages)
