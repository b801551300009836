"""What a round of maintenance would do, and the use of space."""

from collections.abc import Callable
from typing import Any

from sparklog.client import SparkLog
from sparklog.console.maintenance import due_work
from sparklog.maintenance import optimize
from sparklog.maintenance.rounds import STEPS
from tests.console.conftest import NOW_MS, rows

Get = Callable[[str], Any]


def test_nothing_is_due(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("orders")
    log.append("orders", rows(5))
    found = api("/maintenance")
    assert [one["step"] for one in found["steps"]] == [one.name for one in STEPS]
    assert [one["step"] for one in found["steps"] if one["is_due"]] == []
    assert (found["due"], found["last_vacuum_ms"]) == ([], None)
    assert found["most_extents"] == [["orders", 1, 1]]
    assert "never" in page("/maintenance")


def test_what_is_due_by_topic(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("old", configs={"retention.ms": "1000"})
    log.append("old", rows(5, time_ms=NOW_MS - 60_000))
    log.create_topic("small")
    for _ in range(256):
        log.append("small", rows(1))
    found = api("/maintenance")
    due = {(one["topic"], one["step"]): one for one in found["due"]}
    assert set(due) == {("old", "expire"), ("small", "optimize")}
    assert due["small", "optimize"]["extents"] == 256
    assert due["old", "expire"]["size_bytes"] > 0
    assert [one["step"] for one in found["steps"] if one["is_due"]] == ["expire", "optimize", "vacuum"]
    assert "256 small extents become few large ones" in page("/maintenance")


def test_compaction_is_due_or_the_reason_why_not(log: SparkLog) -> None:
    log.create_topic("latest", configs={"cleanup.policy": "compact"})
    (none,) = due_work(log.refresh(), NOW_MS, ["latest"])
    assert (none.is_due, none.detail) == (False, "no records")
    for _ in range(300):
        log.append("latest", rows(3))
    found = {one.step: one for one in due_work(log.refresh(), NOW_MS, ["latest"])}
    assert found["compact"].is_due
    assert found["compact"].size_bytes > 0


def test_the_use_of_space(log: SparkLog, api: Get) -> None:
    log.create_topic("orders")
    for _ in range(3):
        log.append("orders", rows(50))
    optimize(log.metadata, log.clock, ["orders"])
    space = api("/maintenance")["space"]
    assert space["live_files"] + space["unused_files"] > 0
    assert (space["is_whole"], space["problem"]) == (True, "")
