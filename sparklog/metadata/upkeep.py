"""Upkeep of the metadata log: when is a snapshot due, who writes it, and what follows from it.

Due is a snapshot when the commits since the last one weigh a quarter of what a snapshot would, and at least
`snapshot_bytes`. So to write them costs in proportion to what was committed, and who opens the log reads at
most 1.4 times the bytes of its image. A commit weighs its bytes, and a disk's block at least, and its extents
as much as if they were objects, and what replaces some as much as sixteen.

Who writes it follows from the log, so that nobody has to ask. What commits since the last snapshot weigh is
the same for all who know of that snapshot, also for a process that has just opened the log, to commit once.
There is a scale of weights, four to the doubling, and one commit is the first to reach each value on it:
whoever made that commit looks whether a snapshot is due as of then. Should it not come to write it (it was
killed; the storage is full), whoever makes the commit that reaches the next value does, a quarter later. And
who opens the log and finds that twice the due weight has come together does not wait for that.
Others may know of another last snapshot, because somebody wrote one by hand. So where others publish as well,
the storage is asked for the newest before one is written. Two at a time do no harm.

Invariants: a publish waits for none of it where it is done in the background, and never fails
    because of it, but that a failed fsync ends publishing; what is done at once is one snapshot, or a step of
    cleaning.
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
# A piece of work is a generator; what it does from one `yield` to the next is a step, which is bounded. What
# comes newly goes before what is there already (a snapshot before the rest of a cleaning), and is forgotten
# if something newer comes before its turn, since it comes due again.
#
# Invariants: one thread at most, none while there is nothing to do; after a step that is not the last, the
#     thread rests as long as the step took, so that it takes half a core and half a disk at most.
# Ends with its owner: `finish`, and the end of the process, let the step end that runs, and a piece of work
#     begin that waits; then what is left may go on for END_SECONDS, and is left to others.
# Concurrency: any thread. After a fork the child has no thread, and starts anew.
# After a crash: whatever the work says.


Work = Callable[[], Iterator[None]]
END_SECONDS = 2.0
_LONGEST_REST_SECONDS = 1.0


class Runner(Protocol):
    """Who does the work."""

    def run(self, work: Work) -> None:
        """Do it, now or soon."""
        ...

    def finish(self) -> None:
        """Wait for what is being done to come to an end, soon."""
        ...

    def start_anew(self) -> None:
        """In a forked child."""
        ...


class AtOnce:
    """Does it before it returns: for tests, and tools of one publish."""

    def run(self, work: Work) -> None:
        for _ in work():
            pass

    def finish(self) -> None:
        """All is done."""

    def start_anew(self) -> None:
        """There is nothing to forget."""


class Background:
    """Work beside whoever waits for a publish: in steps, in a thread that lives as long as there is some."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.start_anew()

    def start_anew(self) -> None:
        """Without a thread, and without work."""
        self._lock = threading.Lock()
        self._news = threading.Event()  # to wake whoever rests
        self._thread: threading.Thread | None = None
        self._waiting: Work | None = None
        self._deadline: float | None = None

    def run(self, work: Work) -> None:
        """Do it soon, before what is being done already; something newer may take its place until then."""
        with self._lock:
            self._waiting = work
            self._news.set()
            if self._thread is not None:
                return
            # No daemon: what ends with its last publish, a job of one commit, waits for the snapshot.
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=False)
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter is being shut down
                self._thread = self._waiting = None

    def finish(self) -> None:
        """Wait until nothing is being done any more; see the module's docstring for how long that may be."""
        with self._lock:
            thread, self._deadline = self._thread, time.monotonic() + END_SECONDS
            self._news.set()
        try:
            if thread is not None and thread is not threading.current_thread():
                thread.join()
        finally:  # Ctrl-C, too: whoever goes on has work again
            with self._lock:
                self._deadline = None

    def _work(self) -> None:
        begun: list[Iterator[None]] = []
        while True:
            with self._lock:
                if self._waiting is not None:  # whatever the time: its first step is the snapshot
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
            except Exception:  # noqa: BLE001 - nobody waits for it who could be told
                _log.exception("%s failed", self._name)
                begun.pop()
            else:
                self._rest(time.monotonic() - since)

    def _is_over(self) -> bool:
        """Under the lock. The main thread ends before the interpreter waits for the others."""
        if self._deadline is None and not threading.main_thread().is_alive():
            self._deadline = time.monotonic() + END_SECONDS
        return self._deadline is not None and time.monotonic() > self._deadline

    def _rest(self, seconds: float) -> None:
        if self._deadline is None:
            self._news.wait(min(seconds, _LONGEST_REST_SECONDS))


