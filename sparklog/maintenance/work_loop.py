"""The loop of merging and compaction: choose works, run them, publish their results, until nothing is due.

Invariants: works are run and published one by one, so that an interruption loses at most one. Each choice is
    made from the newest image, but only of data from before the loop: with a concurrent writer it would never
    end otherwise. A partition with unreadable files, or of a topic whose directory the storage refuses, is
    skipped and reported; the others continue. After a time-out of the storage no other work begins.
Not here: which works (choose.py), running them (merging.py, compaction.py), running them in several processes
    (`run` of WorkLoop: any process with access to the store may run a work).
Concurrency: one loop at a time on a machine (budget.py): two would do the same work, and only one of each
    pair of commits would be accepted. That is harmless.
After a crash: a work's commit is there or not. If not, its new segments are unreferenced files.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from sparklog.clock import Clock
from sparklog.errors import SparklogError
from sparklog.failpoints import failpoint
from sparklog.log.segment_file import took_patience
from sparklog.maintenance.budget import Meter, SkippedPartition, StoppedError, alone, failure_of
from sparklog.maintenance.choose import PartitionKey, Piece, Work
from sparklog.maintenance.rewrite import OnBytes, Spool, ignore_bytes, with_spool
from sparklog.metadata import Action, Image, MetadataLog, ReplaceExtents, plan_replacements, replacement
from sparklog.storage import Store

MAX_FRUITLESS = 8  # consecutive rounds that publish nothing, since others change the same extents
WorkT = TypeVar("WorkT", bound=Work)
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)
CountsT = TypeVar("CountsT")
# Run works, and yield in order the result of each, or the error of its unreadable files.
RunWorks = Callable[[Sequence[WorkT], OnBytes], Iterator[ResultT | SparklogError]]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress, in stored bytes of the known works."""

    done_bytes: int
    total_bytes: int


OnProgress = Callable[[Progress], None]


def ignore_progress(_progress: Progress) -> None:
    pass


@dataclass(slots=True)
class RewriteReport(Generic[CountsT]):
    """The results, by topic.

    Fields:
        is_cut: more was due, but the budget was spent, or the round was cancelled.
        skipped: partitions that were not rewritten, since they are unreadable, or may not be written.
    """

    topics: dict[str, CountsT] = field(default_factory=dict)
    is_cut: bool = False
    skipped: list[SkippedPartition] = field(default_factory=list)


# --- doing works -------------------------------------------------------------------------------------


class Rewrite(Protocol[ResultT_co]):
    """run_merge, or run_compaction."""

    def __call__(
        self, store: Store, clock: Clock, work: Any, on_bytes: OnBytes, *, spool: Spool | None
    ) -> ResultT_co: ...


def run_each(
    rewrite: Rewrite[ResultT],
    store: Store,
    clock: Clock,
    works: Sequence[WorkT],
    on_bytes: OnBytes = ignore_bytes,
    *,
    on_read_ahead: OnBytes = ignore_bytes,
) -> Iterator[ResultT | SparklogError]:
    """Run the works in this process, one by one; see RunWorks."""
    for work, spool in with_spool(store, works, on_read_ahead=on_read_ahead):
        try:
            yield rewrite(store, clock, work, on_bytes, spool=spool)
        except Exception as error:  # noqa: BLE001 - one partition's fault ends no round
            yield failure_of(work.name, error)


