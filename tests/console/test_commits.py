"""The metadata log as a timeline, a commit, the state after it, and what differs between two."""

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from sparklog.client import SparkLog
from sparklog.console import commits
from tests.console.conftest import NOW_MS, rows
from tests.support.cluster_root import ClusterRoot

Get = Callable[[str], Any]


def test_the_newest_come_first(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("orders")
    log.append("orders", rows(3))
    found = api("/commits")
    assert (found["newest"], found["oldest"], found["older"]) == (1, 0, None)
    last, first = found["commits"]
    assert (last["commit"], last["timestamp_ms"], last["actions"]) == (1, NOW_MS, 1)
    assert last["summary"].startswith("3 records, ")
    assert first["summary"] == "topic orders with 1 partition"
    assert "topic orders with 1 partition" in page("/commits")


def test_authors_are_named(log: SparkLog, api: Get) -> None:
    ClusterRoot(log, nodes=(1, 2)).fence(2)
    by = [one["by"] for one in api("/commits")["commits"]]
    assert by[0] == ["controller 1 of epoch 1"]
    assert ["broker 2"] in by


def test_pages_and_new_commits(log: SparkLog, api: Get) -> None:
    for number in range(2 * commits.PER_PAGE + 7):
        log.create_topic(f"t{number}")
    first = api("/commits")
    assert [one["commit"] for one in first["commits"]] == list(range(106, 56, -1))
    second = api(f"/commits?before={first['older']}")
    assert [one["commit"] for one in second["commits"]] == list(range(56, 6, -1))
    third = api(f"/commits?before={second['older']}")
    assert [one["commit"] for one in third["commits"]] == list(range(6, -1, -1))
    assert third["older"] is None
    log.create_topic("later")
    assert api("/commits")["commits"][0]["summary"] == "topic later with 1 partition"


def test_a_filter_looks_far_back_and_says_where_it_stopped(
    log: SparkLog, api: Get, page: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "MAX_SCANNED", 60)
    log.create_topic("orders")
    for number in range(100):
        log.create_topic(f"t{number}")
    found = api("/commits?filter=ORDERS")
    assert (found["commits"], found["older"]) == ([], 41)
    assert "None of those that were looked at, down to 41," in page("/commits?filter=ORDERS")
    (row,) = api("/commits?filter=ORDERS&before=41")["commits"]
    assert row["commit"] == 0


def test_a_commit_with_all_its_actions(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("orders", configs={"retention.ms": "5"})
    found = api("/commits/0")
    (action,) = found["actions"]
    assert (action["type"], action["words"]) == ("create_topic", "topic orders with 1 partition")
    assert '"retention.ms": "5"' in action["fields"]
    assert (found["commit"], found["newest"], found["previous"]) == (0, 0, "")
    assert "create_topic topic orders with 1 partition" in page("/commits/0")


def test_long_lists_of_a_commit_are_cut(log: SparkLog, api: Get) -> None:
    log.create_topic("orders", partitions=50)
    log.append("orders", rows(2_000))
    fields = api("/commits/1")["actions"][0]["fields"]
    assert '"and 30 more"' in fields


def test_the_state_after_a_commit(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("orders", configs={"retention.ms": "5"})
    log.append("orders", rows(3))
    log.commit_offsets("etl", {("orders", 0): 1})
    log.append("orders", rows(4))
    log.delete_topic("orders")
    then = api("/commits/2/state")
    sizes = {one["name"]: one["records"] for one in then["topics"]}
    assert (then["commit"], sizes) == (2, {"__consumer_offsets": 1, "orders": 3})
    assert then["groups"] == [{"group": "etl", "partitions": 1, "lag": 2}]
    now = api("/commits/4/state")
    assert [one["name"] for one in now["topics"]] == ["__consumer_offsets"]
    assert now["groups"] == []
    assert "State after commit 2" in page("/commits/2/state")
    assert [one["name"] for one in api("/commits/2/state?filter=ord")["topics"]] == ["orders"]


def test_groups_of_the_past_are_left_out_where_they_are_many(
    log: SparkLog, api: Get, page: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.commit_offsets("etl", {("orders", 0): 1})
    monkeypatch.setattr(commits, "MAX_GROUP_BYTES", 10)
    assert api("/commits/0/state")["groups"] is None
    assert "Too many to read" in page("/commits/0/state")


def test_what_differs_between_two_commits(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    cluster = ClusterRoot(log, nodes=(1, 2))
    log.create_topic("kept")
    log.create_topic("old")
    cluster.assign("kept", (1, 2))
    first = cluster.lead("kept", 1)
    log.append("kept", rows(3))
    log.alter_root(set={"retention.ms": "7"})
    log.alter_topic("kept", set={"retention.ms": "9"})
    log.delete_topic("old")
    log.create_topic("new", partitions=2)
    log.commit_offsets("etl", {("kept", 0): 2})
    cluster.lead("kept", 2)
    last = cluster.fence(2)
    found = api(f"/diff?from={first}&to={last}")
    changes = {(one["kind"], one["subject"]): (one["before"], one["after"]) for one in found["changes"]}
    assert changes["setting", "retention.ms"] == (None, "7")
    assert changes["setting", "kept: retention.ms"] == (None, "9")
    assert changes["topic", "old"] == ("0 records, 0 bytes in 0 extents, 1 partition", None)
    assert changes["topic", "new"] == (None, "0 records, 0 bytes in 0 extents, 2 partitions")
    assert changes["topic", "kept"][0] == "0 records, 0 bytes in 0 extents, 1 partition"
    assert changes["leader", "kept-0"] == ("broker 1", None)
    assert changes["broker", "2"] == ("running, epoch 2", "fenced, epoch 2")
    assert changes["group", "etl: kept-0"] == (None, "2")
    assert api(f"/diff?from={last}&to={first}") == found
    assert f"From {first} to {last}" in page(f"/diff?from={first}&to={last}")
    assert found["change_count"] == len(found["changes"])


def test_nothing_differs(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("orders")
    assert api("/diff?from=0&to=0")["changes"] == []
    assert "No topic, setting, broker, leader or group differs." in page("/diff?from=0")


def test_an_empty_log_has_nothing_to_compare(client: TestClient) -> None:
    assert client.get("/diff").status_code == 404
