"""Vacuum: removes the files of a root that no commit refers to, and none can.

    1. survey: list the data files; their creation versions and dates, and those of commits, show which
       version is as old as `retain_ms`, by the storage's own clock
    2. move the sweep horizon there, in a commit, if that frees anything: older dead files stay dead from that
       commit on
    3. list again; remove the files that are dead as of an image with the horizon

    4. report the isolated topics whose directories the storage refuses to this process: their files stay, and
       while one cannot be listed, the horizon does too, since its files might show that commits are lost

Invariants: only files are removed that are dead as of a durable image, by that image's own horizon. A log
    that has lost commits (an older copy of it was restored) is refused: files were created after its end. The
    refusal is stored, and applies from then on, also when the log has as many commits again.
    Files with foreign names are never touched.
Limits: memory for a part of the listing and the names of live segments; never for all files.
Not here: obsolete commits and snapshots (metadata/cleaning.py).
Concurrency: any number of concurrent vacuums, writers, readers and mergers; on one machine, one vacuum or
    merge at a time. A reader that misses a file plans again.
After a crash: some of the dead files are gone; the next vacuum finds the rest.
Sources: adr/0019; tests/models/sweeping.py.
"""

import enum
from collections.abc import Callable, Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain

from sparklog.clock import Clock
from sparklog.errors import CorruptLogError, InvalidRequestError, StorageError
from sparklog.failpoints import failpoint
from sparklog.log.config import LOST_COMMITS_KEY, RootConfig
from sparklog.log.refused_topic import RefusedTopicError, refused_topic, topic_prefix
from sparklog.log.segment_file import (
    index_name,
    is_merged,
    is_segment_directory,
    may_hold_segments,
    segment_of,
    time_index_name,
)
from sparklog.maintenance.budget import alone
from sparklog.maintenance.work_loop import OnProgress, Progress, ignore_progress
from sparklog.metadata import (
    NO_COMMIT,
    Action,
    ExtentList,
    Image,
    MetadataLog,
    RetireSegments,
    born_of,
    is_isolated,
    plan_move_sweep_horizon,
    plan_retire_segments,
    plan_set_configs,
    validate_writable,
)
from sparklog.metadata.documents.properties import DIRECTORY, commit_name, commit_of, manifest_of
from sparklog.metadata.loading import load_past
from sparklog.metadata.requests import RequestBox
from sparklog.storage import Store, StoredFile

# --- dead files --------------------------------------------------------------------------------------
#
# Classifies the files of a root, from a listing and an image. Pure.
#
# A file is dead when its segment was created before an image's sweep horizon, or is retired in that image,
# and no extent of that same image is in it, staged ones included. Then no later commit can refer to it
# (metadata/model/sweeping.py), so the state is final: listing and image may be of any two moments, in any
# order, and the file may be removed at any later time. An index has the state of its segment, even if that is
# missing.
#
# Invariants: the same image decides both which files are live and the horizon; a file with a foreign name is
#     never touched; a file is live if any extent might refer to it. Dates only decide how far the horizon may
#     move. That is for slow writers: a wrong date can make one append again, and cannot lose anything.
# Sources: adr/0019; FORMAT.md#segments-and-extents; tests/models/sweeping.py.


class FileState(enum.Enum):
    """The state of a file in a root.

    LIVE: an extent refers to it, or it is an index of such a file.
    DEAD: no extent refers to it, now or later.
    WAITING: unreferenced, but not old enough: it may still be published, or a reader may use it.
    OTHER: not a name of sparklog: never touched.
    EMPTY: an empty directory in which a writer, or merging, had segments.
    """

    LIVE = "live"
    DEAD = "dead"
    WAITING = "waiting"
    OTHER = "other"
    EMPTY = "empty"


