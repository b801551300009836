"""How much a round of maintenance may do: seconds, bytes, and bytes and removed files a second.

A work begins only if the round has room for it, and is then done to its end; but it is broken off, wherever
it is, when somebody asks for that: nothing is lost, its files are swept.

Invariants: a work begins whatever its size while any of the bytes is left: one that is larger than what small
    works leave of them, which are due before it each time, would never be done, nor would what comes behind
    it. So a round goes beyond its bytes by one work at most. Beyond the rate the round rests after each step,
    in pieces short enough to hear that it is to stop; a round that was slower than its rate may catch up for
    a second, not more.
Not here: which work (choose.py).
Concurrency: one thread.
Sources: Kafka Throttler (bytes read and written together).
"""

import contextlib
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
from sparklog.metadata import ExtentColumns, MetadataLog

# --- alone -------------------------------------------------------------------------------------------
#
# One process of a machine at a time, for what two would do in vain.
#
# A courtesy (storage/local_files.py): on a store that cannot hold names, and between machines, both go on,
# and the commits that are fenced by what they replace let one of them through.
# After a crash: the kernel has released the name.


HOLD = "maintenance.lock"  # a command, or a step of a round
ROUND = "maintenance-round.lock"  # a round, or rounds for as long as somebody watches


@contextlib.contextmanager
def alone(metadata: MetadataLog, name: str = HOLD) -> Iterator[None]:
    """Hold the name for as long as the context lasts.

    Raises:
        RetriableError: MAINTENANCE_RUNNING, another process of this machine has it.
    """
    held = metadata.store.hold(name, f"process {os.getpid()}".encode())
    if held.holder is not None:
        raise RetriableError(
            "MAINTENANCE_RUNNING",
            f"{metadata.store.url}: found {held.holder.decode(errors='replace')} maintaining this root, "
            "expected nobody",
            fix="wait until it ends, and run this again if anything is left; or stop it: nothing is lost",
        )
    try:
        yield
    finally:
        held.release()


# --- budget ------------------------------------------------------------------------------------------


_CREDIT_MS = 1_000.0
_LONGEST_REST_MS = 200.0


class StoppedError(Exception):
    """Somebody asked for an end. No error of anybody: what was published stays, the rest is chosen again."""


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


# Of rounds by themselves. A third of what S3 takes of a prefix before it says "slow down".
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
        """`is_stopped`: is the round to end? `rest_ms`: waits for so long at most; by default the clock's."""
        self._budget = budget
        self._clock = clock
        self._is_stopped = is_stopped
        self._rest_ms = rest_ms or clock.sleep_ms
        self._began_ms = clock.monotonic_ms()
        self._paid_until_ms = self._files_paid_until_ms = float(self._began_ms)
        self.spent_bytes = 0

    def has_room(self) -> bool:
        """May another work begin? StoppedError if the round is to end."""
        self.check()
        budget = self._budget
        if (
            budget.seconds is not None
            and self._clock.monotonic_ms() - self._began_ms >= budget.seconds * 1000
        ):
            return False
        return budget.max_bytes is None or not self.spent_bytes or self.spent_bytes < budget.max_bytes

    def spend(self, size: int) -> None:
        """So many stored bytes were rewritten; rests as the rate asks for. StoppedError, as above."""
        self.check()
        self.spent_bytes += size
        rate = self._budget.bytes_per_second
        if rate is not None:
            self._paid_until_ms = self._rest(self._paid_until_ms, 2 * size / rate)  # read, and written

    def rest(self, size: int) -> None:
        """So many stored bytes were read ahead, and are spent when they are rewritten; rests, as above."""
        self.check()
        rate = self._budget.bytes_per_second
        if rate is not None:
            self._paid_until_ms = self._rest(self._paid_until_ms, size / rate)

    def spend_files(self, count: int) -> None:
        """So many files were removed; rests as the rate asks for. StoppedError, as above."""
        self.check()
        rate = self._budget.files_per_second
        if rate is not None:
            self._files_paid_until_ms = self._rest(self._files_paid_until_ms, count / rate)

    def _rest(self, paid_until_ms: float, seconds: float) -> float:
        """Rest until this is paid for, too; returns until when it is."""
        paid_until_ms = max(paid_until_ms, self._clock.monotonic_ms() - _CREDIT_MS) + seconds * 1000
        while (left_ms := paid_until_ms - self._clock.monotonic_ms()) > 0:
            self._rest_ms(min(left_ms, _LONGEST_REST_MS))
            self.check()
        return paid_until_ms

    def check(self) -> None:
        """StoppedError if the round is to end."""
        if self._is_stopped():
            raise StoppedError


