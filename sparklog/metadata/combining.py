"""Combining: publishers of a slow store that race each other publish for each other instead.

A lost race costs more than it seems: some object stores make the loser of a conditional put wait for seconds,
and of sixteen racers fifteen lose. So who has lost one posts what it wants to publish as a request
(requests.py), and then:

    the requests, oldest first, are a queue. Whoever owns the first one publishes it, and all others that
    it finds, in one commit; everybody else waits for the log to move, and finds itself in it.

Whose publisher does not move for a while is passed over. Nothing depends on the order of the
queue: put-if-absent decides as always.

Invariants:
    1. A request is applied at most once: with it a commit holds a `request_applied` of its publisher and
       sequence, which no image takes twice, and none takes too late (model/writers.py); and a publisher goes
       on to the next sequence only when this one is settled, or takes it out of the world with its next
       commit (`fencing_actions`).
    2. It is applied as its own publisher would plan it against the same image: a writer's whole, a broker's
       without the parts that do not hold any more (model/conditions.py).
    3. What does not apply is left to its publisher, which gets the error, after it has made sure that
       nobody applies the request later. Any error before that is PUBLISH_UNRESOLVED.
    4. Who has posted a later request has given up the earlier one: that is not applied any more.
Not here: plans and payloads (client/publish.py), the race for a commit (creating.py).
Concurrency: used under the metadata log's lock.
After a crash of the poster its request may still be applied, once, within its window: as a put whose answer
    was lost. After a crash of who combines, either the commit is there, or nothing is.
Sources: adr/0007; group commit.
"""

import itertools
import logging
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from sparklog.clock import Clock
from sparklog.errors import FatalStorageError, NotFoundError, RetriableError, SparklogError, StorageError
from sparklog.failpoints import failpoint
from sparklog.metadata.creating import CommitCreator, make_candidate, refused_error
from sparklog.metadata.following import Follower
from sparklog.metadata.loading import Commit
from sparklog.metadata.model.action import ActionRefusedError, new_id
from sparklog.metadata.model.actions import Action, apply_actions
from sparklog.metadata.model.extents import count_extents
from sparklog.metadata.model.image import Image
from sparklog.metadata.model.writers import RequestApplied, can_settle
from sparklog.metadata.requests import (
    MAX_REQUEST_BYTES,
    Posted,
    RequestBox,
    Ticket,
    find_outcome,
    image_before,
    newest_of_each,
)
from sparklog.storage import Store

# --- others ------------------------------------------------------------------------------------------
#
# The requests of others, as actions of our commit.
#
# Invariants: each is applied whole, as its publisher would plan it against the image after the actions before
# it; what does not apply, or is over, is left out, and its publisher finds out by itself.
# Concurrency: made for one call of publish, which runs under the metadata log's lock.
# Bounds: MAX_COMBINED requests and MAX_COMBINED_BYTES of what they say in one commit, where an extent counts
# for EXTENT_BYTES at least, however little of the request it took. So much is read at a time, and what cannot
# be applied is not kept.
# Sources: FORMAT.md#metadata-log, requests; adr/0007.


Plan = Callable[[Image], Sequence[Action]]
MAX_COMBINED = 256
MAX_COMBINED_BYTES = 16 << 20
EXTENT_BYTES = 256  # of an extent in a commit that has too many for columns


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlan:
    """A plan that other processes can carry out as well.

    Fields:
        payload: makes the JSON document from which anybody can plan the same.
        interpret: the plan that such a payload stands for; SparklogError if it cannot be understood.
        races: it is posted after so many lost races of one call, or one that was dear; a request takes longer
            than a race that is won, or lost at no cost. Or if others are seen to wait.
    """

    payload: Callable[[], bytes]
    interpret: Callable[[bytes], Plan]
    races: int = 1


@dataclass(slots=True, kw_only=True)
class _Request:
    posted: Posted
    payload: bytes
    plan: Plan | None = None  # once its turn has come: it may take far more memory than the payload


