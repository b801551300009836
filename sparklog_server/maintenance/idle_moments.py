"""What can wait waits for a moment in which the broker has little to do, but not for ever.

To merge is to read, write and sync once more what has just been produced: beside a producer at full speed
that took up to half of its rate (benchmarks/README.md), on the same disk and the same processors. A minute
later the load may be over; and if not, one round for a minute costs less than rounds for each moment.

Invariants: nothing waits for longer than the setting says; the broker is busy or not by its own processor
    time, its rounds' not included, over a second at least.
Not here: which steps can wait (service.py).
Concurrency: one task of the event loop.
"""

import time
from collections.abc import Callable

from sparklog.clock import Clock

BUSY_SHARE = 0.1  # of one processor: an idle broker with a hundred groups takes a third of that
_LEAST_MS = 1_000


class IdleMoments:
    """See the module's docstring.

    Args:
        most_ms: how long what is due waits at most; 0: not at all.
        cpu_seconds: of this process, so far.
    """

    def __init__(
        self, most_ms: int, *, clock: Clock, cpu_seconds: Callable[[], float] = time.process_time
    ) -> None:
        self._most_ms = most_ms
        self._clock = clock
        self._cpu_seconds = cpu_seconds
        self._looked_ms, self._looked_cpu = clock.monotonic_ms(), cpu_seconds()
        self._is_busy = False
        self._since_ms: int | None = None  # what is due has waited since

    def change(self, most_ms: int) -> None:
        """Wait for so long at most, from now on."""
        self._most_ms = most_ms

    def may_begin(self) -> bool:
        """Something is due: is now the time? Asked again, until it is."""
        now_ms = self._look()
        if self._since_ms is None:
            self._since_ms = now_ms
        if self._is_busy and now_ms - self._since_ms < self._most_ms:
            return False
        self._since_ms = None
        return True

    def nothing_due(self) -> None:
        """Nothing waits any more."""
        self._look()
        self._since_ms = None

    def _look(self) -> int:
        now_ms = self._clock.monotonic_ms()
        elapsed_ms = now_ms - self._looked_ms
        if elapsed_ms >= _LEAST_MS:
            cpu = self._cpu_seconds()
            self._is_busy = (cpu - self._looked_cpu) * 1000 > BUSY_SHARE * elapsed_ms
            self._looked_ms, self._looked_cpu = now_ms, cpu
        return now_ms
