"""Requests that wait for a change of one of their partitions, or for their deadline.

Invariants: an operation completes exactly once: by `check`, by its deadline or by `cancel`; then nothing here
    refers to it. So a key's watchers are a dictionary: Kafka's watcher lists keep completed operations until
    a purge, which is too late for hot keys with many partitions per request.
Cost: constant per key of an operation, for adding and for completing.
Concurrency: event loop only.
Sources: Kafka DelayedOperationPurgatory, DelayedFetch.
"""

import abc
import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from sparklog.clock import Clock

# --- timing wheel ------------------------------------------------------------------------------------
#
# Hierarchical timing wheel: add, cancel and expire in constant time, for any number of entries.
#
# Seven wheels of 64 buckets; a bucket of wheel n spans 64**n ms. An entry is in the wheel of the highest
# 6-bit digit in which its deadline differs from the wheel's time, so every occupied bucket is in the future,
# and the lowest occupied wheel has the next deadlines. When its time comes, the entries of a bucket of a
# higher wheel are moved to lower wheels: at most six moves per entry. One integer per wheel is a bitmap of
# occupied buckets, so that empty time is skipped, not ticked through.
#
# Invariants: `advance` returns every due entry once, by deadline and then in the order of adding, and never a
#     cancelled entry; the wheel does not reference an entry that has left it.
# Concurrency: one thread.
# Sources: Varghese and Lauck, "Hashed and hierarchical timing wheels"; Kafka's TimingWheel, which finds the
#     next bucket by a heap; the XOR placement is that of tokio's and of Linux's wheels.


DIGIT_BITS = 6
BUCKETS = 1 << DIGIT_BITS
DIGIT_MASK = BUCKETS - 1
WHEELS = 7
MAX_TIME_MS = (1 << DIGIT_BITS * WHEELS) - 1  # 139 years; later deadlines count as this one


class _Link:
    """A member of a circular list: an entry, or the bucket itself."""

    __slots__ = ("_next", "_previous")

    _next: "_Link | None"
    _previous: "_Link | None"

    def __init__(self) -> None:
        self._next = self._previous = None


class TimerEntry(_Link):
    """A callback and its deadline; also the handle that cancels it."""

    __slots__ = ("callback", "deadline_ms")

    def __init__(self, deadline_ms: int, callback: Callable[[], None]) -> None:
        super().__init__()
        self.deadline_ms = deadline_ms
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> bool:
        """Cancel the callback; return False if it was already called or cancelled."""
        self._unlink()
        pending = self.callback is not None
        self.callback = None
        return pending

    def _unlink(self) -> None:
        before, after = self._previous, self._next
        if before is None or after is None:
            return
        before._next, after._previous = after, before
        self._previous = self._next = None
        if before is after:  # only a bucket is left
            assert isinstance(before, _Bucket)
            before.wheel.occupied &= ~before.bit


class _Bucket(_Link):
    """The entries of one span of time, in the order of adding."""

    __slots__ = ("bit", "wheel")

    def __init__(self, wheel: "_Wheel", bit: int) -> None:
        super().__init__()
        self.wheel = wheel
        self.bit = bit
        self._next = self._previous = self

    def append(self, entry: TimerEntry) -> None:
        last = self._previous
        assert last is not None
        entry._previous, entry._next = last, self
        last._next = self._previous = entry
        self.wheel.occupied |= self.bit

    def drain(self) -> list[TimerEntry]:
        """Remove and return all entries."""
        entries: list[TimerEntry] = []
        link = self._next
        while isinstance(link, TimerEntry):
            entries.append(link)
            after = link._next
            link._previous = link._next = None
            link = after
        self._next = self._previous = self
        self.wheel.occupied &= ~self.bit
        return entries


class _Wheel:
    __slots__ = ("buckets", "occupied")

    def __init__(self) -> None:
        self.occupied = 0  # one bit per bucket that holds entries
        self.buckets = [_Bucket(self, 1 << slot) for slot in range(BUCKETS)]