# --- uncleanable -------------------------------------------------------------------------------------
#
# Partitions that cannot be rewritten, since a file of theirs is damaged, lost, newer than this sparklog, or
# not given by the storage, or since rewriting them fails in a way that nobody expected (INTERNAL, a bug):
# left out for a while. So one partition's fault ends no round of the root.
#
# What is due stays due if it cannot be read, and to find that out again may take gigabytes of reading, in
# each round. So who runs rounds remembers such a partition for RETRY_MS, has it left out, and does what else
# is due at its usual pace. Then it is tried again: somebody may have restored the file.
#
# Invariants: a partition is named by its topic's id, so that no namesake is taken for it. What is remembered
#     is bounded (MAX_REMEMBERED), and forgotten if the clock was set back so far that it would last for
#     longer.
# Not here: how such a partition is found out (merge.py, compact.py); reading it, which fails as it always
# did.
# Concurrency: one thread.
# Sources: Kafka LogCleanerManager (uncleanable partitions; there until the broker starts again).


_log = logging.getLogger(__name__)
RETRY_MS = 3_600_000
MAX_REMEMBERED = 1_000
MAX_TOLD = 100  # of a round, which is told of in one line of a pipe
_MAX_MESSAGE = 300
# What one partition's files are to blame for, and nothing else. A flipped bit may look like a newer format.
UNREADABLE = (CorruptLogError, DataLossError, UnsupportedVersionError, UnreadableSegmentError)
# What concerns more than one partition: the storage, the process, or a wish to end. InvalidRequestError does
# not: nobody asked for anything, so it is a bug.
_OF_ALL = (StoppedError, MemoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncleanable:
    """One. `size_bytes`: stored bytes of the extents that were to be rewritten; `message`: for people, with
    the code.
    """

    topic: str
    topic_id: str
    partition: int
    size_bytes: int
    code: str
    message: str

    @property
    def key(self) -> tuple[str, int]:
        """What it is known by."""
        return self.topic_id, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """One that is left out until then, in Unix time."""

    found: Uncleanable
    until_ms: int


def remembered_after(
    known: Iterable[Remembered], found: Iterable[Uncleanable], now_ms: int
) -> tuple[Remembered, ...]:
    """What is to be remembered when these were found."""
    both = {one.found.key: one for one in still_remembered(known, now_ms)}
    for one in found:
        both[one.key] = Remembered(found=one, until_ms=now_ms + RETRY_MS)
    return tuple(both.values())[-MAX_REMEMBERED:]


def still_remembered(known: Iterable[Remembered], now_ms: int) -> tuple[Remembered, ...]:
    """Those whose time is not over."""
    return tuple(one for one in known if now_ms < one.until_ms <= now_ms + RETRY_MS)


def keys_of(known: Iterable[Remembered]) -> frozenset[tuple[str, int]]:
    """By which they are left out (MergeLimits.but)."""
    return frozenset(one.found.key for one in known)


def uncleanable(
    topic: str, topic_id: str, partition: int, extents: ExtentColumns, error: SparklogError
) -> Uncleanable:
    """That these extents cannot be read."""
    return Uncleanable(
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        size_bytes=int(extents.column("size").sum()),
        code=error.code,
        message=f"{topic}-{partition} is left as it is: {error}"[:_MAX_MESSAGE],
    )


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