# --- settings ----------------------------------------------------------------------------------------
#
# Numbers of the metadata log.
#
# Not here: what a root or a topic is configured to (log/config.py); these are a process's own.


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    """Every process of a root may have its own.

    Fields:
        snapshot_bytes: commits between snapshots weigh so much at least; 256 small commits.
            Larger: slower opening, fewer files rewritten.
        clean_grace_ms: how old a snapshot must be before what it covers is removed. Larger: more files,
            fewer followers that must load a snapshot after a pause.
        clean_interval_ms: a process cleans at most so often, after a snapshot of its own: it has to list all
            commits of the grace period, of which there may be 100,000s.
        snapshots_kept: at least so many; two, so that a damaged one is no disaster.
        publish_timeout_ms: give up publishing after losing races, or being unsure, for this long.
        backoff_ms: upper bound of the random wait after the first lost race; None: what suits the store.
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
# Cleaning a remote store lists it: not more often than this.
_REMOTE_CLEAN_INTERVAL_MS = 1_800_000
# What a snapshot takes of each, about: rows of Arrow, and objects of JSON.
_EXTENT_BYTES, _PARTITION_BYTES, _ENTRY_BYTES, _TOPIC_BYTES = 80, 16, 64, 128
_FIRST_STEPS = 4  # on the scale between a value and its double


class _Known(NamedTuple):
    """The newest snapshot that we know of; `weight`: of the commits from `loaded`, the one that our image was
    loaded from, up to it.
    """

    snapshot: int
    loaded: int
    weight: int


class LogUpkeep:
    """The upkeep that one process does of a log. See the module's docstring."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        image: Image,
        settings: MetadataSettings,
        runner: Runner,
        on_fatal: Callable[[FatalStorageError], None],
    ) -> None:
        """`image`: as opened. `on_fatal` is told of a failed fsync, after which nothing may publish."""
        self.settings = settings
        self.runner = runner
        self.also: list[Callable[[], None]] = []  # what others have done on the same occasion
        self._store = store
        self._clock = clock
        self._on_fatal = on_fatal
        self._known = _Known(image.replayed.snapshot, image.replayed.snapshot, 0)
        self._has_begun = False
        self._cleaned_ms: int | None = None

    def after_publish(self, image: Image, *, others: bool) -> None:
        """After a commit of ours that led to `image`: have done what is due.

        Args:
            others: other processes publish as well, so one of them may have written a snapshot.
        """
        weight = self.weight_to_replay(image)
        unit = self.settings.snapshot_bytes
        if _mark(weight, unit) > _mark(weight - image.replayed.last_weight, unit):
            self.runner.run(lambda: self._work(image, overdue=1, others=others))
        elif not self._has_begun and weight >= 2 * unit:
            self.runner.run(lambda: self._work(image, overdue=2, others=True))
        self._has_begun = True

    def weight_to_replay(self, image: Image) -> int:
        """What commits after the newest snapshot that we know of weigh."""
        return image.replayed.weight - self._newest(image).weight

    def write_snapshot(self, image: Image) -> None:
        """Write one now, unless the root was replaced meanwhile: one of what is lost would bring it back.

        Raises:
            CorruptLogError, FencedError: it was.
            UnsupportedVersionError: a writer has to know more than we do.
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
        """A snapshot, if one is due, and then cleaning, step by step.

        What fails is logged by what it was; a failed cleaning keeps nothing else from being done.
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
                for work in self.also:
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
        """Has somebody else written a snapshot, so that none is due?"""
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
    """About how many bytes a snapshot of this image takes. Costs a look at each partition."""
    size = _ENTRY_BYTES * (len(image.publishers) + len(image.configs))
    for topic in image.topics.values():
        size += _TOPIC_BYTES + _ENTRY_BYTES * (len(topic.writer_txns) + len(topic.configs))
        for state in topic.partitions:
            size += (
                _PARTITION_BYTES + _EXTENT_BYTES * len(state.extents) + _ENTRY_BYTES * len(state.producers)
            )
    return size


def _mark(weight: int, unit: int) -> int:
    """How many values of the scale a weight has reached: 4/4, 5/4, 6/4, 7/4, 8/4, 10/4 ... of `unit`."""
    quarters = weight * _FIRST_STEPS // unit
    if quarters < _FIRST_STEPS:
        return 0
    doublings = quarters.bit_length() - _FIRST_STEPS.bit_length()
    return _FIRST_STEPS * doublings + (quarters >> doublings) - _FIRST_STEPS + 1
