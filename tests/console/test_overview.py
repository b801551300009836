"""The first page: problems, sizes, brokers, groups, commits per minute."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

import sparklog
from sparklog.client import SparkLog
from sparklog.console.app import create_app
from tests.console.conftest import NOW_MS, rows
from tests.support.cluster_root import ClusterRoot

Get = Callable[[str], Any]


def test_the_root_in_one_look(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("orders", partitions=3)
    log.append("orders", rows(20))
    log.commit_offsets("etl", {("orders", 0): 0})
    found = api("/overview")
    assert (found["topics"], found["partitions"], found["records"]) == (2, 53, 21)
    assert (found["cluster_id"], found["commit"], found["newest_ms"]) == (log.cluster_id, 2, NOW_MS)
    assert [one["group"] for one in found["groups"]] == ["etl"]
    assert [one["commit"] for one in found["commits"]] == [2, 1, 0]
    assert (found["problems"], found["brokers"], found["controller"]) == ([], [], None)
    assert "No problems." in page("/")


def test_brokers_and_their_problems_come_first(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    cluster = ClusterRoot(log)
    cluster.fence(3)
    found = api("/overview")
    assert [(one["node_id"], one["state"]) for one in found["brokers"]] == [
        (1, "running"),
        (2, "running"),
        (3, "fenced"),
    ]
    assert found["controller"] == 1
    (problem,) = found["problems"]
    assert (problem["check"], problem["severity"]) == ("brokers", "warn")
    text = page("/")
    assert text.index("1 problem") < text.index("Consumer groups")
    assert "sparklog brokers unregister ID" in text


def test_commits_in_each_minute_of_the_last_hour(log: SparkLog, api: Get) -> None:
    for minutes in (70, 30, 0, 0):
        log.clock.sleep_ms(60_000 * minutes)
        log.create_topic(f"t{log.refresh().commit}")
    counts = api("/overview")["commit_minutes"]
    assert (len(counts), counts[-1], counts[-31], sum(counts)) == (60, 3, 1, 4)


def test_findings_about_a_directory(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with sparklog.open(root) as log:
        root.chmod(0o777)
        with TestClient(create_app(log)) as client:
            found = client.get("/api/v1/overview").json()
        root.chmod(0o755)
    assert "permissions" in [one["check"] for one in found["problems"]]
    assert {"file system", "free space", "temporary files"} <= set(found["checked"])


def test_what_is_damaged_is_a_problem_and_the_rest_is_shown(log: SparkLog, client: TestClient) -> None:
    log.create_topic("orders")
    log.commit_offsets("etl", {("orders", 0): 0})
    for file in log.store.list("segments", recursive=True):
        log.store.delete(file.name)
    found = client.get("/api/v1/overview").json()
    assert [(one["check"], one["severity"]) for one in found["problems"]] == [("groups", "fail")]
    assert (found["topics"], found["groups"]) == (2, [])
    assert client.get("/").status_code == 200
    assert client.get("/groups").status_code == 503


def test_minutes_whose_commits_were_cleaned_are_not_zero(log: SparkLog, api: Callable[[str], Any]) -> None:
    for number in range(5):
        log.create_topic(f"t{number}")
        log.clock.advance_ms(60_000)  # type: ignore[attr-defined]
    assert api("/overview")["commit_minutes"][-6:] == [1, 1, 1, 1, 1, 0]
    assert api("/overview")["commit_minutes"][0] == 0  # the log began later
    for number in range(2):
        log.store.delete(f"__cluster_metadata/{number:020d}.json")
    log.clock.advance_ms(60_000)  # type: ignore[attr-defined]
    counts = api("/overview")["commit_minutes"]
    assert (counts[0], counts[-7:]) == (None, [None, None, 1, 1, 1, 0, 0])
