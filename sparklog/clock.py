"""Time as a component: code that needs the time takes a Clock, so that tests control it.

Units: integer milliseconds everywhere; wall-clock time is Unix time in UTC.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """The time as the engine sees it."""

    def now_ms(self) -> int:
        """Unix time in milliseconds; may jump when the machine's clock is set."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary start; never goes back."""
        ...

    def sleep_ms(self, duration_ms: float) -> None:
        """Wait; the only place where the engine may wait for time to pass."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000  # noqa: TID251 - the one place that reads it

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def sleep_ms(self, duration_ms: float) -> None:
        time.sleep(duration_ms / 1000)


class ManualClock:
    """A clock that only `advance_ms` and `sleep_ms` move."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0.0

    def now_ms(self) -> int:
        return int(self._now_ms + self._monotonic_ms)

    def monotonic_ms(self) -> int:
        return int(self._monotonic_ms)

    def sleep_ms(self, duration_ms: float) -> None:
        self._monotonic_ms += duration_ms

    advance_ms = sleep_ms

    def set_by_ms(self, by_ms: int) -> None:
        """Set the wall clock forward or back; the monotonic clock is unaffected."""
        self._now_ms += by_ms
