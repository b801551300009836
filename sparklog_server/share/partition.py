"""A share group in a partition, in the memory of the partition's leader: who has acquired which records.

What survives this broker is a ShareState in the image. Here are the acquisition locks on top of it: ranges of
records, each with its member, its deliveries and its deadline. All other records from the start offset on are
available, unless the state says that they have ended.

What is to become of records (an acknowledgement, a timeout, a member that is gone) is a Transition. Its
locks wait until it is written (`is_writing`): nobody acquires, acknowledges or expires them meanwhile. Then
they are removed, or, if nothing was written, as before.

Invariants: locks ascend and do not overlap, and hold no record that has ended; a lock ends by its member, by
    its deadline, or with the partition; its deliveries are those of the state and one more. No record is
    acquired beyond `max_locks` records from the start offset, so ranges are as few.
Not here: writing (writer.py), records (service.py), dead letters (dead_letters.py).
Concurrency: pure; the caller owns it.
Cost: of ranges, not of records.
Sources: tests/models/sharing.py; KIP-932, KIP-1206, KIP-1222; Kafka SharePartition.
"""

import enum
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np

from sparklog.metadata import DeliveryState, ShareRange, ShareState
from sparklog_server.protocol.apis import ErrorCode

_FIRST = attrgetter("first")


class AcknowledgeType(enum.IntEnum):
    """Kafka's numbers; a gap is an offset without a record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcquireMode(enum.IntEnum):
    """How strict `max_records` is: whole batches beyond it, or never more."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class Cause(enum.Enum):
    """Why a record becomes a dead letter: Kafka's texts."""

    REJECTED = "Offset rejected by client."
    EXHAUSTED = "Offset delivery count exceeded the threshold."


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """Of a group: the settings in force."""

    max_deliveries: int = 5
    max_locks: int = 2_000
    lock_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class AckBatch:
    """What a member says of records: one type for all, or one for each."""

    first: int
    last: int
    types: Sequence[int]


@dataclass(frozen=True, slots=True)
class Acquired:
    """Records for a member; the deliveries count this one."""

    first: int
    last: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class Letter:
    """Records that become dead letters."""

    first: int
    last: int
    deliveries: int
    cause: Cause


@dataclass(slots=True)
class Lock:
    """Acquired records of one member; "": of none, which only a write ends."""

    first: int
    last: int
    member: str
    deliveries: int
    deadline_ms: float
    is_writing: bool = False


_Ended = tuple["Lock", DeliveryState, Cause | None]


@dataclass(slots=True)
class Transition:
    """What is to become of locked records, once it is written."""

    ended: list[_Ended] = field(default_factory=list)

    @property
    def locks(self) -> list[Lock]:
        """Return the locks that it ends."""
        return [lock for lock, _, _ in self.ended]

    @property
    def ranges(self) -> list[ShareRange]:
        """Return what the root is to say of the records."""
        return [ShareRange(one.first, one.last, state, one.deliveries) for one, state, _ in self.ended]

    @property
    def letters(self) -> list[Letter]:
        """Return the records that become dead letters."""
        return [
            Letter(one.first, one.last, one.deliveries, cause)
            for one, _, cause in self.ended
            if cause is not None
        ]

    @property
    def count(self) -> int:
        """Return the number of records."""
        return sum(one.last - one.first + 1 for one in self.locks)

    def apart(self) -> "list[Transition]":
        """Return those without and those with dead letters.

        If the dead-letter topic cannot take these, the others are written all the same.
        """
        plain = [one for one in self.ended if one[2] is None]
        lettered = [one for one in self.ended if one[2] is not None]
        return [Transition(some) for some in (plain, lettered) if some]


