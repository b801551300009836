"""Background maintenance of the metadata log: when a snapshot is due, which process writes it, and cleaning.

A snapshot is due when the commits since the last one weigh a quarter of a snapshot, and at least
`snapshot_bytes`. So the cost of snapshots is proportional to that of commits, and opening the log reads at
most 1.4 times the bytes of its image. A commit weighs its bytes, and at least a disk block; an extent
weighs as much as a JSON object would, and an action that replaces extents as much as sixteen.

The log itself determines the writer, without a message. The weight of the commits since the last snapshot is
the same for all processes that know that snapshot, also for one that has just opened the log to commit once.
There is a scale of weights, four per doubling, and one commit is the first to reach each value on it: the
process that made this commit checks whether a snapshot is due as of then. If it does not write it (it was
killed; the storage is full), the process whose commit reaches the next value does, a quarter later. A process
that opens the log and finds twice the due weight does not wait for that.
Others may know of another last snapshot, because somebody wrote one by hand. So where others publish, too,
the storage is asked for the newest before one is written. Two at a time do no harm.

Invariants: a publish does not wait for it where it runs in the background, and never fails because of it,
    except that a failed fsync ends publishing; one step is one snapshot, or STEP files of a cleaning.
Not here: what is in a snapshot (documents/snapshot.py), what may be removed (cleaning.py).
Concurrency: `after_publish` from any thread, under no lock; one piece of work at a time.
After a crash: a snapshot without its manifest is none; the next commit on the scale leads to another.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sparklog.clock import Clock
from sparklog.errors import FatalStorageError, SparklogError
from sparklog.metadata.cleaning import clean_in_steps
from sparklog.metadata.documents.properties import DIRECTORY, commit_name, commit_of, manifest_of
from sparklog.metadata.documents.snapshot import write_hint, write_snapshot
from sparklog.metadata.loading import refuse_another_root
from sparklog.metadata.model.image import Image, weigh
from sparklog.metadata.model.settings import validate_writable
from sparklog.metadata.requests import RequestBox
from sparklog.storage import Store

# --- background --------------------------------------------------------------------------------------
#
# A piece of work is a generator; from one `yield` to the next is a step, which is bounded. New work runs
# before the rest of older work (a snapshot before the rest of a cleaning); waiting work is dropped when newer
# work comes, because it falls due again.
#
# Invariants: at most one thread, none without work; after a step that is not the last, the thread pauses for
#     as long as the step took, so that it takes at most half a core and half a disk.
# End: `finish`, and the end of the process, let the current step end and waiting work begin; then work may go
#     on for END_SECONDS, and the rest is left to other processes.
# Concurrency: any thread. After a fork the child has no thread and no work.
# After a crash: defined by the work.


Work = Callable[[], Iterator[None]]
END_SECONDS = 2.0
_LONGEST_REST_SECONDS = 1.0


class Runner(Protocol):
    """Runs background work."""

    def run(self, work: Work) -> None:
        """Run it, now or soon."""
        ...

    def finish(self) -> None:
        """Wait until the current work ends, soon."""
        ...

    def start_anew(self) -> None:
        """Reset, in a forked child."""
        ...


class Inline:
    """Runs work before it returns: for tests, and tools that publish once."""

    def run(self, work: Work) -> None:
        for _ in work():
            pass

    def finish(self) -> None:
        """No-op."""

    def start_anew(self) -> None:
        """No-op."""


class Background:
    """Runs work in steps, in a thread that lives while there is work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.start_anew()

    def start_anew(self) -> None:
        """Reset: without a thread, and without work."""
        self._lock = threading.Lock()
        self._news = threading.Event()  # ends a pause
        self._thread: threading.Thread | None = None
        self._waiting: Work | None = None
        self._deadline: float | None = None

    def run(self, work: Work) -> None:
        """Run it soon, before the rest of older work; newer work replaces it until then."""
        with self._lock:
            self._waiting = work
            self._news.set()
            if self._thread is not None:
                return
            # No daemon: a job that ends with its only commit waits for the snapshot.
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=False)
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter is being shut down
                self._thread = self._waiting = None

    def finish(self) -> None:
        """Wait until no work runs: for the current step, the first of waiting work, and END_SECONDS."""
        with self._lock:
            thread, self._deadline = self._thread, time.monotonic() + END_SECONDS
            self._news.set()
        try:
            if thread is not None and thread is not threading.current_thread():
                thread.join()
        finally:  # also after Ctrl-C, when the process may go on
            with self._lock:
                self._deadline = None

    def _work(self) -> None:
        begun: list[Iterator[None]] = []
        while True:
            with self._lock:
                if self._waiting is not None:  # even after the deadline: its first step is the snapshot
                    begun.append(self._waiting())
                    self._waiting = None
                    self._news.clear()
                elif not begun or self._is_over():
                    self._thread = None
                    return
            since = time.monotonic()
            try:
                next(begun[-1])
            except StopIteration:
                begun.pop()
            except Exception:  # noqa: BLE001 - there is no caller to raise it to
                _log.exception("%s failed", self._name)
                begun.pop()
            else:
                self._rest(time.monotonic() - since)

    def _is_over(self) -> bool:
        """True after the deadline. Called under the lock. The main thread ends before the interpreter joins
        the others.
        """
        if self._deadline is None and not threading.main_thread().is_alive():
            self._deadline = time.monotonic() + END_SECONDS
        return self._deadline is not None and time.monotonic() > self._deadline

    def _rest(self, seconds: float) -> None:
        if self._deadline is None:
            self._news.wait(min(seconds, _LONGEST_REST_SECONDS))


