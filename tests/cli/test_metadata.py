"""`sparklog metadata`: what a root says at any commit, and its commits in words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from tests.cli.conftest import Run
from tests.support.cluster_root import ClusterRoot

RunJson = Callable[..., Any]
HOUR_MS = 3_600_000


@pytest.fixture
def cluster(root: Path) -> ClusterRoot:
    """Topic orders, partition 0 of brokers 1 to 3, led by 1; partition 1 of 2 and 3, led by 2."""
    log = sparklog.open(root)
    cluster = ClusterRoot(log)
    log.create_topic("orders", partitions=2, configs={"segment.bytes": "1000"})
    cluster.assign("orders", (1, 2, 3), (2, 3))
    cluster.lead("orders", 1, 2)
    return cluster


def test_the_metadata_shows_brokers_topics_and_leaders(
    cluster: ClusterRoot, run: Run, run_json: RunJson
) -> None:
    cluster.fence(3)
    image = cluster.image
    found = run_json("metadata", "show")
    assert list(found) == ["commit", "cluster_id", "configs", "controller", "brokers", "topics"]
    assert (found["commit"], found["cluster_id"]) == (image.commit, cluster.log.cluster_id)
    assert found["controller"] == run_json("controller", "describe")
    assert [(one["id"], one["state"]) for one in found["brokers"]] == [
        (1, "running"),
        (2, "running"),
        (3, "fenced"),
    ]
    (topic,) = found["topics"]
    assert topic["configs"] == {"segment.bytes": "1000"}
    assert topic["partitions"] == run_json("partitions", "list")
    lines = run("metadata", "show").stdout.splitlines()
    assert lines[1].split()[:3] == ["ID", "STATE", "CONTROLLER"]
    assert f"TopicId: {topic['topic_id']}" in lines[5]
    assert lines[-2].split()[:6] == ["orders", "0", "1", "1", "1,2,3", "1,2"]


def test_internal_topics_are_left_out_of_the_text(cluster: ClusterRoot, run: Run, run_json: RunJson) -> None:
    cluster.log.commit_offsets("g", {("orders", 0): 0})
    shown = run("metadata", "show")
    assert "__consumer_offsets" not in shown.stdout
    assert "--topic __consumer_offsets" in shown.stderr
    assert [one["topic"] for one in run_json("metadata", "show")["topics"]] == [
        "__consumer_offsets",
        "orders",
    ]
    assert len(run("metadata", "show", "--topic", "__consumer_offsets").stdout.splitlines()) > 50


def test_yesterdays_leadership_is_one_flag_away(cluster: ClusterRoot, run: Run, run_json: RunJson) -> None:
    before = cluster.image.commit
    cluster.lead("orders", 3, 3)

    def leader(*words: str) -> object:
        return run_json("metadata", "show", *words)["topics"][0]["partitions"][0]["leader"]

    assert [leader(), leader("--at", str(before)), leader("--at", "0s")] == [3, 1, 3]
    shown = run("metadata", "show", "--at", "2999-01-01T00:00+01:00")
    assert shown.stderr == f"Commit {before + 1} was the newest then.\n"
    assert "COMMIT_MISSING" in run("metadata", "show", "--at", "1d", exit_code=1).stderr
    newer = run("metadata", "show", "--at", str(before + 9), exit_code=1).stderr
    assert f"found commits up to {before + 1}, expected commit {before + 9}" in newer
    assert "expected a commit's number, a time" in run("metadata", "show", "--at", "soon", exit_code=2).stderr


def test_what_does_not_go_together_is_refused(cluster: ClusterRoot, run: Run) -> None:
    for words in (("controller",), ("3", "--at", "2"), ("3", "--topic", "orders")):
        assert "expected a commit's number alone" in run("metadata", "show", *words, exit_code=2).stderr
    assert "TOPIC_MISSING" in run("metadata", "show", "--topic", "order", exit_code=1).stderr


# --- commits ------------------------------------------------------------------------------------------


def test_commits_are_told_one_a_line(cluster: ClusterRoot, run: Run, run_json: RunJson) -> None:
    cluster.fence(2)
    cluster.log.append("orders", pa.table({"value": [b"x"]}), partition=0)
    lines = run("metadata", "log", "--from", "1").stdout.splitlines()
    number, time, *rest = lines[0].split()
    assert (number, time[-1], rest[:3]) == ("1", "Z", ["broker", "1", "broker"])
    told = [line.split("Z  ")[1] for line in lines]
    topic = cluster.image.topic("orders")
    assert told == [
        "broker 1  broker 1 joins at localhost:9091, epoch 1",
        "broker 2  broker 2 joins at localhost:9092, epoch 2",
        "broker 3  broker 3 joins at localhost:9093, epoch 3",
        "broker 1  broker 1 is controller, epoch 1",
        "-  topic orders with 2 partitions",
        "controller 1 of epoch 1  replicas: orders-0 [1,2,3], orders-1 [2,3]",
        "controller 1 of epoch 1  leaders: orders-0 broker 1 (epoch 1), orders-1 broker 2 (epoch 1)",
        "controller 1 of epoch 1  broker 2 of epoch 2 is fenced",
        told[-1],
    ]
    assert told[-1].startswith("-  1 record, ")
    assert told[-1].endswith(" B, to orders-0")
    (last,) = run_json("metadata", "log", "--max", "1")
    assert list(last) == ["commit", "timestamp_ms", "by", "actions"]
    assert last["commit"] == cluster.image.commit
    assert [one["commit"] for one in run_json("metadata", "log", "--from", "2", "--max", "3")] == [2, 3, 4]
    (shown,) = run_json("metadata", "log", "--from", "5", "--max", "1")
    assert shown["actions"] == [{"type": "create_topic", "words": "topic orders with 2 partitions"}]
    assert topic.topic_id not in "".join(lines)


def test_a_commit_is_shown_in_full(cluster: ClusterRoot, run: Run, run_json: RunJson) -> None:
    commit = cluster.lead("orders", 3)
    heading, action = run("metadata", "show", str(commit)).stdout.splitlines()
    assert heading.split("  ")[-1] == "controller 1 of epoch 1"
    assert action == "  elect_leaders: leaders: orders-0 broker 3 (epoch 2)"
    found = run_json("metadata", "show", str(commit))
    assert (found["commit"], found["version"], found["uuid"]) == (commit, 1, cluster.image.commit_uuid)
    (action,) = found["actions"]
    assert (action["type"], action["leader"], action["leader_epoch"]) == ("elect_leaders", 3, 2)


def test_commits_that_are_gone_are_named(cluster: ClusterRoot, run: Run, run_json: RunJson) -> None:
    kept = cluster.image.commit
    cluster.log.metadata.write_snapshot()
    for number in range(5):
        cluster.log.create_topic(f"t{number}")
        cluster.log.metadata.write_snapshot()
    assert cluster.log.metadata.clean(grace_ms=-HOUR_MS) > 0
    gone = run("metadata", "show", "2", exit_code=1).stderr
    assert "COMMIT_MISSING" in gone
    assert (
        f"commit 2 has been cleaned: commit {kept + 4} is the oldest that is left, up to {kept + 5}" in gone
    )
    assert "COMMIT_MISSING" in run("metadata", "log", "--from", "1", exit_code=1).stderr
    assert "COMMIT_MISSING" in run("metadata", "show", "--at", "3", exit_code=1).stderr
    assert [one["commit"] for one in run_json("metadata", "log")] == [kept + 4, kept + 5]
    assert "found commits up to" in run("metadata", "log", "--from", "99", exit_code=1).stderr
    assert "found commits up to" in run("metadata", "show", "99", exit_code=1).stderr


def test_deleted_topics_have_the_name_that_they_were_made_with(
    cluster: ClusterRoot, run_json: RunJson
) -> None:
    first = cluster.image.commit + 1
    cluster.log.create_topic("gone")
    topic_id = cluster.image.topic("gone").topic_id
    cluster.log.delete_topic("gone")
    told = [one["actions"][0]["words"] for one in run_json("metadata", "log", "--from", str(first))]
    assert told == ["topic gone with 1 partition", "topic gone is deleted"]
    (unknown,) = run_json("metadata", "log", "--max", "1")
    assert unknown["actions"][0]["words"] == f"topic {topic_id} is deleted"


def test_who_was_controller_is_said_as_far_as_it_is_known(cluster: ClusterRoot, run_json: RunJson) -> None:
    cluster.elect(2)
    cluster.lead("orders", 3)
    assert [one["by"] for one in run_json("metadata", "log", "--max", "2")] == [
        ["broker 2"],
        ["controller 2 of epoch 2"],
    ]
    (before,) = run_json("metadata", "log", "--from", "7", "--max", "1")
    assert before["by"] == ["controller of epoch 1"]
    cluster.fence(2)
    (now,) = run_json("metadata", "log", "--from", "9", "--max", "1")
    assert now["by"] == ["controller of epoch 2"]