class SharePartition:
    """See the module's docstring."""

    def __init__(self, state: ShareState, leader_epoch: int) -> None:
        self.state = state
        self.leader_epoch = leader_epoch
        self._locks: list[Lock] = []
        self._is_unsure = False  # a write has failed, or perhaps not

    @property
    def locks(self) -> Sequence[Lock]:
        """Return the locks, in order."""
        return self._locks

    @property
    def locked_count(self) -> int:
        """Return the number of locked records."""
        return sum(one.last - one.first + 1 for one in self._locks)

    # --- acquiring -----------------------------------------------------------------------------------

    def free(self, first: int, end: int, limits: ShareLimits) -> Iterator[Acquired]:
        """Yield the records of [first, end) that may be acquired, with their deliveries so far, in order."""
        first = max(first, self.state.start_offset)
        end = min(end, self.state.start_offset + limits.max_locks)
        ranges, locks = self.state.ranges, self._locks
        at_range = max(0, bisect_right(ranges, first, key=_FIRST) - 1)
        at_lock = max(0, bisect_right(locks, first, key=_FIRST) - 1)
        while first < end:
            while at_range < len(ranges) and ranges[at_range].last < first:
                at_range += 1
            while at_lock < len(locks) and locks[at_lock].last < first:
                at_lock += 1
            found = ranges[at_range] if at_range < len(ranges) else None
            lock = locks[at_lock] if at_lock < len(locks) else None
            if lock is not None and lock.first <= first:
                first = lock.last + 1
                continue
            last = end - 1 if lock is None else min(end, lock.first) - 1
            deliveries = 0
            if found is not None and found.first <= first:
                last = min(last, found.last)
                if found.has_ended or found.deliveries >= limits.max_deliveries:
                    first = last + 1
                    continue
                deliveries = found.deliveries
            elif found is not None:
                last = min(last, found.first - 1)
            yield Acquired(first, last, deliveries)
            first = last + 1

    def next_free(self, end: int, limits: ShareLimits) -> int | None:
        """Return the first offset below `end` that may be acquired; None: there is none now."""
        found = next(self.free(self.state.start_offset, end, limits), None)
        return None if found is None else found.first

    def acquire(
        self,
        member: str,
        spans: Iterable[tuple[int, int]],
        *,
        max_records: int,
        mode: AcquireMode,
        now_ms: float,
        limits: ShareLimits,
    ) -> list[Acquired]:
        """Lock records for a member, and return them.

        Args:
            spans: first and last offset of each record batch that was read, in order.
        """
        acquired: list[Acquired] = []
        left = max_records
        for span_first, span_last in spans:
            if left <= 0:
                break
            for one in self.free(span_first, span_last + 1, limits):
                if mode is AcquireMode.RECORD_LIMIT and left <= 0:
                    break
                last = one.last
                if mode is AcquireMode.RECORD_LIMIT:
                    last = min(last, one.first + left - 1)
                acquired.append(Acquired(one.first, last, one.deliveries + 1))
                left -= last - one.first + 1
        deadline_ms = now_ms + limits.lock_ms
        self._locks += [Lock(one.first, one.last, member, one.deliveries, deadline_ms) for one in acquired]
        self._locks.sort(key=_FIRST)
        return acquired

    def skip(self, first: int, end: int, limits: ShareLimits) -> Transition:
        """Plan the end of offsets without records."""
        locks = [Lock(one.first, one.last, "", one.deliveries, 0) for one in self.free(first, end, limits)]
        self._locks += locks
        self._locks.sort(key=_FIRST)
        return _writing([(one, DeliveryState.ARCHIVED, None) for one in locks])

    # --- acknowledging -------------------------------------------------------------------------------

    def acknowledge(
        self,
        member: str,
        batches: Sequence[AckBatch],
        *,
        now_ms: float,
        limits: ShareLimits,
        may_renew: bool = True,
    ) -> Transition | ErrorCode:
        """Plan what a member says of records: all of it, or an error and nothing.

        Records below the start offset have ended; what is said of them is ignored, as in Kafka.
        """
        if len(batches) > limits.max_locks:
            return ErrorCode.invalid_request
        runs: list[tuple[int, int, AcknowledgeType]] = []
        for batch in batches:
            found = _runs(batch, limits.max_locks)
            if found is None or (runs and found[0][0] <= runs[-1][1]):
                return ErrorCode.invalid_request
            runs += found
        if not may_renew and any(kind is AcknowledgeType.RENEW for _, _, kind in runs):
            return ErrorCode.invalid_request
        runs = [
            (max(first, self.state.start_offset), last, kind)
            for first, last, kind in runs
            if last >= self.state.start_offset
        ]
        if not all(self._holds(member, first, last) for first, last, _ in runs):
            return ErrorCode.invalid_record_state
        ended: list[_Ended] = []
        for first, last, kind in runs:
            for lock in self._cut(first, last):
                if kind is AcknowledgeType.RENEW:
                    lock.deadline_ms = now_ms + limits.lock_ms
                else:
                    ended.append((lock, *_outcome(kind, lock, limits)))
        return _writing(ended)

    def _holds(self, member: str, first: int, last: int) -> bool:
        """True if the member has all these records, and none is being written."""
        number = bisect_right(self._locks, first, key=_FIRST) - 1
        while first <= last:
            lock = self._locks[number] if 0 <= number < len(self._locks) else None
            if lock is None or not lock.first <= first <= lock.last:
                return False
            if lock.member != member or lock.is_writing:
                return False
            first = lock.last + 1
            number += 1
        return True

    def _cut(self, first: int, last: int) -> list[Lock]:
        """Return the locks of these records, which are locked: those at the borders are split."""
        start = bisect_right(self._locks, first, key=_FIRST) - 1
        end = bisect_right(self._locks, last, key=_FIRST)
        parts: list[Lock] = []
        within: list[Lock] = []
        for lock in self._locks[start:end]:
            if lock.first < first:
                parts.append(replace(lock, last=first - 1))
            middle = replace(lock, first=max(first, lock.first), last=min(last, lock.last))
            parts.append(middle)
            within.append(middle)
            if lock.last > last:
                parts.append(replace(lock, first=last + 1))
        self._locks[start:end] = parts
        return within

    # --- ending --------------------------------------------------------------------------------------

    def expire(self, now_ms: float, limits: ShareLimits) -> Transition:
        """Plan the end of all locks whose time is over, and of records that were delivered too often.

        The latter are those of a limit that was lowered, and of a leader that crashed.
        """
        self._locks += [
            Lock(one.first, one.last, "", one.deliveries, now_ms)
            for one in self.state.ranges
            if not one.has_ended
            and one.deliveries >= limits.max_deliveries
            and not self._is_locked(one.first, one.last)
        ]
        self._locks.sort(key=_FIRST)
        return self._end([one for one in self._locks if one.deadline_ms <= now_ms], limits)

    def release(self, member: str, limits: ShareLimits, *, is_counted: bool) -> Transition:
        """Give up all that a member has; `is_counted`: it may have got the records."""
        own = [one for one in self._locks if one.member == member and not one.is_writing]
        if is_counted:
            return self._end(own, limits)
        self._remove(own)
        return Transition()

    def next_deadline_ms(self) -> float | None:
        """Return when the next lock expires; None: there is none."""
        return min((one.deadline_ms for one in self._locks if not one.is_writing), default=None)

    def _end(self, locks: Sequence[Lock], limits: ShareLimits) -> Transition:
        return _writing(
            [(one, *_outcome(AcknowledgeType.RELEASE, one, limits)) for one in locks if not one.is_writing]
        )

    def _is_locked(self, first: int, last: int) -> bool:
        number = bisect_right(self._locks, last, key=_FIRST) - 1
        return number >= 0 and self._locks[number].last >= first

    def halves(self, transition: Transition) -> list[Transition]:
        """Return the same in two parts, of at least one record each."""
        ended = transition.ended
        if len(ended) == 1:
            lock, state, cause = ended[0]
            middle = (lock.first + lock.last) // 2
            parts = [*self._cut(lock.first, middle), *self._cut(middle + 1, lock.last)]
            ended = [(part, state, cause) for part in parts]
        return [Transition(ended[: len(ended) // 2]), Transition(ended[len(ended) // 2 :])]

    # --- after a write -------------------------------------------------------------------------------

    def settle(self, transition: Transition, state: ShareState | None) -> None:
        """End a transition: it is written, and the state is this; or (None) it is not."""
        if state is None:
            for lock in transition.locks:
                lock.is_writing = False
            # A write of before this partition was taken up may have arrived after its records were acquired.
            # Their lock would be refused in each commit, and with it all that expire with it.
            self._remove([one for one in transition.locks if not one.member or self._is_over(one)])
            self._is_unsure = True
            return
        self.state = state
        self._remove(transition.locks)

    def follow(self, state: ShareState) -> None:
        """Take a newer state of the same epoch: of a commit, or of a log whose start has moved.

        After a write that failed, it may be of that write: then its locks are over, too.
        """
        self.state = state
        self._remove([one for one in self._locks if one.last < state.start_offset and not one.is_writing])
        if self._is_unsure:
            self._is_unsure = False
            self._remove([one for one in self._locks if not one.is_writing and self._is_over(one)])

    def _is_over(self, lock: Lock) -> bool:
        number = max(0, bisect_right(self.state.ranges, lock.first, key=_FIRST) - 1)
        for one in self.state.ranges[number:]:
            if one.first > lock.last:
                return False
            if one.last >= lock.first and (one.has_ended or one.deliveries >= lock.deliveries):
                return True
        return False

    def _remove(self, locks: Sequence[Lock]) -> None:
        gone = set(map(id, locks))
        if gone:
            self._locks = [one for one in self._locks if id(one) not in gone]


def _runs(batch: AckBatch, most: int) -> list[tuple[int, int, AcknowledgeType]] | None:
    """Return the runs of equal types; None: a malformed batch."""
    count = batch.last - batch.first + 1
    types = batch.types
    if batch.first < 0 or count < 1 or not types or len(types) not in (1, count):
        return None
    if len(types) > most or min(types) < AcknowledgeType.GAP or max(types) > AcknowledgeType.RENEW:
        return None
    if len(types) == 1:
        return [(batch.first, batch.last, AcknowledgeType(types[0]))]
    values = np.fromiter(types, np.int8, count)
    starts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist()]
    ends = [*starts[1:], count]
    return [
        (batch.first + start, batch.first + end - 1, AcknowledgeType(types[start]))
        for start, end in zip(starts, ends, strict=True)
    ]


def _outcome(kind: AcknowledgeType, lock: Lock, limits: ShareLimits) -> tuple[DeliveryState, Cause | None]:
    """Return what becomes of a locked record."""
    if kind is AcknowledgeType.ACCEPT:
        return DeliveryState.ACKNOWLEDGED, None
    if kind is AcknowledgeType.GAP:
        return DeliveryState.ARCHIVED, None
    if kind is AcknowledgeType.REJECT:
        return DeliveryState.ARCHIVED, Cause.REJECTED
    if lock.deliveries >= limits.max_deliveries:
        return DeliveryState.ARCHIVED, Cause.EXHAUSTED
    return DeliveryState.AVAILABLE, None


def _writing(ended: Sequence[_Ended]) -> Transition:
    """Return the transition of these locks, which wait for it from now on."""
    for lock, _, _ in ended:
        lock.is_writing = True
    return Transition(list(ended))
