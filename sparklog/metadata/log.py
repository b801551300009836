"""The metadata log of one root: follow it, and publish to it.

Invariants (numbers: docs/design.md):
    1. commits are dense and immutable: commit n+1 is planned against the image of commit n, names its
       UUID, and is created by put-if-absent, behind durable commits only;
    4. the image never goes back, and no image is installed whose commits a power cut could lose: a
       follower syncs the directory before it installs, or answers from, commits that others linked;
    5, 6. see creating.py.
Not here: what actions say and do, and how they are planned (model/), what the end of the log is
(following.py), why commit numbers are never used twice although old commits are removed (cleaning.py), how
publishers of a slow store publish for each other (combining.py).
Concurrency: one lock; the image is replaced, never changed, so readers need no lock. After a fork the
child has a fresh lock and goes on from the parent's image. Publishers of other processes take turns if
they can; the loser of a race replays the winner's commit, backs off for a random time, and plans again.
Costs on a remote store: publishing is one PUT while nobody else publishes, and one GET more when others do;
refreshing is one GET, and none within the store's refresh interval.
After a crash: a commit exists whole or not at all; opening again shows which.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from sparklog.clock import Clock
from sparklog.errors import NotFoundError, RetriableError
from sparklog.forking import notify_after_fork
from sparklog.metadata.cleaning import clean_metadata
from sparklog.metadata.combining import CONTENDED_MS, Combiner, Plan, Settled, SharedPlan
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
from sparklog.metadata.model.isolation import plan_isolation
from sparklog.metadata.model.settings import validate_writable
from sparklog.metadata.upkeep import Inline, LogUpkeep, MetadataSettings, Runner
from sparklog.storage import AdvisoryLock, Store

# --- locks between publishers ------------------------------------------------------------------------
#
# Competing publishers wait for each other instead of racing.
#
# A lost race costs a plan and an fsync, and fsyncs of one file system queue up behind each other: eight
# racing processes spent three of four fsyncs on commits that lost. So a publisher first takes an advisory
# lock of the store, the *publish lock*.
#
# A publisher that waits too long (the holder is stopped, or just lucky) publishes without the lock. A large
# plan takes longer than others wait, and would lose to them every time: so a publisher that lost this way
# takes the *priority lock* for the rest of its publish. Every publisher, with a lock or without, first waits
# until that lock is free, and waits longer.
#
# If nothing is published during a wait, the holder counts as stopped. There is no way to ask it, or to tell
# it from the next holder; so each publish tries the lock without waiting, and waits again only after a
# cool-down, half as long as the last time. Once the lock was free, waits are as long as before. A process
# that stays stopped costs another one two waits in all, and not one in each minute.
#
# Invariants: correctness never depends on these locks; put-if-absent decides. Whatever interrupts a publish
#     (Ctrl-C), `release` releases the locks that it held.
# Concurrency: used under the metadata log's lock. Waiters poll at random moments, so that the holder, which
# has to work between two publishes, is often overtaken; a publisher that has waited long polls more often.
# After a crash: the kernel frees the locks with the process.


# Longer than eight busy publishers take together; short enough for interactive use.
MAX_WAIT_MS = 250
# The cool-down after a wait during which nothing was published.
DISTRUST_MS = 2_000
# A plan and a commit of 262,144 extents take some 3 s.
PRIORITY_WAIT_MS, PRIORITY_DISTRUST_MS = 5_000, 60_000
_ROOT = ""
_POLL_MS = 3.0
_IMPATIENT_AFTER_MS = 30


class PublishLocks:
    """The locks of one publisher. Call `acquire`, then always `release`, in a `finally` that calls it again:
    Ctrl-C may interrupt the first call as it begins.
    """

    def __init__(self, store: Store, clock: Clock, rng: random.Random) -> None:
        self._store = store
        self._clock = clock
        self._random = rng
        self.start_anew()

    def start_anew(self) -> None:
        """In a forked child: locks that another thread of the parent holds are not the child's to release."""
        publish, priority = self._store.advisory_lock(DIRECTORY), self._store.advisory_lock(_ROOT)
        self._publish = _Lock(publish, self._clock, self._random, MAX_WAIT_MS, DISTRUST_MS)
        self._priority = _Lock(priority, self._clock, self._random, PRIORITY_WAIT_MS, PRIORITY_DISTRUST_MS)
        self._has_priority = False
        self._began_ms = 0

    def acquire(self, has_progress: Callable[[], bool]) -> None:
        """Acquire the publish lock if it becomes free in time, and wait for a publisher with priority.

        Args:
            has_progress: true if a commit was published since the wait began.
        """
        self._has_priority = False
        self._publish.acquire(has_progress)
        # With the publish lock or without.
        self._priority.acquire(lambda: False)
        self._priority.release()
        self._began_ms = self._clock.monotonic_ms()

    def release(self) -> None:
        """Release the locks that are held. If interrupted, call it again."""
        self._publish.release()
        self._priority.release()

    def note_lost_race(self) -> None:
        """Acquire the priority lock if the lost attempt took longer than others wait for the publish lock."""
        took_ms = self._clock.monotonic_ms() - self._began_ms
        if took_ms >= MAX_WAIT_MS and not self._has_priority:
            self._has_priority = self._priority.acquire(lambda: True)
        self._began_ms = self._clock.monotonic_ms()