class Classifier:
    """Classifies files, as of one image."""

    def __init__(self, image: Image, past: Image | None = None, *, planned_horizon: int = -1) -> None:
        """Classify by the horizon of an image.

        Args:
            past: an older image; files that were live in it stay, even if they are dead now.
            planned_horizon: for a dry run: the horizon that would be set.
        """
        self.horizon = max(planned_horizon, image.sweep_horizon)
        self._retired = image.retired
        self._live = _live_keys(image)
        self._spared = frozenset() if past is None else _live_keys(past) - self._live

    def state_of(self, file: StoredFile) -> FileState:
        """Classify a file of a listing."""
        if file.name.endswith("/") and is_segment_directory(file.name[:-1]):
            return FileState.EMPTY
        segment = segment_of(file.name)
        if segment is None:
            return FileState.OTHER
        key = _key(segment)
        if key in self._live:
            return FileState.LIVE
        is_dead = born_of(segment) < self.horizon or self._retired.has(segment)
        if is_dead and key not in self._spared:
            return FileState.DEAD
        return FileState.WAITING


def _live_keys(image: Image) -> AbstractSet[str]:
    """Return the keys of the segments with extents of the image, staged ones included."""
    found: set[str] = set()
    for extents in all_extents(image):
        for _, block in extents.column_blocks():
            found.update(block.segment.tolist())
    return {_key(segment) for segment in found}


def all_extents(image: Image) -> Iterator[ExtentList]:
    """Yield the extents of each partition, and those that transactions have staged."""
    published = (state.extents for topic in image.topics.values() for state in topic.partitions)
    yield from chain(published, image.transactions.staged_lists())


def live_bytes_of(image: Image) -> dict[str, int]:
    """Return the stored bytes of the extents in each segment, staged ones included."""
    found: dict[str, int] = {}
    for extents in all_extents(image):
        for _, block in extents.column_blocks():
            for segment, size in zip(block.segment.tolist(), block.column("size").tolist(), strict=True):
                found[segment] = found.get(segment, 0) + size
    return found


def _key(segment: str) -> str:
    """Return the key for comparisons. The names of merged segments have a unique id, and a writer gives a
    number once, so the directories of topics are left out: a file system that ignores case may show them as
    another topic's.
    """
    if is_merged(segment):
        return segment.rpartition("/")[2]
    return segment.split("/", 2)[2] if is_isolated(segment) else segment


@dataclass(slots=True)
class Evidence:
    """The latest creation version that existed at a given time, as the storage's own dates show.

    A file with creation version c, and a modification time, shows that commit c existed by then; so does the
    file of a commit or of its snapshot.

    Fields:
        until_ms: the given time.
        birth: the creation version; NO_COMMIT: none is known.
        newest_birth, newest_file: of any date.
        oldest_unused: the creation version of the oldest unreferenced file; None: there is none.
    """

    until_ms: int
    birth: int = NO_COMMIT
    newest_birth: int = NO_COMMIT
    newest_file: str = ""
    oldest_unused: int | None = None

    def add_file(self, file: StoredFile, state: FileState) -> None:
        """Add a data file; `state`: DEAD or WAITING if it is unreferenced."""
        segment = segment_of(file.name)
        if segment is None:
            return
        born = born_of(segment)
        if born > self.newest_birth:
            self.newest_birth, self.newest_file = born, file.name
        if state is FileState.WAITING and (self.oldest_unused is None or born < self.oldest_unused):
            self.oldest_unused = born
        self.add_birth(born, file.modified_ms)

    def add_birth(self, birth: int, modified_ms: int) -> None:
        """Add a creation version, also of a commit or snapshot, by the date of its file."""
        if modified_ms <= self.until_ms:
            self.birth = max(self.birth, birth)


# --- refused topics ----------------------------------------------------------------------------------
#
# The files of an isolated topic whose directory the storage refuses to this process stay; those of the others
# are removed.
#
# Concurrency: one thread.


