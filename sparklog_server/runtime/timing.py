"""Requests that wait until something happens to one of their partitions, or until their time is over.

Invariants: an operation completes exactly once: by `check`, by its deadline or by `cancel`, and from then on
    nothing here refers to it. That is why a key's watchers are a dictionary: Kafka's watcher lists keep
    completed operations until a purge, which hot keys with many partitions per request outgrew.
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
# Hierarchical timing wheel: add, cancel and expire in constant time, whatever waits.
#
# Seven wheels of 64 buckets; a bucket of wheel n spans 64**n ms. An entry lies in the wheel of the highest
# 6-bit digit in which its deadline differs from the wheel's time, so every occupied bucket lies ahead, and
# the lowest occupied wheel holds the next deadlines. When its time comes, a bucket of a higher wheel is dealt
# out to the wheels below: at most six moves in an entry's life. One integer per wheel says which buckets are
# occupied, so that empty time is stepped over, not ticked through.
#
# Invariants: `advance` returns every entry whose deadline has come, once, by deadline and then in the order
#     of adding; a cancelled entry never; an entry that is out of the wheel is not referenced by it any more.
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
        """Never call it; False if it has been called, or cancelled, already."""
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
        """Take all entries out."""
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
        """The time that the wheel was advanced to."""
        return self._now_ms

    def add(self, entry: TimerEntry) -> None:
        """Wait for the entry's deadline; one that has passed comes with the next `advance`."""
        now, deadline = self._now_ms, min(entry.deadline_ms, MAX_TIME_MS)
        if deadline <= now:
            self._due.append(entry)
            return
        level = ((now ^ deadline).bit_length() - 1) // DIGIT_BITS
        slot = deadline >> level * DIGIT_BITS & DIGIT_MASK
        self._wheels[level].buckets[slot].append(entry)

    def next_ms(self) -> int | None:
        """When to advance next: no deadline lies before it. None: nothing waits."""
        if self._due.wheel.occupied:
            return self._now_ms
        found = self._next_bucket()
        return None if found is None else found[0]

    def advance(self, now_ms: int) -> list[TimerEntry]:
        """Move to `now_ms` and take out the entries whose deadline has come."""
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
        """(start, level, bucket) of the occupied bucket that begins first."""
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
# raises harms no other. Cancelling does not touch asyncio's timer: at worst the loop wakes up once for
# nothing. Expiries are handed out in parts, so that a hundred thousand at once do not hold up the loop.
# Concurrency: event loop only.
# Sources: Kafka SystemTimer.


CALLS_AT_ONCE = 500


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
        """No callback is called from now on."""
        self._stopped = True
        if self._armed is not None:
            self._armed.cancel()

    def run_due(self) -> None:
        """Call what is due, and arm the timer for what is next."""
        self._armed = None
        now_ms = self._clock.monotonic_ms()
        self._due.extend(self._wheel.advance(now_ms))
        for _ in range(min(CALLS_AT_ONCE, len(self._due))):
            if self._stopped:  # by a callback before
                return
            entry = self._due.popleft()
            callback, entry.callback = entry.callback, None
            if callback is not None:
                self._call(callback)
        next_ms = now_ms if self._due else self._wheel.next_ms()
        if next_ms is not None:  # callbacks may have armed it, for what they scheduled
            self._arm(self._clock.monotonic_ms(), next_ms)  # and taken their time

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
    """What a timer hands out."""

    def cancel(self) -> object: ...


class Schedule(Protocol):
    """`Timer.schedule`."""

    def __call__(self, delay_ms: int, callback: Callable[[], None], /) -> TimerHandle: ...


class DelayedOperation(abc.ABC):
    """Something that waits.

    try_complete is asked whether the wait is over, whenever a key that is watched changed; on_complete is
    called once when it is, or when the time is over; not after `cancel`.
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
    """The operations that wait, by key."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        # topic id -> partition -> operations; by topic, so that a changed topic is looked up once
        self._watchers: dict[str, dict[int, dict[DelayedOperation, None]]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        """Operations that wait."""
        return self._waiting

    def watch(self, operation: DelayedOperation, keys: Iterable[WatchKey], delay_ms: int) -> None:
        """Let it wait. The caller has found that it cannot be completed yet, without awaiting since."""
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
        """Ids of the topics that anybody waits for."""
        return list(self._watchers)

    def partitions(self, topic_id: str) -> list[int]:
        """Partitions of a topic that anybody waits for."""
        return list(self._watchers.get(topic_id, ()))

    def check(self, topic_id: str, partition: int) -> int:
        """The partition changed: complete what can be; returns how many were."""
        operations = self._watchers.get(topic_id, {}).get(partition)
        if not operations:
            return 0
        key = (topic_id, partition)
        completed = 0
        for operation in list(operations):
            # An earlier one's on_complete may have cancelled this one.
            if operation._purgatory is self and operation.try_complete(key):
                self._release(operation)
                operation.on_complete(expired=False)
                completed += 1
        return completed

    def _release(self, operation: DelayedOperation) -> None:
        """Forget the operation everywhere."""
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
