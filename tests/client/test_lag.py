"""Lag in seconds from the log itself, and the history of lag and rates, which is bounded."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.client.admin import delete_records
from sparklog.client.lag import LagHistory, lag_seconds
from sparklog.clock import ManualClock


def write(log: SparkLog, *times_ms: int, partition: int = 0, topic: str = "t") -> None:
    times = pa.array(times_ms, pa.timestamp("ms", "UTC"))
    log.append(
        topic, pa.table({"value": pa.array([b"v"] * len(times_ms)), "timestamp": times}), partition=partition
    )


# --- lag in seconds -----------------------------------------------------------------------------------


def test_the_first_unread_record_says_how_old_it_is(log: SparkLog, clock: ManualClock) -> None:
    now_ms = clock.now_ms()
    log.create_topic("t", 2)
    write(log, now_ms - 9000, now_ms - 2500, now_ms + 500)
    asked = [("t", 0, 0), ("t", 0, 1), ("t", 0, 2), ("t", 0, 3), ("t", 1, 0), ("gone", 0, 0), ("t", 0, 99)]
    assert list(lag_seconds(log, asked).values()) == [9.0, 2.5, 0.0, 0.0, 0.0, None, 0.0]


def test_what_has_expired_is_not_waited_for(log: SparkLog, clock: ManualClock) -> None:
    log.create_topic("t", 1)
    write(log, clock.now_ms() - 9000, clock.now_ms() - 2000)
    delete_records(log.metadata, {("t", 0): 1})
    assert lag_seconds(log, [("t", 0, 0)]) == {("t", 0, 0): 2.0}


def test_times_that_were_found_are_remembered(log: SparkLog, clock: ManualClock) -> None:
    log.create_topic("t", 1)
    write(log, clock.now_ms() - 9000)
    found: dict[object, int] = {}

    def remember(key: object, find: Callable[[], int]) -> int:
        return found[key] if key in found else found.setdefault(key, find())

    assert lag_seconds(log, [("t", 0, 0), ("t", 0, 1), ("gone", 0, 0)], remember=remember)["t", 0, 0] == 9.0
    assert list(found.values()) == [clock.now_ms() - 9000]
    clock.advance_ms(1000)
    for file in log.store.list("segments", recursive=True):
        log.store.delete(file.name)
    assert lag_seconds(log, [("t", 0, 0)], remember=remember) == {("t", 0, 0): 10.0}


# --- history ------------------------------------------------------------------------------------------


@pytest.fixture
def filled(log: SparkLog) -> SparkLog:
    log.create_topic("t", 2)
    write(log, *range(1, 11))
    write(log, *range(1, 11), partition=1)
    log.commit_offsets("g", {("t", 0): 4, ("t", 1): 10, ("gone", 0): 1})
    return log


def test_lag_and_rates_by_time(filled: SparkLog, clock: ManualClock) -> None:
    history = LagHistory(interval_ms=1000)
    first_ms = clock.now_ms()
    assert history.sample(filled)
    assert not history.sample(filled)
    clock.advance_ms(2000)
    write(filled, *range(20))
    filled.commit_offsets("g", {("t", 0): 10})
    assert history.sample(filled)
    points = history.points("g")
    assert [(one.at_ms - first_ms, one.lag) for one in points] == [(0, 6), (2000, 20)]
    assert (points[0].consumed_per_second, points[0].produced_per_second) == (None, None)
    assert (points[1].consumed_per_second, points[1].produced_per_second) == (3.0, 10.0)
    assert [one.lag for one in history.points("g", ("t", 1))] == [0, 0]
    assert [one.lag for one in history.points("g", since_ms=first_ms + 1)] == [20]
    assert (history.groups(), history.partitions("g")) == (["g"], [("t", 0), ("t", 1)])
    assert history.points("unheard of") == []


def test_a_reset_is_no_negative_rate(filled: SparkLog, clock: ManualClock) -> None:
    history = LagHistory(interval_ms=1000)
    history.sample(filled)
    clock.advance_ms(1000)
    filled.commit_offsets("g", {("t", 0): 0})
    history.sample(filled)
    assert history.points("g")[-1].consumed_per_second == 0


def test_old_samples_leave_and_groups_are_forgotten(filled: SparkLog, clock: ManualClock) -> None:
    history = LagHistory(interval_ms=1000, keep_ms=3000)
    for _ in range(10):
        history.sample(filled)
        clock.advance_ms(1000)
    points = history.points("g")
    assert len(points) == 4
    assert points[-1].at_ms - points[0].at_ms == 3000
    filled.commit_offsets("g", {("t", 0): None, ("t", 1): None, ("gone", 0): None})
    for left in (3, 2, 1, 0):
        history.sample(filled)
        clock.advance_ms(1000)
        assert len(history.points("g")) == left
    assert history.groups() == []


def test_no_more_partitions_than_there_is_room_for(filled: SparkLog, clock: ManualClock) -> None:
    history = LagHistory(interval_ms=1000, max_partitions=1)
    history.sample(filled)
    assert history.left_out == 1
    assert len(history.partitions("g")) == 1
    clock.advance_ms(1000)
    filled.commit_offsets("g", {("t", 1): None})
    history.sample(filled)
    assert history.left_out == 0


def test_a_partition_that_cannot_be_has_no_lag(filled: SparkLog, clock: ManualClock) -> None:
    history = LagHistory()
    history.add(clock.now_ms(), filled.image, {"g": {("t", -1): 1, ("t", 2): 1, ("t", 1): 7}})
    assert history.partitions("g") == [("t", 1)]
    assert [one.lag for one in history.points("g")] == [3]


def test_a_timer_that_ends_early_takes_its_sample(filled: SparkLog, clock: ManualClock) -> None:
    history = LagHistory(interval_ms=1000)
    taken = []
    for after_ms in (0, 899, 1, 900):
        clock.advance_ms(after_ms)
        taken.append(history.sample(filled))
    assert taken == [True, False, True, True]
