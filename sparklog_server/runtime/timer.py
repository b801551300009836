"""The timing wheel on the event loop: one asyncio timer for all deadlines of the broker.

Invariants: a callback is called once, not before its delay is over, and never after `cancel`; one that raises
    harms no other. Cancelling does not touch asyncio's timer: at worst the loop wakes up once for nothing.
Expiries are handed out in parts, so that a hundred thousand at once do not hold up the loop.
Concurrency: event loop only.
Sources: Kafka SystemTimer.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from sparklog.clock import Clock
from sparklog_server.runtime.timing_wheel import TimerEntry, TimingWheel

CALLS_AT_ONCE = 500


class Timer:
    """See the module's docstring."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._clock = clock
        self._loop = loop if loop is not None else asyncio.get_running_loop()
        self._wheel = TimingWheel(clock.monotonic_ms())
        self._due: deque[TimerEntry] = deque()
        self._armed: asyncio.Handle | None = None
        self._armed_ms = 0
        self._stopped = False

    def schedule(self, delay_ms: int, callback: Callable[[], None]) -> TimerEntry:
        """Call `callback` after `delay_ms`, unless the returned handle is cancelled before."""
        now_ms = self._clock.monotonic_ms()
        entry = TimerEntry(now_ms + max(0, delay_ms), callback)
        self._wheel.add(entry)
        if self._armed is None or entry.deadline_ms < self._armed_ms:
            self._arm(now_ms, entry.deadline_ms)
        return entry

    def stop(self) -> None:
        """No callback is called from now on."""
        self._stopped = True
        if self._armed is not None:
            self._armed.cancel()

    def run_due(self) -> None:
        """Call what is due, and arm the timer for what is next."""
        self._armed = None
        now_ms = self._clock.monotonic_ms()
        self._due.extend(self._wheel.advance(now_ms))
        for _ in range(min(CALLS_AT_ONCE, len(self._due))):
            if self._stopped:  # by a callback before
                return
            entry = self._due.popleft()
            callback, entry.callback = entry.callback, None
            if callback is not None:
                self._call(callback)
        next_ms = now_ms if self._due else self._wheel.next_ms()
        if next_ms is not None:  # callbacks may have armed it, for what they scheduled
            self._arm(self._clock.monotonic_ms(), next_ms)  # and taken their time

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - the loop's handler logs it; the others must go on
            self._loop.call_exception_handler({"message": "a timer's callback failed", "exception": error})

    def _arm(self, now_ms: int, at_ms: int) -> None:
        if self._armed is not None:
            self._armed.cancel()
        if self._stopped:
            return
        self._armed_ms = at_ms
        delay_ms = at_ms - now_ms
        if delay_ms <= 0:
            self._armed = self._loop.call_soon(self.run_due)
        else:
            self._armed = self._loop.call_later(delay_ms / 1000, self.run_due)
