"""A world of processes that take turns in virtual time, the same for the same seed.

Every process is a greenlet. It runs until it asks its store for something, or sleeps; then the one goes on
whose moment comes first. So all that happens between two processes, happens at those points, and nothing
depends on threads, the machine's clock or its speed.

Invariants: one runs at a time; equal moments keep the order in which they were asked for; a killed process
    never runs again, and nothing that its cleanup does reaches a store; a paused one sleeps through
    everything, as after SIGSTOP, and finds its clocks moved on; a suspended one finds that only the wall
    clock has moved on, and a frozen one (a virtual machine that was stopped) not even that.
Not here: what stores do (directory_store.py, remote_store.py), what processes do (processes.py).
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]

START_MS = 1_700_000_000_000
MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US


class StuckError(Exception):
    """Nothing happens any more, or no end is in sight."""


class World:
    """Virtual time, the queue of what comes next, and the dice of one history."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.now_us = 0
        self.calm = False  # true: no more faults
        self.faults: Counter[str] = Counter()
        self.met: Counter[str] = Counter()  # what is no fault, and worth knowing that it happened
        self.steps = 0
        self.failed: list[SimProcess] = []  # ended by an error that nothing explains
        self.processes: list[SimProcess] = []
        self._queue: list[tuple[int, int, Callable[..., None], tuple[int, ...]]] = []
        self._number = 0
        self._strikes: list[tuple[int, Callable[[], None]]] = []  # the next one last
        self._hub = getcurrent()

    def at(self, delay_us: int, action: Callable[..., None], *with_: int) -> None:
        """Do something later, whoever is alive by then."""
        self._number += 1
        moment = self.now_us + delay_us if delay_us > 0 else self.now_us
        heappush(self._queue, (moment, self._number, action, with_))

    def chance(self, probability: float, fault: str) -> bool:
        """Throw the dice for a fault, and count it."""
        if self.calm or self.dice.random() >= probability:
            return False
        self.faults[fault] += 1
        return True

    def strike_at(self, steps: Sequence[int], action: Callable[[], None]) -> None:
        """Do something after so many steps: in the middle of whatever is going on then."""
        self._strikes = [(step, action) for step in sorted(steps, reverse=True)]

    def strike_in(self, steps: int, action: Callable[[], None]) -> None:
        """Do one thing more, so many steps from now."""
        self._strikes.append((self.steps + steps, action))
        self._strikes.sort(key=lambda strike: -strike[0])

    def run(self, until: Callable[[], object], *, deadline_us: int) -> None:
        """Go on until `until()`, asked after every step.

        Raises: StuckError at the deadline, or when nothing is left to do.
        """
        while not until():
            if not self._queue:
                raise StuckError(f"nothing left to do at {self.now_us / 1e6:.3f} s")
            moment, _, action, with_ = heappop(self._queue)
            if moment > deadline_us:
                raise StuckError(f"no end by {deadline_us / 1e6:.3f} s")
            if moment > self.now_us:
                self.now_us = moment
            self.steps += 1
            action(*with_)
            if self._strikes and self.steps >= self._strikes[-1][0] and not self.calm:
                self._strikes.pop()[1]()

    def drain(self, delay_us: int) -> None:
        """Let time pass, and everything happen that is due until then."""
        end = self.now_us + delay_us
        while self._queue and self._queue[0][0] <= end:
            moment, _, action, with_ = heappop(self._queue)
            self.now_us = max(self.now_us, moment)
            action(*with_)
        self.now_us = end

    def spawn(
        self, name: str, main: Callable[["SimProcess"], None], *, clock_ahead_ms: int = 0
    ) -> "SimProcess":
        """Start a process; it first runs when its turn comes."""
        process = SimProcess(self, name, main, clock_ahead_ms)
        self.processes.append(process)
        return process

    def end(self) -> None:
        """Kill what is left, so that no greenlet outlives its history."""
        for process in self.processes:
            process.kill()


