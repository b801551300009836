"""Combining: publishers of a slow store that race each other publish for each other instead.

A lost race is costly: some object stores make the loser of a conditional put wait for seconds, and of sixteen
racers fifteen lose. So a publisher that lost a race posts what it wants to publish as a request
(requests.py):

    the requests, oldest first, are a queue. The owner of the first one publishes it, and all others that
    it finds, in one commit; the other publishers wait for the log to move, and find their requests in it.

A request whose publisher makes no progress for a while is passed over. Nothing depends on the order of the
queue: put-if-absent decides.

Invariants:
    1. A request is applied at most once: with it a commit holds a `request_applied` of its publisher and
       sequence, which no image takes twice, and none takes too late (model/writers.py); and a publisher goes
       on to the next sequence only when this one is settled, or expires it with its next commit
       (`fencing_actions`).
    2. It is applied as its own publisher would plan it against the same image: a writer's whole, a broker's
       without the parts whose conditions no longer hold (model/conditions.py).
    3. A request that does not apply is left to its publisher, which raises the error after it has made sure
       that no process applies the request later. Any error before that is PUBLISH_UNRESOLVED.
    4. A later request of a publisher replaces its earlier one, which is not applied any more.
Not here: plans and payloads (client/publish.py), the race for a commit (creating.py).
Concurrency: used under the metadata log's lock.
After a crash of the poster its request may still be applied, once, within its window, like a put whose answer
    was lost. After a crash of the process that combines, either the commit is there, or nothing is.
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
# it; a request that does not apply, or is over, is left out, and its publisher finds out by itself.
# Concurrency: made for one call of publish, which runs under the metadata log's lock.
# Bounds: MAX_COMBINED requests and MAX_COMBINED_BYTES of payloads in one commit, where an extent counts as
# at least EXTENT_BYTES, however little of the request it takes. No more is read at a time, and requests that
# cannot be applied are not kept.
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
        races: post the plan after this many lost races of one call, after one costly race, or if others are
            waiting. A request takes longer than a race that is won, or lost at no cost.
    """

    payload: Callable[[], bytes]
    interpret: Callable[[bytes], Plan]
    races: int = 1


@dataclass(slots=True, kw_only=True)
class _Request:
    posted: Posted
    payload: bytes
    plan: Plan | None = None  # made when it is applied: it may take far more memory than the payload


