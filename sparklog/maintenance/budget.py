"""How much a round of maintenance may do, one round at a time, and which partitions it skips.

Concurrency: everything here belongs to one thread.
Sources: Kafka Throttler (bytes read and written together), LogCleanerManager (uncleanable partitions; there
    until the broker starts again).
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
from sparklog.log.segment_file import UnreadableSegmentError
from sparklog.maintenance.choose import PartitionKey, Piece
from sparklog.metadata import MetadataLog
from sparklog.storage.base import Hold
from sparklog.storage.local_files import hold_file, machine_directory

# --- one at a time -----------------------------------------------------------------------------------
#
# Two processes of a machine would do the same work, and only one of each pair of commits is accepted.
#
# That wastes reading and writing, and harms nothing: between machines both go on. An object store has no
# locks: several streaming queries of a driver that write to a root there would each pay for the same rounds,
# so the lock of rounds is a file in the machine's directory for temporary files. After a crash the kernel has
# released the lock (storage/local_files.py).


HOLD = "maintenance.lock"  # a command, or a step of a round
ROUND = "maintenance-round.lock"  # a round, or rounds while `maintain --watch` runs


@contextlib.contextmanager
def alone(metadata: MetadataLog, name: str = HOLD) -> Iterator[None]:
    """Hold the lock for as long as the context lasts.

    Raises:
        RetriableError: MAINTENANCE_RUNNING, another process of this machine has it.
    """
    held = _hold(metadata, name)
    if held.holder is not None:
        raise RetriableError(
            "MAINTENANCE_RUNNING",
            f"{metadata.store.url}: found {held.holder.decode(errors='replace')} maintaining this root, "
            "expected none",
            fix="wait until it ends, and run this again if anything is left; or stop it: nothing is lost",
        )
    try:
        yield
    finally:
        held.release()


def _hold(metadata: MetadataLog, name: str) -> Hold:
    store, note = metadata.store, f"process {os.getpid()}".encode()
    directory = machine_directory() if name == ROUND and store.url.startswith("s3:") else None
    if directory is None:
        return store.hold(name, note)
    root = hashlib.sha256(f"{store.url}\n{metadata.cluster_id}".encode()).hexdigest()[:32]
    return hold_file(str(directory / f"{root}.{name}"), note)


# --- budget ------------------------------------------------------------------------------------------
#
# A work begins only if the round has room for it, and is then done to its end, unless the round is cancelled:
# nothing is lost, its files are swept.
#
# Invariants: a work begins whatever its size while any of the bytes is left: one that is larger than what
#     small works leave of them, which are due before it each time, would never be done, nor would what comes
#     after it. So a round exceeds its bytes by one work at most. Beyond the rate the round rests after each
#     step, in pieces short enough to notice a cancellation; a round that was slower than its rate may catch
#     up for a second, not more.


_CREDIT_MS = 1_000.0
_LONGEST_REST_MS = 200.0


class StoppedError(Exception):
    """The round is cancelled. What was published stays, the rest is chosen again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Of one round; None: no bound.

    Fields:
        seconds: nothing begins after so long.
        max_bytes: nothing begins after so many stored bytes were rewritten.
        bytes_per_second: read and written, together.
        files_per_second: removed by vacuum. Directories are slow at it, and stores refuse too many requests.
    """

    seconds: float | None = None
    max_bytes: int | None = None
    bytes_per_second: int | None = None
    files_per_second: int | None = None


# The default of rounds. A third of what S3 takes of a prefix before it says "slow down".
FILES_PER_SECOND = 1_000
NO_LIMIT = Budget()


class Meter:
    """What a round has spent of its budget."""

    def __init__(
        self,
        budget: Budget,
        clock: Clock,
        *,
        is_stopped: Callable[[], bool] = lambda: False,
        rest_ms: Callable[[float], None] | None = None,
    ) -> None:
        """`is_stopped`: true once the round is cancelled. `rest_ms`: waits for so long at most; by default
        the clock's.
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
        """Count stored bytes that were rewritten, and rest as the rate demands."""
        self.check()
        self.spent_bytes += size
        self._pay(2 * size)  # read, and written

    def rest(self, size: int) -> None:
        """Rest for stored bytes that were read ahead, and are counted when they are rewritten."""
        self.check()
        self._pay(size)

    def spend_files(self, count: int) -> None:
        """Rest for files that were removed."""
        self.check()
        rate = self._budget.files_per_second
        if rate is not None:
            self._files_paid_until_ms = self._rest(self._files_paid_until_ms, count / rate)

    def _pay(self, size: int) -> None:
        rate = self._budget.bytes_per_second
        if rate is not None:
            self._paid_until_ms = self._rest(self._paid_until_ms, size / rate)

    def _rest(self, paid_until_ms: float, seconds: float) -> float:
        """Rest until this is paid for, too; return until when it is."""
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
# Partitions that cannot be rewritten: a file of theirs is damaged, lost, newer than this sparklog, or not
# given by the storage, or rewriting them fails unexpectedly (INTERNAL, a bug). They are skipped for RETRY_MS,
# so that one partition's fault ends no round of the root.
#
# What is due stays due if it cannot be read, and to find that out again may take gigabytes of reading, in
# each round. So a process that runs rounds remembers such partitions, and does what else is due at its usual
# pace. Then they are tried again: the file may have been restored.
#
# Invariants: a partition is named by its topic's id, so that no namesake is taken for it. What is remembered
#     is bounded (MAX_REMEMBERED), and forgotten if the clock was set back so far that it would last longer.


