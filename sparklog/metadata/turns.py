"""Taking turns: competing publishers wait for each other instead of racing.

A lost race costs a plan and an fsync, and fsyncs of one file system queue up behind each other: eight
racing processes spent three of four fsyncs on commits that lost. So a publisher first asks the store for
its turn, an advisory lock.

Who waits too long (the holder is stopped, or just lucky) publishes all the same. But a large plan takes
longer than others wait, and would lose to them every time: so who has lost that way takes the *right of way*,
a second lock, for the rest of its publish. Whoever publishes, with a turn or without, waits for that first,
and longer.

Invariants: correctness never depends on it; put-if-absent decides as always.
Concurrency: used under the metadata log's lock. Waiters poll at random moments, so that the holder, who
has to work between two turns, is often overtaken; who has waited long polls more often.
After a crash: the kernel frees the locks with the process.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparklog.clock import Clock
from sparklog.metadata.documents.paths import DIRECTORY
from sparklog.storage import Store

# Longer than eight busy publishers take in turn; short enough for a person who waits.
MAX_WAIT_MS = 250
# When nobody published during the wait, the holder is stopped: publish without turns for this long.
DISTRUST_MS = 2_000
# A plan and a commit of 262,144 extents take some 3 s.
RIGHT_OF_WAY_MS, RIGHT_OF_WAY_DISTRUST_MS = 5_000, 60_000
_ROOT = ""
_POLL_MS = 3.0
_IMPATIENT_AFTER_MS = 30
Release = Callable[[], None]


class Turns:
    """One publisher's side of taking turns in a store."""

    def __init__(self, store: Store, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._turn = _Lock(store, DIRECTORY, clock, rng, MAX_WAIT_MS, DISTRUST_MS)
        self._right_of_way = _Lock(store, _ROOT, clock, rng, RIGHT_OF_WAY_MS, RIGHT_OF_WAY_DISTRUST_MS)
        self._held: list[Release] = []
        self._has_right_of_way = False
        self._began_ms = 0

    @contextmanager
    def turn(self, has_progress: Callable[[], bool]) -> Iterator[None]:
        """Wait for the turn, and hold it, if it came; and for who has right of way.

        Args:
            has_progress: has anybody published since we began to wait?
        """
        self._held, self._has_right_of_way = [], False
        try:
            self._turn.take(self._held, has_progress)
            self._give_way()
            self._began_ms = self._clock.monotonic_ms()
            yield
        finally:
            for release in self._held:
                release()

    def _give_way(self) -> None:
        """Wait for who has right of way, with a turn or without."""
        passed: list[Release] = []
        self._right_of_way.take(passed, lambda: False)
        for release in passed:
            release()

    def note_lost_race(self) -> None:
        """Within a turn. Did it take longer than others wait? Then they are to wait longer, until it ends."""
        took_ms = self._clock.monotonic_ms() - self._began_ms
        if took_ms >= MAX_WAIT_MS and not self._has_right_of_way:
            self._has_right_of_way = self._right_of_way.take(self._held, lambda: True)
        self._began_ms = self._clock.monotonic_ms()


class _Lock:
    """A lock that is waited for, but not for ever, and not at all for a while after that was in vain."""

    def __init__(
        self, store: Store, directory: str, clock: Clock, rng: random.Random, wait_ms: int, distrust_ms: int
    ) -> None:
        self._store = store
        self._directory = directory
        self._clock = clock
        self._random = rng
        self._wait_ms = wait_ms
        self._distrust_ms = distrust_ms
        self._distrust_until_ms: int | None = None

    def take(self, held: list[Release], has_progress: Callable[[], bool]) -> bool:
        """Is it had? Then what gives it back is in `held`."""
        start_ms = self._clock.monotonic_ms()
        if self._distrust_until_ms is not None and start_ms < self._distrust_until_ms:
            return False
        self._distrust_until_ms = None
        release = self._store.take_turn(self._directory)
        while release is None:
            waited_ms = self._clock.monotonic_ms() - start_ms
            if waited_ms >= self._wait_ms:
                if not has_progress():
                    self._distrust_until_ms = start_ms + waited_ms + self._distrust_ms
                return False
            upper_ms = _POLL_MS if waited_ms < _IMPATIENT_AFTER_MS else _POLL_MS / 4
            self._clock.sleep_ms(self._random.uniform(0, upper_ms))
            release = self._store.take_turn(self._directory)
        held.append(release)
        return True