class TimingWheel:
    """Deadlines in integer milliseconds of any clock that never goes back."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._wheels = [_Wheel() for _ in range(WHEELS)]
        self._due = _Wheel().buckets[0]  # deadlines that had passed when they were added

    @property
    def now_ms(self) -> int:
        """The current time of the wheel."""
        return self._now_ms

    def add(self, entry: TimerEntry) -> None:
        """Add an entry; the next `advance` returns it if its deadline has passed."""
        now, deadline = self._now_ms, min(entry.deadline_ms, MAX_TIME_MS)
        if deadline <= now:
            self._due.append(entry)
            return
        level = ((now ^ deadline).bit_length() - 1) // DIGIT_BITS
        slot = deadline >> level * DIGIT_BITS & DIGIT_MASK
        self._wheels[level].buckets[slot].append(entry)

    def next_ms(self) -> int | None:
        """Return the time of the next `advance`, at or before all deadlines; None: there are no entries."""
        if self._due.wheel.occupied:
            return self._now_ms
        found = self._next_bucket()
        return None if found is None else found[0]

    def advance(self, now_ms: int) -> list[TimerEntry]:
        """Advance to `now_ms`; remove and return the due entries."""
        expired = self._due.drain()
        while True:
            found = self._next_bucket()
            if found is None or found[0] > now_ms:
                break
            self._now_ms, level, bucket = found
            if level == 0:
                expired += bucket.drain()
            else:
                for entry in bucket.drain():
                    self.add(entry)
                expired += self._due.drain()
        self._now_ms = max(self._now_ms, now_ms)
        return expired

    def _next_bucket(self) -> tuple[int, int, _Bucket] | None:
        """Return (start, level, bucket) of the first occupied bucket."""
        for level, wheel in enumerate(self._wheels):
            if wheel.occupied:
                slot = (wheel.occupied & -wheel.occupied).bit_length() - 1
                shift = level * DIGIT_BITS
                start = (self._now_ms >> shift + DIGIT_BITS << DIGIT_BITS | slot) << shift
                return start, level, wheel.buckets[slot]
        return None


# --- timer -------------------------------------------------------------------------------------------
#
# Invariants: a callback is called once, not before its delay is over, and never after `cancel`; one that
#     raises does not affect the others. `cancel` does not change asyncio's timer: at worst the loop wakes up
#     once without need. A turn of the loop runs at most CALLS_PER_TURN callbacks, so that a hundred thousand
#     expiries do not block it.
# Concurrency: event loop only.
# Sources: Kafka SystemTimer.


CALLS_PER_TURN = 500


class Timer:
    """The timing wheel on the event loop: one asyncio timer for all deadlines of the broker."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._clock = clock
        self._loop = loop if loop is not None else asyncio.get_running_loop()
        self._wheel = TimingWheel(clock.monotonic_ms())
        self._due: deque[TimerEntry] = deque()
        self._armed: asyncio.Handle | None = None
        self._armed_ms = 0
        self._stopped = False

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> TimerEntry:
        """Call `callback` after `delay_ms`, unless the returned handle is cancelled before."""
        now_ms = self._clock.monotonic_ms()
        entry = TimerEntry(now_ms + max(0, delay_ms), callback)
        self._wheel.add(entry)
        if self._armed is None or entry.deadline_ms < self._armed_ms:
            self._arm(now_ms, entry.deadline_ms)
        return entry

    def stop(self) -> None:
        """Call no further callbacks."""
        self._stopped = True
        if self._armed is not None:
            self._armed.cancel()

    def run_due(self) -> None:
        """Call due callbacks, and arm the timer for the next deadline."""
        self._armed = None
        now_ms = self._clock.monotonic_ms()
        self._due.extend(self._wheel.advance(now_ms))
        for _ in range(min(CALLS_PER_TURN, len(self._due))):
            if self._stopped:  # by an earlier callback
                return
            entry = self._due.popleft()
            callback, entry.callback = entry.callback, None
            if callback is not None:
                self._call(callback)
        next_ms = now_ms if self._due else self._wheel.next_ms()
        if next_ms is not None:  # replaces a timer that a callback's `schedule` has armed
            self._arm(self._clock.monotonic_ms(), next_ms)  # callbacks may have taken long

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - the loop's handler logs it; the others must go on
            self._loop.call_exception_handler({"message": "a timer's callback failed", "exception": error})

    def _arm(self, now_ms: int, at_ms: int) -> None:
        if self._armed is not None:
            self._armed.cancel()
        if self._stopped:
            return
        self._armed_ms = at_ms
        delay_ms = at_ms - now_ms
        if delay_ms <= 0:
            self._armed = self._loop.call_soon(self.run_due)
        else:
            self._armed = self._loop.call_later(delay_ms / 1000, self.run_due)


