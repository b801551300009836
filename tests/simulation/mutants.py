"""Versions of the code with one safeguard switched off: what a simulation is worth that does not notice.

Each is a context manager to simulate in, a kind of store, and what the histories then show.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

from botocore.exceptions import ProxyConnectionError

from sparklog.client import AppendResult
from sparklog.errors import CorruptLogError, InvalidRequestError, NotFoundError, RetriableError
from sparklog.log.writer import LogWriter
from sparklog.maintenance import sweep
from sparklog.metadata import (
    NO_COMMIT,
    Action,
    DraftExtent,
    Image,
    MetadataLog,
    PartitionState,
    ProducerState,
    cleaning,
    loading,
)
from sparklog.metadata import requests as posted
from sparklog.metadata.creating import Candidate, CommitCreator
from sparklog.metadata.documents.properties import commit_of
from sparklog.metadata.following import TRUST_MS, RemoteFollower
from sparklog.metadata.model import extents, writers
from sparklog.metadata.model.image import PublisherState, WriterTxnState, empty_image
from sparklog.metadata.model.writers import RequestApplied, WriterTxn, plan_writer_txn
from sparklog.metadata.requests import Posted
from sparklog.storage import IndefinitePutError, Store, s3_client
from tests.simulation import compaction_mutants, setting
from tests.simulation.directory_store import DirectoryAppendFile, DirectoryStore, Disk
from tests.simulation.remote_store import RemoteStore


@dataclass(frozen=True, slots=True)
class Mutant:
    """One safeguard less."""

    name: str
    kind: str
    apply: Callable[[], AbstractContextManager[object]]
    focus: tuple[str, ...] = ()  # strikes of the nemesis that make it show soon
    first: int = 1  # the seed to begin with: one that showed it once


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


def _no_sync(self: LogWriter, drafts: Sequence[DraftExtent]) -> list[None]:
    """Staged extents are published as they are."""
    return [None] * len(drafts)


def _keep_none(self: DirectoryAppendFile, end: int) -> None:
    """The file's name is durable, and its bytes are when the kernel likes."""


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


def _by_one_clock(self: RemoteFollower, commit: int, *, within_ms: int = TRUST_MS) -> bool:
    if self._asked is None or self._end > commit:
        return False
    return self.now().monotonic_ms - self._asked.monotonic_ms < within_ms


def _as_it_is_called(error: Exception) -> bool:
    return isinstance(error, ProxyConnectionError)


@contextmanager
def _as_if_all_were_listed() -> Iterator[None]:
    original = loading._newest_snapshot

    def newest(
        store: Store, cluster_id: str, listing: loading._Listing
    ) -> tuple[Image, CorruptLogError | NotFoundError | None]:
        found, damage = original(store, cluster_id, listing)
        return found or empty_image(cluster_id), damage

    with mock.patch.object(loading, "_newest_snapshot", newest):
        yield


def _forget_by_number(remembered: dict[str, PublisherState], commit: int) -> None:
    while len(remembered) > 3:
        del remembered[next(iter(remembered))]


@contextmanager
def _for_ever() -> Iterator[None]:
    """Requests have no window: whoever finds one may apply it."""
    original = writers.settle

    def settle(remembered: dict[str, PublisherState], action: RequestApplied, commit: int) -> str | None:
        with mock.patch.object(writers, "REQUEST_WINDOW", 1 << 40):
            return original(remembered, action, commit)

    with (
        mock.patch.object(writers, "settle", settle),
        mock.patch.object(posted, "last_commit_for", lambda base: base + (1 << 40)),
        mock.patch.object(posted, "remembers_all_of", return_value=True),
    ):
        yield


def _of_that_number(self: Posted, actions: Sequence[Action]) -> tuple[Action, ...] | None:
    for number, action in enumerate(actions):
        if isinstance(action, RequestApplied) and (action.publisher, action.sequence) == (
            self.publisher,
            self.sequence,
        ):
            return tuple(actions[number + 1 : number + 1 + action.actions])
    return None


@contextmanager
def _whatever_it_holds() -> Iterator[None]:
    original = plan_writer_txn

    def planned(
        image: Image, application: str, version: int, topic_ids: Sequence[str], *, content: str = ""
    ) -> WriterTxn | None:
        try:
            return original(image, application, version, topic_ids, content=content)
        except InvalidRequestError:
            return original(image, application, version, topic_ids)

    with mock.patch.object(sys.modules[AppendResult.__module__], "plan_writer_txn", planned):
        yield


