"""Whether to post what is to be published, or to try alone: what a process knows of others, and what races
cost.

A writer posts once it has lost a race, or has seen that others wait. A request takes longer than a race that
is won, or lost at no cost, and clients wait for each of a broker's commits: it posts where races were *dear*
lately. They are where the store makes losers wait; where many are lost in a row; and to those whose requests
stay for seconds, since somebody publishes without looking.

Not here: posting, and who waits (combining.py).
Concurrency: used under the metadata log's lock.
Sources: adr/0007, adr/0029.
"""

from sparklog.clock import Clock
from sparklog.metadata.others import SharedPlan

# After a lost race, or others' requests, a publisher posts its own without trying alone, for this long.
CROWDED_MS = 5_000
# A race that took so long to be lost was dear: this store makes losers wait.
DEAR_LOSS_MS = 250
# After what races have cost, they count as dear for so many times as long: to find out whether they still are
# takes one percent of the time.
_DEAR_FOR = 100
# Who publishes alone with shorter gaps than this looks around so often.
_BUSY_GAP_MS, _LOOK_AROUND_MS = 250, 1_000
# A LIST that failed may have taken its time (requests.py): the next is so far off.
BLIND_MS = 30_000


class Crowd:
    """What one process knows of the others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._crowded_until_ms: float | None = None
        self._dear_until_ms: float | None = None
        self._blind_until_ms: float | None = None
        self._last_alone_ms = self._looked_around_ms = clock.monotonic_ms()

    @property
    def is_there(self) -> bool:
        """Have we met other publishers within the last seconds?"""
        return self._is_before(self._crowded_until_ms)

    @property
    def is_blind(self) -> bool:
        """Has a look at who waits failed within the last seconds?"""
        return self._is_before(self._blind_until_ms)

    def note_blind(self) -> None:
        """One has."""
        self._blind_until_ms = self._clock.monotonic_ms() + BLIND_MS

    def note(self) -> None:
        """A race was lost, or others wait."""
        self._crowded_until_ms = self._clock.monotonic_ms() + CROWDED_MS

    def note_dear(self, for_ms: float) -> None:
        """Races are, to us or to others."""
        self.note()
        self._dear_until_ms = max(self._dear_until_ms or 0.0, self._clock.monotonic_ms() + for_ms)

    def note_lost_race(self, shared: SharedPlan, races: int, took_ms: float, lost_ms: float) -> None:
        """The last of so many in one call, which took so long, and all of them."""
        if races >= shared.races or took_ms >= DEAR_LOSS_MS:
            self.note_dear(_DEAR_FOR * lost_ms)

    def is_worth_posting(self, shared: SharedPlan) -> bool:
        """Rather than to race?"""
        return self.is_there and (shared.races == 1 or self._is_before(self._dear_until_ms))

    def is_time_to_look(self) -> bool:
        """Before publishing alone: does anybody wait?

        Who publishes again and again, and has never lost a race, would else not hear of a queue whose first
        loses to it every time. Only such a publisher looks, with one LIST a second.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._last_alone_ms > _BUSY_GAP_MS:
            self._looked_around_ms = now_ms
        self._last_alone_ms = now_ms
        if now_ms - self._looked_around_ms < _LOOK_AROUND_MS:
            return False
        self._looked_around_ms = now_ms
        return True

    def _is_before(self, until_ms: float | None) -> bool:
        return until_ms is not None and self._clock.monotonic_ms() < until_ms