# --- settings ----------------------------------------------------------------------------------------
#
# Settings of a process for the metadata log.
#
# Not here: settings of a root or a topic (log/config.py).


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    """Each process of a root may have its own.

    Fields:
        snapshot_bytes: the minimum weight of the commits between snapshots; 256 small commits.
            Larger: slower opening, fewer files rewritten.
        clean_grace_ms: how old a snapshot must be before the commits that it covers are removed. Larger: more
            files, fewer followers that must load a snapshot after a pause.
        clean_interval_ms: the minimum time between two cleanings of a process: each lists all commits of the
            grace period, of which there may be 100,000s.
        snapshots_kept: the minimum number; two, so that a damaged one is no disaster.
        publish_timeout_ms: give up publishing after lost races, or an unknown outcome, for this long.
        backoff_ms: upper bound of the random wait after the first lost race; None: by the kind of store.
        combine: on a remote store, publish for each other instead of racing.
    """

    snapshot_bytes: int = 1 << 20
    clean_grace_ms: int = 600_000
    clean_interval_ms: int = 60_000
    snapshots_kept: int = 2
    publish_timeout_ms: int = 60_000
    backoff_ms: float | None = None
    combine: bool = True


# --- upkeep ------------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)
# The minimum time between two cleanings of a remote store, each of which lists it.
_REMOTE_CLEAN_INTERVAL_MS = 1_800_000
# Approximate bytes of each in a snapshot: rows of Arrow, and objects of JSON.
_EXTENT_BYTES, _PARTITION_BYTES, _ENTRY_BYTES, _TOPIC_BYTES = 80, 16, 64, 128
_FIRST_STEPS = 4  # on the scale between a value and its double


class _Known(NamedTuple):
    """The newest known snapshot. `weight` is that of the commits from `loaded`, the snapshot that our image
    was loaded from, up to it.
    """

    snapshot: int
    loaded: int
    weight: int


