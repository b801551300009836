"""Creating one commit, until the answer is definite (invariants 5 and 6).

Invariants:
    - a put without an answer is repeated, same bytes to the same name, and then the commit is read to see
      whether its UUID is ours; while it is open, no other commit is tried;
    - after a failed fsync nothing is created any more.
Not here: the content of the commit, and what to do when the race is lost (log.py, combining.py).
Concurrency: used under the metadata log's lock.
After a crash: the commit of an open put is there or not; the next process to open the log finds out.
"""

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass

from sparklog.clock import Clock
from sparklog.errors import (
    AlreadyExistsError,
    CorruptLogError,
    FatalStorageError,
    InvalidRequestError,
    NotFoundError,
    RetriableError,
    StorageError,
    UnsupportedVersionError,
)
from sparklog.failpoints import failpoint
from sparklog.metadata.documents.document import VERSION, Header, encode_commit
from sparklog.metadata.documents.properties import DIRECTORY, commit_name
from sparklog.metadata.following import Follower
from sparklog.metadata.loading import IncarnationCheck, read_commit
from sparklog.metadata.model.action import ActionRefusedError, new_id
from sparklog.metadata.model.actions import Action, ImageBuilder
from sparklog.metadata.model.extents import count_replayed
from sparklog.metadata.model.image import Image
from sparklog.metadata.model.isolation import plan_isolation
from sparklog.metadata.model.settings import validate_writable
from sparklog.storage import IndefinitePutError, Store

