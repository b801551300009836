"""The budget of a round of maintenance, the lock for one round at a time, and the skipped partitions.

Concurrency: everything here belongs to one thread.
Sources: Kafka Throttler (bytes read and written together), LogCleanerManager (uncleanable partitions; in
    Kafka until the broker restarts).
"""

import contextlib
import hashlib
import logging
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sparklog.clock import Clock
from sparklog.errors import (
    CorruptLogError,
    DataLossError,
    InvalidRequestError,
    RetriableError,
    SparklogError,
    UnsupportedVersionError,
)
from sparklog.log.refused_topic import RefusedTopicError
from sparklog.log.segment_file import UnreadableSegmentError
from sparklog.maintenance.choose import PartitionKey, Piece
from sparklog.metadata import MetadataLog
from sparklog.storage.base import Hold
from sparklog.storage.local_files import hold_file, machine_directory
from sparklog.storage.root_rules import store_kind

# --- one at a time -----------------------------------------------------------------------------------
#
# Two processes of a machine would do the same work, and only one of each pair of commits is accepted.
#
# That only wastes I/O, so different machines may maintain a root concurrently. An object store has no locks:
# several streaming queries of a driver that write to a root would each run the same rounds. So the lock of
# rounds is a file in the machine's directory for temporary files. The kernel releases the lock after a crash
# (storage/local_files.py).


HOLD = "maintenance.lock"  # a command, or a step of a round
ROUND = "maintenance-round.lock"  # a round, or rounds while `maintain --watch` runs


@contextlib.contextmanager
def alone(metadata: MetadataLog, name: str = HOLD) -> Iterator[None]:
    """Hold the lock within the with block.

    Raises:
        RetriableError: MAINTENANCE_RUNNING, another process of this machine holds it.
    """
    held = _hold(metadata, name)
    if held.holder is not None:
        raise RetriableError(
            "MAINTENANCE_RUNNING",
            f"{metadata.store.url}: found {held.holder.decode(errors='replace')} maintaining this root, "
            "expected none",
            fix="wait for its end, and run this again if work is left; or stop it: nothing is lost",
        )
    try:
        yield
    finally:
        held.release()


def _hold(metadata: MetadataLog, name: str) -> Hold:
    store, note = metadata.store, f"process {os.getpid()}".encode()
    directory = machine_directory() if name == ROUND and _is_bucket(store.url) else None
    if directory is None:
        return store.hold(name, note)
    root = hashlib.sha256(f"{store.url}\n{metadata.cluster_id}".encode()).hexdigest()[:32]
    return hold_file(str(directory / f"{root}.{name}"), note)


def _is_bucket(url: str) -> bool:
    """True if the store has no locks, but processes of this machine may share it."""
    return store_kind(url) not in {"directory", "memory"}


# --- budget ------------------------------------------------------------------------------------------
#
# A work begins only if the budget has room for it, and then runs to its end, unless the round is cancelled:
# nothing is lost, its files are swept.
#
# Invariants: a work of any size begins while any bytes of the budget are left: otherwise small works that
#     come before it in each round would starve a large one and all after it. So a round exceeds its bytes by
#     one work at most. Above the rate the round sleeps after each step, in intervals short enough to notice a
#     cancellation; a round that was slower than its rate may catch up for at most a second.


_CREDIT_MS = 1_000.0
_LONGEST_REST_MS = 200.0


class StoppedError(Exception):
    """The round is cancelled. Published works stay, the rest is chosen again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of one round; None: no limit.

    Fields:
        seconds: no work begins after this time.
        max_bytes: no work begins after this many rewritten stored bytes.
        bytes_per_second: the rate of reads and writes together.
        files_per_second: the rate of removals by vacuum. Directories are slow at it, and stores refuse too
            many requests.
    """

    seconds: float | None = None
    max_bytes: int | None = None
    bytes_per_second: int | None = None
    files_per_second: int | None = None


# The default of rounds. A third of S3's limit per prefix, above which it answers "slow down".
FILES_PER_SECOND = 1_000
NO_LIMIT = Budget()


class Meter:
    """Counts what a round has used of its budget, and limits its rate."""

    def __init__(
        self,
        budget: Budget,
        clock: Clock,
        *,
        is_stopped: Callable[[], bool] = lambda: False,
        rest_ms: Callable[[float], None] | None = None,
    ) -> None:
        """`is_stopped`: true once the round is cancelled. `rest_ms`: sleeps for at most this time; by default
        the clock's sleep.
        """
        self._budget = budget
        self._clock = clock
        self._is_stopped = is_stopped
        self._rest_ms = rest_ms or clock.sleep_ms
        self._began_ms = clock.monotonic_ms()
        self._paid_until_ms = self._files_paid_until_ms = float(self._began_ms)
        self.spent_bytes = 0

    def has_room(self) -> bool:
        """True if another work may begin. StoppedError if the round is cancelled, as in all methods."""
        self.check()
        budget = self._budget
        if (
            budget.seconds is not None
            and self._clock.monotonic_ms() - self._began_ms >= budget.seconds * 1000
        ):
            return False
        return budget.max_bytes is None or not self.spent_bytes or self.spent_bytes < budget.max_bytes

    def spend(self, size: int) -> None:
        """Count rewritten stored bytes, and sleep to keep the rate."""
        self.check()
        self.spent_bytes += size
        self._pay(2 * size)  # read, and written

    def rest(self, size: int) -> None:
        """Sleep for stored bytes that were read ahead; they are counted when they are rewritten."""
        self.check()
        self._pay(size)

    def spend_files(self, count: int) -> None:
        """Sleep for removed files."""
        self.check()
        rate = self._budget.files_per_second
        if rate is not None:
            self._files_paid_until_ms = self._rest(self._files_paid_until_ms, count / rate)

    def _pay(self, size: int) -> None:
        rate = self._budget.bytes_per_second
        if rate is not None:
            self._paid_until_ms = self._rest(self._paid_until_ms, size / rate)

    def _rest(self, paid_until_ms: float, seconds: float) -> float:
        """Sleep until the rate allows this amount, too; return the end of its time."""
        paid_until_ms = max(paid_until_ms, self._clock.monotonic_ms() - _CREDIT_MS) + seconds * 1000
        while (left_ms := paid_until_ms - self._clock.monotonic_ms()) > 0:
            self._rest_ms(min(left_ms, _LONGEST_REST_MS))
            self.check()
        return paid_until_ms

    def check(self) -> None:
        """Raise StoppedError if the round is cancelled."""
        if self._is_stopped():
            raise StoppedError


