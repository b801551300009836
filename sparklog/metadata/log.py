"""The metadata log of one root: follow it, and publish to it.

Invariants (numbers: docs/design.md):
    1. commits are dense and immutable: commit n+1 is planned against the image of commit n, names its
       UUID, and is created by put-if-absent, behind durable commits only;
    4. the image never goes back, and no image is shown whose commits could be lost by a power cut: a
       follower syncs the directory before it shows, or answers by, commits that somebody else linked;
    5, 6. see creating.py.
Not here: what actions say and do, and how they are planned (model/), what the end of the log is
(following.py), why commit numbers are never used twice although old commits are removed (cleaning.py), how
publishers of a slow store publish for each other (combining.py).
Concurrency: one lock; the image is replaced, never changed, so readers need no lock. After a fork the
child has a fresh lock and goes on from the parent's image. Publishers of other processes take turns if
they can; who loses a race replays the winner's commit, waits a random moment, and plans again.
Costs on a remote store: publishing is one PUT while nobody else publishes, and one GET more when others do;
refreshing is one GET, and none within the store's refresh interval.
After a crash: a commit exists whole or not at all; opening again shows which.
"""

import contextlib
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

from sparklog.clock import Clock
from sparklog.errors import NotFoundError, RetriableError
from sparklog.forking import tell_after_fork
from sparklog.metadata.cleaning import clean_metadata
from sparklog.metadata.combining import CROWDED_MS, Combiner, Plan, Settled, SharedPlan
from sparklog.metadata.creating import CommitCreator, make_candidate
from sparklog.metadata.documents.properties import DIRECTORY, commit_name, open_properties
from sparklog.metadata.following import Follower, Moment, make_follower
from sparklog.metadata.loading import (
    IncarnationCheck,
    refuse_another_history,
    refuse_another_root,
    reload_image,
)
from sparklog.metadata.model.action import new_id
from sparklog.metadata.model.actions import Action
from sparklog.metadata.model.image import NO_COMMIT, Image, empty_image
from sparklog.metadata.model.settings import validate_writable
from sparklog.metadata.upkeep import AtOnce, LogUpkeep, MetadataSettings, Runner
from sparklog.storage import Store, Turn

# --- turns -------------------------------------------------------------------------------------------
#
# Taking turns: competing publishers wait for each other instead of racing.
#
# A lost race costs a plan and an fsync, and fsyncs of one file system queue up behind each other: eight
# racing processes spent three of four fsyncs on commits that lost. So a publisher first asks the store for
# its turn, an advisory lock.
#
# Who waits too long (the holder is stopped, or just lucky) publishes all the same. But a large plan takes
# longer than others wait, and would lose to them every time: so who has lost that way takes the *right of
# way*, a second lock, for the rest of its publish. Whoever publishes, with a turn or without, waits for that
# first, and longer.
#
# A holder who was waited for in vain counts as stopped. Nobody can ask it, nor tell it from the next holder;
# so each publish tries the lock, and does not wait: once it is free, or ours, the next holder is trusted as
# ever. While it never is, we wait again after a while, for half as long as the last time. So a process that
# stays stopped costs another one two waits in all, and not one in each minute.
#
# Invariants: correctness never depends on it; put-if-absent decides as always. Whatever interrupts a publish
#     (Ctrl-C), `release` gives back what it had.
# Concurrency: used under the metadata log's lock. Waiters poll at random moments, so that the holder, who
# has to work between two turns, is often overtaken; who has waited long polls more often.
# After a crash: the kernel frees the locks with the process.


# Longer than eight busy publishers take in turn; short enough for a person who waits.
MAX_WAIT_MS = 250
# When nobody published during the wait, the holder is stopped: nobody waits for it for this long.
DISTRUST_MS = 2_000
# A plan and a commit of 262,144 extents take some 3 s.
RIGHT_OF_WAY_MS, RIGHT_OF_WAY_DISTRUST_MS = 5_000, 60_000
_ROOT = ""
_POLL_MS = 3.0
_IMPATIENT_AFTER_MS = 30