class _Lock:
    """A lock with a timeout, and a cool-down after a timeout without progress."""

    def __init__(
        self, lock: AdvisoryLock, clock: Clock, rng: random.Random, wait_ms: int, distrust_ms: int
    ) -> None:
        self._lock = lock
        self._clock = clock
        self._random = rng
        self._longest_ms = self._wait_ms = wait_ms
        self._distrust_ms = distrust_ms
        self._distrust_until_ms: int | None = None
        self.release = lock.release

    def acquire(self, has_progress: Callable[[], bool]) -> bool:
        """Return true if the lock is held."""
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
        if not self._lock.acquire():
            return False
        self._distrust_until_ms, self._wait_ms = None, self._longest_ms
        return True


# --- freshness ---------------------------------------------------------------------------------------
#
# When the image was known to be the newest, and refreshing it while a publish holds the lock.
#
# A publish holds the metadata log's lock until its commit is made, or lost. On a busy object store one PUT
# may take seconds, and longer where the store delays the losers of a race; meanwhile the publish does not
# refresh. A process whose image counts as old must give up its groups and partitions, although it can reach
# the log: so a thread that waits for the lock in order to refresh does so without it, concurrently.
#
# 1. broker A puts commit 8, and the store answers after five seconds;
# 2. A's follower waits for the lock; what A knows of the log is from before the put;
# 3. after a session, A would resign its groups and partitions, which nobody took from it.
#
# Invariants: a concurrent refresh changes nothing that the publish relies on: it installs an image if that is
#     newer than the installed one, and records when it was the newest. At most one runs at a time, and none
#     begins within CONCURRENT_REFRESH_MS of the one before.
# Not here: how the end of the log is found (following.py).
# Concurrency: any thread.
# After a crash: nothing is kept.


LOCK_POLL_SECONDS = 0.01
CONCURRENT_REFRESH_MS: Final = 500  # the age from which an image is refreshed although a publish has the lock


def take(acquire: Callable[[bool, float], bool], taken: list[bool], timeout_seconds: float) -> bool:
    """Take a lock within the timeout, and note it in `taken`, so that a `finally` can release it.

    1. `acquire` returns True to the thread in which signals are handled;
    2. Ctrl-C arrives, before that is noted anywhere;
    3. nothing knows that the lock must be released: all other threads wait without end.
    Signals are handled between instructions, and here a single one takes the lock and notes it. Between the
    `finally` and the release there must be no call, for the same reason; so this is no context manager.
    """
    taken[:] = map(acquire, (True,), (timeout_seconds,))
    return taken[0]