def _of_any_topic(self: Image, application: str, version: int, topic_id: str) -> WriterTxnState | None:
    for topic in self.topics.values():
        found = topic.writer_txns.get(application)
        if found is not None and found.version >= version:
            return found
    return None


def _as_the_image_remembers(state: PartitionState, producer_id: int) -> ProducerState | None:
    return state.producers.get(producer_id)


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
        lambda: mock.patch.object(LogWriter, "sync_each", _no_sync),
    ),
    Mutant(
        "extents are published before they are synced (files)",
        "directory",
        lambda: mock.patch.object(LogWriter, "sync_each", _no_sync),
    ),
    Mutant(
        "the bytes of segments are not synced",
        "directory",
        lambda: mock.patch.object(DirectoryAppendFile, "keep_bytes", _keep_none),
    ),
    Mutant(
        "directories are not synced",
        "directory",
        lambda: mock.patch.object(Disk, "sync_directory", _leave_unsynced),
    ),
    Mutant(
        "commits are shown before they are durable",
        "directory",
        lambda: mock.patch.object(MetadataLog, "_install_durably", _show_at_once),
        focus=("cut_power_after_commit",),
    ),
    Mutant(
        "a commit is linked behind one that is not durable",
        "directory",
        lambda: mock.patch.object(DirectoryStore, "sync_name", _trust_the_other),
        focus=("cut_power_behind_a_killed_publisher",),
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
        focus=("pause_in_put",),
    ),
    Mutant(
        "trust in the end of the log grows old by the monotonic clock alone",
        "remote",
        lambda: mock.patch.object(RemoteFollower, "is_confirmed", _by_one_clock),
        focus=("oversleep",),
        first=18,
    ),
    Mutant(
        "behind a proxy, a lost answer is taken for a request that was never sent",
        "remote",
        lambda: mock.patch.object(s3_client, "_never_reached_proxy", _as_it_is_called),
        focus=("break_connection",),
    ),
    Mutant(
        "behind a hint, a damaged snapshot hides the older ones",
        "remote",
        _as_if_all_were_listed,
        focus=("oversleep", "damage_snapshot"),
    ),
    Mutant(
        "requests are applied however late, and publishers forgotten by number",
        "remote",
        lambda: _together(_for_ever(), mock.patch.object(writers, "forget", _forget_by_number)),
    ),
    Mutant(
        "requests are applied however late",
        "remote",
        _for_ever,
        focus=("suspend",),
    ),
    Mutant(
        "a request is known by its number alone",
        "remote",
        lambda: mock.patch.object(Posted, "actions_in", _of_that_number),
        focus=("clone",),
    ),
    Mutant(
        "a producer that was forgotten is new",
        "directory",
        lambda: mock.patch.object(extents, "last_batch", _as_the_image_remembers),
        focus=("kill", "cut_power"),
    ),
    Mutant(
        "a version with other content is taken for the same",
        "directory",
        _whatever_it_holds,
        focus=("restore_checkpoint",),
    ),
    Mutant(
        "a version in one topic is taken for one in all",
        "directory",
        lambda: mock.patch.object(Image, "applied", _of_any_topic),
        focus=("kill",),
    ),
    Mutant(
        "a vacuum removes what nothing refers to, however young",
        "directory",
        lambda: mock.patch.object(sweep, "born_of", return_value=NO_COMMIT - 1),
    ),
    Mutant(
        "what was swept may be published still",
        "directory",
        lambda: _together(
            mock.patch.object(extents, "validate_births"), mock.patch.object(extents, "refuse_expired")
        ),
    ),
    Mutant(
        "segments are swept at once",
        "directory",
        lambda: mock.patch.object(setting, "SWEEP_AFTER_MS", 0),
        first=44,
    ),
    Mutant(
        "a tombstone goes with the next round, however soon",
        "directory",
        compaction_mutants.no_horizon,
        first=12,
    ),
    Mutant(
        "records are compacted before min.compaction.lag.ms",
        "directory",
        compaction_mutants.no_lag,
        first=13,
    ),
    Mutant(
        "the last batch of a round goes when it is empty",
        "directory",
        compaction_mutants.no_last_batch,
        first=7,
    ),
    Mutant("a round of compaction is published in part", "directory", compaction_mutants.in_part, first=76),
    Mutant(
        "keys that the map has no room for are passed over",
        "directory",
        compaction_mutants.no_room,
        first=13,
    ),
    Mutant(
        "a round counts what it has not seen as compacted",
        "directory",
        compaction_mutants.to_the_end,
        first=5,
    ),
    Mutant(
        "producers of merged and compacted extents are forgotten",
        "directory",
        compaction_mutants.no_memory,
        first=56,
    ),
)