class OtherRequests:
    """What others ask for, read once each, and what of it was tried and did not apply."""

    def __init__(self, box: RequestBox, interpret: Callable[[bytes], Plan]) -> None:
        self._box = box
        self._interpret = interpret
        self._requests: dict[str, _Request | None] = {}  # by the name of the file
        self.passed_over: set[str] = set()  # likewise

    def actions(
        self, draft: Image, tickets: Sequence[Ticket], *, remembered: Collection[str]
    ) -> list[Action]:
        """What the requests of these tickets amount to, one after the other, from `draft` on.

        Args:
            remembered: the publishers that the commit finds, and ours. The draft may have forgotten some of
                them already; the commit does so after its last action.
        """
        commit = draft.commit  # drafts count on, and the commit is this one
        tickets = tickets[:MAX_COMBINED]
        remembered = set(remembered)
        actions: list[Action] = []
        size = 0
        for number, ticket in enumerate(tickets):
            if ticket.name not in self._requests:
                self._read(tickets[number:])
            known = self._requests[ticket.name]
            if known is None:
                continue
            if not known.posted.may_be_in(commit) or known.posted.is_settled(draft):
                continue
            if size + len(known.payload) > MAX_COMBINED_BYTES:
                break
            try:
                if known.plan is None:
                    known.plan = self._interpret(known.payload)
                wanted = tuple(known.plan(draft))
                if not wanted:
                    continue
                size += max(len(known.payload), EXTENT_BYTES * count_extents(wanted))
                if size > MAX_COMBINED_BYTES:
                    break
                if not can_settle(remembered, ticket.publisher):
                    self._leave(ticket)
                    continue
                marked = known.posted.marked(wanted)
                draft = image_after(draft, marked)
            except Exception as problem:  # noqa: BLE001 - whatever it is: its publisher finds out by itself
                _log.debug("leaving %s to its publisher: %s", ticket.name, problem)
                self._leave(ticket)
                continue
            actions += marked
            remembered.add(ticket.publisher)
        return actions

    def _leave(self, ticket: Ticket) -> None:
        """To its publisher, and keep nothing of it."""
        self.passed_over.add(ticket.name)
        self._requests[ticket.name] = None

    def _read(self, tickets: Sequence[Ticket]) -> None:
        """The first of these, and of the others as many as one commit takes."""
        unread: list[Ticket] = []
        size = 0
        for ticket in tickets:
            size += ticket.size
            if unread and size > MAX_COMBINED_BYTES:
                break
            if ticket.name not in self._requests:
                unread.append(ticket)
        for ticket, request in zip(unread, self._box.read(unread), strict=True):
            known = None
            if request is not None:
                known = _Request(posted=request.posted, payload=request.payload)
            self._requests[ticket.name] = known


def image_after(image: Image, actions: Sequence[Action]) -> Image:
    """The image with these actions in it, to plan more against; its UUID means nothing."""
    return apply_actions(image, actions, commit=image.commit + 1, commit_uuid="planned")


# --- crowd -------------------------------------------------------------------------------------------
#
# Whether to post what is to be published, or to try alone: what a process knows of others, and what races
# cost.
#
# A writer posts once it has lost a race, or has seen that others wait. A request takes longer than a race
# that is won, or lost at no cost, and clients wait for each of a broker's commits: it posts where races were
# *dear* lately. They are where the store makes losers wait; where many are lost in a row; and to those whose
# requests stay for seconds, since somebody publishes without looking.
#
# Concurrency: used under the metadata log's lock.
# Sources: adr/0007, adr/0029.


# After a lost race, or others' requests, a publisher posts its own without trying alone, for this long.
CROWDED_MS = 5_000
# A race that took so long to be lost was dear: this store makes losers wait.
DEAR_LOSS_MS = 250
# After what races have cost, they count as dear for so many times as long: to find out whether they still are
# takes one percent of the time.
_DEAR_FOR = 100
# Who publishes alone with shorter gaps than this looks around so often.
_BUSY_GAP_MS, _LOOK_AROUND_MS = 250, 1_000
# A LIST that failed may have taken its time (requests.py): the next is so far off.
BLIND_MS = 30_000


