"""How much a round of maintenance may do: seconds, bytes, and bytes and removed files a second.

A work begins only if the round has room for it, and is then done to its end; but it is broken off, wherever
it is, when somebody asks for that: nothing is lost, its files are swept.

Invariants: a work begins whatever its size while any of the bytes is left: one that is larger than what small
    works leave of them, which are due before it each time, would never be done, nor would what comes behind
    it. So a round goes beyond its bytes by one work at most. Beyond the rate the round rests after each step,
    in pieces short enough to hear that it is to stop; a round that was slower than its rate may catch up for
    a second, not more.
Not here: which work (choose.py).
Concurrency: one thread.
Sources: Kafka Throttler (bytes read and written together).
"""

from collections.abc import Callable
from dataclasses import dataclass

from sparklog.clock import Clock

_CREDIT_MS = 1_000.0
_LONGEST_REST_MS = 200.0


class StoppedError(Exception):
    """Somebody asked for an end. No error of anybody: what was published stays, the rest is chosen again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Of one round; None: no bound.

    Fields:
        seconds: nothing begins after so long.
        max_bytes: nothing begins after so many stored bytes were rewritten.
        bytes_per_second: read and written, together.
        files_per_second: removed by vacuum. Directories are slow at it, and stores refuse too many requests.
    """

    seconds: float | None = None
    max_bytes: int | None = None
    bytes_per_second: int | None = None
    files_per_second: int | None = None


# Of rounds by themselves. A third of what S3 takes of a prefix before it says "slow down".
FILES_PER_SECOND = 1_000
NO_LIMIT = Budget()


class Meter:
    """What a round has spent of its budget."""

    def __init__(
        self,
        budget: Budget,
        clock: Clock,
        *,
        is_stopped: Callable[[], bool] = lambda: False,
        rest_ms: Callable[[float], None] | None = None,
    ) -> None:
        """`is_stopped`: is the round to end? `rest_ms`: waits for so long at most; by default the clock's."""
        self._budget = budget
        self._clock = clock
        self._is_stopped = is_stopped
        self._rest_ms = rest_ms or clock.sleep_ms
        self._began_ms = clock.monotonic_ms()
        self._paid_until_ms = self._files_paid_until_ms = float(self._began_ms)
        self.spent_bytes = 0

    def has_room(self) -> bool:
        """May another work begin? StoppedError if the round is to end."""
        self.check()
        budget = self._budget
        if (
            budget.seconds is not None
            and self._clock.monotonic_ms() - self._began_ms >= budget.seconds * 1000
        ):
            return False
        return budget.max_bytes is None or not self.spent_bytes or self.spent_bytes < budget.max_bytes

    def spend(self, size: int) -> None:
        """So many stored bytes were rewritten; rests as the rate asks for. StoppedError, as above."""
        self.check()
        self.spent_bytes += size
        rate = self._budget.bytes_per_second
        if rate is not None:
            self._paid_until_ms = self._rest(self._paid_until_ms, 2 * size / rate)  # read, and written

    def rest(self, size: int) -> None:
        """So many stored bytes were read ahead, and are spent when they are rewritten; rests, as above."""
        self.check()
        rate = self._budget.bytes_per_second
        if rate is not None:
            self._paid_until_ms = self._rest(self._paid_until_ms, size / rate)

    def spend_files(self, count: int) -> None:
        """So many files were removed; rests as the rate asks for. StoppedError, as above."""
        self.check()
        rate = self._budget.files_per_second
        if rate is not None:
            self._files_paid_until_ms = self._rest(self._files_paid_until_ms, count / rate)

    def _rest(self, paid_until_ms: float, seconds: float) -> float:
        """Rest until this is paid for, too; returns until when it is."""
        paid_until_ms = max(paid_until_ms, self._clock.monotonic_ms() - _CREDIT_MS) + seconds * 1000
        while (left_ms := paid_until_ms - self._clock.monotonic_ms()) > 0:
            self._rest_ms(min(left_ms, _LONGEST_REST_MS))
            self.check()
        return paid_until_ms

    def check(self) -> None:
        """StoppedError if the round is to end."""
        if self._is_stopped():
            raise StoppedError
