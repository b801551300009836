"""The world of conditions.py: what brokers ask each other to publish, and what must hold for each part."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tests.models.explorer import Model, Violation, replaced

NOBODY = -1
NONE = 0  # epochs, and commits that hold something, count from 1
# What comes of a part: taken; in the log already; the leadership is lost; a gap; or something before it in
# its partition is not taken. And what its client may hear besides: that its broker was fenced, to send it
# again (which is always true of what was not taken), or nothing at all.
TAKEN, DUPLICATE, DEPOSED, GAP, BEHIND = "taken", "duplicate", "deposed", "gap", "behind"
FENCED, AGAIN, SILENCE = "fenced", "again", "silence"


class Batch(NamedTuple):
    """What a client sends, and sends again when it hears nothing. Sequence -1: of no idempotent producer."""

    partition: int
    sequence: int


class Part(NamedTuple):
    """A batch that a broker has accepted."""

    attempt: int
    batch: int
    leader_epoch: int


class Request(NamedTuple):
    """What a broker asks others to publish for it, with what must hold for that."""

    broker: int
    life: int  # of the broker's process: a publisher is broker and life
    number: int
    broker_epoch: int
    parts: tuple[Part, ...]

    @property
    def publisher(self) -> tuple[int, int]:
        return self.broker, self.life

    def __str__(self) -> str:
        return f"request {self.number} of broker {self.broker}"


class Image(NamedTuple):
    registered: tuple[int, ...]  # by broker: the epoch of its registration; NONE: fenced
    leaders: tuple[tuple[int, int], ...]  # by partition: who leads it, and the leader epoch
    logs: tuple[tuple[int, ...], ...]  # by partition: the attempts that were appended
    settled: frozenset[tuple[tuple[int, int], int]] = frozenset()  # (publisher, number)
    registrations: int = 0


class Attempt(NamedTuple):
    """A batch on its way to a broker. `verdict`: as of the image by which its request was decided."""

    batch: int
    at: tuple[int, int] = (NOBODY, NONE)  # its place: partition, and how many are before it
    verdict: str = ""
    told: str = ""


class Decision(NamedTuple):
    """The commit that settled a request: the images before it, before the request's actions, and after it."""

    publisher: tuple[int, int]
    number: int
    commit: int
    before: Image
    against: Image
    after: Image


class Broker(NamedTuple):
    seen: int = 0  # the commit that it has followed the log to
    at: str = "up"
    life: int = 0
    number: int = 0
    epoch: int = NONE
    queue: tuple[Part, ...] = ()
    posted: Request | None = None
    listed: frozenset[Request] = frozenset()


