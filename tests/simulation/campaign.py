"""Many histories, one seed after the other, on both kinds of stores, and what they add up to."""

from collections import Counter
from collections.abc import Callable, Sequence

from sparklog.clock import Clock
from tests.simulation.simulate import KINDS, Outcome, simulate


class Campaign:
    """Runs histories and adds them up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.histories: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.failures: list[Outcome] = []
        self.unknown = 0
        self.worst_recovery_us = 0
        self.took_ms = 0

    def run(
        self,
        operations: int,
        *,
        kinds: Sequence[str] = KINDS,
        first_seed: int = 1,
        report: Callable[[str], object] = lambda text: None,
    ) -> None:
        """Go on until so many operations have ended well; stops at the tenth failure."""
        start_ms = self._clock.monotonic_ms()
        seed = first_seed
        next_report = operations // 20
        while self.operations.total() < operations and len(self.failures) < 10:
            for kind in kinds:
                self.add(simulate(seed, kind), report)
            seed += 1
            self.took_ms = self._clock.monotonic_ms() - start_ms
            if self.operations.total() >= next_report:
                next_report += operations // 20
                report(f"seed {seed}: {self}")

    def add(self, outcome: Outcome, report: Callable[[str], object]) -> None:
        """Count one history."""
        self.histories[outcome.kind] += 1
        self.operations[outcome.kind] += outcome.operations
        self.faults += outcome.faults
        self.unknown += outcome.verdict.unknown if outcome.verdict is not None else 0
        self.worst_recovery_us = max(self.worst_recovery_us, outcome.recovery_us)
        if not outcome.is_clean:
            self.failures.append(outcome)
            report(str(outcome))

    def __str__(self) -> str:
        minutes = max(self.took_ms, 1) / 60_000
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.histories.total()} histories ({dict(self.histories)}), {self.operations.total()} "
            f"operations, {self.histories.total() / minutes:.0f} histories/minute; "
            f"{self.faults.total()} faults ({faults}); {self.unknown} sends of unknown outcome; "
            f"slowest recovery {self.worst_recovery_us / 1e6:.1f} s; "
            f"{len(self.failures)} histories with anomalies"
        )