class OtherRequests:
    """The requests of other publishers, each read once, and those that did not apply."""

    def __init__(self, box: RequestBox, interpret: Callable[[bytes], Plan]) -> None:
        self._box = box
        self._interpret = interpret
        self._requests: dict[str, _Request | None] = {}  # by the name of the file
        self.passed_over: set[str] = set()  # likewise

    def actions(
        self, draft: Image, tickets: Sequence[Ticket], *, remembered: Collection[str]
    ) -> list[Action]:
        """Return the actions of these tickets' requests, in order, planned from `draft` on.

        Args:
            remembered: the publishers in the image before the commit, and ours. The draft may have evicted
                some of them already; the commit does so after its last action.
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
            except Exception as problem:  # noqa: BLE001 - its publisher gets the same error by itself
                _log.debug("leaving %s to its publisher: %s", ticket.name, problem)
                self._leave(ticket)
                continue
            actions += marked
            remembered.add(ticket.publisher)
        return actions

    def _leave(self, ticket: Ticket) -> None:
        """Leave the request to its publisher, and keep nothing of it."""
        self.passed_over.add(ticket.name)
        self._requests[ticket.name] = None

    def _read(self, tickets: Sequence[Ticket]) -> None:
        """Read the first of these, and as many of the others as one commit takes."""
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
    """Return the image after these actions, to plan more against; its UUID means nothing."""
    return apply_actions(image, actions, commit=image.commit + 1, commit_uuid="planned")


# --- contention --------------------------------------------------------------------------------------
#
# Whether to post a request or to race, by what a process knows of other publishers and of the cost of races.
#
# A writer posts once it has lost a race, or has seen that others wait. A request takes longer than a race
# that is won, or lost at no cost, and clients wait for each of a broker's commits: a broker posts only where
# races were *costly* lately. They are costly where the store delays losers, where many are lost in a row, and
# where requests stay in the queue for seconds because a publisher races without listing them.
#
# Concurrency: used under the metadata log's lock.
# Sources: adr/0007, adr/0029.


# After a lost race, or after it has seen others' requests, a publisher posts without racing for this long.
CONTENDED_MS = 5_000
# A lost race that took this long was costly: this store delays losers.
COSTLY_LOSS_MS = 250
# Races count as costly for this many times the time that they cost: so it takes one percent of the time to
# find out whether they still are.
_COSTLY_FOR = 100
# A publisher that races with shorter gaps than the first lists the requests at the second interval.
_BUSY_GAP_MS, _LISTING_INTERVAL_MS = 250, 1_000
# The pause after a LIST that failed, which may have taken long (requests.py).
LISTING_PAUSE_MS = 30_000


class Contention:
    """What one process knows of its competitors."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._contended_until_ms: float | None = None
        self._costly_until_ms: float | None = None
        self._listing_failed_until_ms: float | None = None
        self._last_alone_ms = self._listed_ms = clock.monotonic_ms()

    @property
    def is_contended(self) -> bool:
        """True if other publishers were met within the last seconds."""
        return self._is_before(self._contended_until_ms)

    @property
    def has_listing_failed(self) -> bool:
        """True if listing the requests failed within the last seconds."""
        return self._is_before(self._listing_failed_until_ms)

    def note_listing_failed(self) -> None:
        """Record that listing the requests failed."""
        self._listing_failed_until_ms = self._clock.monotonic_ms() + LISTING_PAUSE_MS

    def note(self) -> None:
        """Record that a race was lost, or that others wait."""
        self._contended_until_ms = self._clock.monotonic_ms() + CONTENDED_MS

    def note_costly(self, for_ms: float) -> None:
        """Record that races are costly, to us or to others, for this long."""
        self.note()
        self._costly_until_ms = max(self._costly_until_ms or 0.0, self._clock.monotonic_ms() + for_ms)

    def note_lost_race(self, shared: SharedPlan, races: int, took_ms: float, lost_ms: float) -> None:
        """Record a lost race: the number of races of this call, the last one's time, and the time of all."""
        if races >= shared.races or took_ms >= COSTLY_LOSS_MS:
            self.note_costly(_COSTLY_FOR * lost_ms)

    def is_worth_posting(self, shared: SharedPlan) -> bool:
        """True if a request is expected to be cheaper than a race."""
        return self.is_contended and (shared.races == 1 or self._is_before(self._costly_until_ms))

    def is_listing_due(self) -> bool:
        """True if a publisher that is about to race must first list the requests.

        A publisher that never loses a race would otherwise not learn of a queue whose first request loses to
        it every time. Only a publisher that races all the time lists, once a second.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._last_alone_ms > _BUSY_GAP_MS:
            self._listed_ms = now_ms
        self._last_alone_ms = now_ms
        if now_ms - self._listed_ms < _LISTING_INTERVAL_MS:
            return False
        self._listed_ms = now_ms
        return True

    def _is_before(self, until_ms: float | None) -> bool:
        return until_ms is not None and self._clock.monotonic_ms() < until_ms


# --- timeouts in the queue ---------------------------------------------------------------------------
#
# How long a publisher waits for the requests ahead of its own, and for how many.
#
# A request whose publisher makes no progress is passed over, so that a crashed one delays the others by less
# than a second, once. Many may have crashed together (a killed job, a machine), or be of a version that this
# process cannot read: after MAX_TIMED_OUT without progress, it waits for no others.
#
# Invariants: nothing depends on it; put-if-absent decides as always.
# Concurrency: used under the metadata log's lock.
# Sources: adr/0007.


# How long the first of the queue may take before it is passed over: a random time, up to twice this.
QUEUE_TIMEOUT_MS = 600
MAX_TIMED_OUT = 3


class QueueTimeouts:
    """The timeouts of one process."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._random = rng
        self.usual_wait_ms = 0.0  # for the next commit
        self.start_anew()

    def start_anew(self) -> None:
        """Reset."""
        # The deadline of each request, from when it was first seen at the head of the queue, over all calls:
        # neither a log that moves without it nor a call that gives up may extend it.
        self._until_ms: dict[tuple[str, int], float] = {}

    def keep_only(self, waiting: Iterable[Ticket]) -> None:
        """Forget requests that are gone."""
        known = self._until_ms
        self._until_ms = {ticket.key: known[ticket.key] for ticket in waiting if ticket.key in known}

    def note_wait(self, took_ms: float) -> None:
        """Record how long the next commit took to appear."""
        self.usual_wait_ms += (min(took_ms, QUEUE_TIMEOUT_MS) - self.usual_wait_ms) / 2

    def is_over(self, ticket: Ticket) -> bool:
        """True if the request has timed out."""
        until_ms = self._until_ms.get(ticket.key)
        return until_ms is not None and self._clock.monotonic_ms() >= until_ms

    def until_ms(self, ahead: Iterable[Ticket]) -> float | None:
        """Return the deadline of the first of these that has not timed out; None if all have."""
        now_ms = self._clock.monotonic_ms()
        for ticket in itertools.islice(ahead, MAX_TIMED_OUT):
            timeout_ms = self._random.uniform(QUEUE_TIMEOUT_MS, 2 * QUEUE_TIMEOUT_MS)
            timeout_ms += min(QUEUE_TIMEOUT_MS, 4 * self.usual_wait_ms)  # the store may be slow for everyone
            until_ms = self._until_ms.setdefault(ticket.key, now_ms + timeout_ms)
            if now_ms < until_ms:
                return until_ms
        return None


