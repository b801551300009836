"""The metadata log of one root: follow it, and publish to it.

Invariants (numbers: design.md section 4):
    1. commits are dense and immutable: commit n+1 is planned against the image of commit n, names its
       UUID, and is created by put-if-absent;
    4. the image never goes back, and no image is shown whose commits could be lost by a power cut: a
       follower syncs the directory before it shows, or answers by, commits that somebody else linked;
    5, 6. see creating.py.
Not here: what actions do (apply.py), how they are planned (plan.py), why commit numbers are never used
twice although old commits are removed (cleaning.py).
Concurrency: one lock; the image is replaced, never changed, so readers need no lock. After a fork the
child has a fresh lock and goes on from the parent's image. Publishers of other processes take turns if
they can (turns.py); who loses a race replays the winner's commit, waits a random moment, and plans again.
After a crash: a commit exists whole or not at all; opening again shows which.
"""

import logging
import os
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from sparklog.clock import Clock
from sparklog.errors import (
    CorruptLogError,
    FatalStorageError,
    InvalidRequestError,
    RetriableError,
    SparklogError,
)
from sparklog.failpoints import failpoint
from sparklog.metadata.actions import Action
from sparklog.metadata.apply import ActionRefusedError, apply_actions
from sparklog.metadata.cleaning import clean_metadata, commit_was_cleaned
from sparklog.metadata.creating import Candidate, CommitCreator
from sparklog.metadata.document import CommitBody, Header, encode_document, required_version
from sparklog.metadata.ids import new_id
from sparklog.metadata.image import NO_COMMIT, Image, empty_image
from sparklog.metadata.loading import follow, load_image
from sparklog.metadata.paths import DIRECTORY, commit_name
from sparklog.metadata.properties import open_properties
from sparklog.metadata.snapshot import write_snapshot
from sparklog.metadata.turns import Turns
from sparklog.storage import Store