class RefusedTopics:
    """The refused topics that a sweep has met, by prefix."""

    def __init__(self) -> None:
        self.errors: dict[str, RefusedTopicError] = {}

    def __bool__(self) -> bool:
        return bool(self.errors)

    @property
    def messages(self) -> list[str]:
        """Return a text for users for each topic."""
        return [str(error) for error in self.errors.values()]

    def note(self, directory: str, error: StorageError) -> None:
        """Note the error of a directory; raise it if it is not that of a topic."""
        refused = refused_topic(f"{directory}/", error)
        if refused is None:
            raise error
        self.errors.setdefault(refused.prefix, refused)

    def remove(self, store: Store, names: Sequence[str]) -> list[str]:
        """Remove the files that may be removed; return their names."""
        names = [name for name in names if topic_prefix(name) not in self.errors]
        try:
            store.delete_many(names)
        except StorageError as error:
            if error.code != "STORAGE_REFUSED":
                raise
            return self._remove_by_topic(store, names)
        return names

    def _remove_by_topic(self, store: Store, names: Sequence[str]) -> list[str]:
        removed = []
        for prefix in sorted(set(map(topic_prefix, names))):
            of_topic = [name for name in names if topic_prefix(name) == prefix]
            try:
                store.delete_many(of_topic)
            except StorageError as error:
                self.note(prefix.rstrip("/"), error)
            else:
                removed += of_topic
        return removed


# --- retire ------------------------------------------------------------------------------------------
#
# Removes dead segments that were committed completely after file.delete.delay.ms, not after a week.
#
# The week of a vacuum protects written bytes that may still be published. A dead segment whose bytes were all
# committed has none of these: it is retired, in a commit, and removed after the time for readers. The file's
# size and the image's counts show whether all bytes were committed.
#
#     1. files that were retired `delay_ms` ago are removed
#     2. of the dead segments that the image counts: a file of the committed size is retired; others are no
#        longer counted, and wait for the horizon. A recently written one is checked again later: retiring it
#        would force its writer to begin another segment
#
# Files of a topic whose directory the storage refuses are left to the vacuum: else each round would try them
# again, and there may be more of them than a round has room for.
#
# Invariants: a file is removed only if a durable image has its segment retired; then no commit can bring it
#     to life (metadata/model/sweeping.py).
# Limits: MAX_SEGMENTS a round.
# Concurrency: as a vacuum. Two at a time do the same, which is harmless.
# After a crash: retired files that are not removed are still pending; a vacuum removes them as well.
# Sources: adr/0019; tests/models/sweeping.py (retirer).


MAX_SEGMENTS = 5_000
CHECK_MS = 600_000
IDLE_MS = 3_600_000  # of a file that may grow: its writer probably still uses it


@dataclass(slots=True, kw_only=True)
class RetireReport:
    """Segments that were retired, files and bytes that were removed, and a text for each refused topic."""

    retired: int = 0
    retired_bytes: int = 0
    files: int = 0
    refused: list[str] = field(default_factory=list)

    @property
    def has_done_anything(self) -> bool:
        """True if anything was retired or removed."""
        return bool(self.retired or self.files)


def retire_is_due(image: Image, now_ms: int, delay_ms: int) -> bool:
    """True if files are to be removed, or dead segments may be retired. Pure."""
    if _to_remove(image, now_ms, delay_ms):
        return True
    counted, checked_ms = image.retired.removed_bytes, image.retired.checked_ms
    return bool(counted) and abs(now_ms - checked_ms) >= CHECK_MS and bool(_dead(image))


def retire(
    metadata: MetadataLog,
    clock: Clock,
    *,
    delay_ms: int,
    check: Callable[[], None] = lambda: None,
    removed: Callable[[int], None] = lambda _files: None,
) -> RetireReport:
    """Retire and remove the due segments.

    Args:
        delay_ms: the time for readers between retirement and removal.
        check: called between steps; may raise.
        removed: called with numbers of removed files.

    Raises:
        RetriableError: MAINTENANCE_RUNNING. StorageError: see MetadataLog.publish and Store.delete_many.
    """
    report, refused = RetireReport(), RefusedTopics()
    with alone(metadata):
        store, image = metadata.store, metadata.refresh(force=True)
        now_ms = store.storage_now_ms(clock.now_ms())
        gone = _to_remove(image, now_ms, delay_ms)[:MAX_SEGMENTS]
        for segment in gone:
            assert image.retired.has(segment), "pending is what was retired"
        names = [name for segment in gone for name in _files_of(segment)]
        if names:
            done = set(refused.remove(store, names))
            report.files = len(done.intersection(gone))
            removed(len(done))
        check()
        ready, left = _ready_to_retire(store, image, now_ms, check, refused)
        report.refused = refused.messages

        def plan(newest: Image) -> list[Action]:
            return [plan_retire_segments(newest, now_ms, list(ready), left=left, gone=gone)]

        if not (gone or _dead(image)):
            return report
        for action in metadata.publish(plan).actions:
            if isinstance(action, RetireSegments):
                report.retired = len(action.segments)
                report.retired_bytes = sum(ready[segment] for segment in action.segments)
    return report