# --- combining ---------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)

_SHORTEST_POLL_MS = 8.0
_LONGEST_LINGER_MS = 100
_END_KNOWN_MS = 1_000
_RECENT_COMMITS, _RECENT_MS = 8, 1_000
# A request this old, by the store's whole seconds, loses to a publisher that races without listing.
_STARVING_MS, _STARVATION_COST_MS = 2_500, 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The outcome of a request: the newest image, the commit, its actions, and whether we made the commit.

    `planned_against` returns the image that the actions were planned against, if it can be reconstructed.
    """

    image: Image
    commit: int
    actions: tuple[Action, ...]
    made: bool
    planned_against: Callable[[], Image | None]


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """The state of one call of `publish`.

    `unsettled` is the last image in which the request was not settled.
    """

    posted: Posted
    plan: Plan
    others: OtherRequests
    unsettled: Image


class Combiner:
    """Publishes for other processes, and waits for them to publish for this one."""

    def __init__(
        self, store: Store, clock: Clock, rng: random.Random, follower: Follower, creator: CommitCreator
    ) -> None:
        self._store = store
        self._clock = clock
        self._random = rng
        self._follower = follower
        self._creator = creator
        self.contention = Contention(clock)
        self._timeouts = QueueTimeouts(clock, rng)
        self.start_anew()

    def start_anew(self) -> None:
        """Become a new publisher; also in a forked child, which must not continue the parent's sequence."""
        self.publisher = new_id()
        self.sequence = -1
        self._open: Posted | None = None  # what was posted and is not known to be settled
        self._timeouts.start_anew()

    @property
    def _is_open(self) -> bool:
        return self._open is not None

    def note_commits(self, commits: Sequence[Commit], *, has_lost: bool = False) -> None:
        """Learn contention from others' commits: if there was a queue a moment ago, by their clocks, join it.

        Also if this process has just lost a race to it: the queue goes on, and racing with it costs both.
        """
        for header, actions in commits[-_RECENT_COMMITS:]:
            recent = abs(self._clock.now_ms() - header.timestamp_ms) < _RECENT_MS
            if recent and any(isinstance(action, RequestApplied) for action in actions):
                self.contention.note()
                if has_lost:
                    self.contention.note_costly(CONTENDED_MS)
                return

    def list_waiting_if_due(self, image: Image) -> None:
        """Check for waiting and for starving requests, before a race."""
        if self.contention.is_listing_due():
            waiting = self._list_waiting(image, self._box(image))
            if any(self._is_starving(ticket) for ticket in waiting):
                self.contention.note_costly(_STARVATION_COST_MS)

    def _is_starving(self, ticket: Ticket) -> bool:
        """True if the request is old although it has not timed out, so that its owner may be alive."""
        age_ms = self._store.storage_now_ms(self._clock.now_ms()) - ticket.created_ms
        return age_ms >= _STARVING_MS and not self._timeouts.is_over(ticket)

    def fencing_actions(self, image: Image) -> tuple[Action, ...]:
        """Return the actions that must be part of the next commit, so that a request which this process gave
        up cannot be applied after it.
        """
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
        """Record that the commit with the fencing actions was made."""
        self._open = None

    def publish(self, image: Image, plan: Plan, shared: SharedPlan, deadline_ms: int) -> Settled | None:
        """Post the plan as a request, and publish it, or wait until another process has.

        Returns: the outcome; None if nothing was published, because the request is too large to be posted,
            or was not applied within its window.
        Raises: what the plan raises, with nothing published; StorageError PUBLISH_UNRESOLVED.
        """
        if image.has_settled(self.publisher, self.sequence + 1):
            # By a clone of this process. A request of ours under this number would have a base above the
            # commit that settled it, and so be open for longer than images remember that.
            self.start_anew()
        box = self._box(image)
        posted = Posted(
            publisher=self.publisher, sequence=self.sequence + 1, base=image.commit, nonce=new_id()
        )
        data = box.encode(posted, shared.payload())
        if len(data) > MAX_REQUEST_BYTES or not can_settle(image.publishers, posted.publisher):
            return None
        self.sequence = posted.sequence
        self._open = posted  # settling it also settles a request that an earlier call gave up
        others = OtherRequests(box, shared.interpret)
        attempt = _Attempt(posted=posted, plan=plan, others=others, unsettled=image)
        name: str | None = None
        try:
            start_ms = self._clock.monotonic_ms()
            name = box.post(posted, data)
            failpoint("request.posted")
            # A request that was posted before ours is listed now, if its put took as long as ours. Without
            # this pause both owners would take themselves for the first.
            self._clock.sleep_ms(min(_LONGEST_LINGER_MS, self._clock.monotonic_ms() - start_ms))
            return self._settle(image, attempt, box, deadline_ms)
        except FatalStorageError:
            raise
        except Exception as error:
            is_unresolved = isinstance(error, StorageError) and error.code == "PUBLISH_UNRESOLVED"
            if is_unresolved or not self._is_open:
                raise  # in the second case an error of the plan, after the request was taken back
            problem = error.message if isinstance(error, SparklogError) else repr(error)
            raise self._unresolved(attempt, problem) from error
        finally:
            if name is not None and not self._is_open:
                failpoint("request.settled")
                box.delete(name)

    # --- waiting and publishing ----------------------------------------------------------------------

    def _box(self, image: Image) -> RequestBox:
        return RequestBox(self._store, self._clock, image.cluster_id, image.incarnation.incarnation_id)

    def _settle(self, image: Image, attempt: _Attempt, box: RequestBox, deadline_ms: int) -> Settled | None:
        losses = 0
        waiting = self._list_waiting(image, box)
        while not attempt.posted.is_over(image):
            attempt.unsettled = image
            if self._clock.monotonic_ms() > deadline_ms:
                raise self._unresolved(attempt, f"{losses} races lost until the timeout")
            until_ms = self._wait_deadline_ms(image, waiting, attempt)
            if until_ms is not None:
                image = self._wait_for_commit(image, min(until_ms, deadline_ms))
                if not attempt.posted.is_over(image):
                    image = self._at_the_end(image)
                if attempt.posted.is_over(image):
                    break
                if self._wait_deadline_ms(image, waiting, attempt) is None:
                    # No request is ahead any more. Those behind ours are to be published with it.
                    waiting = self._list_waiting(image, box, waiting)
                continue
            image = self._checked(self._follower.newest(image, expected=1 if losses else 0))
            if attempt.posted.is_over(image):
                break
            done = self._publish_all(image, attempt, waiting, deadline_ms)
            if done is not None:
                return done
            # Try again immediately, with the known requests: a publisher that never loses may race all day.
            losses += 1
        return self._found(image, attempt)

    def _list_waiting(self, image: Image, box: RequestBox, known: Sequence[Ticket] = ()) -> Sequence[Ticket]:
        """List the waiting requests. If that fails, return the known ones: the publish goes on without the
        list, and may lose a race.
        """
        if self.contention.has_listing_failed:
            return known
        try:
            waiting = box.waiting(image)
        except StorageError as error:
            _log.info("cannot list the waiting requests: %s", error)
            self.contention.note_listing_failed()
            return known
        if any(ticket.publisher != self.publisher for ticket in waiting):
            self.contention.note()
        self._timeouts.keep_only(waiting)
        return waiting

    def _wait_deadline_ms(self, image: Image, waiting: Sequence[Ticket], attempt: _Attempt) -> float | None:
        """Return until when to wait for the requests ahead of ours in this list; None if there are none."""
        mine = (self.publisher, attempt.posted.sequence)
        if all(ticket.key != mine for ticket in waiting):
            return None  # ours is too old, or was removed: no other process will publish it
        ahead = itertools.takewhile(lambda ticket: ticket.key != mine, newest_of_each(waiting))
        return self._timeouts.until_ms(
            ticket
            for ticket in ahead
            if ticket.name not in attempt.others.passed_over and not image.has_settled(*ticket.key)
        )

    def _wait_for_commit(self, image: Image, until_ms: float) -> Image:
        """Poll until the log moves, or until the deadline.

        Each poll is a request that delays the commits of others. The first is sent when the next commit is
        due, by the duration of the last waits; each later one after a third of the time that has passed.
        """
        start_ms = self._clock.monotonic_ms()
        sleep_ms = max(_SHORTEST_POLL_MS, self._timeouts.usual_wait_ms / 2)
        while True:
            self._clock.sleep_ms(self._random.uniform(0.8 * sleep_ms, 1.2 * sleep_ms))
            newer = self._checked(self._follower.step(image))
            now_ms = self._clock.monotonic_ms()
            if newer.commit != image.commit:
                self._timeouts.note_wait(now_ms - start_ms)
            if newer.commit != image.commit or now_ms >= until_ms:
                return newer
            sleep_ms = max(_SHORTEST_POLL_MS, (now_ms - start_ms) / 3)

    def _at_the_end(self, image: Image) -> Image:
        """Follow to the end of the log if it was not seen for a while.

        Where the log moves all the time, each step finds a commit and none finds the end; without it this
        process would not know how old its image is.
        """
        if self._follower.is_confirmed(image.commit, within_ms=_END_KNOWN_MS):
            return image
        return self._checked(self._follower.newest(image))

    def _publish_all(
        self, image: Image, attempt: _Attempt, waiting: Sequence[Ticket], deadline_ms: int
    ) -> Settled | None:
        """Publish our own request and all that wait in one commit; return None if that race is lost."""
        error: Exception | None = None
        own: tuple[Action, ...] = ()
        try:
            # Without actions there is nothing to do. The request is still withdrawn, with those given up.
            own = tuple(attempt.plan(image))
            draft = image_after(image, self._marked(image, attempt, own))
        except ActionRefusedError as problem:
            error, own = refused_error(image, problem), ()
        except Exception as problem:  # noqa: BLE001 - raised once no process can apply the request any more
            error, own = problem, ()
        if error is not None:
            draft = image_after(image, self._marked(image, attempt, own))
        newest = newest_of_each(waiting)
        others = attempt.others.actions(
            draft,
            [ticket for ticket in newest if ticket.publisher != self.publisher],
            remembered={*image.publishers, self.publisher},
        )
        mine = self._marked(image, attempt, own)
        candidate = make_candidate(image, [*mine, *others], self._clock.now_ms())
        if not self._creator.create(candidate, deadline_ms):
            self.contention.note()
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

    def _marked(self, image: Image, attempt: _Attempt, own: Sequence[Action]) -> list[Action]:
        """Return our actions as the result of the request. If the image has no room for one more publisher by
        now, withdraw the request and return the actions without it.
        """
        if can_settle(image.publishers, self.publisher):
            return attempt.posted.marked(own)
        return [attempt.posted.marker(), *own]

    # --- ends ----------------------------------------------------------------------------------------

    def _found(self, image: Image, attempt: _Attempt) -> Settled | None:
        """Return the outcome of a request that no process can apply any more."""
        try:
            outcome = find_outcome(self._store, image, attempt.posted, self._follower.followed)
        except NotFoundError as error:
            self._open = None
            raise StorageError(
                "PUBLISH_UNRESOLVED",
                f"{self._store.url}: unknown whether request {attempt.posted.sequence} of {self.publisher} "
                "was published: the commits that could tell were cleaned meanwhile",
                fix="Check whether the records are there before you write them again",
            ) from error
        was_settled = attempt.posted.is_settled(image)
        self._open = None
        if outcome is None:
            if was_settled:
                # By a clone of this process, whose numbers this one must not continue.
                _log.warning("request %d was settled by a clone of this process", attempt.posted.sequence)
                self.start_anew()
            return None
        commit, own = outcome
        if not own:
            # Only its publisher withdraws a request. If it happened all the same, nothing was published.
            raise RetriableError(
                "PUBLISH_CONTENDED",
                f"{self._store.url}: request {attempt.posted.sequence} of {self.publisher} was withdrawn in "
                f"commit {commit}",
                fix="Publish again",
            )
        followed = tuple(self._follower.followed)
        return Settled(
            image=image,
            commit=commit,
            actions=own,
            made=False,
            planned_against=lambda: image_before(
                self._store, attempt.unsettled, commit, attempt.posted, followed
            ),
        )

    def _checked(self, found: tuple[Image, SparklogError | None]) -> Image:
        image, error = found
        if error is not None:
            raise error
        return image

    def _unresolved(self, attempt: _Attempt, problem: str) -> StorageError:
        return StorageError(
            "PUBLISH_UNRESOLVED",
            f"{self._store.url}: unknown whether request {attempt.posted.sequence} of {self.publisher} is "
            f"published: {problem}",
            fix="Repair the storage, or publish less often or from fewer processes; the next publish of this "
            "process makes sure that it will not be published after that",
        )
