"""What failed is tried again a moment later, once, however often it has failed until then.

Invariants: one alarm at a time. Who failed for every image that came would else try as often each second, for
    ever.
Concurrency: event loop.
"""

from collections.abc import Callable
from typing import Final

from sparklog_server.runtime.timer import Timer
from sparklog_server.runtime.timing_wheel import TimerEntry

RETRY_READ_MS: Final = 1_000  # nothing else may happen: who would commit waits for what is staged


class Retry:
    """See the module's docstring."""

    def __init__(self, timer: Timer, what: Callable[[], None]) -> None:
        self._timer = timer
        self._what = what
        self._alarm: TimerEntry | None = None

    def schedule(self) -> None:
        """Try again RETRY_READ_MS from now."""
        self.cancel()
        self._alarm = self._timer.schedule(RETRY_READ_MS, self._what)

    def cancel(self) -> None:
        """Do not try again."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