_log = logging.getLogger(__name__)
RETRY_MS = 3_600_000
MAX_REMEMBERED = 1_000
MAX_REPORTED = 100  # of a step
_MAX_MESSAGE = 300
# What one partition's files are to blame for, and nothing else. A flipped bit may look like a newer format.
UNREADABLE = (CorruptLogError, DataLossError, UnsupportedVersionError, UnreadableSegmentError)
# What concerns more than one partition: the storage, the process, or a cancellation. InvalidRequestError does
# not: nobody asked for anything, so it is a bug.
_OF_ALL = (StoppedError, MemoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedPartition:
    """A partition that is left as it is.

    Fields:
        size_bytes: stored bytes of the extents that were to be rewritten.
        message: for people, with the code.
    """

    topic: str
    topic_id: str
    partition: int
    size_bytes: int
    code: str
    message: str

    @classmethod
    def by(cls, piece: Piece, error: SparklogError) -> "SkippedPartition":
        """Since `error` kept the piece from being rewritten."""
        return cls(
            topic=piece.topic,
            topic_id=piece.topic_id,
            partition=piece.partition,
            size_bytes=piece.size,
            code=error.code,
            message=f"{piece.topic}-{piece.partition} is left as it is: {error}"[:_MAX_MESSAGE],
        )

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class SkippedPartitions:
    """What a process that runs rounds of a root remembers, each for RETRY_MS of Unix time."""

    def __init__(self) -> None:
        self._until_ms: dict[PartitionKey, tuple[SkippedPartition, int]] = {}

    def add(self, found: Iterable[SkippedPartition], now_ms: int) -> None:
        """Remember what a round has found."""
        for partition in found:
            self._until_ms.pop(partition.key, None)
            self._until_ms[partition.key] = partition, now_ms + RETRY_MS
        for key in list(self._until_ms)[:-MAX_REMEMBERED]:
            del self._until_ms[key]

    def now(self, now_ms: int) -> list[SkippedPartition]:
        """Return those whose time is not over, and forget the others."""
        self._until_ms = {
            key: (partition, until_ms)
            for key, (partition, until_ms) in self._until_ms.items()
            if now_ms < until_ms <= now_ms + RETRY_MS
        }
        return [partition for partition, _ in self._until_ms.values()]

    def keys(self, now_ms: int) -> frozenset[PartitionKey]:
        """Return the keys of those whose time is not over, for Terms.skip."""
        return frozenset(partition.key for partition in self.now(now_ms))


def failure_of(where: str, error: Exception) -> SparklogError:
    """Return the error by which a partition, or a step, is reported as failed.

    Raises:
        SparklogError, StoppedError, MemoryError: `error` itself, where it concerns all others as well.
    """
    if isinstance(error, UNREADABLE):
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
