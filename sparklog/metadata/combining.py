"""Combining: publishers of a slow store that race each other publish for each other instead.

A lost race costs more than it seems: some object stores make the loser of a conditional put wait for seconds,
and of sixteen racers fifteen lose. So who has lost one posts what it wants to publish as a request
(requests.py), and then:

    the requests, oldest first, are a queue. Whoever owns the first one publishes it, and all others that
    it finds, in one commit; everybody else waits for the log to move, and finds itself in it.

Whose publisher does not move for a while is passed over, so that a crashed one holds up the others for less
than a second, once. Nothing depends on the order of the queue: put-if-absent decides as always.

Invariants:
    1. A request is applied at most once: with it a commit holds a `request_applied` of its publisher and
       sequence, which no image takes twice; and a publisher goes on to the next sequence only when this
       one is settled, or takes it out of the world with its next commit (`fencing_actions`).
    2. It is applied whole, to the actions that its own publisher would plan against the same image.
    3. What does not apply is left to its publisher, which gets the error, after it has made sure that
       nobody applies the request later.
Not here: plans and payloads (client/publish.py), the race for a commit (creating.py).
Concurrency: used under the metadata log's lock.
After a crash of the poster its request may still be applied, once, for ten minutes: as a put whose answer was
    lost. After a crash of who combines, either the commit is there, or nothing is.
Sources: adr/0007; group commit.
"""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sparklog.clock import Clock
from sparklog.errors import FatalStorageError, RetriableError, SparklogError, StorageError
from sparklog.failpoints import failpoint
from sparklog.metadata.actions import Action, RequestApplied
from sparklog.metadata.apply import ActionRefusedError, apply_actions
from sparklog.metadata.creating import CommitCreator, make_candidate, refused_error
from sparklog.metadata.following import Follower
from sparklog.metadata.ids import new_id
from sparklog.metadata.image import Image
from sparklog.metadata.loading import Commit, read_commit
from sparklog.metadata.requests import MAX_REQUEST_BYTES, RequestBox, Ticket
from sparklog.storage import Store

_log = logging.getLogger(__name__)
Plan = Callable[[Image], Sequence[Action]]

