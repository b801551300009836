"""Hierarchical timing wheel: add, cancel and expire in constant time, whatever waits.

Seven wheels of 64 buckets; a bucket of wheel n spans 64**n ms. An entry lies in the wheel of the highest
6-bit digit in which its deadline differs from the wheel's time, so every occupied bucket lies ahead, and the
lowest occupied wheel holds the next deadlines. When its time comes, a bucket of a higher wheel is dealt out
to the wheels below: at most six moves in an entry's life. One integer per wheel says which buckets are
occupied, so that empty time is stepped over, not ticked through.

Invariants: `advance` returns every entry whose deadline has come, once, by deadline and then in the order of
    adding; a cancelled entry never; an entry that is out of the wheel is not referenced by it any more.
Not here: clocks, asyncio (timer.py).
Concurrency: one thread.
Sources: Varghese and Lauck, "Hashed and hierarchical timing wheels"; Kafka's TimingWheel, which finds the
    next bucket by a heap; the XOR placement is that of tokio's and of Linux's wheels.
"""

from collections.abc import Callable

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