class LogUpkeep:
    """The background maintenance of one log, by one process."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        image: Image,
        settings: MetadataSettings,
        runner: Runner,
        on_fatal: Callable[[FatalStorageError], None],
    ) -> None:
        """`image`: as opened. `on_fatal` is called after a failed fsync: publishing must stop."""
        self.settings = settings
        self.runner = runner
        self.more_work: list[Callable[[], None]] = []  # runs after each snapshot and cleaning
        self._store = store
        self._clock = clock
        self._on_fatal = on_fatal
        self._known = _Known(image.replayed.snapshot, image.replayed.snapshot, 0)
        self._has_begun = False
        self._cleaned_ms: int | None = None

    def after_publish(self, image: Image, *, others: bool) -> None:
        """Start what is due after a commit of ours that led to `image`.

        Args:
            others: other processes publish, too, so one of them may have written a snapshot.
        """
        weight = self.weight_to_replay(image)
        unit = self.settings.snapshot_bytes
        if _mark(weight, unit) > _mark(weight - image.replayed.last_weight, unit):
            self.runner.run(lambda: self._work(image, overdue=1, others=others))
        elif not self._has_begun and weight >= 2 * unit:
            self.runner.run(lambda: self._work(image, overdue=2, others=True))
        self._has_begun = True

    def weight_to_replay(self, image: Image) -> int:
        """Return the weight of the commits after the newest known snapshot."""
        return image.replayed.weight - self._newest(image).weight

    def write_snapshot(self, image: Image) -> None:
        """Write a snapshot now, unless the root was replaced: it would bring back what that does not have.

        Raises:
            CorruptLogError, FencedError: the root was replaced.
            UnsupportedVersionError: the root needs a feature for writing that this version lacks.
        """
        validate_writable(image)
        refuse_another_root(self._store, image)
        write_snapshot(self._store, image, timestamp_ms=self._clock.now_ms())
        write_hint(self._store, image.commit)
        self._known = _Known(image.commit, image.replayed.snapshot, image.replayed.weight)

    def _newest(self, image: Image) -> "_Known":
        loaded, known = image.replayed.snapshot, self._known
        return known if known.loaded == loaded else _Known(loaded, loaded, 0)  # it was loaded anew

    def _work(self, image: Image, *, overdue: int, others: bool) -> Iterator[None]:
        """Write a snapshot, if one is due, and then clean, step by step.

        Failures are logged; a failed cleaning does not prevent the other work.
        """
        doing = "no snapshot"
        try:
            if self._is_due(image, overdue) and not (others and self._is_covered(image, overdue)):
                self.write_snapshot(image)
                yield
                doing = "cleaning the metadata log failed"
                try:
                    for _ in self._cleaning(image):
                        yield
                except FatalStorageError:
                    raise
                except SparklogError as error:
                    _log.warning("%s after commit %s: %s", doing, image.commit, error)
                doing = "background maintenance failed"
                for work in self.more_work:
                    work()
                    yield
        except FatalStorageError as error:
            self._on_fatal(error)
            _log.error("%s after commit %s: %s", doing, image.commit, error)
        except SparklogError as error:
            _log.warning("%s after commit %s: %s", doing, image.commit, error)

    def _is_due(self, image: Image, overdue: int) -> bool:
        bound = max(self.settings.snapshot_bytes, snapshot_size(image) // 4)
        return self.weight_to_replay(image) >= overdue * bound

    def _is_covered(self, image: Image, overdue: int) -> bool:
        """True if another process has written a snapshot, so that none is due."""
        known = self._newest(image)
        start_after = commit_name(known.snapshot) if known.snapshot >= 0 else None
        weights: dict[int, int] = {}
        newest = known.snapshot
        for file in self._store.list(DIRECTORY, recursive=True, start_after=start_after):
            commit, snapshot = commit_of(file.name), manifest_of(file.name)
            if commit is not None:
                weights[commit] = weigh(file.size)
            elif snapshot is not None and snapshot <= image.commit:
                newest = max(newest, snapshot)
        if newest == known.snapshot:
            return False
        after = sum(weight for commit, weight in weights.items() if newest < commit <= image.commit)
        self._known = _Known(newest, known.loaded, image.replayed.weight - after)
        return not self._is_due(image, overdue)

    def _cleaning(self, image: Image) -> Iterator[int]:
        now_ms = self._clock.monotonic_ms()
        interval_ms = self.settings.clean_interval_ms
        if self._store.traits.is_remote:
            interval_ms = _REMOTE_CLEAN_INTERVAL_MS
        if self._cleaned_ms is not None and now_ms - self._cleaned_ms < interval_ms:
            return
        self._cleaned_ms = now_ms
        yield from clean_in_steps(
            self._store,
            image,
            grace_ms=self.settings.clean_grace_ms,
            snapshots_kept=self.settings.snapshots_kept,
            now_ms=self._clock.now_ms(),
        )
        if self._store.traits.is_remote:
            RequestBox(self._store, self._clock, image.cluster_id).sweep()


def snapshot_size(image: Image) -> int:
    """Return the approximate size of a snapshot of this image in bytes. Visits each partition."""
    size = _ENTRY_BYTES * (len(image.publishers) + len(image.configs))
    for topic in image.topics.values():
        size += _TOPIC_BYTES + _ENTRY_BYTES * (len(topic.writer_txns) + len(topic.configs))
        for state in topic.partitions:
            size += (
                _PARTITION_BYTES + _EXTENT_BYTES * len(state.extents) + _ENTRY_BYTES * len(state.producers)
            )
    return size


def _mark(weight: int, unit: int) -> int:
    """Return how many values of the scale a weight has reached: 4/4, 5/4, 6/4, 7/4, 8/4, 10/4 ... `unit`."""
    quarters = weight * _FIRST_STEPS // unit
    if quarters < _FIRST_STEPS:
        return 0
    doublings = quarters.bit_length() - _FIRST_STEPS.bit_length()
    return _FIRST_STEPS * doublings + (quarters >> doublings) - _FIRST_STEPS + 1