# After a lost race, or others' requests, a publisher posts its own without trying alone, for so long.
CROWDED_MS = 5_000
# How long the first of the queue may take before it is passed over: random, between one and two times this.
PATIENCE_MS = 600
_SHORTEST_POLL_MS = 8.0
_LONGEST_LINGER_MS = 100
_RECENT_COMMITS, _RECENT_MS = 8, 1_000
# Who publishes alone with shorter gaps than this looks around so often.
_BUSY_GAP_MS, _LOOK_AROUND_MS = 250, 1_000
MAX_COMBINED = 256
MAX_COMBINED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlan:
    """A plan that other processes can carry out as well.

    Fields:
        payload: makes the JSON document from which anybody can plan the same.
        interpret: the plan that such a payload stands for; SparklogError if it cannot be understood.
    """

    payload: Callable[[], bytes]
    interpret: Callable[[bytes], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """How a request ended: the newest image, the commit, its actions, and whether we made the commit."""

    image: Image
    commit: int
    actions: tuple[Action, ...]
    made: bool


@dataclass(slots=True, kw_only=True)
class _Round:
    """What one call of `publish` learns while it waits."""

    sequence: int
    plan: Plan
    shared: SharedPlan
    passed_over: set[tuple[str, int]] = field(default_factory=set)
    plans: dict[tuple[str, int], tuple[Plan, int] | None] = field(default_factory=dict)


class Combiner:
    """One process's side of combining."""

    def __init__(
        self, store: Store, clock: Clock, rng: random.Random, follower: Follower, creator: CommitCreator
    ) -> None:
        self._store = store
        self._clock = clock
        self._random = rng
        self._follower = follower
        self._creator = creator
        self._crowded_until_ms: int | None = None
        self._usual_wait_ms = 0.0
        self._last_alone_ms = self._looked_around_ms = clock.monotonic_ms()
        self.start_anew()

    def start_anew(self) -> None:
        """Also in a forked child, which must not continue the parent's sequence."""
        self._publisher = new_id()
        self._sequence = -1
        self._open: int | None = None  # a request that was posted and is not known to be settled
        # Until when each request may be the first. From its first look on, over all calls: neither a log
        # that moves without it nor a call that gives up may start its time anew.
        self._patience_until_ms: dict[tuple[str, int], float] = {}

    @property
    def is_crowded(self) -> bool:
        """Have we met other publishers within the last seconds?"""
        return self._crowded_until_ms is not None and self._clock.monotonic_ms() < self._crowded_until_ms

    @property
    def _is_open(self) -> bool:
        return self._open is not None

    def note_commits(self, commits: Sequence[Commit]) -> None:
        """Others' commits: if there was a queue a moment ago, by their clocks, we had better join it."""
        for header, actions in commits[-_RECENT_COMMITS:]:
            recent = abs(self._clock.now_ms() - header.timestamp_ms) < _RECENT_MS
            if recent and any(isinstance(one, RequestApplied) for one in actions):
                self.note_crowd()
                return

    def look_around(self, image: Image) -> None:
        """Before publishing alone: does anybody wait?

        Who publishes again and again, and has never lost a race, would else not hear of a queue whose first
        loses to it every time. Only such a publisher looks, with one LIST a second.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._last_alone_ms > _BUSY_GAP_MS:
            self._looked_around_ms = now_ms
        self._last_alone_ms = now_ms
        if now_ms - self._looked_around_ms >= _LOOK_AROUND_MS:
            self._looked_around_ms = now_ms
            self._look_who_waits(image, RequestBox(self._store, self._clock, image.cluster_id))

    def note_crowd(self) -> None:
        """A race was lost, or others wait."""
        self._crowded_until_ms = self._clock.monotonic_ms() + CROWDED_MS

    def fencing_actions(self, image: Image) -> tuple[Action, ...]:
        """What must go with the next commit, so that a request that we gave up cannot be applied after it."""
        if self._open is None:
            return ()
        if image.has_settled(self._publisher, self._open):
            _log.warning("request %d was settled by others after its call had given up", self._open)
            self._open = None
            return ()
        return (RequestApplied(publisher=self._publisher, sequence=self._open),)

    def note_fenced(self) -> None:
        """The commit with the fencing actions is made."""
        self._open = None

    def publish(self, image: Image, plan: Plan, shared: SharedPlan, deadline_ms: int) -> Settled | None:
        """Have the plan published, by ourselves or by others; None if it is too large to be posted.

        Raises: what the plan raises, with nothing published; StorageError PUBLISH_UNRESOLVED.
        """
        box = RequestBox(self._store, self._clock, image.cluster_id)
        data = box.encode(self._publisher, self._sequence + 1, shared.payload())
        if len(data) > MAX_REQUEST_BYTES:
            return None
        self._sequence += 1
        self._open = self._sequence
        one = _Round(sequence=self._sequence, plan=plan, shared=shared)
        name: str | None = None
        try:
            start_ms = self._clock.monotonic_ms()
            name = box.post(self._publisher, one.sequence, data)
            failpoint("request.posted")
            # Who posted before us is in the queue now, if its put took as long as ours: else both go first.
            self._clock.sleep_ms(min(_LONGEST_LINGER_MS, self._clock.monotonic_ms() - start_ms))
            return self._settle(image, one, box, deadline_ms)
        except FatalStorageError:
            raise
        except StorageError as error:
            if not self._is_open or error.code == "PUBLISH_UNRESOLVED":
                raise  # an error of the plan, after the request was taken back; or one that says it all
            raise self._unresolved(one, error.message) from error
        finally:
            if name is not None and not self._is_open:
                failpoint("request.settled")
                box.delete(name)

    # --- waiting and publishing ----------------------------------------------------------------------

    def _settle(self, image: Image, one: _Round, box: RequestBox, deadline_ms: int) -> Settled:
        losses = 0
        waiting = self._look_who_waits(image, box)
        while not image.has_settled(self._publisher, one.sequence):
            if self._clock.monotonic_ms() > deadline_ms:
                raise self._unresolved(one, f"{losses} races lost, until the time was up")
            until_ms = self._patience_with_others(image, waiting, one)
            if until_ms is not None:
                image = self._wait_for_news(image, min(until_ms, deadline_ms))
                settled = image.has_settled(self._publisher, one.sequence)
                if not settled and self._patience_with_others(image, waiting, one) is None:
                    # Who was ahead is gone. Those who came after us are to be published with us.
                    waiting = self._look_who_waits(image, box)
                continue
            image = self._checked(self._follower.newest(image, expected=1 if losses else 0))
            if image.has_settled(self._publisher, one.sequence):
                break
            done = self._publish_all(image, one, box, waiting, deadline_ms)
            if done is not None:
                return done
            # Try again at once, with those we know: somebody who has never lost may publish all the time.
            losses += 1
        return self._found(image, one)

    def _look_who_waits(self, image: Image, box: RequestBox) -> list[Ticket]:
        waiting = box.waiting(image)
        if any(ticket.publisher != self._publisher for ticket in waiting):
            self.note_crowd()
        known = self._patience_until_ms
        self._patience_until_ms = {one.key: known[one.key] for one in waiting if one.key in known}
        return waiting

    def _patience_with_others(self, image: Image, waiting: Sequence[Ticket], one: _Round) -> float | None:
        """Until when to wait for who is ahead of us, by this listing; None when nobody is."""
        mine = (self._publisher, one.sequence)
        if all(ticket.key != mine for ticket in waiting):
            return None  # ours is too old, or somebody removed it: nobody else will publish it
        now_ms = self._clock.monotonic_ms()
        newest: dict[str, int] = {}
        for ticket in waiting:
            newest[ticket.publisher] = max(ticket.sequence, newest.get(ticket.publisher, 0))
        for ticket in waiting:
            if ticket.key == mine:
                break
            given_up = ticket.sequence < newest[ticket.publisher]
            if given_up or ticket.key in one.passed_over or image.has_settled(*ticket.key):
                continue
            patience_ms = self._random.uniform(PATIENCE_MS, 2 * PATIENCE_MS)
            patience_ms += min(PATIENCE_MS, 4 * self._usual_wait_ms)  # of a store that is slow for everybody
            until_ms = self._patience_until_ms.setdefault(ticket.key, now_ms + patience_ms)
            if now_ms < until_ms:
                return until_ms
        return None

    def _wait_for_news(self, image: Image, until_ms: float) -> Image:
        """Poll until the log moves, or patience is over.

        Each look is a request that somebody's commit has to wait for: the first when news are due, by what
        the last waits have taken, and the others after a third of the time that has passed.
        """
        start_ms = self._clock.monotonic_ms()
        sleep_ms = max(_SHORTEST_POLL_MS, self._usual_wait_ms / 2)
        while True:
            self._clock.sleep_ms(self._random.uniform(0.8 * sleep_ms, 1.2 * sleep_ms))
            newer = self._checked(self._follower.step(image))
            now_ms = self._clock.monotonic_ms()
            if newer.commit != image.commit:
                self._usual_wait_ms += (min(now_ms - start_ms, PATIENCE_MS) - self._usual_wait_ms) / 2
            if newer.commit != image.commit or now_ms >= until_ms:
                return newer
            sleep_ms = max(_SHORTEST_POLL_MS, (now_ms - start_ms) / 3)

    def _publish_all(
        self, image: Image, one: _Round, box: RequestBox, waiting: Sequence[Ticket], deadline_ms: int
    ) -> Settled | None:
        """Our own request and all that wait, in one commit; None if the race for it was lost."""
        error: Exception | None = None
        own: tuple[Action, ...] = ()
        try:
            own = tuple(one.plan(image))
            if not own:
                # Nothing to do, now and ever: what makes it so, a writer transaction, stays.
                self._open = None
                return Settled(image=image, commit=image.commit, actions=(), made=False)
            draft = _after(image, self._marked(one, own))
        except ActionRefusedError as problem:
            error, own = refused_error(image, problem), ()
        except Exception as problem:  # noqa: BLE001 - it goes to the caller, once nobody can apply the request
            error, own = problem, ()
        if error is not None:
            draft = _after(image, self._marked(one, own))
        others = self._actions_of_others(draft, one, box, waiting)
        candidate = make_candidate(image, [*self._marked(one, own), *others], self._clock.now_ms())
        if not self._creator.create(candidate, deadline_ms):
            self.note_crowd()
            return None
        self._open = None
        if error is not None:
            raise error
        return Settled(image=candidate.image, commit=candidate.image.commit, actions=own, made=True)

    def _marked(self, one: _Round, actions: Sequence[Action]) -> list[Action]:
        marker = RequestApplied(publisher=self._publisher, sequence=one.sequence, actions=len(actions))
        return [marker, *actions]

    def _actions_of_others(
        self, draft: Image, one: _Round, box: RequestBox, waiting: Sequence[Ticket]
    ) -> list[Action]:
        """What the other requests amount to, one after the other, from `draft` on."""
        others = [ticket for ticket in waiting if ticket.publisher != self._publisher][:MAX_COMBINED]
        self._read_plans(one, box, others)
        actions: list[Action] = []
        size = 0
        for ticket in others:
            known = one.plans[ticket.key]
            if known is None or draft.has_settled(*ticket.key):
                continue
            plan, payload_bytes = known
            size += payload_bytes
            if size > MAX_COMBINED_BYTES:
                break
            try:
                wanted = tuple(plan(draft))
                if not wanted:
                    continue
                marker = RequestApplied(
                    publisher=ticket.publisher, sequence=ticket.sequence, actions=len(wanted)
                )
                draft = _after(draft, [marker, *wanted])
            except Exception as problem:  # noqa: BLE001 - whatever it is: its publisher finds out by itself
                _log.debug("leaving %s to its publisher: %s", ticket.name, problem)
                one.passed_over.add(ticket.key)
                continue
            actions += [marker, *wanted]
        return actions

    def _read_plans(self, one: _Round, box: RequestBox, tickets: Sequence[Ticket]) -> None:
        unread = [ticket for ticket in tickets if ticket.key not in one.plans]
        for ticket, payload in zip(unread, box.read(unread), strict=True):
            known: tuple[Plan, int] | None = None
            if payload is not None:
                try:
                    known = (one.shared.interpret(payload), len(payload))
                except Exception as problem:  # noqa: BLE001 - likewise
                    _log.debug("cannot interpret %s: %s", ticket.name, problem)
            one.plans[ticket.key] = known

    # --- ends ----------------------------------------------------------------------------------------

    def _found(self, image: Image, one: _Round) -> Settled:
        """Others have settled it: which of their commit's actions are ours?"""
        commit = image.publishers[self._publisher].commit
        followed = {header.commit: actions for header, actions in self._follower.followed}
        actions = followed.get(commit)
        if actions is None:
            _, actions = read_commit(self._store, commit, image.cluster_id)
        own = _actions_of(actions, self._publisher, one.sequence)
        self._open = None
        if not own:
            # Nobody but us takes a request back. Should it have happened, we have published nothing.
            raise RetriableError(
                "PUBLISH_CONTENDED",
                f"{self._store.url}: request {one.sequence} of {self._publisher} was taken back in {commit}",
                fix="Publish again",
            )
        return Settled(image=image, commit=commit, actions=own, made=False)

    def _checked(self, found: tuple[Image, SparklogError | None]) -> Image:
        image, error = found
        if error is not None:
            raise error
        return image

    def _unresolved(self, one: _Round, problem: str) -> StorageError:
        return StorageError(
            "PUBLISH_UNRESOLVED",
            f"{self._store.url}: unknown whether request {one.sequence} of {self._publisher} is published: "
            f"{problem}",
            fix="Repair the storage, or publish less often or from fewer processes; the next publish of this "
            "process makes sure that it will not be published after that",
        )


def _after(image: Image, actions: Sequence[Action]) -> Image:
    """The image with these actions in it, to plan more against; its number and UUID mean nothing."""
    return apply_actions(image, actions, commit=image.commit + 1, commit_uuid="planned")


def _actions_of(actions: Sequence[Action], publisher: str, sequence: int) -> tuple[Action, ...]:
    for number, action in enumerate(actions):
        if isinstance(action, RequestApplied) and (action.publisher, action.sequence) == (
            publisher,
            sequence,
        ):
            return tuple(actions[number + 1 : number + 1 + action.actions])
    return ()