# --- the loop ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of publishing a work.

    Fields:
        is_progress: another choice may find more works.
        done: partitions that are not to be chosen again.
    """

    is_progress: bool
    done: Collection[PartitionKey] = ()


class Job(ABC, Generic[WorkT, ResultT]):
    """The interface that merging and compaction implement."""

    @abstractmethod
    def choose(self, image: Image, since: Image, skip: frozenset[PartitionKey]) -> Sequence[WorkT]:
        """Return the due works."""

    @abstractmethod
    def publish(self, work: WorkT, result: ResultT) -> Outcome:
        """Publish and count the replacements that still apply."""

    @abstractmethod
    def count_left_out(self, work: WorkT) -> None:
        """Count a work whose extents others have changed concurrently."""

    def split(self, work: WorkT, error: SparklogError) -> tuple[WorkT | None, list[WorkT]]:
        """Return the part of a failed work that failed for good, and the parts to try again."""
        del error
        return work, []


class WorkLoop(Generic[WorkT, ResultT]):
    """See the module's docstring."""

    def __init__(
        self,
        metadata: MetadataLog,
        job: Job[WorkT, ResultT],
        report: RewriteReport[Any],
        meter: Meter,
        run: RunWorks[WorkT, ResultT],
        progress: OnProgress,
    ) -> None:
        self._metadata, self._job, self._report = metadata, job, report
        self._meter, self._run_works, self._progress = meter, run, progress
        self._done = self._total = 0
        self._skip: set[PartitionKey] = set()
        self.failed: list[SparklogError] = []

    def run(self) -> None:
        """Hold the machine's lock, and continue until nothing is due, or the budget is spent.

        Raises:
            RetriableError: MAINTENANCE_RUNNING, another process of this machine maintains the root;
                PUBLISH_CONTENDED.
            StorageError, FatalStorageError: published works stay.
        """
        with alone(self._metadata):
            try:
                self._run()
            except StoppedError:
                self._report.is_cut = True

    def _run(self) -> None:
        first = self._metadata.refresh(force=True)
        fruitless = 0
        while fruitless < MAX_FRUITLESS:
            works = self._job.choose(self._metadata.refresh(force=True), first, frozenset(self._skip))
            if not works:
                return
            self._total = self._done + sum(work.size for work in works)
            is_progress = False
            results = self._run_works(works, self._on_bytes)
            for work in works:
                if not self._meter.has_room():
                    raise StoppedError
                started = self._done
                for part, result in self._parts(work, next(results)):
                    is_progress |= self._finish(part, result)
                self._done = started + work.size
                self._progress(Progress(self._done, self._total))
            fruitless = 0 if is_progress else fruitless + 1

    def _on_bytes(self, size: int) -> None:
        self._meter.spend(size)
        self._done += size
        self._progress(Progress(min(self._done, self._total), self._total))

    def _parts(
        self, work: WorkT, result: ResultT | SparklogError
    ) -> Iterator[tuple[WorkT, ResultT | SparklogError]]:
        """Yield the work with its result; if it failed, its parts, recursively."""
        if not isinstance(result, SparklogError):
            yield work, result
            return
        failed, parts = self._job.split(work, result)
        if failed is not None:
            yield failed, result
        for part in parts:
            yield from self._parts(part, next(self._run_works([part], self._on_bytes)))

    def _finish(self, work: WorkT, result: ResultT | SparklogError) -> bool:
        """Publish the result, or skip the partitions; return True if another choice may find more works."""
        if not isinstance(result, SparklogError):
            try:
                outcome = self._job.publish(work, result)
            except Exception as error:  # noqa: BLE001 - one partition's fault ends no round
                result = failure_of(f"publishing the result of {work.name}", error)
            else:
                self._skip.update(outcome.done)
                return outcome.is_progress
        if not self._is_there(work.pieces):  # others have replaced its extents, and removed its files
            self._job.count_left_out(work)
            return False
        self.failed.append(result)
        found = [SkippedPartition.by(piece, result) for piece in work.pieces]
        self._report.skipped += found
        self._skip.update(partition.key for partition in found)
        if took_patience(result):
            raise StoppedError
        return False

    def _is_there(self, pieces: Sequence[Piece]) -> bool:
        """True if the partitions still have all of these extents."""
        image = self._metadata.refresh(force=True)
        return all(
            plan_replacements(
                image,
                [replacement(piece.extents, [], topic_id=piece.topic_id, partition=piece.partition)],
            )
            for piece in pieces
        )


# --- publishing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Published:
    """The replacements that were published, and how many were left out."""

    actions: tuple[ReplaceExtents, ...]
    left_out: int


def publish_replacements(metadata: MetadataLog, replacements: Sequence[ReplaceExtents]) -> Published:
    """Publish the replacements that still apply, in one commit.

    A replacement is left out unless the image that the commit is planned against has the same extents, field
    for field. Also if it took so long that its new segments may have been swept, or if earlier ones in the
    commit leave no room for the producers that it would merge. Concurrent appends do not matter.

    Raises:
        RetriableError: PUBLISH_CONTENDED. StorageError: nothing was published, or PUBLISH_UNRESOLVED.
        FatalStorageError: the outcome is unknown; repeating the work is harmless.
    """

    def plan(image: Image) -> list[Action]:
        return [*plan_replacements(image, replacements)]

    failpoint("merge.publishing")
    result = metadata.publish(plan)
    actions = tuple(action for action in result.actions if isinstance(action, ReplaceExtents))
    return Published(actions, len(replacements) - len(actions))