class Crowd:
    """What one process knows of the others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._crowded_until_ms: float | None = None
        self._dear_until_ms: float | None = None
        self._blind_until_ms: float | None = None
        self._last_alone_ms = self._looked_around_ms = clock.monotonic_ms()

    @property
    def is_there(self) -> bool:
        """Have we met other publishers within the last seconds?"""
        return self._is_before(self._crowded_until_ms)

    @property
    def is_blind(self) -> bool:
        """Has a look at who waits failed within the last seconds?"""
        return self._is_before(self._blind_until_ms)

    def note_blind(self) -> None:
        """One has."""
        self._blind_until_ms = self._clock.monotonic_ms() + BLIND_MS

    def note(self) -> None:
        """A race was lost, or others wait."""
        self._crowded_until_ms = self._clock.monotonic_ms() + CROWDED_MS

    def note_dear(self, for_ms: float) -> None:
        """Races are, to us or to others."""
        self.note()
        self._dear_until_ms = max(self._dear_until_ms or 0.0, self._clock.monotonic_ms() + for_ms)

    def note_lost_race(self, shared: SharedPlan, races: int, took_ms: float, lost_ms: float) -> None:
        """The last of so many in one call, which took so long, and all of them."""
        if races >= shared.races or took_ms >= DEAR_LOSS_MS:
            self.note_dear(_DEAR_FOR * lost_ms)

    def is_worth_posting(self, shared: SharedPlan) -> bool:
        """Rather than to race?"""
        return self.is_there and (shared.races == 1 or self._is_before(self._dear_until_ms))

    def is_time_to_look(self) -> bool:
        """Before publishing alone: does anybody wait?

        Who publishes again and again, and has never lost a race, would else not hear of a queue whose first
        loses to it every time. Only such a publisher looks, with one LIST a second.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._last_alone_ms > _BUSY_GAP_MS:
            self._looked_around_ms = now_ms
        self._last_alone_ms = now_ms
        if now_ms - self._looked_around_ms < _LOOK_AROUND_MS:
            return False
        self._looked_around_ms = now_ms
        return True

    def _is_before(self, until_ms: float | None) -> bool:
        return until_ms is not None and self._clock.monotonic_ms() < until_ms


# --- patience ----------------------------------------------------------------------------------------
#
# Patience with who is ahead in the queue of requests: how long each may take, and how many are waited for.
#
# Whose publisher does not move for a while is passed over, so that a crashed one holds up the others for less
# than a second, once. Many may have crashed together (a job that was killed, a machine), or be of a version
# that nobody here can read: after MOST_SILENT that did not move, nobody is waited for any more.
#
# Invariants: nothing depends on it; put-if-absent decides as always.
# Concurrency: used under the metadata log's lock.
# Sources: adr/0007.


# How long the first of the queue may take before it is passed over: random, between one and two times this.
PATIENCE_MS = 600
MOST_SILENT = 3


