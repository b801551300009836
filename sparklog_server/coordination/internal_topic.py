"""What a coordinator says of the topic that holds its state: how it is made, and how its records are written.

Invariants: a record is a key and what is said of it, or that it is gone (a tombstone); of a key the last
    record counts, so that compaction takes nothing away; keys say nothing of each other.
Not here: its partitions (shards.py) and what is in them (state_log.py).
Concurrency: immutable. `encode` is called on the event loop, `decode` in storage threads.
"""

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from sparklog.clock import Clock
from sparklog.log.config import RootConfig
from sparklog.metadata import Image, PartitionState, Plan, PublishResult
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.metrics import Metrics
from sparklog_server.publish.parts import AppendPart, PartOutcome
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.timing import Timer, TimerEntry

# --- host --------------------------------------------------------------------------------------------


class Role(Protocol):
    """cluster/membership.py."""

    @property
    def is_in_charge(self) -> bool:
        """True if this broker may answer for what it coordinates, as of an image that is new enough."""


class Appender(Protocol):
    """publish/publisher.py; tests hold back what is appended."""

    def submit(self, parts: Sequence[AppendPart]) -> Awaitable[Sequence[PartOutcome]]:
        """Have parts appended; one outcome each. The order is that of the calls, not of the awaiting."""

    def submit_plan(self, plan: Plan) -> Awaitable[PublishResult]:
        """Publish a change of metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What coordinators and their state logs are built on: the parts of the broker that they were given."""

    root: LiveRoot
    role: Role
    leadership: Leadership
    publisher: Appender
    timer: Timer
    clock: Clock
    metrics: Metrics


# --- state -------------------------------------------------------------------------------------------
#
# What the records of a partition of an internal topic add up to: what a coordinator keeps.
#
# Not here: when records are applied (state_log.py), what they mean (the coordinator's).
# Concurrency: event loop; one log is the only writer.


RecordT_contra = TypeVar("RecordT_contra", contravariant=True)


class State(Protocol[RecordT_contra]):
    """What the records of a partition say, all together."""

    def apply(self, record: RecordT_contra, /) -> None:
        """Take in a record: the next one of its key. Never refuses: it is in the log."""

    def clear(self) -> None:
        """Forget what was applied: all of it comes again. What is on its way, or staged, stays."""

    def begin(self, record: RecordT_contra, /) -> None:
        """It is on its way to the log, behind all that began before."""

    def end(self, record: RecordT_contra, /) -> None:
        """It is applied, or it was not appended, as far as this broker knows."""

    def stage(self, record: RecordT_contra, /) -> None:
        """An open transaction may be about to append this; so it may be several times over."""

    def unstage(self, record: RecordT_contra, /) -> None:
        """Not any more, once: it was aborted, or what it has appended is applied."""


StateT = TypeVar("StateT", bound=State[Any])


# --- log status --------------------------------------------------------------------------------------
#
# Where a state log is in its life.
#
# Concurrency: none.


class LogStatus(enum.Enum):
    """Whether clients may be answered from this partition."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"  # the log is damaged there, or cannot be decoded
    RELEASED = "released"  # what is on its way is still applied
    CLOSED = "closed"


# --- retry -------------------------------------------------------------------------------------------
#
# Invariants: one alarm at a time. A log that failed for every image would otherwise retry as often each
#     second, forever.
# Concurrency: event loop.


RETRY_READ_MS: Final = 1_000  # nothing else may happen: who would commit waits for what is staged


class Retry:
    """What failed is tried again a moment later, once, however often it has failed until then."""

    def __init__(self, timer: Timer, what: Callable[[], None]) -> None:
        self._timer = timer
        self._what = what
        self._alarm: TimerEntry | None = None

    def schedule(self) -> None:
        """Try again RETRY_READ_MS from now."""
        self.cancel()
        self._alarm = self._timer.schedule(RETRY_READ_MS, self._what)

    def cancel(self) -> None:
        """Do not try again."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


# --- offset listeners --------------------------------------------------------------------------------
#
# A topic is deleted, and what groups have committed for it is to be deleted too; but what is committed after
# that is for another topic of its name. The end of the log in the image of the deletion separates them, when
# the log is applied up to there, and not later.
# Concurrency: event loop.


class OffsetListeners:
    """Call back when a log is applied up to an offset: with all that is below it, and nothing above."""

    def __init__(self) -> None:
        self._ahead: list[tuple[int, Callable[[], None]]] = []

    def add(self, offset: int, reached: Callable[[], None]) -> None:
        """Call `reached` at `offset`, which is of the newest image: no read goes beyond it yet."""
        self._ahead.append((offset, reached))

    def next_in(self, start_offset: int, end_offset: int) -> int:
        """Return up to where records may be applied in one batch."""
        return min(
            (offset for offset, _ in self._ahead if start_offset < offset < end_offset), default=end_offset
        )

    def applied(self, next_offset: int) -> None:
        """Everything below is applied."""
        passed = [reached for offset, reached in self._ahead if offset <= next_offset]
        self._ahead = [listener for listener in self._ahead if listener[0] > next_offset]
        for reached in passed:
            reached()


# --- internal topic ----------------------------------------------------------------------------------


RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedPartition:
    """A partition of an internal topic, while this broker leads it: another epoch is another one."""

    topic_id: str
    partition: int
    leader_epoch: int

    def state_in(self, image: Image) -> PartitionState | None:
        """The partition as of an image; None if there is none."""
        topic = image.topic_by_id.get(self.topic_id)
        if topic is None or self.partition >= len(topic.partitions):
            return None
        return topic.partitions[self.partition]


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic(Generic[RecordT]):
    """One topic, for records of one type.

    Fields:
        partition_of: which of so many partitions a name belongs to; all that is said of it is there.
        partitions: how many it is made with.
        configs: its settings when it is made.
        encode: key and value of a record, None for a tombstone. Raises InvalidRequestError for what no record
            can hold.
        decode: the record of a key and a value; `where` is for errors. Raises CorruptLogError,
            UnsupportedVersionError.
        too_large_fix: what to do about a record that is too large (records.py), for its error.
    """

    name: str
    partition_of: Callable[[str, int], int]
    partitions: Callable[[RootConfig], int]
    configs: Mapping[str, str]
    encode: Callable[[RecordT], tuple[bytes, bytes | None]]
    decode: Callable[[bytes, bytes | None, str], RecordT]
    too_large_fix: str