class State(NamedTuple):
    processes: tuple[Broker, ...]
    images: tuple[Image, ...]  # one after each commit
    attempts: tuple[Attempt, ...] = ()
    decisions: tuple[Decision, ...] = ()
    box: frozenset[Request] = frozenset()
    late: frozenset[Request] = frozenset()  # PUTs that may still land
    lates_left: int = 0
    moves_left: int = 0
    crashes_left: int = 0
    sends_left: int = 0

    @property
    def newest(self) -> Image:
        return self.images[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The safeguards, as they should be."""

    checks_registration: bool = True  # nothing of a request whose broker is fenced applies
    checks_leader: bool = True  # a part applies while its broker leads the partition ...
    checks_epoch: bool = True  # ... in the epoch in which it accepted the part
    checks_sequence: bool = True
    keeps_order: bool = True  # with a part, those behind it in its partition are left out
    against_draft: bool = True  # judged by the image after the actions before it, not by the last commit's
    has_version: bool = (
        True  # an older combiner passes over such a request; else it takes all, and no condition
    )
    is_settled_once: bool = True
    looks_for_parts: bool = True  # what was taken is what the commit holds, not all that was asked for
    judged_by: str = "against"  # what was not taken: by the image that whoever published went by ...
    leader_first: bool = True  # ... and who has lost the partition says so, whatever is in the log by then


class ConditionsWorld(Model):
    """Everything but the steps."""

    process_names = ("broker 0", "broker 1", "broker 2")

    def __init__(
        self,
        rules: Rules,
        *,
        batches: tuple[Batch, ...],
        brokers: int = 2,
        sends: int = 2,
        moves: int = 1,
        crashes: int = 0,
        lates: int = 0,
        commits: int = 3,
        sizes: int = 2,
        leaders: tuple[int, ...] = (),
        without: tuple[str, ...] = (),
    ) -> None:
        """Broker 0 leads all partitions that `leaders` does not name; a request has at most `sizes` parts."""
        super().__init__(without=without)
        self.rules, self.batches, self.brokers, self.sizes = rules, batches, brokers, sizes
        self.commits, self.bounds = commits, (lates, moves, crashes, sends)
        partitions = 1 + max(batch.partition for batch in batches)
        self.leaders = (*leaders, *[0] * (partitions - len(leaders)))

    def initial(self) -> State:
        epochs = tuple(range(1, self.brokers + 1))
        image = Image(
            registered=epochs,
            leaders=tuple((leader, 1) for leader in self.leaders),
            logs=((),) * len(self.leaders),
            registrations=self.brokers,
        )
        lates, moves, crashes, sends = self.bounds
        return State(
            processes=tuple(Broker(epoch=epoch) for epoch in epochs),
            images=(image,),
            lates_left=lates,
            moves_left=moves,
            crashes_left=crashes,
            sends_left=sends,
        )

    # --- what holds for a part ----------------------------------------------------------------------------

    def last_sequence(self, s: State, log: Iterable[int]) -> int:
        return max((self.batches[s.attempts[one].batch].sequence for one in log), default=-1)

    def verdict(self, s: State, image: Image, broker: int, part: Part, rules: Rules) -> str:
        """For one part, whatever becomes of the others."""
        batch = self.batches[part.batch]
        leader, epoch = image.leaders[batch.partition]
        last = self.last_sequence(s, image.logs[batch.partition])
        if not rules.leader_first and 0 <= batch.sequence <= last:
            return DUPLICATE
        if rules.checks_leader and (leader != broker or (rules.checks_epoch and epoch != part.leader_epoch)):
            return DEPOSED
        if batch.sequence in (-1, last + 1) or not rules.checks_sequence:
            return TAKEN
        return DUPLICATE if batch.sequence <= last else GAP

    def verdicts(self, s: State, image: Image, request: Request, rules: Rules) -> dict[int, str]:
        """By attempt: of all parts of a request, by one image. A later part continues an earlier one."""
        if rules.checks_registration and image.registered[request.broker] != request.broker_epoch:
            return {part.attempt: FENCED for part in request.parts}
        found: dict[int, str] = {}
        broken = set()
        for part in request.parts:
            partition = self.batches[part.batch].partition
            verdict = self.verdict(s, image, request.broker, part, rules)
            if verdict == TAKEN and partition in broken and rules.keeps_order:
                verdict = BEHIND
            if verdict == TAKEN:
                image = self.with_part(image, partition, part)
            else:
                broken.add(partition)
            found[part.attempt] = verdict
        return found

    def with_part(self, image: Image, partition: int, part: Part) -> Image:
        log = (*image.logs[partition], part.attempt)
        return image._replace(logs=replaced(image.logs, partition, log))

    # --- what a commit means ------------------------------------------------------------------------------

    def with_broker(self, s: State, i: int, p: Broker) -> State:
        return s._replace(processes=replaced(s.processes, i, p))

    def applied(
        self, s: State, draft: Image, request: Request, *, old: bool = False
    ) -> State | Violation | None:
        """The actions of a request after those of `draft`, which becomes the newest image; None: nothing
        holds.

        Of the state only what is known of attempts changes. `old`: by somebody who does not know of
        conditions.
        """
        rules = (
            Rules(checks_registration=False, checks_leader=False, checks_sequence=False)
            if old
            else self.rules
        )
        if rules.is_settled_once and self.is_settled(draft, request):
            return None
        judged = draft if rules.against_draft else s.images[-2]
        verdicts = self.verdicts(s, judged, request, rules)
        taken = [part for part in request.parts if verdicts[part.attempt] == TAKEN]
        if not taken:
            return None
        return self.decided(s, draft, request, taken)

    def decided(self, s: State, draft: Image, request: Request, taken: list[Part]) -> State | Violation:
        """A marker of the request, and these parts, come after `draft` in the newest commit."""
        truth = self.verdicts(s, draft, request, Rules())
        attempts, image = list(s.attempts), draft
        for part in request.parts:
            attempts[part.attempt] = attempts[part.attempt]._replace(verdict=truth[part.attempt])
        for part in taken:
            wrong = self.wrong_append(s, image, request, part)
            if wrong is not None:
                return wrong
            partition = self.batches[part.batch].partition
            at = partition, len(image.logs[partition])
            attempts[part.attempt] = attempts[part.attempt]._replace(at=at)
            image = self.with_part(image, partition, part)
        wrong = self.wrong_order(request, taken)
        if wrong is not None:
            return wrong
        image = image._replace(settled=image.settled | {(request.publisher, request.number)})
        commit = len(s.images) - 1
        decision = Decision(request.publisher, request.number, commit, s.images[-2], draft, image)
        return s._replace(
            images=(*s.images[:-1], image), attempts=tuple(attempts), decisions=(*s.decisions, decision)
        )

    def wrong_append(self, s: State, image: Image, request: Request, part: Part) -> Violation | None:
        """What no commit may hold, whoever has planned it."""
        batch, known = self.batches[part.batch], s.attempts[part.attempt]
        who = f"{request}: attempt {part.attempt}"
        if image.registered[request.broker] != request.broker_epoch:
            return Violation(f"fenced: {who} of registration {request.broker_epoch}")
        if image.leaders[batch.partition] != (request.broker, part.leader_epoch):
            return Violation(f"deposed: {who} in leader epoch {part.leader_epoch}")
        if known.at[0] != NOBODY:
            return Violation(f"twice: {who} is in the log already")
        if known.told not in ("", SILENCE):
            return Violation(f"after an answer: {who} was told: {known.told}")
        if batch.sequence >= 0:
            last = self.last_sequence(s, image.logs[batch.partition])
            if batch.sequence <= last:
                return Violation(f"twice: {who}, sequence {batch.sequence} after {last}")
            if batch.sequence > last + 1:
                return Violation(f"order: {who}, sequence {batch.sequence} after {last}")
        return None

    def wrong_order(self, request: Request, taken: list[Part]) -> Violation | None:
        """A part of a partition was taken, and one before it was not."""
        broken = set()
        for part in request.parts:
            partition = self.batches[part.batch].partition
            if part not in taken:
                broken.add(partition)
            elif partition in broken:
                return Violation(f"order: {request}: attempt {part.attempt} without one before it")
        return None

    def is_settled(self, image: Image, request: Request) -> bool:
        return any(
            publisher == request.publisher and number >= request.number for publisher, number in image.settled
        )

    # --- what a client is told ----------------------------------------------------------------------------

    def told(self, s: State, request: Request, answers: dict[int, str]) -> State | Violation:
        """Each part's client hears this."""
        attempts = list(s.attempts)
        for part in request.parts:
            known, answer = attempts[part.attempt], answers[part.attempt]
            where = f"{request}: attempt {part.attempt}"
            if known.told:
                continue  # it has hung up
            if answer == TAKEN and known.at[0] == NOBODY:
                return Violation(f"not there: {where} was told that it was appended")
            if answer not in (TAKEN, AGAIN, SILENCE) and answer != known.verdict:
                return Violation(f"verdict: {where} was told {answer}, and was {known.verdict}")
            if answer not in (TAKEN, SILENCE) and known.at[0] != NOBODY:
                return Violation(f"after an answer: {where} is in the log, and was told {answer}")
            attempts[part.attempt] = known._replace(told=answer)
        return s._replace(attempts=tuple(attempts))