class Patience:
    """One process's."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._random = rng
        self.usual_wait_ms = 0.0  # for news of the log
        self.start_anew()

    def start_anew(self) -> None:
        """Know nobody."""
        # Until when each request may be the first. From its first look on, over all calls: neither a log
        # that moves without it nor a call that gives up may start its time anew.
        self._until_ms: dict[tuple[str, int], float] = {}

    def forget_all_but(self, waiting: Iterable[Ticket]) -> None:
        """The others are gone."""
        known = self._until_ms
        self._until_ms = {one.key: known[one.key] for one in waiting if one.key in known}

    def note_wait(self, took_ms: float) -> None:
        """So long the log took to move."""
        self.usual_wait_ms += (min(took_ms, PATIENCE_MS) - self.usual_wait_ms) / 2

    def is_over(self, ticket: Ticket) -> bool:
        """Have we waited for it in vain?"""
        until_ms = self._until_ms.get(ticket.key)
        return until_ms is not None and self._clock.monotonic_ms() >= until_ms

    def until_ms(self, ahead: Iterable[Ticket]) -> float | None:
        """Until when to wait for the first of these that may still move; None: for nobody."""
        now_ms = self._clock.monotonic_ms()
        for ticket in itertools.islice(ahead, MOST_SILENT):
            patience_ms = self._random.uniform(PATIENCE_MS, 2 * PATIENCE_MS)
            patience_ms += min(PATIENCE_MS, 4 * self.usual_wait_ms)  # of a store that is slow for everybody
            until_ms = self._until_ms.setdefault(ticket.key, now_ms + patience_ms)
            if now_ms < until_ms:
                return until_ms
        return None


# --- combining ---------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)

_SHORTEST_POLL_MS = 8.0
_LONGEST_LINGER_MS = 100
_END_KNOWN_MS = 1_000
_RECENT_COMMITS, _RECENT_MS = 8, 1_000
# Who waits so long, by the store's whole seconds, loses to somebody who publishes without looking.
_STARVING_MS, _STARVED_FOR_MS = 2_500, 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """How a request ended: the newest image, the commit, its actions, and whether we made the commit.

    `planned_against`: the image that the actions were planned against, if that can be told.
    """

    image: Image
    commit: int
    actions: tuple[Action, ...]
    made: bool
    planned_against: Callable[[], Image | None]


@dataclass(slots=True, kw_only=True)
class _Round:
    """What one call of `publish` learns while it waits.

    `unsettled`: the last image that did not have the request settled.
    """

    posted: Posted
    plan: Plan
    others: OtherRequests
    unsettled: Image


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
        self.crowd = Crowd(clock)
        self._patience = Patience(clock, rng)
        self.start_anew()

    def start_anew(self) -> None:
        """Also in a forked child, which must not continue the parent's sequence."""
        self.publisher = new_id()
        self.sequence = -1
        self._open: Posted | None = None  # what was posted and is not known to be settled
        self._patience.start_anew()

    @property
    def _is_open(self) -> bool:
        return self._open is not None

    def note_commits(self, commits: Sequence[Commit], *, has_lost: bool = False) -> None:
        """Others' commits: if there was a queue a moment ago, by their clocks, we had better join it.

        At any rate if we have just lost to it: it goes on, and who races with it loses time, and takes it.
        """
        for header, actions in commits[-_RECENT_COMMITS:]:
            recent = abs(self._clock.now_ms() - header.timestamp_ms) < _RECENT_MS
            if recent and any(isinstance(one, RequestApplied) for one in actions):
                self.crowd.note()
                if has_lost:
                    self.crowd.note_dear(CROWDED_MS)
                return

    def look_around(self, image: Image) -> None:
        """Before publishing alone, once in a while: does anybody wait, or even wait in vain?"""
        if self.crowd.is_time_to_look():
            waiting = self._look_who_waits(image, self._box(image))
            if any(self._is_starving(ticket) for ticket in waiting):
                self.crowd.note_dear(_STARVED_FOR_MS)

    def _is_starving(self, ticket: Ticket) -> bool:
        """Has it waited for long, and is not one that we have waited for in vain, whose owner is gone?"""
        age_ms = self._store.storage_now_ms(self._clock.now_ms()) - ticket.created_ms
        return age_ms >= _STARVING_MS and not self._patience.is_over(ticket)

    def fencing_actions(self, image: Image) -> tuple[Action, ...]:
        """What must go with the next commit, so that a request that we gave up cannot be applied after it."""
        if self._open is None:
            return ()
        if self._open.is_settled(image):
            _log.warning("request %d was settled by others after its call had given up", self._open.sequence)
            self._open = None
            return ()
        if self._open.is_void(image):
            self._open = None
            return ()
        return (self._open.marker(),)

    def note_fenced(self) -> None:
        """The commit with the fencing actions is made."""
        self._open = None

    def publish(self, image: Image, plan: Plan, shared: SharedPlan, deadline_ms: int) -> Settled | None:
        """Have the plan published, by ourselves or by others.

        Returns: how it ended; None if it cannot be done so, and nothing was published: it is too large to be
            posted, or nobody came to it while it could be applied.
        Raises: what the plan raises, with nothing published; StorageError PUBLISH_UNRESOLVED.
        """
        if image.has_settled(self.publisher, self.sequence + 1):
            # By a clone of this process. A request of ours under this number would have a base above the
            # commit that has settled it, and so be open for longer than images remember that.
            self.start_anew()
        box = self._box(image)
        posted = Posted(
            publisher=self.publisher, sequence=self.sequence + 1, base=image.commit, nonce=new_id()
        )
        data = box.encode(posted, shared.payload())
        if len(data) > MAX_REQUEST_BYTES or not can_settle(image.publishers, posted.publisher):
            return None
        self.sequence = posted.sequence
        self._open = posted  # and what an earlier call gave up: this sequence, once settled, settles that too
        others = OtherRequests(box, shared.interpret)
        one = _Round(posted=posted, plan=plan, others=others, unsettled=image)
        name: str | None = None
        try:
            start_ms = self._clock.monotonic_ms()
            name = box.post(posted, data)
            failpoint("request.posted")
            # Who posted before us is in the queue now, if its put took as long as ours: else both go first.
            self._clock.sleep_ms(min(_LONGEST_LINGER_MS, self._clock.monotonic_ms() - start_ms))
            return self._settle(image, one, box, deadline_ms)
        except FatalStorageError:
            raise
        except Exception as error:
            says_it_all = isinstance(error, StorageError) and error.code == "PUBLISH_UNRESOLVED"
            if says_it_all or not self._is_open:
                raise  # in the second case an error of the plan, after the request was taken back
            problem = error.message if isinstance(error, SparklogError) else repr(error)
            raise self._unresolved(one, problem) from error
        finally:
            if name is not None and not self._is_open:
                failpoint("request.settled")
                box.delete(name)

    # --- waiting and publishing ----------------------------------------------------------------------

    def _box(self, image: Image) -> RequestBox:
        return RequestBox(self._store, self._clock, image.cluster_id, image.incarnation.incarnation_id)

    def _settle(self, image: Image, one: _Round, box: RequestBox, deadline_ms: int) -> Settled | None:
        losses = 0
        waiting = self._look_who_waits(image, box)
        while not one.posted.is_over(image):
            one.unsettled = image
            if self._clock.monotonic_ms() > deadline_ms:
                raise self._unresolved(one, f"{losses} races lost, until the time was up")
            until_ms = self._patience_with_others(image, waiting, one)
            if until_ms is not None:
                image = self._wait_for_news(image, min(until_ms, deadline_ms))
                if not one.posted.is_over(image):
                    image = self._at_the_end(image)
                if one.posted.is_over(image):
                    break
                if self._patience_with_others(image, waiting, one) is None:
                    # Who was ahead is gone. Those who came after us are to be published with us.
                    waiting = self._look_who_waits(image, box, waiting)
                continue
            image = self._checked(self._follower.newest(image, expected=1 if losses else 0))
            if one.posted.is_over(image):
                break
            done = self._publish_all(image, one, waiting, deadline_ms)
            if done is not None:
                return done
            # Try again at once, with those we know: somebody who has never lost may publish all the time.
            losses += 1
        return self._found(image, one)

    def _look_who_waits(
        self, image: Image, box: RequestBox, known: Sequence[Ticket] = ()
    ) -> Sequence[Ticket]:
        """Those known before where it cannot be told, which fails no publish: it goes first, and may lose."""
        if self.crowd.is_blind:
            return known
        try:
            waiting = box.waiting(image)
        except StorageError as error:
            _log.info("nobody is known to wait: %s", error)
            self.crowd.note_blind()
            return known
        if any(ticket.publisher != self.publisher for ticket in waiting):
            self.crowd.note()
        self._patience.forget_all_but(waiting)
        return waiting

    def _patience_with_others(self, image: Image, waiting: Sequence[Ticket], one: _Round) -> float | None:
        """Until when to wait for who is ahead of us, by this listing; None when nobody is."""
        mine = (self.publisher, one.posted.sequence)
        if all(ticket.key != mine for ticket in waiting):
            return None  # ours is too old, or somebody removed it: nobody else will publish it
        ahead = itertools.takewhile(lambda ticket: ticket.key != mine, newest_of_each(waiting))
        return self._patience.until_ms(
            ticket
            for ticket in ahead
            if ticket.name not in one.others.passed_over and not image.has_settled(*ticket.key)
        )

    def _wait_for_news(self, image: Image, until_ms: float) -> Image:
        """Poll until the log moves, or patience is over.

        Each look is a request that somebody's commit has to wait for: the first when news are due, by what
        the last waits have taken, and the others after a third of the time that has passed.
        """
        start_ms = self._clock.monotonic_ms()
        sleep_ms = max(_SHORTEST_POLL_MS, self._patience.usual_wait_ms / 2)
        while True:
            self._clock.sleep_ms(self._random.uniform(0.8 * sleep_ms, 1.2 * sleep_ms))
            newer = self._checked(self._follower.step(image))
            now_ms = self._clock.monotonic_ms()
            if newer.commit != image.commit:
                self._patience.note_wait(now_ms - start_ms)
            if newer.commit != image.commit or now_ms >= until_ms:
                return newer
            sleep_ms = max(_SHORTEST_POLL_MS, (now_ms - start_ms) / 3)

    def _at_the_end(self, image: Image) -> Image:
        """Where the log moves all the time, each step finds news, and none the end: so that is looked for
        once in a while, or this process would not know how old its image is.
        """
        if self._follower.is_confirmed(image.commit, within_ms=_END_KNOWN_MS):
            return image
        return self._checked(self._follower.newest(image))

    def _publish_all(
        self, image: Image, one: _Round, waiting: Sequence[Ticket], deadline_ms: int
    ) -> Settled | None:
        """Our own request and all that wait, in one commit; None if the race for it was lost."""
        error: Exception | None = None
        own: tuple[Action, ...] = ()
        try:
            # No actions: there is nothing to do. The request is taken back all the same, with those given up.
            own = tuple(one.plan(image))
            draft = image_after(image, self._marked(image, one, own))
        except ActionRefusedError as problem:
            error, own = refused_error(image, problem), ()
        except Exception as problem:  # noqa: BLE001 - it goes to the caller, once nobody can apply the request
            error, own = problem, ()
        if error is not None:
            draft = image_after(image, self._marked(image, one, own))
        newest = newest_of_each(waiting)
        others = one.others.actions(
            draft,
            [one for one in newest if one.publisher != self.publisher],
            remembered={*image.publishers, self.publisher},
        )
        mine = self._marked(image, one, own)
        candidate = make_candidate(image, [*mine, *others], self._clock.now_ms())
        if not self._creator.create(candidate, deadline_ms):
            self.crowd.note()
            return None
        self._open = None
        if error is not None:
            raise error
        return Settled(
            image=candidate.image,
            commit=candidate.image.commit,
            actions=own,
            made=True,
            planned_against=lambda: image,
        )

    def _marked(self, image: Image, one: _Round, own: Sequence[Action]) -> list[Action]:
        """Our actions as what the request asked for; or, where there was room for one more publisher when we
        posted it, and is none now, beside the request, which is taken back.
        """
        if can_settle(image.publishers, self.publisher):
            return one.posted.marked(own)
        return [one.posted.marker(), *own]

    # --- ends ----------------------------------------------------------------------------------------

    def _found(self, image: Image, one: _Round) -> Settled | None:
        """Nobody can apply it any more: has anybody?"""
        try:
            outcome = find_outcome(self._store, image, one.posted, self._follower.followed)
        except NotFoundError as error:
            self._open = None
            raise StorageError(
                "PUBLISH_UNRESOLVED",
                f"{self._store.url}: unknown whether request {one.posted.sequence} of {self.publisher} was "
                "published: the commits that could tell were cleaned meanwhile",
                fix="Look whether the records are there before you write them again",
            ) from error
        was_settled = one.posted.is_settled(image)
        self._open = None
        if outcome is None:
            if was_settled:
                # By a twin of ours: this process is a clone, and must not go on with numbers of the other.
                _log.warning("request %d was settled by a clone of this process", one.posted.sequence)
                self.start_anew()
            return None
        commit, own = outcome
        if not own:
            # Nobody but us takes a request back. Should it have happened, we have published nothing.
            raise RetriableError(
                "PUBLISH_CONTENDED",
                f"{self._store.url}: request {one.posted.sequence} of {self.publisher} was taken back in "
                f"commit {commit}",
                fix="Publish again",
            )
        followed = tuple(self._follower.followed)
        return Settled(
            image=image,
            commit=commit,
            actions=own,
            made=False,
            planned_against=lambda: image_before(self._store, one.unsettled, commit, one.posted, followed),
        )

    def _checked(self, found: tuple[Image, SparklogError | None]) -> Image:
        image, error = found
        if error is not None:
            raise error
        return image

    def _unresolved(self, one: _Round, problem: str) -> StorageError:
        return StorageError(
            "PUBLISH_UNRESOLVED",
            f"{self._store.url}: unknown whether request {one.posted.sequence} of {self.publisher} is "
            f"published: {problem}",
            fix="Repair the storage, or publish less often or from fewer processes; the next publish of this "
            "process makes sure that it will not be published after that",
        )