class Freshness:
    """The age of the image, and refreshes while the lock is taken."""

    def __init__(self, follower: Follower, install: Callable[[Image, Moment], None]) -> None:
        """`install` takes an image, and a moment at which it was the newest, or newer."""
        self._follower = follower
        self._install = install
        self._last = follower.now()  # before the refresh that finds the first image
        self._refreshing = threading.Lock()
        self._began_ms: int | None = None  # the last concurrent refresh

    def start_anew(self) -> None:
        """In a forked child: another thread of the parent may be refreshing."""
        self._refreshing = threading.Lock()

    @property
    def age_ms(self) -> int:
        """How long ago the image was known to be the newest: by both clocks, because the monotonic clock may
        stop while a machine is suspended.
        """
        last, now = self._last, self._follower.now()
        return max(now.monotonic_ms - last.monotonic_ms, now.wall_ms - last.wall_ms)

    def note(self, asked: Moment) -> None:
        """Record that the image was the newest at this moment, or later."""
        if asked.monotonic_ms >= self._last.monotonic_ms:
            self._last = asked

    def refreshed_since(self, began: Moment) -> bool:
        """True if a refresh was done that began after this moment."""
        return self._last.monotonic_ms > began.monotonic_ms

    def acquire_unless_refreshed(
        self, lock: threading.RLock, taken: list[bool], began: Moment, image: Callable[[], Image]
    ) -> bool:
        """Wait until the lock is held (True), or a refresh has begun after `began`, in the thread that holds
        the lock or concurrently in this one (False).

        Args:
            taken: [True] as soon as the lock is held, for the `finally` of the caller (`take`).

        Raises: StorageError, of a concurrent refresh.
        """
        while not take(lock.acquire, taken, LOCK_POLL_SECONDS):
            if self.refreshed_since(began):
                return False
            if self.age_ms >= CONCURRENT_REFRESH_MS and self._refresh_concurrently(image):
                return False
        return True

    def _refresh_concurrently(self, image: Callable[[], Image]) -> bool:
        taken: list[bool] = []
        try:
            if not take(self._refreshing.acquire, taken, 0):
                return False
            now_ms = self._follower.now().monotonic_ms
            if self._began_ms is not None and now_ms - self._began_ms < CONCURRENT_REFRESH_MS:
                return False  # the last one had no result: a failing store is not asked all the time
            self._began_ms = now_ms
            seen = self._follower.refresh_concurrently(image())
        finally:
            if True in taken:
                self._refreshing.release()
        if seen is None:
            return False
        self._install(*seen)
        return True


