"""Creating one commit, until the answer is definite (invariants 5 and 6).

Invariants:
    - a put without an answer is repeated, same bytes to the same name, and then our UUID is looked for;
      while it is open, no other commit is tried;
    - after a failed fsync nothing is created any more.
Not here: what the commit says, and what to do when the race is lost (log.py).
Concurrency: used under the metadata log's lock.
After a crash: what was open is decided by who opens the log next; the commit is there or not.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from sparklog.clock import Clock
from sparklog.errors import (
    AlreadyExistsError,
    FatalStorageError,
    NotFoundError,
    RetriableError,
    StorageError,
)
from sparklog.metadata.actions import Action
from sparklog.metadata.cleaning import commit_was_cleaned
from sparklog.metadata.image import Image
from sparklog.metadata.loading import read_commit
from sparklog.metadata.paths import DIRECTORY
from sparklog.storage import IndefinitePutError, Store

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A commit that we try to create, and what it makes of the image."""

    name: str
    data: bytes
    uuid: str
    image: Image
    actions: tuple[Action, ...]

    def guard(self, store: Store) -> Callable[[], bool]:
        """False once the number may be free again only because it was used and cleaned; see cleaning.py."""
        return lambda: not commit_was_cleaned(store, self.image.commit - 1)


class CommitCreator:
    """Puts candidates, and remembers what must not be forgotten: an open put, a failed fsync."""

    def __init__(self, store: Store, clock: Clock, rng: random.Random, backoff_ms: float) -> None:
        self._store = store
        self._clock = clock
        self._random = rng
        self._backoff_ms = backoff_ms
        self._unresolved: Candidate | None = None
        self._fatal: FatalStorageError | None = None

    def refuse_if_fatal(self) -> None:
        """Raise the failed fsync of an earlier call, if there was one."""
        if self._fatal is not None:
            raise self._fatal

    def stop(self, error: FatalStorageError) -> None:
        """Create nothing any more."""
        self._fatal = error

    def forget_open_put(self) -> None:
        """In a forked child: the open put is the parent's to resolve."""
        self._unresolved = None

    def create(self, candidate: Candidate, deadline_ms: int) -> bool:
        """Create the commit: true when it is ours, false when the race was lost and nothing changed."""
        while True:
            unsure = candidate is self._unresolved
            try:
                self._store.put_if_absent(candidate.name, candidate.data, guard=candidate.guard(self._store))
            except AlreadyExistsError:
                ours = self._is_ours(candidate, unsure)
                self._unresolved = None
                return ours
            except RetriableError:
                # Nothing came of this attempt; something may have come of an earlier, indefinite one.
                if not unsure:
                    return False
                if candidate.guard(self._store)():
                    continue
                ours = self._is_ours(candidate, unsure)
                self._unresolved = None
                return ours
            except FatalStorageError as error:
                self._fatal = error
                raise
            except StorageError as error:
                if isinstance(error, IndefinitePutError):
                    self._unresolved = candidate
                    if self._clock.monotonic_ms() <= deadline_ms:
                        self.back_off(1)
                        continue
                elif not unsure:
                    raise
                raise _unresolved_error(self._store, candidate, error.message) from error
            else:
                self._unresolved = None
                return True

    def _is_ours(self, candidate: Candidate, unsure: bool) -> bool:
        """The name is taken: by ourselves, in an attempt whose answer was lost?"""
        try:
            header, _ = read_commit(self._store, candidate.image.commit, candidate.image.cluster_id)
        except NotFoundError as error:
            if not unsure:
                return False  # cleaned already; the refresh that follows finds its way
            self._unresolved = None  # nobody can tell any more, and the caller has to know
            problem = "cleaned before we could see whose it was"
            raise _unresolved_error(self._store, candidate, problem) from error
        if header.uuid != candidate.uuid:
            return False
        self._store.sync_directory(DIRECTORY)
        return True

    def resolve(self, deadline_ms: int) -> None:
        """Bring an open put to its end, before anything else is tried."""
        if self._unresolved is not None:
            candidate = self._unresolved
            if self.create(candidate, deadline_ms):
                _log.warning("%s was published by an earlier call that could not tell", candidate.name)

    def back_off(self, losses: int) -> None:
        """Wait a random moment: less for who has lost often than for who has just begun, so that nobody loses
        for ever.
        """
        self._clock.sleep_ms(self._random.uniform(0, self._backoff_ms / losses))


def _unresolved_error(store: Store, candidate: Candidate, problem: str) -> StorageError:
    return StorageError(
        "PUBLISH_UNRESOLVED",
        f"{store.url}/{candidate.name}: unknown whether commit {candidate.uuid} was made: {problem}",
        fix="Repair the storage; the next publish of this process finds out, or open the root again and look",
    )
