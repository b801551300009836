"""The list of topics, and one topic with what lies underneath it."""

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from sparklog.client import SparkLog
from sparklog.console.app import create_app
from sparklog.console.topics import MAX_SEGMENTS, SLICES
from tests.console.conftest import NOW_MS, rows
from tests.support.cluster_root import ClusterRoot

Get = Callable[[str], Any]


def names(found: Any) -> list[str]:
    return [one["name"] for one in found["topics"]]


def test_a_topic_in_the_list(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("orders", partitions=2)
    log.append("orders", rows(10, time_ms=NOW_MS - 60_000), partition=0)
    log.append("orders", rows(5), partition=1)
    (row,) = api("/topics")["topics"]
    size = sum(one.size_bytes for one in log.describe_topic("orders").partitions)
    assert {key: value for key, value in row.items() if key != "retention"} == {
        "name": "orders",
        "internal": False,
        "partitions": 2,
        "records": 15,
        "produced_per_second": None,
        "size_bytes": size,
        "extents": 2,
        "oldest_ms": NOW_MS - 60_000,
    }
    assert "1 topic · 15 records" in page("/topics")
    assert "1 m ago" in page("/topics")


def test_retention_has_its_source(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("a", configs={"retention.ms": "3600000"})
    log.create_topic("b", configs={"cleanup.policy": "compact"})
    log.create_topic("c")
    log.alter_root(set={"retention.ms": "86400000"})
    found = {
        one["name"]: {each["name"]: (each["value"], each["source"]) for each in one["retention"]}
        for one in api("/topics")["topics"]
    }
    assert found["a"]["retention.ms"] == ("3600000", "topic")
    assert found["b"]["cleanup.policy"] == ("compact", "topic")
    assert found["c"]["retention.ms"] == ("86400000", "root")
    assert found["c"]["retention.bytes"] == ("-1", "default")
    text = page("/topics")
    for shown in ("1 h topic", "compact topic", "1 d root"):
        assert shown in text


def test_filter_sort_and_pages(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    for number in range(105):
        log.create_topic(f"t{number:03d}", partitions=1 + number % 3)
    log.append("t042", rows(9))
    log.append("t007", rows(3))
    assert names(api("/topics")) == [f"t{number:03d}" for number in range(100)]
    second = api("/topics?page=2")
    assert names(second) == [f"t{number:03d}" for number in range(100, 105)]
    assert (second["paging"]["page"], second["paging"]["pages"], second["paging"]["total"]) == (2, 2, 105)
    assert names(api("/topics?page=99")) == names(second)
    assert names(api("/topics?sort=-records"))[:2] == ["t042", "t007"]
    assert names(api("/topics?sort=-size"))[:2] == ["t042", "t007"]
    assert names(api("/topics?sort=-name"))[0] == "t104"
    assert names(api("/topics?sort=nonsense"))[0] == "t000"
    assert names(api("/topics?filter=T04")) == [f"t04{number}" for number in range(10)]
    assert "10 topics match “T04” · 9 records" in page("/topics?filter=T04")
    assert "name has this in it." in page("/topics?filter=x")
    assert "Page 2 of 2" in page("/topics?page=2")


def test_partitions_with_leaders_and_offsets(log: SparkLog, api: Get) -> None:
    cluster = ClusterRoot(log)
    log.create_topic("orders", partitions=2)
    cluster.assign("orders", (1, 2), (3, 2))
    cluster.lead("orders", 1, 3)
    log.append("orders", rows(4), partition=0)
    cluster.fence(3)
    first, second = api("/topics/orders")["partitions"]
    assert (first["leader"], first["replicas"], first["isr"]) == (1, [1, 2], [1, 2])
    assert (first["log_start_offset"], first["log_end_offset"]) == (0, 4)
    assert (second["leader"], second["replicas"], second["isr"]) == (None, [3, 2], [2])
    assert (second["size_bytes"], second["slices"], second["oldest_ms"]) == (0, [], None)


def test_where_the_bytes_are(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("orders")
    for count in (50, 10, 10, 10):
        log.append("orders", rows(count))
    found = api("/topics/orders")
    (partition,) = found["partitions"]
    assert (partition["extents"], partition["segments"], len(partition["slices"])) == (4, 1, 4)
    shares = [one["share"] for one in partition["slices"]]
    assert sum(shares) == pytest.approx(1)
    assert shares[0] == max(shares)
    (segment,) = found["segments"]
    assert (segment["extents"], segment["partitions"]) == (4, 1)
    assert segment["size_bytes"] == found["size_bytes"]
    assert segment["segment"] in page("/topics/orders")


def test_many_extents_make_a_bar_of_few_slices(log: SparkLog, api: Get) -> None:
    log.create_topic("orders")
    for _ in range(SLICES + 7):
        log.append("orders", rows(1))
    (partition,) = api("/topics/orders")["partitions"]
    assert len(partition["slices"]) == SLICES
    assert sum(one["extents"] for one in partition["slices"]) == SLICES + 7


def test_many_segments_are_counted_and_few_are_listed(log: SparkLog, api: Get) -> None:
    log.create_topic("orders", configs={"segment.bytes": "100"})
    for _ in range(MAX_SEGMENTS + 3):
        log.append("orders", rows(1, size=100))
    found = api("/topics/orders")
    assert (len(found["segments"]), found["segment_count"]) == (MAX_SEGMENTS, MAX_SEGMENTS + 3)


def test_every_setting_with_its_source(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("orders", configs={"retention.ms": "3600000"})
    log.alter_root(set={"retention.ms": "1000", "segment.bytes": "1048576"})
    found = [one["config"] for one in api("/topics/orders")["settings"]]
    assert (found[0]["name"], found[0]["source"]) == ("retention.ms", "topic")
    assert found[0]["overridden"] == [
        {"value": "1000", "source": "root"},
        {"value": "-1", "source": "default"},
    ]
    assert (found[1]["name"], found[1]["source"]) == ("segment.bytes", "root")
    assert {one["source"] for one in found[2:]} == {"default"}
    text = page("/topics/orders")
    assert "1 h topic instead of 1 s (root)" in text
    assert "1 MiB root instead of 1 GiB (default)" in text


def test_what_maintenance_would_do(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("orders", configs={"retention.ms": "3600000"})
    assert "Nothing is due" in page("/topics/orders")
    log.append("orders", rows(10, time_ms=NOW_MS - 7_200_000))
    (due,) = api("/topics/orders")["due"]
    assert (due["step"], due["is_due"], due["detail"]) == ("expire", True, "10 offsets are past retention")
    assert "10 offsets are past retention" in page("/topics/orders")


def test_rates_of_the_last_minute(log: SparkLog) -> None:
    """The console takes a sample when it starts; later ones are ten seconds of real time away."""
    log.create_topic("busy", partitions=2)
    log.create_topic("quiet")
    log.append("busy", rows(100))
    with TestClient(create_app(log)) as client:

        def get(path: str) -> Any:
            return client.get(f"/api/v1{path}").json()

        while get("/topics")["produced_per_second"] is None:
            log.clock.advance_ms(1000)  # type: ignore[attr-defined]
        assert get("/topics")["produced_per_second"] == 0
        log.append("busy", rows(500))
        log.create_topic("made")
        log.append("made", rows(10))
        listed = get("/topics?sort=-rate")
        assert [one["name"] for one in listed["topics"]] == ["busy", "made", "quiet"]
        busy, made, quiet = (one["produced_per_second"] for one in listed["topics"])
        assert (busy / made, quiet) == (50, 0)
        assert listed["produced_per_second"] == get("/overview")["produced_per_second"] == busy + made
        assert get("/topics/busy")["produced_per_second"] == busy
        assert "Written" in client.get("/topics/busy").text
