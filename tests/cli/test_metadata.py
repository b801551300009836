"""`sparklog metadata`: the registry of a root at any commit, and its commits in words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.cli.metadata import nodes, value_at
from sparklog.errors import InvalidRequestError
from sparklog.metadata import PartitionLeadership
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


def test_the_registry_has_kafkas_paths_and_values(cluster: ClusterRoot, run_json: RunJson) -> None:
    image = cluster.image
    found = run_json("metadata", "tree")
    assert (found["commit"], found["left_out"]) == (image.commit, 0)
    values = {node["path"]: node["value"] for node in found["nodes"]}
    assert list(values) == [
        "/brokers/ids/1",
        "/brokers/ids/2",
        "/brokers/ids/3",
        "/brokers/topics/orders",
        "/brokers/topics/orders/partitions/0/state",
        "/brokers/topics/orders/partitions/1/state",
        "/cluster/id",
        "/config/brokers/<default>",
        "/config/topics/orders",
        "/controller",
        "/controller_epoch",
    ]
    one = image.brokers[1]
    assert values["/brokers/ids/1"] == {
        "version": 5,
        "host": "localhost",
        "port": 9091,
        "endpoints": ["PLAINTEXT://localhost:9091"],
        "rack": None,
        "broker_epoch": one.broker_epoch,
        "incarnation_id": one.incarnation_id,
        "in_controlled_shutdown": False,
    }
    assert values["/brokers/topics/orders"] == {
        "version": 3,
        "topic_id": image.topic("orders").topic_id,
        "partitions": {"0": [1, 2, 3], "1": [2, 3]},
        "adding_replicas": {},
        "removing_replicas": {},
    }
    assert values["/brokers/topics/orders/partitions/1/state"] == {
        "version": 1,
        "controller_epoch": 1,
        "leader": 2,
        "leader_epoch": 1,
        "isr": [2, 3],
    }
    assert values["/config/topics/orders"] == {"version": 1, "config": {"segment.bytes": "1000"}}
    assert values["/controller"] == {"version": 1, "brokerid": 1, "broker_epoch": one.broker_epoch}
    assert values["/controller_epoch"] == 1
    assert values["/cluster/id"] == {"version": "1", "id": cluster.log.cluster_id}


def test_who_is_fenced_and_what_is_reassigned_is_there(cluster: ClusterRoot, run_json: RunJson) -> None:
    cluster.fence(3)
    cluster.assign("orders", PartitionLeadership((2, 3, 1), adding=(3,), removing=(1,)))
    values = {one["path"]: one["value"] for one in run_json("metadata", "tree")["nodes"]}
    assert "/brokers/ids/3" not in values
    assert values["/brokers/fenced/3"]["host"] == "localhost"
    assert values["/admin/reassign_partitions"] == {
        "version": 1,
        "partitions": [
            {
                "topic": "orders",
                "partition": 0,
                "replicas": [2, 3],
                "adding_replicas": [3],
                "removing_replicas": [1],
            }
        ],
    }
    assert values["/brokers/topics/orders"]["adding_replicas"] == {"0": [3]}
    assert values["/brokers/topics/orders/partitions/0/state"]["isr"] == [1, 2]
    cluster.fence(1)
    values = {one["path"]: one["value"] for one in run_json("metadata", "tree")["nodes"]}
    assert "/controller" not in values
    assert values["/controller_epoch"] == 1
    state = values["/brokers/topics/orders/partitions/0/state"]
    assert (state["leader"], state["leader_epoch"]) == (-1, 2)


def test_yesterdays_leadership_is_one_flag_away(cluster: ClusterRoot, run: Run, run_json: RunJson) -> None:
    before = cluster.image.commit
    cluster.lead("orders", 3, 3)
    path = "/brokers/topics/orders/partitions/0/state"

    def leader(*words: str) -> object:
        return run_json("metadata", "show", path, *words)["value"]["leader"]

    assert [leader(), leader("--at", str(before)), leader("--at", "0s")] == [3, 1, 3]
    shown = run("metadata", "tree", path, "--at", "2999-01-01T00:00+01:00")
    assert shown.stdout.startswith(f'{path}  {{"version": 1, ')
    assert shown.stderr == f"Commit {before + 1} was the newest then.\n"
    gone = run("metadata", "tree", "--at", "1d", exit_code=1).stderr
    assert "COMMIT_MISSING" in gone
    newer = run("metadata", "show", path, "--at", str(before + 9), exit_code=1).stderr
    assert f"found commits up to {before + 1}, expected commit {before + 9}" in newer
    assert "expected a commit's number, a time" in run("metadata", "tree", "--at", "soon", exit_code=2).stderr


def test_a_path_shows_its_value_or_what_is_below_it(
    cluster: ClusterRoot, run: Run, run_json: RunJson
) -> None:
    assert run("metadata", "show", "/controller_epoch").stdout == "1\n"
    assert run_json("metadata", "show", "/brokers/ids/")["value"] == ["1", "2", "3"]
    assert run_json("metadata", "show", "/")["value"] == [
        "brokers",
        "cluster",
        "config",
        "controller",
        "controller_epoch",
    ]
    assert run_json("metadata", "show", "/admin")["value"] == []
    assert run_json("metadata", "tree", "/admin")["nodes"] == []
    missing = run("metadata", "show", "/brokers/topics/order", exit_code=1).stderr
    assert "NODE_MISSING" in missing
    assert "did you mean '/brokers/topics/orders'" in missing
    assert "NODE_MISSING" in run("metadata", "tree", "/brokers/id", exit_code=1).stderr
    assert "expected a path" in run("metadata", "show", "controller", exit_code=2).stderr
    assert "expected a path" in run("metadata", "show", "3", "--at", "2", exit_code=2).stderr


def test_no_topic_is_taken_for_one_whose_name_it_begins(cluster: ClusterRoot) -> None:
    cluster.log.create_topic("orders.eu")
    found = [one.path for one in nodes(cluster.image, "/brokers/topics/orders")]
    assert [path for path in found if "orders.eu" in path] == []
    with pytest.raises(InvalidRequestError, match="NODE_MISSING"):
        value_at(cluster.image, "/brokers/topics/order")


def test_what_is_shown_is_bounded(cluster: ClusterRoot, run: Run, run_json: RunJson) -> None:
    cluster.log.create_topic("wide", partitions=1000)
    shown = run("metadata", "tree", "--max", "5")
    assert len(shown.stdout.splitlines()) == 5
    assert "1,007 more paths are not shown" in shown.stderr
    assert run_json("metadata", "tree", "--max", "5")["left_out"] == 1007
    (first, *_) = run("metadata", "tree", "/brokers/topics/wide").stdout.splitlines()
    assert first.endswith(" characters)")
    assert len(first) < 2_100
    assert len(run_json("metadata", "show", "/brokers/topics/wide")["value"]["partitions"]) == 1000


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
    assert "COMMIT_MISSING" in run("metadata", "tree", "--at", "3", exit_code=1).stderr
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