def _to_remove(image: Image, now_ms: int, delay_ms: int) -> list[str]:
    """Return the segments that were retired `delay_ms` ago, or (a clock was wrong) that far in the future."""
    return [name for name, at_ms in image.retired.pending.items() if abs(now_ms - at_ms) >= delay_ms]


def _files_of(segment: str) -> list[str]:
    more = [time_index_name(segment)] if is_merged(segment) else []
    return [segment, index_name(segment), *more]


def _dead(image: Image) -> list[str]:
    """Return counted segments without live extents. Cost: a pass over the extents, until none is left."""
    left = set(image.retired.removed_bytes)
    for extents in all_extents(image):
        if not left:
            break
        for _, block in extents.column_blocks():
            left.difference_update(block.segment.tolist())
    return [segment for segment in image.retired.removed_bytes if segment in left]


def _ready_to_retire(
    store: Store, image: Image, now_ms: int, check: Callable[[], None], refused: RefusedTopics
) -> tuple[dict[str, int], list[str]]:
    """Return the segments to retire, with their bytes; and those that wait for the horizon."""
    ready: dict[str, int] = {}
    left: list[str] = []
    dead = _dead(image)[:MAX_SEGMENTS]
    files = _stored(store, dead, check, refused)
    for segment in dead:
        file, committed = files.get(segment), image.retired.removed_bytes[segment]
        is_open = store.traits.appends_after_sync and not is_merged(segment)
        if file is not None and is_open and now_ms - IDLE_MS < file.modified_ms:
            continue
        if file is not None and file.size == committed:
            ready[segment] = committed
        else:
            left.append(segment)
    return ready, left


def _stored(
    store: Store, segments: Collection[str], check: Callable[[], None], refused: RefusedTopics
) -> dict[str, StoredFile]:
    found: dict[str, StoredFile] = {}
    wanted = set(segments)
    for directory in sorted({segment.rpartition("/")[0] for segment in segments}):
        check()
        try:
            found.update((file.name, file) for file in store.list(directory) if file.name in wanted)
        except StorageError as error:
            refused.note(directory, error)
    return found


# --- sweep -------------------------------------------------------------------------------------------


DAY_MS = 24 * 3_600_000
RETAIN_MS = 7 * DAY_MS
FREED_MS = 3_600_000  # files that were live this recently are kept for readers, as far back as the log shows
MOSTLY_DEAD_BYTES = 1 << 20  # less is not worth a new file
MAX_NAMED = 1000  # files that a dry run names
_STEP = 1000  # files that are removed in one request


@dataclass(slots=True)
class Tally:
    """A number of files, and their bytes."""

    files: int = 0
    size_bytes: int = 0

    def add(self, file: StoredFile) -> None:
        """Count a file."""
        self.files += 1
        self.size_bytes += file.size


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFile:
    """A file to remove. `born`: the creation version of its segment; -1: its name has none (old format)."""

    name: str
    size_bytes: int
    modified_ms: int
    born: int