_log = logging.getLogger(__name__)
# Codes that mean that the put came too late, and not that the store was busy.
_OVERTAKEN = {"PUT_REFUSED", "PUT_ABORTED"}
_LONGEST_WAIT_MS = 2_000.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A commit to be created, and the image after it.

    Fields:
        frees_space: it adds no records, and files may be removed after it.
    """

    name: str
    data: bytes
    uuid: str
    image: Image
    frees_space: bool = False


def make_candidate(image: Image, actions: Sequence[Action], timestamp_ms: int) -> Candidate:
    """Make the commit after `image` with these actions.

    Raises:
        InvalidRequestError: they do not apply, are too large, or would not be read back as given.
        UnsupportedVersionError: the root needs a feature for writing that this version lacks.
    """
    validate_writable(image)
    actions = [*plan_isolation(image, actions), *actions]
    commit, uuid = image.commit + 1, new_id()
    builder = ImageBuilder(image)
    try:
        builder.apply(actions, commit=commit, commit_uuid=uuid, timestamp_ms=timestamp_ms)
    except ActionRefusedError as error:
        raise refused_error(image, error) from error
    header = Header(
        version=VERSION,
        kind="commit",
        commit=commit,
        cluster_id=image.cluster_id,
        uuid=uuid,
        previous=image.commit_uuid,
        timestamp_ms=timestamp_ms,
        length=0,
    )
    try:
        data = encode_commit(header, tuple(actions))
    except (TypeError, ValueError) as error:
        raise _unreadable_error(commit, str(error)) from error
    newer = builder.image(image.replayed.after(len(data), count_replayed(actions)))
    frees_space = any(action.frees_space for action in actions)
    frees_space = frees_space and not any(action.extent_count for action in actions)
    return Candidate(commit_name(commit), data, uuid, newer, frees_space)


def _unreadable_error(commit: int, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_ACTIONS",
        f"commit {commit} could not be read as it was planned: {problem}",
        fix="give numbers as int (not 3.0, True or NumPy's) and names as str; nothing was published",
    )


def refused_error(image: Image, error: ActionRefusedError) -> InvalidRequestError:
    """Return the error of a plan whose actions do not apply to `image`."""
    return InvalidRequestError(
        "INVALID_ACTIONS",
        f"commit {image.commit + 1} would not apply: {error}",
        fix="Fix the plan; nothing was published",
    )


class CommitCreator:
    """Puts candidates, and remembers an open put and a failed fsync."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        rng: random.Random,
        follower: Follower,
        backoff_ms: float,
        incarnation: IncarnationCheck,
    ) -> None:
        self._store = store
        self._clock = clock
        self._random = rng
        self._follower = follower
        self._backoff_ms = backoff_ms
        self._incarnation = incarnation
        self._unresolved: Candidate | None = None
        self._fatal: FatalStorageError | None = None

    def refuse_if_fatal(self) -> None:
        """Raise the failed fsync of an earlier call, if there was one."""
        if self._fatal is not None:
            raise self._fatal

    def stop(self, error: FatalStorageError) -> None:
        """Create nothing from now on; later calls raise `error`."""
        self._fatal = error

    def forget_open_put(self) -> None:
        """In a forked child: the open put is the parent's to resolve."""
        self._unresolved = None

    @property
    def has_open_put(self) -> bool:
        """True if it is unknown whether the commit of an earlier call was made."""
        return self._unresolved is not None

    # One loop with all outcomes of a put, as in the model: split up, it could not be compared with that.
    def create(self, candidate: Candidate, deadline_ms: int) -> bool:  # noqa: C901, PLR0912
        """Create the commit. Return true if it was created, false if the race was lost and nothing changed.

        Raises: the errors of a put; FencedError ROOT_RESTORED, nothing was created.
        """
        failpoint("commit.planned")
        if self._store.traits.is_remote:
            self._incarnation.check(candidate.image.incarnation.incarnation_id)
        asked, failures = self._follower.now(), 0
        guard = self._follower.guard(candidate.image.commit)
        while True:
            unsure = candidate is self._unresolved
            try:
                self._store.put_if_absent(candidate.name, candidate.data, guard=guard)
            except AlreadyExistsError:
                return self._settled(candidate, unsure)
            except RetriableError as error:
                # This attempt created nothing; an earlier, indefinite one may have.
                if error.code in _OVERTAKEN and not guard():
                    if not unsure:
                        return False
                    if self._follower.is_taken(candidate.image.commit):
                        return self._settled(candidate, unsure)
                    raise _unresolved_error(self._store, candidate, error.message) from error
                if error.code in _OVERTAKEN and not unsure:
                    return False
                problem: RetriableError | StorageError = error
            except FatalStorageError as error:
                self._fatal = error
                raise
            except IndefinitePutError as error:
                self._unresolved, problem = candidate, error
            except StorageError as error:
                if unsure:
                    raise _unresolved_error(self._store, candidate, error.message) from error
                if not (error.code == "STORAGE_FULL" and candidate.frees_space):
                    raise
                if not self._store.release_reserve():
                    raise
                continue  # while a reserve is left; others may take the space that was released
            else:
                self._unresolved = None
                self._follower.confirm(candidate.image.commit, asked)
                failpoint("commit.created")
                return True
            if self._clock.monotonic_ms() > deadline_ms:
                if candidate is self._unresolved:
                    raise _unresolved_error(self._store, candidate, problem.message) from problem
                raise problem
            self._wait(failures)
            failures += 1

    def _settled(self, candidate: Candidate, unsure: bool) -> bool:
        """The name is taken. Return true if it is by our own commit, of an attempt whose answer was lost.

        Also called after a first attempt: a network may deliver it twice, and return the second answer.
        """
        self._unresolved = candidate
        try:
            header, _ = read_commit(self._store, candidate.image.commit, candidate.image.cluster_id)
        except NotFoundError as error:
            self._unresolved = None
            if not unsure:
                return False  # cleaned already; the refresh that follows handles that
            problem = "it was cleaned before its UUID could be read"
            raise _unresolved_error(self._store, candidate, problem) from error
        except UnsupportedVersionError:
            self._unresolved = None
            return False  # not ours, which this version can read; the refresh that follows raises the error
        except (StorageError, CorruptLogError) as error:
            raise _unresolved_error(self._store, candidate, error.message) from error
        self._unresolved = None
        if header.uuid != candidate.uuid:
            return False
        try:
            self._store.sync_directory(DIRECTORY)
        except FatalStorageError:
            raise
        except StorageError as error:  # the commit was made: after a plain failure the caller would repeat it
            self._unresolved = candidate
            raise _unresolved_error(self._store, candidate, error.message) from error
        return True

    def resolve(self, deadline_ms: int) -> None:
        """Complete an open put, before anything else is tried."""
        if self._unresolved is not None:
            candidate = self._unresolved
            if self.create(candidate, deadline_ms):
                _log.warning(
                    "%s was published by an earlier call that raised PUBLISH_UNRESOLVED", candidate.name
                )

    def back_off(self, losses: int) -> None:
        """Wait for a random time, which is shorter the more races were lost, so that no publisher starves."""
        self._clock.sleep_ms(self._random.uniform(0, self._backoff_ms / losses))

    def _wait(self, failures: int) -> None:
        """Wait before a put is repeated, with exponential backoff: the store may be overloaded."""
        longest_ms = min(_LONGEST_WAIT_MS, self._backoff_ms * 2**failures)
        self._clock.sleep_ms(self._random.uniform(longest_ms / 2, longest_ms))


def _unresolved_error(store: Store, candidate: Candidate, problem: str) -> StorageError:
    return StorageError(
        "PUBLISH_UNRESOLVED",
        f"{store.url}/{candidate.name}: unknown whether commit {candidate.uuid} was made: {problem}",
        fix="Repair the storage; the next publish of this process finds out, or open the root again",
    )
