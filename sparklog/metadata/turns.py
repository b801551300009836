"""Taking turns: competing publishers wait for each other instead of racing.

A lost race costs a plan and an fsync, and fsyncs of one file system queue up behind each other: eight
racing processes spent three of four fsyncs on commits that lost. So a publisher first asks the store for
its turn, an advisory lock.

Invariants: correctness never depends on it. Who waits too long (the holder is stopped, or just lucky)
publishes without a turn; put-if-absent decides as always.
Concurrency: used under the metadata log's lock. Waiters poll at random moments, so that the holder, who
has to work between two turns, is often overtaken; who has waited long polls more often.
After a crash: the kernel frees the lock with the process.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparklog.clock import Clock
from sparklog.storage import Store

# Longer than eight busy publishers take in turn; short enough for a person who waits.
MAX_WAIT_MS = 250
# When nobody published during the wait, the holder is stopped: publish without turns for this long.
DISTRUST_MS = 2_000
_POLL_MS = 3.0
_IMPATIENT_AFTER_MS = 30


class Turns:
    """One publisher's side of taking turns in one directory of a store."""

    def __init__(self, store: Store, directory: str, clock: Clock, rng: random.Random) -> None:
        self._store = store
        self._directory = directory
        self._clock = clock
        self._random = rng
        self._distrust_until_ms: int | None = None

    @contextmanager
    def turn(self, has_progress: Callable[[], bool]) -> Iterator[None]:
        """Wait for the turn, at most MAX_WAIT_MS, and hold it, if it came.

        Args:
            has_progress: has anybody published since we began to wait?
        """
        start_ms = self._clock.monotonic_ms()
        if self._distrust_until_ms is not None and start_ms < self._distrust_until_ms:
            yield
            return
        self._distrust_until_ms = None
        release = self._store.take_turn(self._directory)
        while release is None:
            waited_ms = self._clock.monotonic_ms() - start_ms
            if waited_ms >= MAX_WAIT_MS:
                if not has_progress():
                    self._distrust_until_ms = start_ms + waited_ms + DISTRUST_MS
                yield
                return
            upper_ms = _POLL_MS if waited_ms < _IMPATIENT_AFTER_MS else _POLL_MS / 4
            self._clock.sleep_ms(self._random.uniform(0, upper_ms))
            release = self._store.take_turn(self._directory)
        try:
            yield
        finally:
            release()