@dataclass(slots=True, kw_only=True)
class VacuumReport:
    """The files found and removed, or to be removed in a dry run.

    Fields:
        horizon_before, horizon: the sweep horizon, -1 if there is none.
        live: files that extents refer to, and their indexes.
        dead: unreferenced, now and later: removed.
        waiting: unreferenced, but not old enough yet, or of a refused topic.
        other: foreign files: never touched.
        directories, temporary, requests: the numbers of removed empty directories, files and uploads of
            unfinished puts, and requests of dead publishers.
        named: the dead files that a dry run names, MAX_NAMED at most.
        refused: a text for each isolated topic whose directory the storage refuses.
    """

    horizon_before: int
    horizon: int
    live: Tally = field(default_factory=Tally)
    dead: Tally = field(default_factory=Tally)
    waiting: Tally = field(default_factory=Tally)
    other: Tally = field(default_factory=Tally)
    directories: int = 0
    temporary: int = 0
    requests: int = 0
    named: list[DeadFile] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def vacuum(
    metadata: MetadataLog,
    clock: Clock,
    *,
    retain_ms: int = RETAIN_MS,
    force: bool = False,
    dry_run: bool = False,
    progress: OnProgress = ignore_progress,
    removed: Callable[[int], None] = lambda _files: None,
) -> VacuumReport:
    """Remove the files that no extent refers to, now or later.

    Args:
        retain_ms: files written within this time stay, even if unreferenced: they may be about to be
            published. A writer that takes longer gets STAGING_EXPIRED, and appends again.
        force: allow less than a week.
        dry_run: remove nothing, and publish nothing.
        progress: called after each part of the listings, with the bytes of its files; it may raise to end the
            run, which is harmless.
        removed: called with the number of files after each removal request; may raise like progress.

    Raises:
        InvalidRequestError: RETAIN_TOO_SHORT, less than a week without `force`.
        RetriableError: MAINTENANCE_RUNNING, another process of this machine maintains the root.
        CorruptLogError: files were created after the end of the log: it is an older copy. Nothing was
            removed.
        StorageError: a file could not be removed; earlier removals stay. Also the errors of
            MetadataLog.publish.
    """
    if retain_ms < 0 or (retain_ms < RETAIN_MS and not force):
        raise InvalidRequestError(
            "RETAIN_TOO_SHORT",
            f"found {retain_ms} ms to retain, expected at least {RETAIN_MS} (a week), unless it is forced",
            fix="retain a week; or force it if no job writes for longer than that before it commits",
        )
    if dry_run:
        return _Vacuum(metadata, clock, retain_ms, progress, removed).run(dry_run=True)
    with alone(metadata):
        report = _Vacuum(metadata, clock, retain_ms, progress, removed).run(dry_run=False)
    metadata.store.restore_reserve()
    return report


@dataclass(slots=True)
class Usage:
    """The examined data files: referenced and unreferenced ones.

    Fields:
        dead_bytes: the bytes in `live` files without an extent: written by failed tasks, expired or merged.
        is_whole: all files were examined; else the time was up, or topics are refused.
        refused: as in VacuumReport.
    """

    live: Tally = field(default_factory=Tally)
    unused: Tally = field(default_factory=Tally)
    dead_bytes: int = 0
    is_whole: bool = True
    refused: list[str] = field(default_factory=list)


def measure_usage(metadata: MetadataLog, clock: Clock, *, limit_ms: int) -> Usage:
    """Count files until the time is up. Files that are being written or staged count as unused."""
    image = metadata.refresh(force=True)
    classifier, live_bytes = Classifier(image), live_bytes_of(image)
    usage, refused = Usage(), RefusedTopics()
    end_ms = clock.monotonic_ms() + limit_ms
    for portion in _walk(metadata.store, refused):
        if clock.monotonic_ms() >= end_ms:
            usage.is_whole = False
            break
        for file in portion:
            state = classifier.state_of(file)
            if state is FileState.LIVE:
                usage.live.add(file)
                if file.name in live_bytes:
                    usage.dead_bytes += max(0, file.size - live_bytes[file.name])
            elif state in {FileState.DEAD, FileState.WAITING}:
                usage.unused.add(file)
    usage.refused = refused.messages
    usage.is_whole &= not refused
    return usage


def mostly_dead_segments(metadata: MetadataLog, clock: Clock) -> list[str]:
    """Return live segments of which more than half, and at least MOSTLY_DEAD_BYTES, have no extent.

    These bytes were written by failed tasks, expired or were merged. A segment that was written to within a
    day may still grow, and is left out.
    """
    live_bytes = live_bytes_of(metadata.refresh(force=True))
    until_ms = metadata.store.storage_now_ms(clock.now_ms()) - DAY_MS
    found = []
    for portion in _walk(metadata.store, RefusedTopics()):
        for file in portion:
            live = live_bytes.get(file.name)
            if live is None or file.modified_ms > until_ms:
                continue
            if file.size - live >= max(MOSTLY_DEAD_BYTES, live):
                found.append(file.name)
    return found


