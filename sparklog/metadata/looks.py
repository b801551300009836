"""Looking at the log while somebody publishes: when was the image known to be the newest, and who looks now?

A publish has the metadata log's lock until its commit is made, or lost. On an object store that is busy one
PUT may take seconds, and longer where the store lets the losers of a race wait; meanwhile the publish looks
at nothing. A process whose image counts as old must give up what it answers for, although the log is within
its reach: so who waits to look while a publish waits looks itself, beside it.

1. broker A puts commit 8, and the store answers after five seconds;
2. A's follower waits for the lock; what A knows of the log is from before the put;
3. after a session, A would resign its groups and partitions, which nobody took from it.

Invariants: a look beside a publish changes nothing that the publish goes by: it shows an image, if that is
    newer than the one shown, and says when it was the newest. One at a time, and none within BESIDE_MS of
    the one before, whatever that found.
Not here: what a look is (following.py), showing (log.py).
Concurrency: any thread.
After a crash: nothing is kept.
"""

import threading
from collections.abc import Callable
from typing import Final

from sparklog.metadata.following import Follower, Moment
from sparklog.metadata.model.image import Image

PEEK_SECONDS = 0.01
BESIDE_MS: Final = 500  # so old an image is while a publish has the lock, and is looked at beside it


def take(acquire: Callable[[bool, float], bool], taken: list[bool], timeout_seconds: float) -> bool:
    """Take a lock, if it can be had in time, and note it in `taken`, so that a `finally` can give it back.

    1. `acquire` returns True to the thread that signals are handled in;
    2. Ctrl-C arrives, before that is noted anywhere;
    3. nobody knows that the lock is to be released: all other threads wait for ever.
    Signals are handled between instructions, and here one takes the lock and notes it. Between the `finally`
    and the release there must be no call, for the same reason; so this is no context manager.
    """
    taken[:] = map(acquire, (True,), (timeout_seconds,))
    return taken[0]


class Looks:
    """See the module's docstring."""

    def __init__(self, follower: Follower, show: Callable[[Image, Moment], None]) -> None:
        """`show`: an image, and a moment at which it was the newest, or newer."""
        self._follower = follower
        self._show = show
        self._last = follower.now()  # before the look that finds the first image
        self._beside = threading.Lock()
        self._beside_ms: int | None = None  # when somebody began to look beside it

    def start_anew(self) -> None:
        """In a forked child: another thread of the parent may be looking."""
        self._beside = threading.Lock()

    @property
    def age_ms(self) -> int:
        """How long ago the image was known to be the newest: by both clocks, so that a machine that was
        suspended knows that it was.
        """
        last, now = self._last, self._follower.now()
        return max(now.monotonic_ms - last.monotonic_ms, now.wall_ms - last.wall_ms)

    def note(self, asked: Moment) -> None:
        """The image was the newest at this moment, or later."""
        if asked.monotonic_ms >= self._last.monotonic_ms:
            self._last = asked

    def has_since(self, began: Moment) -> bool:
        """Has anybody looked, beginning after that?"""
        return self._last.monotonic_ms > began.monotonic_ms

    def wait_for(
        self, lock: threading.RLock, taken: list[bool], began: Moment, shown: Callable[[], Image]
    ) -> bool:
        """Until the lock is had (True), or somebody who has it, or this thread beside it, has looked since.

        Args:
            taken: [True] as soon as the lock is had, for the `finally` of the caller (`take`).

        Raises: StorageError, of a look beside it.
        """
        while not take(lock.acquire, taken, PEEK_SECONDS):
            if self.has_since(began):
                return False
            if self.age_ms >= BESIDE_MS and self._looks_beside(shown):
                return False
        return True

    def _looks_beside(self, shown: Callable[[], Image]) -> bool:
        taken: list[bool] = []
        try:
            if not take(self._beside.acquire, taken, 0):
                return False
            now_ms = self._follower.now().monotonic_ms
            if self._beside_ms is not None and now_ms - self._beside_ms < BESIDE_MS:
                return False  # that one found nothing to show: a store that fails is not asked all the time
            self._beside_ms = now_ms
            seen = self._follower.look_beside(shown())
        finally:
            if True in taken:
                self._beside.release()
        if seen is None:
            return False
        self._show(*seen)
        return True
