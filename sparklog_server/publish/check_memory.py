"""The memory in which compressed batches are looked at, shared by all threads that look.

A few kilobytes may decompress to a thousand times as much. What a batch says of itself is a claim, so memory
is asked for step by step, as its decompression turns out to need it; and a batch that grows gives back what
it had before it waits for more, so that nobody waits for one who waits himself.

Invariants: reservations add up to at most the limit, but for a single one that is larger: it waits until it
    is alone. They are granted in order.
Not here: how much one batch may become (produced_batches.py).
Concurrency: any thread.
"""

import collections
import threading
from types import TracebackType
from typing import Self


class CheckMemory:
    """The bytes that may be taken at once."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.most_bytes = 0  # ever
        self._changed = threading.Condition()
        self._waiting: collections.deque[object] = collections.deque()

    def take(self, size: int) -> None:
        """Wait for one's turn, and for room."""
        me = object()
        with self._changed:
            self._waiting.append(me)
            self._changed.wait_for(lambda: self._waiting[0] is me and self._has_room(size))
            self._waiting.popleft()
            self.used_bytes += size
            self.most_bytes = max(self.most_bytes, self.used_bytes)
            self._changed.notify_all()

    def give_back(self, size: int) -> None:
        """Let others have it."""
        with self._changed:
            self.used_bytes -= size
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return not self.used_bytes or self.used_bytes + size <= self.limit_bytes


class Reservation:
    """What one batch takes while it is looked at; a context, which gives it back."""

    def __init__(self, memory: CheckMemory) -> None:
        self._memory = memory
        self._size = 0

    def resize(self, size: int) -> None:
        """Have so many bytes instead of those before."""
        self._give_back()
        self._memory.take(size)
        self._size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def _give_back(self) -> None:
        size, self._size = self._size, 0
        if size:
            self._memory.give_back(size)