def _walk(store: Store, refused: RefusedTopics) -> Iterator[list[StoredFile]]:
    """Yield the files in the directories of segments; files at the top of the root are no segments."""
    for portion in store.walk(may_hold_segments, refused.note):
        yield [file for file in portion if "/" in file.name]


class _Vacuum:
    """One run."""

    def __init__(
        self,
        metadata: MetadataLog,
        clock: Clock,
        retain_ms: int,
        progress: Callable[[Progress], None],
        removed: Callable[[int], None],
    ) -> None:
        self._metadata = metadata
        self._store = metadata.store
        self._clock = clock
        self._now_ms = self._store.storage_now_ms(clock.now_ms())
        self._retain_ms = retain_ms
        self._progress, self._removed = progress, removed
        self._refused = RefusedTopics()
        self._total_bytes = 0

    def run(self, *, dry_run: bool) -> VacuumReport:
        evidence = self._survey()
        image = self._metadata.refresh(force=True)
        validate_writable(image)
        self._refuse_older_copy(image, evidence, dry_run=dry_run)
        horizon = self._horizon(image, evidence)
        report = VacuumReport(horizon_before=image.sweep_horizon, horizon=horizon)
        failpoint("vacuum.surveyed")
        past = load_past(self._store, image, self._now_ms - min(self._retain_ms, FREED_MS))
        if dry_run:
            self._sweep(Classifier(image, past, planned_horizon=horizon), report, dry_run=True)
        else:
            classifier = Classifier(self._with_horizon(horizon), past)
            report.horizon = classifier.horizon
            failpoint("vacuum.moved")
            self._sweep(classifier, report, dry_run=False)
        # What is uploaded will be a segment: it has the same time as those that are there.
        report.temporary = self._store.sweep_temporary(
            older_than_ms=DAY_MS,
            unfinished_older_than_ms=max(DAY_MS, self._retain_ms),
            dry_run=dry_run,
        )
        report.requests = RequestBox(self._store, self._clock, image.cluster_id).sweep(dry_run=dry_run)
        report.refused = self._refused.messages
        return report

    def _refuse_older_copy(self, image: Image, evidence: Evidence, *, dry_run: bool) -> None:
        """Refuse a log that has lost commits. The files were listed before the log was refreshed: each
        creation version in them is that of an existing, durable commit.

        The refusal is stored in the log: once it has as many commits as were lost, the files prove nothing
        any more, and files of the lost commits look dead. The newest copy of the log does not have the
        refusal, so restoring it ends the refusal.
        """
        lost = max(evidence.newest_birth, RootConfig.parse(image.configs).lost_until_commit)
        if evidence.newest_birth > image.birth and not dry_run:
            configs = {LOST_COMMITS_KEY: str(lost)}
            self._metadata.publish(lambda newest: _some(plan_set_configs(newest, None, configs)))
        if evidence.newest_birth > image.birth or LOST_COMMITS_KEY in image.configs:
            raise _older_copy(self._store, image, evidence, lost)

    def _survey(self) -> Evidence:
        """Return the evidence of files and commits. It may be stale: no file is removed because of it."""
        classifier = Classifier(self._metadata.refresh(force=True))
        evidence = Evidence(self._now_ms - self._retain_ms)
        for portion in _walk(self._store, self._refused):
            for file in portion:
                evidence.add_file(file, classifier.state_of(file))
                self._total_bytes += file.size
            self._progress(Progress(0, self._total_bytes))
        return evidence

    def _horizon(self, image: Image, evidence: Evidence) -> int:
        """Return the new horizon: the present one, unless moving it frees files. Also the present one if not
        all files were listed: what is dead by it is dead in every later copy of the log.
        """
        if self._refused:
            return image.sweep_horizon
        incarnation = image.incarnation
        newest = evidence.birth - incarnation.births_ahead
        start_after = commit_name(newest) if newest >= 0 else None
        for file in self._store.list(DIRECTORY, recursive=True, start_after=start_after):
            commit = commit_of(file.name)
            commit = manifest_of(file.name) if commit is None else commit
            if commit is not None:
                # In an older incarnation creation versions had another, unknown offset.
                ahead = incarnation.births_ahead if commit >= incarnation.commit else 0
                evidence.add_birth(commit + ahead, file.modified_ms)
        horizon = min(evidence.birth, image.birth)
        if evidence.oldest_unused is None or evidence.oldest_unused >= horizon:
            return image.sweep_horizon
        return max(horizon, image.sweep_horizon)

    def _with_horizon(self, horizon: int) -> Image:
        """Return an image with this horizon, or a later one, that a power cut cannot take back."""

        def plan(image: Image) -> list[Action]:
            action = plan_move_sweep_horizon(image, horizon)
            return [] if action is None else [action]

        if horizon > self._metadata.image.sweep_horizon:
            self._metadata.publish(plan)
        return self._metadata.refresh(force=True)

    def _sweep(self, classifier: Classifier, report: VacuumReport, *, dry_run: bool) -> None:
        tallies = {
            FileState.LIVE: report.live,
            FileState.DEAD: report.dead,
            FileState.WAITING: report.waiting,
            FileState.OTHER: report.other,
        }
        done_bytes = 0
        for portion in _walk(self._store, self._refused):
            dead: list[StoredFile] = []
            for file in portion:
                state = classifier.state_of(file)
                if state is FileState.EMPTY:
                    report.directories += self._remove_directory(file, dry_run=dry_run)
                    continue
                if state is FileState.DEAD:
                    dead.append(file)
                elif not file.name.endswith("/"):
                    tallies[state].add(file)
                done_bytes += file.size
            if dry_run:
                report.named += [_named(file) for file in dead[: MAX_NAMED - len(report.named)]]
            removed = {file.name for file in dead} if dry_run else self._remove(dead)
            for file in dead:
                (report.dead if file.name in removed else report.waiting).add(file)
            self._progress(Progress(min(done_bytes, self._total_bytes), self._total_bytes))

    def _remove(self, dead: Sequence[StoredFile]) -> set[str]:
        """Return the names of the removed files."""
        removed: set[str] = set()
        for start in range(0, len(dead), _STEP):
            names = [file.name for file in dead[start : start + _STEP]]
            self._metadata.refuse_another_root()  # in an older copy of it these may be live
            removed.update(self._refused.remove(self._store, names))
            failpoint("vacuum.removed")
            self._removed(len(names))
        return removed

    def _remove_directory(self, directory: StoredFile, *, dry_run: bool) -> bool:
        """Remove a directory that has been empty for a day: its writer has ended."""
        if directory.modified_ms > self._now_ms - min(self._retain_ms, DAY_MS):
            return False
        if dry_run:
            return True
        try:
            return self._store.remove_directory(directory.name.rstrip("/"))
        except StorageError as error:
            self._refused.note(directory.name.rstrip("/"), error)
            return False


def _named(file: StoredFile) -> DeadFile:
    born = born_of(segment_of(file.name) or "")
    return DeadFile(name=file.name, size_bytes=file.size, modified_ms=file.modified_ms, born=born)


def _older_copy(store: Store, image: Image, evidence: Evidence, lost: int) -> CorruptLogError:
    newest = f", at which {evidence.newest_file} was born" if evidence.newest_birth == lost else ""
    return CorruptLogError(
        "CORRUPT_METADATA_LOG",
        f"{store.url}/{DIRECTORY}: found commits up to {image.birth}, expected at least {lost}{newest}; "
        "or these are others than there were. Was the log replaced by an older copy? What it does not "
        "know of any more would be removed",
        fix="stop what writes, and put the newest copy of the log back; or, if what came after is given up, "
        "run `sparklog root restore` (see `sparklog root restore --help`)",
    )


def _some(action: Action | None) -> list[Action]:
    return [] if action is None else [action]
