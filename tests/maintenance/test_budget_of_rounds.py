"""Budgets of rounds: seconds, bytes, and bytes and removed files a second; and rounds that are to end."""

import itertools

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.maintenance import Budget, MergeLimits, Terms, maintain
from sparklog.maintenance.budget import Meter, StoppedError
from sparklog.maintenance.rounds import STEPS
from sparklog.maintenance.sweep import DAY_MS
from sparklog.metadata import MetadataLog
from sparklog.storage import MemoryStore
from tests.maintenance.conftest import Append, extents, records
from tests.maintenance.rounds_told import DEAD, clock_of, outcomes, step


def many_works(log: SparkLog, append: Append) -> Terms:
    """Six extents in each of two partitions: two works, since they go to segments of their own."""
    for partition in range(2):
        for number in range(6):
            append([b"%d" % number * 100], partition=partition)
    return Terms(limits=MergeLimits(fan_in=3, shared_bytes=0))


def test_what_is_behind_a_large_work_has_its_turn(log: SparkLog, append: Append) -> None:
    """However little the small works leave of the bytes that are due before it each time."""
    for topic in "abc":
        log.create_topic(topic, 1)
    for _ in range(4):
        append([b"x" * 100_000], topic="b")
        append([b"y"], topic="c")
    log.close()
    terms = Terms(limits=MergeLimits(fan_in=4, shared_bytes=0))
    for _ in range(3):
        for _ in range(4):
            append([b"x" * 200], topic="a")
        maintain(log.metadata, log.clock, terms, steps=["optimize"], budget=Budget(max_bytes=400_500))
    assert [len(extents(log, topic)) for topic in "bc"] == [1, 1]


def test_a_budget_of_bytes_bounds_a_round_but_not_its_first_work(log: SparkLog, append: Append) -> None:
    terms = many_works(log, append)
    report = maintain(log.metadata, log.clock, terms, budget=Budget(max_bytes=1))
    assert outcomes(report)["optimize"] == "cut"
    assert [len(extents(log, "t", partition)) for partition in range(2)] == [1, 6]
    assert (
        outcomes(maintain(log.metadata, log.clock, terms, budget=Budget(max_bytes=1)))["optimize"] == "done"
    )
    assert [len(extents(log, "t", partition)) for partition in range(2)] == [1, 1]


def test_nothing_begins_after_the_time_is_up(log: SparkLog, append: Append) -> None:
    terms = many_works(log, append)

    def later(_progress: object) -> None:
        clock_of(log).advance_ms(500)

    report = maintain(log.metadata, log.clock, terms, budget=Budget(seconds=0.1), progress=later)
    assert outcomes(report)["optimize"] == "cut"
    assert [len(extents(log, "t", partition)) for partition in range(2)] == [1, 6]


def test_the_rate_is_of_bytes_read_and_written() -> None:
    clock = ManualClock()
    began_ms = clock.monotonic_ms()
    meter = Meter(Budget(bytes_per_second=1000), clock)
    for _ in range(10):
        meter.spend(1000)  # read, and written
    assert clock.monotonic_ms() - began_ms == pytest.approx(20_000 - 1000, abs=1100)


def test_removing_files_has_a_rate_of_its_own() -> None:
    clock = ManualClock()
    began_ms = clock.monotonic_ms()
    meter = Meter(Budget(files_per_second=100), clock)
    meter.spend(10**9)
    for _ in range(10):
        meter.spend_files(100)
    assert clock.monotonic_ms() - began_ms == pytest.approx(10_000 - 1000, abs=1100)


def test_a_vacuum_of_a_round_keeps_to_it() -> None:
    clock = ManualClock()
    store = MemoryStore("rate", clock=clock)  # its dates are those of the clock
    log = SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
    log.create_topic("t", 1)
    for number in range(256):
        log.alter_topic("t", {"segment.ms": str(number + 1)})
    for number in range(20):
        log.store.put_if_absent(f"segments/{DEAD}/{number:08d}.0.log", b"x")
    clock_of(log).advance_ms(8 * DAY_MS)
    log.alter_topic("t", {"segment.ms": "999"})
    clock_of(log).advance_ms(8 * DAY_MS)
    began_ms = clock_of(log).monotonic_ms()
    report = maintain(log.metadata, log.clock, steps=["vacuum"], budget=Budget(files_per_second=1))
    assert step(report, "vacuum").figures["files"] == 20
    assert clock_of(log).monotonic_ms() - began_ms >= 19_000


def test_a_vacuum_that_is_to_end_does(log: SparkLog) -> None:
    for number in range(256):
        log.alter_topic("t", {"segment.ms": str(number + 1)})
    log.store.put_if_absent(f"segments/{DEAD}/00000000.0.log", b"x")
    asked = itertools.count(1)
    report = maintain(log.metadata, log.clock, steps=["vacuum"], is_stopped=lambda: next(asked) > 1)
    assert (report.is_stopped, report.steps) == (True, ())


def test_who_was_slow_may_catch_up_for_a_second_only() -> None:
    clock = ManualClock()
    meter = Meter(Budget(bytes_per_second=1000), clock)
    clock.advance_ms(60_000)
    rested = clock.monotonic_ms()
    for _ in range(5):
        meter.spend(500)
    assert clock.monotonic_ms() - rested == 4_000


def test_a_round_that_is_to_end_breaks_off_within_a_work(log: SparkLog, append: Append) -> None:
    terms = many_works(log, append)
    asked = itertools.count(1)
    begun = [step.name for step in STEPS].index("optimize") + 1  # each step asks before it begins
    report = maintain(log.metadata, log.clock, terms, is_stopped=lambda: next(asked) > begun)
    assert report.is_stopped
    assert outcomes(report)["optimize"] == "cut"
    assert len(extents(log)) == 6
    assert len(records(log)) == 6


def test_rests_end_when_the_round_is_to_end() -> None:
    clock = ManualClock()
    ended: list[bool] = []
    rests: list[float] = []

    def rest(duration_ms: float) -> None:
        rests.append(duration_ms)
        ended.append(True)

    meter = Meter(Budget(bytes_per_second=1), clock, is_stopped=lambda: bool(ended), rest_ms=rest)
    with pytest.raises(StoppedError):
        meter.spend(10**9)
    assert rests == [200.0]