class Turns:
    """One publisher's side of taking turns in a store: `take`, and then, whatever came of it, `release`, in a
    `finally` that calls it again where Ctrl-C came as it began.
    """

    def __init__(self, store: Store, clock: Clock, rng: random.Random) -> None:
        self._store = store
        self._clock = clock
        self._random = rng
        self.start_anew()

    def start_anew(self) -> None:
        """In a forked child: what another thread of the parent has is not the child's to give back."""
        turn, right_of_way = self._store.turn(DIRECTORY), self._store.turn(_ROOT)
        self._turn = _Lock(turn, self._clock, self._random, MAX_WAIT_MS, DISTRUST_MS)
        self._right_of_way = _Lock(
            right_of_way, self._clock, self._random, RIGHT_OF_WAY_MS, RIGHT_OF_WAY_DISTRUST_MS
        )
        self._has_right_of_way = False
        self._began_ms = 0

    def take(self, has_progress: Callable[[], bool]) -> None:
        """Wait for the turn, and for who has right of way. The turn is had then, if it came.

        Args:
            has_progress: has anybody published since we began to wait?
        """
        self._has_right_of_way = False
        self._turn.take(has_progress)
        # With a turn or without.
        self._right_of_way.take(lambda: False)
        self._right_of_way.release()
        self._began_ms = self._clock.monotonic_ms()

    def release(self) -> None:
        """Give back what is had. Called again where it was interrupted, it goes on."""
        self._turn.release()
        self._right_of_way.release()

    def note_lost_race(self) -> None:
        """Within a turn. Did it take longer than others wait? Then they are to wait longer, until it ends."""
        took_ms = self._clock.monotonic_ms() - self._began_ms
        if took_ms >= MAX_WAIT_MS and not self._has_right_of_way:
            self._has_right_of_way = self._right_of_way.take(lambda: True)
        self._began_ms = self._clock.monotonic_ms()


class _Lock:
    """A lock that is waited for, but not for ever, and not at all for a while after that was in vain."""

    def __init__(self, turn: Turn, clock: Clock, rng: random.Random, wait_ms: int, distrust_ms: int) -> None:
        self._turn = turn
        self._clock = clock
        self._random = rng
        self._longest_ms = self._wait_ms = wait_ms
        self._distrust_ms = distrust_ms
        self._distrust_until_ms: int | None = None
        self.release = turn.release

    def take(self, has_progress: Callable[[], bool]) -> bool:
        """Is it had?"""
        if self._tried():
            return True
        start_ms = self._clock.monotonic_ms()
        if self._distrust_until_ms is not None and start_ms < self._distrust_until_ms:
            return False
        while True:
            waited_ms = self._clock.monotonic_ms() - start_ms
            if waited_ms >= self._wait_ms:
                if not has_progress():
                    self._distrust_until_ms = start_ms + waited_ms + self._distrust_ms
                    self._wait_ms //= 2
                return False
            upper_ms = _POLL_MS if waited_ms < _IMPATIENT_AFTER_MS else _POLL_MS / 4
            self._clock.sleep_ms(self._random.uniform(0, upper_ms))
            if self._tried():
                return True

    def _tried(self) -> bool:
        if not self._turn.take():
            return False
        self._distrust_until_ms, self._wait_ms = None, self._longest_ms
        return True


# --- looks -------------------------------------------------------------------------------------------
#
# Looking at the log while somebody publishes: when was the image known to be the newest, and who looks now?
#
# A publish has the metadata log's lock until its commit is made, or lost. On an object store that is busy one
# PUT may take seconds, and longer where the store lets the losers of a race wait; meanwhile the publish looks
# at nothing. A process whose image counts as old must give up what it answers for, although the log is within
# its reach: so who waits to look while a publish waits looks itself, beside it.
#
# 1. broker A puts commit 8, and the store answers after five seconds;
# 2. A's follower waits for the lock; what A knows of the log is from before the put;
# 3. after a session, A would resign its groups and partitions, which nobody took from it.
#
# Invariants: a look beside a publish changes nothing that the publish goes by: it shows an image, if that is
#     newer than the one shown, and says when it was the newest. One at a time, and none within BESIDE_MS of
#     the one before, whatever that found.
# Not here: what a look is (following.py).
# Concurrency: any thread.
# After a crash: nothing is kept.


PEEK_SECONDS = 0.01
BESIDE_MS: Final = 500  # so old an image is while a publish has the lock, and is looked at beside it