# --- purgatory ---------------------------------------------------------------------------------------


WatchKey = tuple[str, int]  # topic id, partition


class TimerHandle(Protocol):
    """The handle of a scheduled callback."""

    def cancel(self) -> object: ...


class Schedule(Protocol):
    """`Timer.schedule`."""

    def __call__(self, delay_ms: int, callback: Callable[[], None], /) -> TimerHandle: ...


class DelayedOperation(abc.ABC):
    """A waiting request.

    try_complete is called when a watched key has changed, and returns True if the wait is over; on_complete
    is then called once, or at the deadline; not after `cancel`.
    """

    __slots__ = ("_handle", "_keys", "_purgatory")

    def __init__(self) -> None:
        self._keys: Sequence[WatchKey] = ()
        self._handle: TimerHandle | None = None
        self._purgatory: Purgatory | None = None

    @abc.abstractmethod
    def try_complete(self, key: WatchKey) -> bool: ...

    @abc.abstractmethod
    def on_complete(self, *, expired: bool) -> None: ...

    def cancel(self) -> None:
        """Stop waiting: the client is gone."""
        if self._purgatory is not None:
            self._purgatory._release(self)

    def _expire(self) -> None:
        if self._purgatory is not None:
            self._purgatory._release(self)
            self.on_complete(expired=True)


class Purgatory:
    """The waiting operations, by key."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        # topic id -> partition -> operations; by topic, so that a changed topic is looked up once
        self._watchers: dict[str, dict[int, dict[DelayedOperation, None]]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        """Return the number of waiting operations."""
        return self._waiting

    def watch(self, operation: DelayedOperation, keys: Iterable[WatchKey], delay_ms: int) -> None:
        """Add an operation. The caller has checked, without an await since, that it cannot complete yet."""
        assert operation._purgatory is None
        operation._keys = tuple(dict.fromkeys(keys))
        operation._purgatory = self
        self._waiting += 1
        for topic_id, partition in operation._keys:
            partitions = self._watchers.get(topic_id)
            if partitions is None:
                partitions = self._watchers[topic_id] = {}
            operations = partitions.get(partition)
            if operations is None:
                operations = partitions[partition] = {}
            operations[operation] = None
        operation._handle = self._schedule(delay_ms, operation._expire)

    def topics(self) -> list[str]:
        """Return the ids of topics with waiting operations."""
        return list(self._watchers)

    def partitions(self, topic_id: str) -> list[int]:
        """Return a topic's partitions with waiting operations."""
        return list(self._watchers.get(topic_id, ()))

    def check(self, topic_id: str, partition: int) -> int:
        """Complete the operations that a changed partition allows; return their number."""
        operations = self._watchers.get(topic_id, {}).get(partition)
        if not operations:
            return 0
        key = (topic_id, partition)
        completed = 0
        for operation in list(operations):
            # The on_complete of an earlier operation may have cancelled this one.
            if operation._purgatory is self and operation.try_complete(key):
                self._release(operation)
                operation.on_complete(expired=False)
                completed += 1
        return completed

    def _release(self, operation: DelayedOperation) -> None:
        """Remove the operation from all keys, and cancel its deadline."""
        operation._purgatory = None
        self._waiting -= 1
        for topic_id, partition in operation._keys:
            partitions = self._watchers[topic_id]
            operations = partitions[partition]
            del operations[operation]
            if not operations:
                del partitions[partition]
                if not partitions:
                    del self._watchers[topic_id]
        operation._keys = ()
        if operation._handle is not None:
            operation._handle.cancel()
            operation._handle = None
