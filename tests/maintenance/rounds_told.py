"""What rounds of maintenance say, in short."""

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.maintenance import MergeLimits, RoundReport, StepReport, Terms

DEAD = "d" * 32  # a writer
FEW = Terms(limits=MergeLimits(fan_in=3))


def outcomes(report: RoundReport) -> dict[str, str]:
    return {one.step: one.outcome for one in report.steps}


def step(report: RoundReport, name: str) -> StepReport:
    return next(one for one in report.steps if one.step == name)


def clock_of(log: SparkLog) -> ManualClock:
    assert isinstance(log.clock, ManualClock)
    return log.clock
