"""Many histories, one seed after the other, of every kind, and what they add up to."""

import logging
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from sparklog.clock import Clock
from tests.simulation.setting import KINDS
from tests.simulation.simulate import Outcome, simulate

MAX_FAILURES = 10
_CHUNK = 50


@dataclass
class Totals:
    """Sums over histories, and those that failed."""

    histories: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    unknown: int = 0
    unknown_visible: int = 0
    worst_recovery_us: int = 0
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one history; what is kept of a failed one is what names and repeats it."""
        self.histories[outcome.kind] += 1
        self.operations[outcome.kind] += outcome.operations
        self.faults += outcome.faults
        self.met += outcome.met
        if outcome.verdict is not None:
            self.acknowledged += outcome.verdict.acknowledged
            self.unknown += outcome.verdict.unknown
            self.unknown_visible += outcome.verdict.unknown_visible
        self.worst_recovery_us = max(self.worst_recovery_us, outcome.recovery_us)
        if not outcome.is_clean:
            outcome.events, outcome.error = [], None
            self.failures.append(outcome)

    def merge(self, other: "Totals") -> None:
        """Add another's."""
        self.histories += other.histories
        self.operations += other.operations
        self.faults += other.faults
        self.met += other.met
        self.acknowledged += other.acknowledged
        self.unknown += other.unknown
        self.unknown_visible += other.unknown_visible
        self.worst_recovery_us = max(self.worst_recovery_us, other.worst_recovery_us)
        self.failures += other.failures


def simulate_range(kind: str, seeds: range) -> Totals:
    """The histories of some seeds."""
    totals = Totals()
    for seed in seeds:
        totals.add(simulate(seed, kind))
    return totals


def be_quiet() -> None:
    """For processes of their own: do not print what the code logs of the faults that it meets."""
    logging.getLogger("sparklog").setLevel(logging.CRITICAL)


class Campaign:
    """Runs histories and adds them up."""

    def __init__(self, clock: Clock, *, kinds: Sequence[str] = KINDS, first_seed: int = 1) -> None:
        self._clock = clock
        self._kinds = kinds
        self.first_seed = first_seed
        self.next_seed = first_seed
        self.totals = Totals()
        self.took_ms = 0

    def run(
        self, operations: int, *, jobs: int = 1, report: Callable[[str], object] = lambda text: None
    ) -> None:
        """Go on until so many operations have ended well, of all kinds, or too many histories failed."""
        start_ms = self._clock.monotonic_ms()
        next_report = operations // 20
        for totals in self._alone() if jobs == 1 else self._in_parallel(jobs):
            self.totals.merge(totals)
            for outcome in totals.failures:
                report(str(outcome))
            self.took_ms = self._clock.monotonic_ms() - start_ms
            done = self.totals.operations.total()
            is_done = done >= operations and self.totals.histories.keys() >= set(self._kinds)
            if is_done or len(self.totals.failures) >= MAX_FAILURES:
                return
            if done >= next_report:
                next_report += operations // 20
                report(str(self))

    def _next(self, count: int) -> range:
        seeds = range(self.next_seed, self.next_seed + count)
        self.next_seed += count
        return seeds

    def _alone(self) -> Iterator[Totals]:
        while True:
            seeds = self._next(1)
            for kind in self._kinds:
                yield simulate_range(kind, seeds)

    def _in_parallel(self, jobs: int) -> Iterator[Totals]:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=be_quiet) as pool:
            running: set[Future[Totals]] = set()
            try:
                while True:
                    while len(running) < 2 * jobs:
                        seeds = self._next(_CHUNK)
                        running |= {pool.submit(simulate_range, kind, seeds) for kind in self._kinds}
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def __str__(self) -> str:
        totals = self.totals
        minutes = max(self.took_ms, 1) / 60_000
        faults, met = (
            ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            for counts in (totals.faults, totals.met)
        )
        kinds = ", ".join(f"{count} {kind}" for kind, count in totals.histories.items())
        return (
            f"{totals.operations.total()} operations in {totals.histories.total()} histories ({kinds}; seeds "
            f"{self.first_seed} to {self.next_seed - 1}), {totals.histories.total() / minutes:.0f} a minute; "
            f"{totals.acknowledged} records acknowledged; {totals.faults.total()} faults ({faults}); {met}; "
            f"{totals.unknown} sends of unknown outcome, {totals.unknown_visible} of their records visible; "
            f"slowest recovery {totals.worst_recovery_us / 1e6:.1f} s; "
            f"{len(totals.failures)} histories with anomalies"
        )
