"""Partitions that cannot be rewritten, since a file of theirs is damaged, lost, newer than this sparklog, or
not given by the storage, or since rewriting them fails in a way that nobody expected (INTERNAL, a bug): left
out for a while. So one partition's fault ends no round of the root.

What is due stays due if it cannot be read, and to find that out again may take gigabytes of reading, in each
round. So who runs rounds remembers such a partition for RETRY_MS, has it left out, and does what else is due
at its usual pace. Then it is tried again: somebody may have restored the file.

Invariants: a partition is named by its topic's id, so that no namesake is taken for it. What is remembered
    is bounded (MAX_REMEMBERED), and forgotten if the clock was set back so far that it would last for longer.
Not here: how such a partition is found out (run.py, compact.py); reading it, which fails as it always did.
Concurrency: one thread.
Sources: Kafka LogCleanerManager (uncleanable partitions; there until the broker starts again).
"""

import logging
import traceback
from collections.abc import Iterable
from dataclasses import dataclass

from sparklog.errors import (
    CorruptLogError,
    DataLossError,
    InvalidRequestError,
    SparklogError,
    UnsupportedVersionError,
)
from sparklog.log.missing_segment import UnreadableSegmentError
from sparklog.maintenance.budget import StoppedError
from sparklog.metadata import ExtentColumns

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