_log = logging.getLogger(__name__)
_EXTENTS_PER_INTERVAL = 1 << 16
Plan = Callable[[Image], Sequence[Action]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    """Numbers of the metadata log; every process of a root may have its own.

    Fields:
        snapshot_interval: commits between snapshots. Larger: slower opening, fewer files rewritten.
        clean_grace_ms: how old a snapshot must be before what it covers is removed. Larger: more files,
            fewer followers that must load a snapshot after a pause.
        snapshots_kept: at least so many; two, so that a damaged one is no disaster.
        publish_timeout_ms: give up publishing after losing races, or being unsure, for so long.
        backoff_ms: upper bound of the random wait after the first lost race.
    """

    snapshot_interval: int = 256
    clean_grace_ms: int = 3_600_000
    snapshots_kept: int = 2
    publish_timeout_ms: int = 60_000
    backoff_ms: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult:
    """What publish did: the actions as applied, in commit `commit`.

    Without actions nothing was published, and `commit` is the one that the plan looked at.
    """

    commit: int
    actions: tuple[Action, ...]


class MetadataLog:
    """See the module's docstring. Make one with MetadataLog.open, and share it within the process."""

    def __init__(self, store: Store, clock: Clock, cluster_id: str, settings: MetadataSettings) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._random = random.Random()
        self._turns = Turns(store, DIRECTORY, clock, self._random)
        self._lock = threading.RLock()
        self._creator = CommitCreator(store, clock, self._random, settings.backoff_ms)
        store.sync_directory("")  # meta.properties, perhaps by a creator that is not done yet
        self._image = empty_image(cluster_id)
        self._show_durably(self._loaded(self._image))
        # Who runs the snapshots that fall due with a publish; a broker, whose clients wait for the publish,
        # puts a background thread here.
        self.run_upkeep: Callable[[Callable[[], None]], None] = lambda upkeep: upkeep()
        _all_logs.add(self)

    @classmethod
    def open(
        cls, store: Store, clock: Clock, *, create: bool = False, settings: MetadataSettings | None = None
    ) -> Self:
        """Open the log of a root; with `create`, make the root if it is none yet.

        Raises:
            InvalidRequestError: ROOT_NOT_FOUND, not a root.
            CorruptLogError, UnsupportedVersionError: see FORMAT.md.
        """
        cluster_id = open_properties(store, create=create, new_cluster_id=new_id())
        return cls(store, clock, cluster_id, settings if settings is not None else MetadataSettings())

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

    def refresh(self) -> Image:
        """Follow the log to its end. Nothing new: two lookups of file names, no more.

        Raises:
            CorruptLogError: a commit is damaged; the image stays at the one before, and so it goes at
                every further call.
        """
        with self._lock:
            self._refresh_locked()
            return self._image

    def publish(self, plan: Plan) -> PublishResult:
        """Publish the actions of `plan`, all or nothing, and return them as applied.

        Args:
            plan: pure; called with the newest image, again after every lost race. Returns no actions when
                there is nothing to do. What it raises goes to the caller, with nothing published.

        Raises:
            InvalidRequestError: the actions do not apply to the image, or are too large; nothing published.
            RetriableError: PUBLISH_CONTENDED, lost races until the time was up; nothing published.
            StorageError: the store refused (full, read-only); nothing published. PUBLISH_UNRESOLVED:
                unknown whether published; the next publish finds out before it does anything else.
            FatalStorageError: durability unknown; stop the process.
        """
        with self._lock:
            result = self._publish_locked(plan)
            image = self._image
        if result.actions and self._is_due(image):
            self.run_upkeep(lambda: self._snapshot_and_clean(image))
        return result

    def write_snapshot(self) -> int:
        """Write a snapshot of the newest image now; returns its commit."""
        image = self.refresh()
        if image.commit >= 0:
            write_snapshot(self._store, image, timestamp_ms=self._clock.now_ms())
        return image.commit

    def clean(self, *, grace_ms: int | None = None) -> int:
        """Remove commits and snapshots that are no longer needed; returns the number of files."""
        return clean_metadata(
            self._store,
            self.refresh(),
            grace_ms=self._settings.clean_grace_ms if grace_ms is None else grace_ms,
            snapshots_kept=self._settings.snapshots_kept,
            now_ms=self._clock.now_ms(),
        )

    # --- following -----------------------------------------------------------------------------------

    def _refresh_locked(self) -> None:
        image, error = self._newest(self._image)
        self._show_durably(image)
        if error is not None:
            raise error

    def _newest(self, image: Image) -> tuple[Image, SparklogError | None]:
        """Follow from `image` to the end; the result is not durable yet, and must not be shown."""
        while self._store.exists(commit_name(image.commit + 1)):
            image, error = follow(self._store, image)
            if error is not None:
                return image, error
        # The order matters: see cleaning.py. Missing n+1, then present n: that is the end of the log.
        if commit_was_cleaned(self._store, image.commit):
            return self._loaded(image), None
        return image, None

    def _show_durably(self, image: Image) -> None:
        if image is self._image:
            return
        if image.commit != NO_COMMIT:
            self._store.sync_directory(DIRECTORY)
        self._image = image

    def _loaded(self, seen: Image) -> Image:
        image = load_image(self._store, seen.cluster_id)
        if image.commit < seen.commit:
            raise CorruptLogError(
                "CORRUPT_METADATA_LOG",
                f"{self._store.url}/{DIRECTORY}: found commits up to {image.commit}, expected at least "
                f"{seen.commit}, which this process has seen; was the root replaced by an older copy?",
                fix="Stop all processes, restore the newest copy of the root, and open it again",
            )
        return image

    # --- publishing ----------------------------------------------------------------------------------

    def _publish_locked(self, plan: Plan) -> PublishResult:
        self._creator.refuse_if_fatal()
        deadline_ms = self._clock.monotonic_ms() + self._settings.publish_timeout_ms
        next_name = commit_name(self._image.commit + 1)
        with self._turns.turn(lambda: self._store.exists(next_name)):
            self._creator.resolve(deadline_ms)
            return self._publish_in_turn(plan, deadline_ms)

    def _publish_in_turn(self, plan: Plan, deadline_ms: int) -> PublishResult:
        image, losses = self._image, 0
        while True:
            image, error = self._newest(image)
            candidate = None if error is not None else self._candidate(image, plan)
            if candidate is None:
                # The answer rests on commits of others, whose publishers may not be done yet.
                self._show_durably(image)
                if error is not None:
                    raise error
                return PublishResult(commit=image.commit, actions=())
            failpoint("commit.planned")
            if self._creator.create(candidate, deadline_ms):
                failpoint("commit.created")
                self._image = candidate.image  # and all before it: the put has synced the directory
                return PublishResult(commit=candidate.image.commit, actions=candidate.actions)
            losses += 1
            if self._clock.monotonic_ms() > deadline_ms:
                raise RetriableError(
                    "PUBLISH_CONTENDED",
                    f"{self._store.url}/{candidate.name}: lost {losses} races, until the time was up",
                    fix="Publish again, less often or from fewer processes",
                )
            self._creator.back_off(losses)

    def _candidate(self, image: Image, plan: Plan) -> Candidate | None:
        try:
            actions = tuple(plan(image))
        except Exception:
            self._show_durably(image)  # "exists already" is an answer too
            raise
        if not actions:
            return None
        commit, uuid = image.commit + 1, new_id()
        try:
            newer = apply_actions(image, actions, commit=commit, commit_uuid=uuid)
        except ActionRefusedError as error:
            raise InvalidRequestError(
                "INVALID_ACTIONS",
                f"commit {commit} would not apply: {error}",
                fix="Fix the plan; nothing was published",
            ) from error
        header = Header(
            version=required_version(actions),
            kind="commit",
            commit=commit,
            cluster_id=image.cluster_id,
            uuid=uuid,
            previous=image.commit_uuid,
            timestamp_ms=self._clock.now_ms(),
            length=0,
        )
        data = encode_document(header, CommitBody(actions=actions))
        return Candidate(commit_name(commit), data, uuid, newer, actions)

    def _is_due(self, image: Image) -> bool:
        """A pure function of the image, so that exactly one process finds a snapshot due.

        Large images are written less often: the work stays in proportion to what was committed.
        """
        if image.commit <= 0 or image.commit % self._settings.snapshot_interval:
            return False
        extents = sum(len(state.extents) for topic in image.topics.values() for state in topic.partitions)
        stride = 1 << (extents // _EXTENTS_PER_INTERVAL).bit_length()
        return image.commit // self._settings.snapshot_interval % stride == 0

    def _snapshot_and_clean(self, image: Image) -> None:
        """After a publish that has succeeded, and must not fail any more because of this."""
        try:
            write_snapshot(self._store, image, timestamp_ms=self._clock.now_ms())
            self.clean()
        except FatalStorageError as error:
            self._creator.stop(error)
            _log.error("no snapshot after commit %s: %s", image.commit, error)
        except SparklogError as error:
            _log.warning("no snapshot after commit %s: %s", image.commit, error)

    def _after_fork(self) -> None:
        """In the child: another thread of the parent may have held the lock. The image is whole."""
        self._lock = threading.RLock()
        self._random.seed()  # else all children would wait for the same moments
        self._creator.forget_open_put()


_all_logs: weakref.WeakSet[MetadataLog] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for log in list(_all_logs):
        log._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
