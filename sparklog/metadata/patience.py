"""Patience with who is ahead in the queue of requests: how long each may take, and how many are waited for.

Whose publisher does not move for a while is passed over, so that a crashed one holds up the others for less
than a second, once. Many may have crashed together (a job that was killed, a machine), or be of a version
that nobody here can read: after MOST_SILENT that did not move, nobody is waited for any more.

Invariants: nothing depends on it; put-if-absent decides as always.
Concurrency: used under the metadata log's lock.
Sources: adr/0007.
"""

import itertools
import random
from collections.abc import Iterable

from sparklog.clock import Clock
from sparklog.metadata.requests import Ticket

# How long the first of the queue may take before it is passed over: random, between one and two times this.
PATIENCE_MS = 600
MOST_SILENT = 3


class Patience:
    """One process's."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._random = rng
        self.usual_wait_ms = 0.0  # for news of the log
        self.start_anew()

    def start_anew(self) -> None:
        """Know nobody."""
        # Until when each request may be the first. From its first look on, over all calls: neither a log
        # that moves without it nor a call that gives up may start its time anew.
        self._until_ms: dict[tuple[str, int], float] = {}

    def forget_all_but(self, waiting: Iterable[Ticket]) -> None:
        """The others are gone."""
        known = self._until_ms
        self._until_ms = {one.key: known[one.key] for one in waiting if one.key in known}

    def note_wait(self, took_ms: float) -> None:
        """So long the log took to move."""
        self.usual_wait_ms += (min(took_ms, PATIENCE_MS) - self.usual_wait_ms) / 2

    def is_over(self, ticket: Ticket) -> bool:
        """Have we waited for it in vain?"""
        until_ms = self._until_ms.get(ticket.key)
        return until_ms is not None and self._clock.monotonic_ms() >= until_ms

    def until_ms(self, ahead: Iterable[Ticket]) -> float | None:
        """Until when to wait for the first of these that may still move; None: for nobody."""
        now_ms = self._clock.monotonic_ms()
        for ticket in itertools.islice(ahead, MOST_SILENT):
            patience_ms = self._random.uniform(PATIENCE_MS, 2 * PATIENCE_MS)
            patience_ms += min(PATIENCE_MS, 4 * self.usual_wait_ms)  # of a store that is slow for everybody
            until_ms = self._until_ms.setdefault(ticket.key, now_ms + patience_ms)
            if now_ms < until_ms:
                return until_ms
        return None