def take(acquire: Callable[[bool, float], bool], taken: list[bool], timeout_seconds: float) -> bool:
    """Take a lock, if it can be had in time, and note it in `taken`, so that a `finally` can give it back.

    1. `acquire` returns True to the thread that signals are handled in;
    2. Ctrl-C arrives, before that is noted anywhere;
    3. nobody knows that the lock is to be released: all other threads wait for ever.
    Signals are handled between instructions, and here one takes the lock and notes it. Between the `finally`
    and the release there must be no call, for the same reason; so this is no context manager.
    """
    taken[:] = map(acquire, (True,), (timeout_seconds,))
    return taken[0]


class Looks:
    """See the comment at the head of this section."""

    def __init__(self, follower: Follower, show: Callable[[Image, Moment], None]) -> None:
        """`show`: an image, and a moment at which it was the newest, or newer."""
        self._follower = follower
        self._show = show
        self._last = follower.now()  # before the look that finds the first image
        self._beside = threading.Lock()
        self._beside_ms: int | None = None  # when somebody began to look beside it

    def start_anew(self) -> None:
        """In a forked child: another thread of the parent may be looking."""
        self._beside = threading.Lock()

    @property
    def age_ms(self) -> int:
        """How long ago the image was known to be the newest: by both clocks, so that a machine that was
        suspended knows that it was.
        """
        last, now = self._last, self._follower.now()
        return max(now.monotonic_ms - last.monotonic_ms, now.wall_ms - last.wall_ms)

    def note(self, asked: Moment) -> None:
        """The image was the newest at this moment, or later."""
        if asked.monotonic_ms >= self._last.monotonic_ms:
            self._last = asked

    def has_since(self, began: Moment) -> bool:
        """Has anybody looked, beginning after that?"""
        return self._last.monotonic_ms > began.monotonic_ms

    def wait_for(
        self, lock: threading.RLock, taken: list[bool], began: Moment, shown: Callable[[], Image]
    ) -> bool:
        """Until the lock is had (True), or somebody who has it, or this thread beside it, has looked since.

        Args:
            taken: [True] as soon as the lock is had, for the `finally` of the caller (`take`).

        Raises: StorageError, of a look beside it.
        """
        while not take(lock.acquire, taken, PEEK_SECONDS):
            if self.has_since(began):
                return False
            if self.age_ms >= BESIDE_MS and self._looks_beside(shown):
                return False
        return True

    def _looks_beside(self, shown: Callable[[], Image]) -> bool:
        taken: list[bool] = []
        try:
            if not take(self._beside.acquire, taken, 0):
                return False
            now_ms = self._follower.now().monotonic_ms
            if self._beside_ms is not None and now_ms - self._beside_ms < BESIDE_MS:
                return False  # that one found nothing to show: a store that fails is not asked all the time
            self._beside_ms = now_ms
            seen = self._follower.look_beside(shown())
        finally:
            if True in taken:
                self._beside.release()
        if seen is None:
            return False
        self._show(*seen)
        return True


# --- results -----------------------------------------------------------------------------------------
#
# What came of a publish.


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult:
    """What publish did: the actions as applied, in commit `commit`.

    Without actions nothing was published, and `commit` is the one that the plan looked at.

    Fields:
        planned_against: the image for which the plan, or its shared form, gave these actions; by it whoever
            publishes less than was asked for can be told why. Not always the one of the plan's last call,
            where others published for us; None if nobody can tell any more, or now. May read commits again.
    """

    commit: int
    actions: tuple[Action, ...]
    planned_against: Callable[[], Image | None] = field(compare=False, repr=False)


def result(commit: int, actions: tuple[Action, ...], planned_against: Image) -> PublishResult:
    return PublishResult(commit=commit, actions=actions, planned_against=lambda: planned_against)


def result_of(settled: Settled) -> PublishResult:
    return PublishResult(
        commit=settled.commit, actions=settled.actions, planned_against=settled.planned_against
    )


# --- log ---------------------------------------------------------------------------------------------


# A publisher that has seen others publish looks for their commits before it plans, for this long.
_COMPANY_MS = 600_000
_BACKOFF_MS, _REMOTE_BACKOFF_MS = 2.0, 50.0


