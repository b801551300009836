"""Groups: lag in records and in seconds, what was lost, what was deleted."""

from collections.abc import Callable
from typing import Any

import pytest

from sparklog.client import SparkLog
from sparklog.console import groups
from sparklog.metadata import plan_advance_log_start
from tests.console.conftest import NOW_MS, rows

Get = Callable[[str], Any]


@pytest.fixture
def orders(log: SparkLog) -> SparkLog:
    """Ten records in each of two partitions, a second apart, the last now."""
    log.create_topic("orders", partitions=2)
    for partition in range(2):
        log.append("orders", rows(10), partition=partition)
    return log


def test_lag_in_records_and_seconds(orders: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    orders.commit_offsets("etl", {("orders", 0): 10, ("orders", 1): 3})
    (row,) = api("/groups")["groups"]
    assert row == {
        "group": "etl",
        "type": "classic",
        "topics": ["orders"],
        "deleted_topics": [],
        "partitions": 2,
        "lag": 7,
        "lag_ms": 6_000,  # record 3 is the first that is not read
        "lost": 0,
        "committed_ms": NOW_MS,
        "consumed_per_second": None,
        "lag_minutes": [None] * 60,
    }
    first, second = api("/group?group=etl")["offsets"]
    assert (first["lag"], first["lag_ms"]) == (0, None)
    assert (second["offset"], second["log_end_offset"], second["lag"]) == (3, 10, 7)
    assert second["lag_ms"] == 6_000
    assert "6.0 s" in page("/groups")
    assert "6.0 s" in page("/group?group=etl")


def test_seconds_go_on_while_nothing_is_read(orders: SparkLog, api: Get) -> None:
    orders.commit_offsets("etl", {("orders", 0): 3})
    assert api("/group?group=etl")["group"]["lag_ms"] == 6_000
    orders.clock.sleep_ms(30_000)
    assert api("/group?group=etl")["group"]["lag_ms"] == 36_000


def test_the_furthest_behind_come_first(orders: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    for name, offset in (("a", 9), ("b", 0), ("c", 5)):
        orders.commit_offsets(name, {("orders", 0): offset})
    assert [one["group"] for one in api("/groups")["groups"]] == ["b", "c", "a"]
    assert [one["group"] for one in api("/groups?sort=group")["groups"]] == ["a", "b", "c"]
    assert [one["group"] for one in api("/groups?filter=C")["groups"]] == ["c"]
    assert "1 group match" in page("/groups?filter=C")


def test_records_that_were_removed_before_they_were_read(orders: SparkLog, api: Get) -> None:
    orders.commit_offsets("etl", {("orders", 0): 2})
    topic_id = orders.image.topic("orders").topic_id
    advanced = plan_advance_log_start(orders.image, topic_id, 0, 6)
    assert advanced is not None
    orders.metadata.publish(lambda _image: [advanced])
    found = api("/group?group=etl")
    (row,) = found["offsets"]
    assert (row["lag"], row["lost"], row["lag_ms"]) == (
        8,
        4,
        3_000,
    )  # the lag is Kafka's: the log's end less the offset
    assert found["group"]["lost"] == 4
    (problem,) = [one for one in api("/overview")["problems"] if one["check"] == "groups"]
    assert "etl (4)" in problem["detail"]


def test_what_was_deleted_has_no_lag(orders: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    orders.commit_offsets("etl", {("gone", 0): 5, ("orders", 7): 5})
    (row,) = api("/groups")["groups"]
    assert (row["topics"], row["deleted_topics"], row["lag"]) == ([], ["gone", "orders"], 0)
    assert [one["lag"] for one in api("/group?group=etl")["offsets"]] == [None, None]
    assert "gone deleted" in page("/group?group=etl")


def test_only_so_many_records_are_read_for_an_answer(
    orders: SparkLog, api: Get, page: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_READ", 2)
    orders.commit_offsets("b", {("orders", 0): 3, ("orders", 1): 2})
    orders.commit_offsets("a", {("orders", 0): 9})
    assert [one["lag_ms"] for one in api("/groups")["groups"]] == [7_000, None]
    assert "?" in page("/groups")


def test_no_group(page: Callable[[str], str]) -> None:
    assert "No group has committed offsets." in page("/groups")