# --- results -----------------------------------------------------------------------------------------
#
# What publish returns.


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult:
    """The actions as applied, in commit `commit`.

    Without actions nothing was published, and `commit` is the one that the plan was called with.

    Fields:
        planned_against: the image for which the plan, or its shared form, gave these actions: it explains why
            less was published than requested. Not always the image of the plan's last call, where others
            published for us; None if it cannot be reconstructed. May read commits again.
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


# A publisher that has seen commits of others refreshes before it plans, for this long.
_OTHERS_MS = 600_000
_BACKOFF_MS, _REMOTE_BACKOFF_MS = 2.0, 50.0


class MetadataLog:
    """The metadata log of one root. Make one with MetadataLog.open, and share it within the process."""

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
        self._locks = PublishLocks(store, clock, self._random)
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
        self._others_until_ms: int | None = None
        self._refreshed_ms: int | None = None
        self._freshness = Freshness(self._follower, self._note_end)
        self._installing = threading.Lock()
        store.sync_directory("")  # meta.properties, perhaps by a creator that is not done yet
        self._image = empty_image(cluster_id)
        self._install_durably(reload_image(store, self._image))
        self._upkeep = LogUpkeep(store, clock, self._image, settings, upkeep, self._creator.stop)
        notify_after_fork(self)

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
            upkeep: runs the background maintenance of the log, snapshots and cleaning; None: the publish
                does it before it returns.

        Raises:
            InvalidRequestError: ROOT_NOT_FOUND, not a root.
            CorruptLogError, UnsupportedVersionError: see FORMAT.md.
        """
        cluster_id = open_properties(store, create=create, new_cluster_id=new_id())
        return cls(store, clock, cluster_id, settings or MetadataSettings(), upkeep or Inline())

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
        """How long ago the image was known to be the newest: by a refresh, or a publish of this process."""
        return self._freshness.age_ms

    def refresh(self, *, force: bool = False, max_age_ms: int = 0) -> Image:
        """Follow the log to its end. Without news this costs two lookups of file names, or one GET.

        Args:
            force: refresh even if the store's refresh interval is not over.
            max_age_ms: on a remote store, accept an image that was the newest at most this long ago, by a
                refresh or a publish of this process.

        Raises:
            CorruptLogError: a commit is damaged; the image stays at the one before. Every further call
                raises it again.
            FencedError: ROOT_RESTORED, likewise.
        """
        interval_ms, began = self._store.traits.refresh_interval_ms, self._follower.now()
        taken: list[bool] = []
        try:
            # A publish may hold the lock for long. It refreshes meanwhile, for all threads that wait here.
            if not self._freshness.acquire_unless_refreshed(self._lock, taken, began, lambda: self._image):
                return self._image
            now_ms = self._clock.monotonic_ms()
            if self._freshness.refreshed_since(began):
                return self._image
            if max_age_ms and self._follower.is_confirmed(self._image.commit, within_ms=max_age_ms):
                return self._image
            if force or self._refreshed_ms is None or now_ms - self._refreshed_ms >= interval_ms:
                asked = self._follower.now()
                self._refresh_locked()
                self._freshness.note(asked)
                self._refreshed_ms = now_ms
            return self._image
        finally:
            if True in taken:  # whatever interrupts this (see `take`)
                self._lock.release()

    def publish(self, plan: Plan, *, shared: SharedPlan | None = None) -> PublishResult:
        """Publish the actions of `plan`, all or nothing, and return them as applied.

        Args:
            plan: pure; called with the newest image, again after every lost race. Returns no actions when
                there is nothing to do. If it raises, nothing is published and the error goes to the caller.
            shared: the same plan in a form that others can carry out, for stores where races are costly.

        Raises:
            InvalidRequestError: the actions do not apply to the image, or are too large; nothing published.
            FencedError: ROOT_RESTORED; nothing is published, and nothing can be.
            RetriableError: PUBLISH_CONTENDED, lost races until the timeout; nothing published.
            StorageError: the store refused (full, read-only); nothing published. PUBLISH_UNRESOLVED:
                unknown whether published; the next publish finds out before it does anything else.
            FatalStorageError: durability unknown; stop the process.
        """
        with self._lock:
            before, asked = self._image, self._follower.now()
            result, made = self._publish_locked(plan, shared)
            image = self._image
            self._freshness.note(asked)  # a commit was made since, or a refresh
            if image.commit > before.commit + made:
                self._note_other_publisher()
        if made:
            self._upkeep.after_publish(image, others=self._others_publish())
        return result

    def refuse_another_root(self) -> None:
        """Check that the image still belongs to this root, before something is removed. Costs a read or two.

        Raises:
            FencedError: ROOT_RESTORED. CorruptLogError: the root was made anew, or replaced by a copy.
        """
        image = self._image
        if self._is_remote:
            self._incarnation.check(image.incarnation.incarnation_id, max_age_ms=0)
        refuse_another_root(self._store, image)

    def write_snapshot(self) -> int:
        """Write a snapshot of the newest image now, and return its commit."""
        image = self.refresh(force=True)
        if image.commit >= 0:
            self._upkeep.write_snapshot(image)
        return image.commit

    def clean(self, *, grace_ms: int | None = None) -> int:
        """Remove commits and snapshots that are no longer needed, and return the number of files."""
        image = self.refresh(force=True)
        validate_writable(image)
        return clean_metadata(
            self._store,
            image,
            grace_ms=self._settings.clean_grace_ms if grace_ms is None else grace_ms,
            snapshots_kept=self._settings.snapshots_kept,
            now_ms=self._clock.now_ms(),
        )

    def add_upkeep(self, work: Callable[[], None]) -> None:
        """Run `work` with the background maintenance, periodically."""
        self._upkeep.more_work.append(work)

    def finish_upkeep(self) -> None:
        """Wait for a snapshot that is due or being written, and briefly for cleaning (upkeep.py)."""
        self._upkeep.runner.finish()

    # --- following -----------------------------------------------------------------------------------

    def _note_end(self, image: Image, asked: Moment) -> None:
        """Install the image of a refresh that a publish made before it ends, or of a concurrent one.

        A publish that loses one race after the other, or waits for others to publish for it, reads the log
        all the time: its process must not take itself for cut off from the log.
        """
        if image.commit >= self._image.commit:
            self._install_durably(image)
            self._freshness.note(asked)

    def _refresh_locked(self) -> None:
        before = self._image
        image, error = self._follower.newest(before)
        if image is not before:
            self._note_other_publisher()
            self.combiner.note_commits(self._follower.followed)
        self._install_durably(image)
        if error is not None:
            raise error

    def _install_durably(self, image: Image) -> None:
        if image is self._image or image.commit < self._image.commit:
            return
        if image.commit != NO_COMMIT:
            self._store.sync_directory(DIRECTORY)
        self._install(image)

    def _install(self, image: Image) -> None:
        """No-op if a concurrent refresh or publish installed a newer image."""
        with self._installing:
            if image.commit >= self._image.commit:
                self._image = image

    def _before_linking(self, image: Image) -> None:
        """Make the predecessor of the next commit durable, and check that it is the one which that names.

        1. Publisher A links commit 3 and is killed before it syncs the directory.
        2. B finds 3, links 4 behind it, and the power fails before B has synced.
        3. A file system that does not keep names in order brings back 4 without 3: the root does not open.
        """
        if image.commit == NO_COMMIT:
            return
        with contextlib.suppress(NotFoundError):  # cleaned since the refresh: the guard will find that
            if not self._is_remote:
                refuse_another_history(self._store, image)
            if image is not self._image:
                self._store.sync_name(commit_name(image.commit))

    def _note_other_publisher(self) -> None:
        """Remember that another process publishes, too."""
        self._others_until_ms = self._clock.monotonic_ms() + _OTHERS_MS

    # --- publishing ----------------------------------------------------------------------------------

    def _publish_locked(self, plan: Plan, shared: SharedPlan | None) -> tuple[PublishResult, bool]:
        """Return the result, and whether this process made its commit."""
        self._creator.refuse_if_fatal()
        deadline_ms = self._clock.monotonic_ms() + self._settings.publish_timeout_ms
        next_name = commit_name(self._image.commit + 1)
        try:
            self._locks.acquire(lambda: self._store.exists(next_name))
            refresh = self._must_refresh()
            if self._creator.has_open_put:
                if self._is_remote:
                    # The guard of the open put needs to know where the end is, as of now.
                    self._refresh_locked()
                self._creator.resolve(deadline_ms)
                refresh = True
            published = self._publish_with_retries(plan, shared, deadline_ms, refresh=refresh)
        finally:
            try:
                self._locks.release()
            finally:  # Ctrl-C as that began
                self._locks.release()
        return published

    def _must_refresh(self) -> bool:
        """True if a publish must refresh before it plans; else it refreshes only after a lost race."""
        if not self._follower.is_confirmed(self._image.commit):
            return True
        return self._others_publish()

    def _others_publish(self) -> bool:
        return self._others_until_ms is not None and self._clock.monotonic_ms() < self._others_until_ms

    # One loop, as in the model: refresh, plan, combine or create, repeat.
    def _publish_with_retries(  # noqa: C901, PLR0912
        self, plan: Plan, shared: SharedPlan | None, deadline_ms: int, *, refresh: bool
    ) -> tuple[PublishResult, bool]:
        image, losses, started_ms = self._image, 0, self._clock.monotonic_ms()
        shared = shared if self._may_combine() else None
        if shared is not None and not self.combiner.contention.is_worth_posting(shared):
            self.combiner.list_waiting_if_due(image)
        if shared is not None and self.combiner.contention.is_worth_posting(shared):
            refresh = not self._follower.is_confirmed(image.commit, within_ms=CONTENDED_MS)  # for its window
        while True:
            if refresh:
                image, error = self._follower.newest(image, expected=1 if losses else 0)
                if error is not None:
                    self._install_durably(image)
                    raise error
                self.combiner.note_commits(self._follower.followed, has_lost=losses > 0)
            try:
                actions = tuple(plan(image))
                candidate = make_candidate(
                    image, (*self.combiner.fencing_actions(image), *actions), self._clock.now_ms()
                )
            except Exception:
                # "Exists already" is an answer, too: it must rest on the newest commits, and on durable ones.
                if refresh:
                    self._install_durably(image)
                    raise
                refresh = True
                continue
            if not actions:
                if refresh:
                    self._install_durably(image)
                    return result(image.commit, (), image), False
                refresh = True
                continue
            if shared is not None and self._may_post(shared, image, actions):
                settled = self.combiner.publish(image, plan, shared, deadline_ms)
                if settled is not None:
                    self._install_durably(settled.image)
                    return result_of(settled), settled.made
                shared = None
                continue
            self._before_linking(image)
            raced_ms = self._clock.monotonic_ms()
            if self._creator.create(candidate, deadline_ms):
                self.combiner.note_fenced()
                self._install(candidate.image)  # durable with all before it: the put has synced the directory
                return result(candidate.image.commit, actions, image), True
            losses, refresh = losses + 1, True
            self._note_other_publisher()
            self._locks.note_lost_race()
            if shared is not None:
                now_ms = self._clock.monotonic_ms()
                self.combiner.contention.note_lost_race(
                    shared, losses, now_ms - raced_ms, now_ms - started_ms
                )
                if self.combiner.contention.is_worth_posting(shared):
                    continue
            if self._clock.monotonic_ms() > deadline_ms:
                raise self._contended(candidate.name, losses)
            self._creator.back_off(losses)

    def _contended(self, name: str, losses: int) -> RetriableError:
        return RetriableError(
            "PUBLISH_CONTENDED",
            f"{self._store.url}/{name}: lost {losses} races until the timeout",
            fix="Publish again, less often or from fewer processes",
        )

    def _may_combine(self) -> bool:
        """True if other processes may publish for this one."""
        return self._is_remote and self._settings.combine

    def _may_post(self, shared: SharedPlan, image: Image, actions: Sequence[Action]) -> bool:
        """True if others are to publish the actions. Not if they would need a feature that others may not
        know: they would publish them without requiring it.
        """
        return self.combiner.contention.is_worth_posting(shared) and not plan_isolation(image, actions)

    def after_fork_in_child(self) -> None:
        """Replace the locks, which another thread of the parent may have held. The image is whole."""
        self._lock, self._installing = threading.RLock(), threading.Lock()
        self._freshness.start_anew()
        self._locks.start_anew()
        self._random.seed()  # else all children would wait for the same moments
        self._creator.forget_open_put()
        self.combiner.start_anew()
        self._upkeep.runner.start_anew()
