"""Taking turns: competing publishers wait for each other instead of racing.

A lost race costs a plan and an fsync, and fsyncs of one file system queue up behind each other: eight
racing processes spent three of four fsyncs on commits that lost. So a publisher first asks the store for
its turn, an advisory lock.

Who waits too long (the holder is stopped, or just lucky) publishes all the same. But a large plan takes
longer than others wait, and would lose to them every time: so who has lost that way takes the *right of way*,
a second lock, for the rest of its publish. Whoever publishes, with a turn or without, waits for that first,
and longer.

A holder who was waited for in vain counts as stopped. Nobody can ask it, nor tell it from the next holder; so
each publish tries the lock, and does not wait: once it is free, or ours, the next holder is trusted as ever.
While it never is, we wait again after a while, for half as long as the last time. So a process that stays
stopped costs another one two waits in all, and not one in each minute.

Invariants: correctness never depends on it; put-if-absent decides as always. Whatever interrupts a publish
    (Ctrl-C), `release` gives back what it had.
Concurrency: used under the metadata log's lock. Waiters poll at random moments, so that the holder, who
has to work between two turns, is often overtaken; who has waited long polls more often.
After a crash: the kernel frees the locks with the process.
"""

import random
from collections.abc import Callable

from sparklog.clock import Clock
from sparklog.metadata.documents.paths import DIRECTORY
from sparklog.storage import Store, Turn

# Longer than eight busy publishers take in turn; short enough for a person who waits.
MAX_WAIT_MS = 250
# When nobody published during the wait, the holder is stopped: nobody waits for it for this long.
DISTRUST_MS = 2_000
# A plan and a commit of 262,144 extents take some 3 s.
RIGHT_OF_WAY_MS, RIGHT_OF_WAY_DISTRUST_MS = 5_000, 60_000
_ROOT = ""
_POLL_MS = 3.0
_IMPATIENT_AFTER_MS = 30


class Turns:
    """One publisher's side of taking turns in a store: `take`, and then, whatever came of it, `release`, in a
    `finally` that calls it again where Ctrl-C came as it began.
    """

    def __init__(self, store: Store, clock: Clock, rng: random.Random) -> None:
        self._store = store
        self._clock = clock
        self._random = rng
        self.start_anew()

    def start_anew(self) -> None:
        """In a forked child: what another thread of the parent has is not the child's to give back."""
        turn, right_of_way = self._store.turn(DIRECTORY), self._store.turn(_ROOT)
        self._turn = _Lock(turn, self._clock, self._random, MAX_WAIT_MS, DISTRUST_MS)
        self._right_of_way = _Lock(
            right_of_way, self._clock, self._random, RIGHT_OF_WAY_MS, RIGHT_OF_WAY_DISTRUST_MS
        )
        self._has_right_of_way = False
        self._began_ms = 0

    def take(self, has_progress: Callable[[], bool]) -> None:
        """Wait for the turn, and for who has right of way. The turn is had then, if it came.

        Args:
            has_progress: has anybody published since we began to wait?
        """
        self._has_right_of_way = False
        self._turn.take(has_progress)
        # With a turn or without.
        self._right_of_way.take(lambda: False)
        self._right_of_way.release()
        self._began_ms = self._clock.monotonic_ms()

    def release(self) -> None:
        """Give back what is had. Called again where it was interrupted, it goes on."""
        self._turn.release()
        self._right_of_way.release()

    def note_lost_race(self) -> None:
        """Within a turn. Did it take longer than others wait? Then they are to wait longer, until it ends."""
        took_ms = self._clock.monotonic_ms() - self._began_ms
        if took_ms >= MAX_WAIT_MS and not self._has_right_of_way:
            self._has_right_of_way = self._right_of_way.take(lambda: True)
        self._began_ms = self._clock.monotonic_ms()


class _Lock:
    """A lock that is waited for, but not for ever, and not at all for a while after that was in vain."""

    def __init__(self, turn: Turn, clock: Clock, rng: random.Random, wait_ms: int, distrust_ms: int) -> None:
        self._turn = turn
        self._clock = clock
        self._random = rng
        self._longest_ms = self._wait_ms = wait_ms
        self._distrust_ms = distrust_ms
        self._distrust_until_ms: int | None = None
        self.release = turn.release

    def take(self, has_progress: Callable[[], bool]) -> bool:
        """Is it had?"""
        if self._tried():
            return True
        start_ms = self._clock.monotonic_ms()
        if self._distrust_until_ms is not None and start_ms < self._distrust_until_ms:
            return False
        while True:
            waited_ms = self._clock.monotonic_ms() - start_ms
            if waited_ms >= self._wait_ms:
                if not has_progress():
                    self._distrust_until_ms = start_ms + waited_ms + self._distrust_ms
                    self._wait_ms //= 2
                return False
            upper_ms = _POLL_MS if waited_ms < _IMPATIENT_AFTER_MS else _POLL_MS / 4
            self._clock.sleep_ms(self._random.uniform(0, upper_ms))
            if self._tried():
                return True

    def _tried(self) -> bool:
        if not self._turn.take():
            return False
        self._distrust_until_ms, self._wait_ms = None, self._longest_ms
        return True