# --- skipped partitions ------------------------------------------------------------------------------
#
# Partitions that cannot be rewritten: a file of theirs is damaged, lost, newer than this sparklog, or
# unreadable in the storage, or the storage refuses the directory of their topic, or rewriting them fails
# unexpectedly (INTERNAL, a bug). They are skipped for RETRY_MS, so that one bad partition does not end a
# round of the root.
#
# Unreadable partitions stay due, and each attempt may read gigabytes, in each round. So a process that runs
# rounds remembers them, and does the other due works at its usual rate. Later it tries them again: the file
# may have been restored.
#
# Invariants: a partition is identified by its topic's id, so that a new topic of the same name is not
#     skipped. The number of entries is bounded (MAX_REMEMBERED); an entry is dropped if the clock was set
#     back so far that it would last longer.


_log = logging.getLogger(__name__)
RETRY_MS = 3_600_000
MAX_REMEMBERED = 1_000
MAX_REPORTED = 100  # of a step
_MAX_MESSAGE = 400
# Errors of one partition's files only. A flipped bit may look like a newer format.
UNREADABLE = (CorruptLogError, DataLossError, UnsupportedVersionError, UnreadableSegmentError)
OF_PARTITION = (*UNREADABLE, RefusedTopicError)
# Errors that concern more than one partition: of the storage, the process, or a cancellation. Not
# InvalidRequestError: there is no user's request, so it is a bug.
_OF_ALL = (StoppedError, MemoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedPartition:
    """A partition that is not rewritten.

    Fields:
        size_bytes: stored bytes of the extents that were to be rewritten.
        message: a text for users, with the error code.
    """

    topic: str
    topic_id: str
    partition: int
    size_bytes: int
    code: str
    message: str

    @classmethod
    def by(cls, piece: Piece, error: SparklogError) -> "SkippedPartition":
        """Create it from the error of a piece."""
        return cls(
            topic=piece.topic,
            topic_id=piece.topic_id,
            partition=piece.partition,
            size_bytes=piece.size,
            code=error.code,
            message=f"{piece.topic}-{piece.partition} is skipped: {error}"[:_MAX_MESSAGE],
        )

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class SkippedPartitions:
    """The skipped partitions that a process remembers, each for RETRY_MS of Unix time."""

    def __init__(self) -> None:
        self._until_ms: dict[PartitionKey, tuple[SkippedPartition, int]] = {}

    def add(self, found: Iterable[SkippedPartition], now_ms: int) -> None:
        """Remember the skipped partitions of a round."""
        for partition in found:
            self._until_ms.pop(partition.key, None)
            self._until_ms[partition.key] = partition, now_ms + RETRY_MS
        for key in list(self._until_ms)[:-MAX_REMEMBERED]:
            del self._until_ms[key]

    def now(self, now_ms: int) -> list[SkippedPartition]:
        """Return the entries that have not expired, and drop the others."""
        self._until_ms = {
            key: (partition, until_ms)
            for key, (partition, until_ms) in self._until_ms.items()
            if now_ms < until_ms <= now_ms + RETRY_MS
        }
        return [partition for partition, _ in self._until_ms.values()]

    def keys(self, now_ms: int) -> frozenset[PartitionKey]:
        """Return the keys of the entries that have not expired, for Terms.skip."""
        return frozenset(partition.key for partition in self.now(now_ms))


def failure_of(where: str, error: Exception) -> SparklogError:
    """Return the error to report for a failed partition or step.

    Raises:
        SparklogError, StoppedError, MemoryError: `error` itself, if it concerns all others as well.
    """
    if isinstance(error, OF_PARTITION):
        return error
    is_ours = isinstance(error, SparklogError) and not isinstance(error, InvalidRequestError)
    if is_ours or isinstance(error, _OF_ALL):
        raise error
    _log.debug("%s failed", where, exc_info=error)
    frame = next(reversed(traceback.extract_tb(error.__traceback__)), None)
    at = f", in {frame.name}, line {frame.lineno} of {frame.filename}" if frame is not None else ""
    return SparklogError(
        "INTERNAL",
        f"{where}: {type(error).__name__}: {error}{at}",
        fix="report it, with the traceback that the log sparklog.maintenance has at level DEBUG",
    )