class SimProcess:
    """A process; also its Clock."""

    def __init__(
        self, world: World, name: str, main: Callable[["SimProcess"], None], clock_ahead_ms: int
    ) -> None:
        self.world = world
        self.name = name
        self.dead = False
        self.failure: BaseException | None = None
        self.on_end: Callable[[], None] = lambda: None
        self.between: Callable[[], None] | None = None  # what goes on in it while it waits
        self.paused_until_us = 0
        self.clock_ahead_ms = clock_ahead_ms
        self.stood_still_us = 0  # for so long CLOCK_MONOTONIC did, in all
        self.lost_us = 0  # for so long the wall clock stood still, and nobody has set it since
        self._is_idle = False
        self._suspended_since_us: int | None = None
        self._freezes = False
        self._turn = 0
        self._main = main
        self._greenlet = greenlet(self._run, parent=world._hub)
        self._wake_in(0)

    def _run(self) -> None:
        try:
            self._main(self)
        except GreenletExit:
            pass
        except Exception as error:
            self.failure = error
            self.world.failed.append(self)
        if not self.dead:
            self.dead = True
            self.on_end()

    def wait_us(self, duration_us: int) -> None:
        """Let others run; the point where this process can be killed or paused."""
        self.refuse_if_dead()
        self._wake_in(duration_us)
        self.world._hub.switch()
        self.refuse_if_dead()
        if self.between is not None:
            self.between()

    def think_ms(self, duration_ms: float) -> None:
        """Sleep, unless somebody calls."""
        self._is_idle = True
        self.sleep_ms(duration_ms)

    def call(self) -> None:
        """There is something to do."""
        if self._is_idle and not self.dead:
            self._wake_in(0)

    def refuse_if_dead(self) -> None:
        """Cleanup of a killed process must change nothing."""
        if self.dead:
            raise GreenletExit

    def kill(self) -> None:
        """SIGKILL: it stops where it is."""
        if not self.dead:
            self.dead = True
            if self._greenlet:
                self._greenlet.throw(GreenletExit)
            self.on_end()

    def pause(self, duration_us: int) -> None:
        """SIGSTOP for a while; what it waits for waits with it."""
        self.paused_until_us = max(self.paused_until_us, self.world.now_us + duration_us)

    def suspend(self, duration_us: int, *, freezes: bool = False) -> None:
        """The machine sleeps, and CLOCK_MONOTONIC stands still; if it freezes, the wall clock as well."""
        if self._suspended_since_us is None:
            self._suspended_since_us = self.world.now_us
        self._freezes = freezes
        self.pause(duration_us)

    def resume(self) -> None:
        """SIGCONT."""
        if self.paused_until_us > self.world.now_us:
            self.paused_until_us = self.world.now_us
            self._end_suspension()
            if not self.dead:
                self._wake_in(0)

    def take_clocks_of(self, other: "SimProcess") -> None:
        """For a copy of another's memory: it goes by what that one saw last."""
        self.stood_still_us, self.lost_us = other.stood_still_us, other.lost_us
        self.clock_ahead_ms = other.clock_ahead_ms

    def set_clock(self) -> None:
        """As NTP does: right, some time after it went wrong; not while the machine sleeps."""
        if self.world.now_us < self.paused_until_us:
            return
        self._end_suspension()
        self.lost_us = self.clock_ahead_ms = 0

    @property
    def date_us(self) -> int:
        """What it takes the time to be."""
        return self.world.now_us - self.lost_us + 1000 * self.clock_ahead_ms

    def _wake_in(self, duration_us: int) -> None:
        self._turn += 1
        self.world.at(duration_us, self._wake, self._turn)

    def _wake(self, turn: int) -> None:
        if self.dead or turn != self._turn:
            return
        if self.world.now_us < self.paused_until_us:
            self._wake_in(self.paused_until_us - self.world.now_us)
            return
        if self._suspended_since_us is not None:
            self._end_suspension()
        self._is_idle = False  # what goes on in it now may wait for a store: nobody calls it from there
        self._greenlet.switch()

    def _end_suspension(self) -> None:
        if self._suspended_since_us is not None:
            slept_us = self.paused_until_us - self._suspended_since_us
            self.stood_still_us += slept_us
            if self._freezes:
                self.lost_us += slept_us
            self._suspended_since_us = None

    # --- Clock ---------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return START_MS + self.date_us // 1000

    def monotonic_ms(self) -> int:
        return (self.world.now_us - self.stood_still_us) // 1000

    def sleep_ms(self, duration_ms: float) -> None:
        self.wait_us(int(duration_ms * 1000) + 1)
