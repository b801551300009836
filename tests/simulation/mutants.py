"""Versions of the code with one safeguard switched off: what a simulation is worth that does not notice.

Each is a context manager to simulate in, a kind of store, and what the histories then show.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

from sparklog.errors import RetriableError
from sparklog.log.writer import LogWriter
from sparklog.metadata import DraftExtent, Image, MetadataLog, cleaning
from sparklog.metadata.creating import Candidate, CommitCreator
from sparklog.metadata.paths import commit_of
from sparklog.storage import IndefinitePutError
from tests.simulation import setting
from tests.simulation.directory_store import (
    DirectoryAppendFile,
    DirectoryStore,
    Disk,
    directory_of,
)
from tests.simulation.remote_store import RemoteStore


@dataclass(frozen=True, slots=True)
class Mutant:
    """One safeguard less."""

    name: str
    kind: str
    apply: Callable[[], AbstractContextManager[object]]
    focus: str | None = None  # a strike of the nemesis that makes it show soon


@contextmanager
def _indefinite_puts(answer: Callable[[str], None]) -> Iterator[None]:
    """What becomes of an indefinite put of a commit."""
    original = RemoteStore.put_if_absent

    def put(self: RemoteStore, name: str, data: bytes, *, guard: Callable[[], bool] | None = None) -> None:
        try:
            original(self, name, data, guard=guard)
        except IndefinitePutError:
            if commit_of(name) is None:
                raise
            answer(name)

    with mock.patch.object(RemoteStore, "put_if_absent", put):
        yield


def _say_nothing_happened(name: str) -> None:
    raise RetriableError("PUT_ABORTED", f"{name}: taken for undone", fix="Try the next number")


def _take_for_somebody_elses(self: CommitCreator, candidate: Candidate, unsure: bool) -> bool:
    self._unresolved = None
    return False


def _take_for_ours(self: CommitCreator, candidate: Candidate, unsure: bool) -> bool:
    self._unresolved = None
    return True


def _no_sync(self: LogWriter, drafts: Sequence[DraftExtent] = ()) -> None:
    """Staged extents are published as they are."""


def _sync_name_only(self: DirectoryAppendFile) -> None:
    self._store._fsync(self.name)
    self._store._disk.sync_directory(directory_of(self.name))


def _stopped_at_once(self: RemoteStore) -> int:
    return 0


def _abort_nothing(self: DirectoryStore, name: str) -> None:
    """The put goes on."""


@contextmanager
def _together(*patches: AbstractContextManager[object]) -> Iterator[None]:
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def _leave_unsynced(self: Disk, directory: str) -> None:
    """Names are durable when the kernel likes."""


def _trust_the_other(self: DirectoryStore, name: str) -> None:
    """Whoever made the commit before will have synced it."""


def _show_at_once(self: MetadataLog, image: Image) -> None:
    self._image = image


MUTANTS = (
    Mutant(
        "a taken number is somebody else's, whatever its UUID",
        "remote",
        lambda: mock.patch.object(CommitCreator, "_settled", _take_for_somebody_elses),
    ),
    Mutant(
        "a taken number is ours, whatever its UUID",
        "remote",
        lambda: mock.patch.object(CommitCreator, "_settled", _take_for_ours),
    ),
    Mutant(
        "the next number is tried while a put is open",
        "remote",
        lambda: _indefinite_puts(_say_nothing_happened),
    ),
    Mutant(
        "a put without an answer is acknowledged",
        "remote",
        lambda: _indefinite_puts(lambda name: None),
    ),
    Mutant(
        "extents are published before they are synced (objects)",
        "remote",
        lambda: mock.patch.object(LogWriter, "sync", _no_sync),
    ),
    Mutant(
        "extents are published before they are synced (files)",
        "directory",
        lambda: mock.patch.object(LogWriter, "sync", _no_sync),
    ),
    Mutant(
        "the bytes of segments are not synced",
        "directory",
        lambda: mock.patch.object(DirectoryAppendFile, "sync", _sync_name_only),
    ),
    Mutant(
        "directories are not synced",
        "directory",
        lambda: mock.patch.object(Disk, "sync_directory", _leave_unsynced),
    ),
    Mutant(
        "commits are shown before they are durable",
        "directory",
        lambda: mock.patch.object(MetadataLog, "_show_durably", _show_at_once),
        focus="cut_power_after_commit",
    ),
    Mutant(
        "a commit is linked behind one that is not durable",
        "directory",
        lambda: mock.patch.object(DirectoryStore, "sync_name", _trust_the_other),
        focus="cut_power_behind_a_killed_publisher",
    ),
    Mutant(
        "commits of objects are removed while an old put may land",
        "remote",
        lambda: _together(
            mock.patch.object(cleaning, "REMOTE_GRACE_MS", 0),
            mock.patch.object(RemoteStore, "put_lifetime_ms", _stopped_at_once),
        ),
    ),
    Mutant(
        "commits of files are removed, and a stopped publisher is not",
        "directory",
        lambda: mock.patch.object(DirectoryStore, "abort_puts", _abort_nothing),
        focus="pause_in_put",
    ),
    Mutant(
        "segments are swept at once",
        "directory",
        lambda: mock.patch.object(setting, "SWEEP_AFTER_MS", 0),
    ),
)