class MetadataLog:
    """See the module's docstring. Make one with MetadataLog.open, and share it within the process."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        cluster_id: str,
        settings: MetadataSettings,
        upkeep: Runner,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._random = random.Random()
        self._turns = Turns(store, clock, self._random)
        self._lock = threading.RLock()
        self._is_remote = store.traits.is_remote
        self._incarnation = IncarnationCheck(store, clock)
        self._follower = make_follower(store, clock, self._note_end)
        backoff_ms = settings.backoff_ms
        if backoff_ms is None:
            backoff_ms = _REMOTE_BACKOFF_MS if self._is_remote else _BACKOFF_MS
        self._creator = CommitCreator(
            store, clock, self._random, self._follower, backoff_ms, self._incarnation
        )
        self.combiner = Combiner(store, clock, self._random, self._follower, self._creator)
        self._company_until_ms: int | None = None
        self._refreshed_ms: int | None = None
        self._looks = Looks(self._follower, self._note_end)
        self._showing = threading.Lock()
        store.sync_directory("")  # meta.properties, perhaps by a creator that is not done yet
        self._image = empty_image(cluster_id)
        self._show_durably(reload_image(store, self._image))
        self._upkeep = LogUpkeep(store, clock, self._image, settings, upkeep, self._creator.stop)
        tell_after_fork(self)

    @classmethod
    def open(
        cls,
        store: Store,
        clock: Clock,
        *,
        create: bool = False,
        settings: MetadataSettings | None = None,
        upkeep: Runner | None = None,
    ) -> Self:
        """Open the log of a root; with `create`, make the root if it is none yet.

        Args:
            upkeep: who does what may fall due with a publish, snapshots and cleaning; None: the publish
                itself, before it returns.

        Raises:
            InvalidRequestError: ROOT_NOT_FOUND, not a root.
            CorruptLogError, UnsupportedVersionError: see FORMAT.md.
        """
        cluster_id = open_properties(store, create=create, new_cluster_id=new_id())
        return cls(store, clock, cluster_id, settings or MetadataSettings(), upkeep or AtOnce())

    @property
    def store(self) -> Store:
        """The root's files."""
        return self._store

    @property
    def cluster_id(self) -> str:
        """22 url-safe characters."""
        return self._image.cluster_id

    @property
    def image(self) -> Image:
        """As of the last refresh or publish; immutable. Costs nothing."""
        return self._image

    @property
    def image_age_ms(self) -> int:
        """How long ago the image was known to be the newest: by a look, or a publish of this process."""
        return self._looks.age_ms

    def refresh(self, *, force: bool = False, max_age_ms: int = 0) -> Image:
        """Follow the log to its end. Nothing new: two lookups of file names, or one GET, no more.

        Args:
            force: look even if the store's refresh interval is not over.
            max_age_ms: on a remote store, be content with an image that was the newest so long ago, by a
                look or a publish of this process.

        Raises:
            CorruptLogError: a commit is damaged; the image stays at the one before, and so it goes at
                every further call.
            FencedError: ROOT_RESTORED, likewise.
        """
        interval_ms, began = self._store.traits.refresh_interval_ms, self._follower.now()
        taken: list[bool] = []
        try:
            # A publish may have the lock for long, and looks meanwhile, for all who wait to look.
            if not self._looks.wait_for(self._lock, taken, began, lambda: self._image):
                return self._image
            now_ms = self._clock.monotonic_ms()
            if self._looks.has_since(began):
                return self._image
            if max_age_ms and self._follower.is_confirmed(self._image.commit, within_ms=max_age_ms):
                return self._image
            if force or self._refreshed_ms is None or now_ms - self._refreshed_ms >= interval_ms:
                asked = self._follower.now()
                self._refresh_locked()
                self._looks.note(asked)
                self._refreshed_ms = now_ms
            return self._image
        finally:
            if True in taken:  # whatever interrupts this (looks.take)
                self._lock.release()

    def publish(self, plan: Plan, *, shared: SharedPlan | None = None) -> PublishResult:
        """Publish the actions of `plan`, all or nothing, and return them as applied.

        Args:
            plan: pure; called with the newest image, again after every lost race. Returns no actions when
                there is nothing to do. What it raises goes to the caller, with nothing published.
            shared: the same plan in a form that others can carry out, for stores where racing is dear.

        Raises:
            InvalidRequestError: the actions do not apply to the image, or are too large; nothing published.
            FencedError: ROOT_RESTORED; nothing published, nor will be.
            RetriableError: PUBLISH_CONTENDED, lost races until the time was up; nothing published.
            StorageError: the store refused (full, read-only); nothing published. PUBLISH_UNRESOLVED:
                unknown whether published; the next publish finds out before it does anything else.
            FatalStorageError: durability unknown; stop the process.
        """
        with self._lock:
            before, asked = self._image, self._follower.now()
            result, made = self._publish_locked(plan, shared)
            image = self._image
            self._looks.note(asked)  # a commit made since, or a look
            if image.commit > before.commit + made:
                self._note_company()
        if made:
            self._upkeep.after_publish(image, others=self._has_company())
        return result

    def refuse_another_root(self) -> None:
        """For who is about to remove something by the image: is it still this root's? Costs a read or two.

        Raises:
            FencedError: ROOT_RESTORED. CorruptLogError: it was made anew, or replaced by a copy.
        """
        image = self._image
        if self._is_remote:
            self._incarnation.check(image.incarnation.incarnation_id, max_age_ms=0)
        refuse_another_root(self._store, image)

    def write_snapshot(self) -> int:
        """Write a snapshot of the newest image now; returns its commit."""
        image = self.refresh(force=True)
        if image.commit >= 0:
            self._upkeep.write_snapshot(image)
        return image.commit

    def clean(self, *, grace_ms: int | None = None) -> int:
        """Remove commits and snapshots that are no longer needed; returns the number of files."""
        image = self.refresh(force=True)
        validate_writable(image)
        return clean_metadata(
            self._store,
            image,
            grace_ms=self._settings.clean_grace_ms if grace_ms is None else grace_ms,
            snapshots_kept=self._settings.snapshots_kept,
            now_ms=self._clock.now_ms(),
        )

    def also_keep_up(self, work: Callable[[], None]) -> None:
        """Have `work` done after what falls due: beside publishing, and once in a while."""
        self._upkeep.also.append(work)

    def finish_upkeep(self) -> None:
        """Wait for a snapshot that is being written, or is due, and a little for cleaning (upkeep.py)."""
        self._upkeep.runner.finish()

    # --- following -----------------------------------------------------------------------------------

    def _note_end(self, image: Image, asked: Moment) -> None:
        """A look of a publish that goes on, or beside one, too. Who loses one race after the other, or waits
        for others to publish, is in touch with the log all the time, and must not be taken for cut off by its
        own process.
        """
        if image.commit >= self._image.commit:
            self._show_durably(image)
            self._looks.note(asked)

    def _refresh_locked(self) -> None:
        before = self._image
        image, error = self._follower.newest(before)
        if image is not before:
            self._note_company()
            self.combiner.note_commits(self._follower.followed)
        self._show_durably(image)
        if error is not None:
            raise error

    def _show_durably(self, image: Image) -> None:
        if image is self._image or image.commit < self._image.commit:
            return
        if image.commit != NO_COMMIT:
            self._store.sync_directory(DIRECTORY)
        self._show(image)

    def _show(self, image: Image) -> None:
        """Unless a look beside a publish has shown a newer one meanwhile, or the publish has."""
        with self._showing:
            if image.commit >= self._image.commit:
                self._image = image

    def _before_linking(self, image: Image) -> None:
        """A commit gets its name after durable ones only, and after the one that it names, as far as that
        can be asked for nothing.

        1. Publisher A links commit 3 and is killed before it syncs the directory.
        2. B finds 3, links 4 behind it, and the power fails before B has synced.
        3. A file system that does not keep names in order brings back 4 without 3: the root does not open.
        """
        if image.commit == NO_COMMIT:
            return
        with contextlib.suppress(NotFoundError):  # cleaned since we looked: the guard will find that
            if not self._is_remote:
                refuse_another_history(self._store, image)
            if image is not self._image:
                self._store.sync_name(commit_name(image.commit))

    def _note_company(self) -> None:
        """Somebody else publishes as well."""
        self._company_until_ms = self._clock.monotonic_ms() + _COMPANY_MS

    # --- publishing ----------------------------------------------------------------------------------

    def _publish_locked(self, plan: Plan, shared: SharedPlan | None) -> tuple[PublishResult, bool]:
        """The result, and whether it is a commit that we made."""
        self._creator.refuse_if_fatal()
        deadline_ms = self._clock.monotonic_ms() + self._settings.publish_timeout_ms
        next_name = commit_name(self._image.commit + 1)
        try:
            self._turns.take(lambda: self._store.exists(next_name))
            look = self._must_look()
            if self._creator.has_open_put:
                if self._is_remote:
                    # The guard of the open put needs to know where the end is, as of now.
                    self._refresh_locked()
                self._creator.resolve(deadline_ms)
                look = True
            published = self._publish_in_turn(plan, shared, deadline_ms, look=look)
        finally:
            try:
                self._turns.release()
            finally:  # Ctrl-C as that began
                self._turns.release()
        return published

    def _must_look(self) -> bool:
        """Ask for the newest commit before planning, or try right away and look only if that fails?"""
        if not self._follower.is_confirmed(self._image.commit):
            return True
        return self._has_company()

    def _has_company(self) -> bool:
        return self._company_until_ms is not None and self._clock.monotonic_ms() < self._company_until_ms

    # One loop, as the model has it: look, plan, combine or create, and again.
    def _publish_in_turn(  # noqa: C901, PLR0912
        self, plan: Plan, shared: SharedPlan | None, deadline_ms: int, *, look: bool
    ) -> tuple[PublishResult, bool]:
        image, losses, started_ms = self._image, 0, self._clock.monotonic_ms()
        if not self._may_combine():
            shared = None
        if shared is not None and not self.combiner.crowd.is_worth_posting(shared):
            self.combiner.look_around(image)
        if shared is not None and self.combiner.crowd.is_worth_posting(shared):
            # Whoever publishes it will look. But it must say where the log ends, or its window is soon over.
            look = not self._follower.is_confirmed(image.commit, within_ms=CROWDED_MS)
        while True:
            if look:
                image, error = self._follower.newest(image, expected=1 if losses else 0)
                if error is not None:
                    self._show_durably(image)
                    raise error
                self.combiner.note_commits(self._follower.followed, has_lost=losses > 0)
            try:
                actions = tuple(plan(image))
                candidate = make_candidate(
                    image, (*self.combiner.fencing_actions(image), *actions), self._clock.now_ms()
                )
            except Exception:
                # "Exists already" is an answer too: it must rest on the newest commits, and on durable ones.
                if look:
                    self._show_durably(image)
                    raise
                look = True
                continue
            if not actions:
                if look:
                    self._show_durably(image)
                    return result(image.commit, (), image), False
                look = True
                continue
            if shared is not None and self.combiner.crowd.is_worth_posting(shared):
                settled = self.combiner.publish(image, plan, shared, deadline_ms)
                if settled is not None:
                    self._show_durably(settled.image)
                    return result_of(settled), settled.made
                shared = None
                continue
            self._before_linking(image)
            raced_ms = self._clock.monotonic_ms()
            if self._creator.create(candidate, deadline_ms):
                self.combiner.note_fenced()
                self._show(candidate.image)  # and all before it: the put has synced the directory
                return result(candidate.image.commit, actions, image), True
            losses, look = losses + 1, True
            self._note_company()
            self._turns.note_lost_race()
            if shared is not None:
                now_ms = self._clock.monotonic_ms()
                self.combiner.crowd.note_lost_race(shared, losses, now_ms - raced_ms, now_ms - started_ms)
                if self.combiner.crowd.is_worth_posting(shared):
                    continue
            if self._clock.monotonic_ms() > deadline_ms:
                raise self._contended(candidate.name, losses)
            self._creator.back_off(losses)

    def _contended(self, name: str, losses: int) -> RetriableError:
        return RetriableError(
            "PUBLISH_CONTENDED",
            f"{self._store.url}/{name}: lost {losses} races, until the time was up",
            fix="Publish again, less often or from fewer processes",
        )

    def _may_combine(self) -> bool:
        """May others publish for us?"""
        return self._is_remote and self._settings.combine

    def after_fork_in_child(self) -> None:
        """Another thread of the parent may have held the lock. The image is whole."""
        self._lock, self._showing = threading.RLock(), threading.Lock()
        self._looks.start_anew()
        self._turns.start_anew()
        self._random.seed()  # else all children would wait for the same moments
        self._creator.forget_open_put()
        self.combiner.start_anew()
        self._upkeep.runner.start_anew()
