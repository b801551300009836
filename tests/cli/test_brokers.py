"""`sparklog brokers`, `partitions` and `controller`: what a root says of those who serve it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.log.config import broker_key
from sparklog.metadata import PartitionLeadership, plan_set_configs
from tests.cli.conftest import Run
from tests.support.cluster_root import ClusterRoot

RunJson = Callable[..., Any]


@pytest.fixture
def log(root: Path) -> sparklog.SparkLog:
    return sparklog.open(root)


@pytest.fixture
def cluster(log: sparklog.SparkLog) -> ClusterRoot:
    """Topic orders: partition n is led by broker n + 1, its first replica."""
    cluster = ClusterRoot(log)
    log.create_topic("orders", partitions=3)
    cluster.assign("orders", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    cluster.lead("orders", 1, 2, 3)
    return cluster


# --- brokers ------------------------------------------------------------------------------------------


def test_brokers_are_listed_with_their_state(cluster: ClusterRoot, run: Run, run_json: RunJson) -> None:
    cluster.begin_shutdown(2)
    cluster.fence(3)
    assert [line.split() for line in run("brokers", "list").stdout.splitlines()] == [
        ["ID", "STATE", "CONTROLLER", "ADDRESS", "RACK", "LEADS", "EPOCH", "SEEN"],
        ["1", "running", "true", "localhost:9091", "-", "1", "1", "-"],
        ["2", "stopping", "false", "localhost:9092", "-", "1", "2", "-"],
        ["3", "fenced", "false", "localhost:9093", "-", "0", "3", "-"],
    ]
    assert run_json("brokers", "list")[0] == {
        "id": 1,
        "state": "running",
        "controller": True,
        "address": "localhost:9091",
        "rack": None,
        "leads": 1,
        "epoch": 1,
        "seen_ms": None,
    }


def test_a_broker_is_described(cluster: ClusterRoot, run: Run, run_json: RunJson) -> None:
    cluster.join(7, 9099, rack="east")
    cluster.lead("orders", 2)
    found = run_json("brokers", "describe", "2")
    one = cluster.image.brokers[2]
    assert found == {
        "id": 2,
        "state": "running",
        "controller": False,
        "address": "localhost:9092",
        "rack": None,
        "leads": 2,
        "epoch": one.broker_epoch,
        "seen_ms": None,
        "incarnation_id": one.incarnation_id,
        "listeners": [{"host": "localhost", "port": 9092}],
        "preferred": 1,
        "replicas": 3,
    }
    told = [line.split(":", 1) for line in run("brokers", "describe", "7").stdout.splitlines()]
    told_as = {label: text.strip() for label, text in told}
    assert (told_as["Broker"], told_as["Rack"], told_as["Controller"]) == ("7", "east", "false")
    assert (told_as["Leads"], told_as["Listener"]) == ("0", "localhost:9099")
    missing = run("brokers", "describe", "9", exit_code=1).stderr
    assert "BROKER_MISSING" in missing
    assert "registered: 1, 2, 3, 7" in missing


def test_a_broker_is_described_with_its_settings(cluster: ClusterRoot, run: Run, run_json: RunJson) -> None:
    own, of_all = broker_key(1, "max.connections"), broker_key(None, "max.connections")
    values = {own: "7", of_all: "9", "retention.ms": "1000"}
    change = plan_set_configs(cluster.image, None, values)
    assert change is not None
    cluster.log.metadata.publish(lambda _: [change])
    shown = {one["name"]: one for one in run_json("brokers", "describe", "1", "--all")["settings"]}
    assert shown["max.connections"] == {
        "name": "max.connections",
        "value": "7",
        "source": "broker",
        "overridden": [{"value": "9", "source": "all brokers"}],
    }
    assert (shown["retention.ms"]["source"], shown["segment.ms"]["source"]) == ("root", "default")
    lines = run("brokers", "describe", "1", "--all").stdout.splitlines()
    assert ["max.connections", "7"] in [line.split()[:2] for line in lines]
    assert "settings" not in run_json("brokers", "describe", "1")


def test_a_root_that_nobody_serves_has_no_brokers(
    log: sparklog.SparkLog, run: Run, run_json: RunJson
) -> None:
    log.create_topic("t")
    assert run("brokers", "list").stdout == "No broker is registered.\n"
    assert run_json("brokers", "list") == []
    assert "registered: none" in run("brokers", "describe", "1", exit_code=1).stderr
    assert run_json("controller", "describe")["id"] is None
    assert run("controller", "describe").stdout.splitlines()[0].split() == ["Controller:", "none"]
    assert [row["leader"] for row in run_json("partitions", "list")] == [None]
    assert run_json("partitions", "list", "--unavailable") == []


# --- partitions ---------------------------------------------------------------------------------------


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[1:]]


def test_partitions_are_listed_with_their_leaders(cluster: ClusterRoot, run: Run) -> None:
    cluster.log.create_topic("new")
    assert rows(run("partitions", "list").stdout) == [
        ["new", "0", "-", "0", "-", "-", "-", "-"],
        ["orders", "0", "1", "1", "1,2,3", "1,2,3", "-", "-"],
        ["orders", "1", "2", "1", "2,3,1", "2,3,1", "-", "-"],
        ["orders", "2", "3", "1", "3,1,2", "3,1,2", "-", "-"],
    ]
    cluster.assign("orders", PartitionLeadership((2, 3, 1), adding=(2,), removing=(1,)))
    assert rows(run("partitions", "list", "-t", "orders").stdout)[0][-2:] == ["2", "1"]
    assert "did you mean 'orders'" in run("partitions", "list", "-t", "order", exit_code=1).stderr


def test_those_that_want_something_are_listed_alone(cluster: ClusterRoot, run_json: RunJson) -> None:
    def numbers(*words: str) -> list[int]:
        return [row["partition"] for row in run_json("partitions", "list", *words)]

    assert numbers("--under-replicated") == numbers("--unavailable") == numbers("--not-preferred") == []
    cluster.assign("orders", (1, 2), (2, 3, 1), (3, 1, 2))
    cluster.lead("orders", 2)
    cluster.fence(3)
    assert numbers("--under-replicated") == [1, 2]
    assert numbers("--unavailable") == [2]
    assert numbers("--not-preferred") == [0]
    assert numbers("--not-preferred", "--unavailable") == [0, 2]
    found = run_json("controller", "describe")
    assert found == {
        "id": 1,
        "address": "localhost:9091",
        "controller_epoch": 1,
        "broker_epoch": 1,
        "brokers": 3,
        "fenced_brokers": 1,
        "stopping_brokers": 0,
        "partitions": 3,
        "unavailable_partitions": 1,
        "under_replicated_partitions": 2,
        "not_preferred_partitions": 1,
        "reassignments": 0,
    }


def test_replicas_that_come_do_not_make_a_partition_under_replicated(
    cluster: ClusterRoot, run_json: RunJson
) -> None:
    cluster.fence(3)
    cluster.assign("orders", PartitionLeadership((1, 3, 2), adding=(3,)), (2, 1))
    found = run_json("partitions", "list", "--under-replicated")
    assert [(row["partition"], row["isr"]) for row in found] == [(2, [1, 2])]


def test_the_controller_that_is_fenced_is_none(cluster: ClusterRoot, run: Run, run_json: RunJson) -> None:
    cluster.fence(1)
    found = run_json("controller", "describe")
    assert (found["id"], found["address"], found["controller_epoch"]) == (None, None, 1)
    assert "Controller epoch:     1" in run("controller", "describe").stdout


def test_who_led_before_is_one_flag_away(cluster: ClusterRoot, run_json: RunJson) -> None:
    before = str(cluster.image.commit)
    cluster.fence(3)
    cluster.elect(2)
    cluster.log.delete_topic("orders")

    def states(*words: str) -> list[str]:
        return [row["state"] for row in run_json("brokers", "list", *words)]

    assert (states(), states("--at", before)) == (["running", "running", "fenced"], ["running"] * 3)
    assert run_json("brokers", "describe", "3", "--at", before)["leads"] == 1
    assert [run_json("controller", "describe", *words)["id"] for words in ((), ("--at", before))] == [2, 1]
    assert run_json("partitions", "list") == []
    found = run_json("partitions", "list", "--topic", "orders", "--at", before)
    assert [row["leader"] for row in found] == [1, 2, 3]


# --- topics -------------------------------------------------------------------------------------------


def test_topics_are_described_with_their_leaders(cluster: ClusterRoot, run: Run, run_json: RunJson) -> None:
    cluster.fence(3)
    heading, *_ = run("topics", "describe", "-t", "orders").stdout.splitlines()
    assert "\tPartitionCount: 3\tReplicationFactor: 3\tConfigs: " in heading
    (topic,) = run_json("topics", "describe", "-t", "orders")
    fields = ("leader", "leader_epoch", "replicas", "isr")
    assert [[one[field] for field in fields] for one in topic["partitions"]] == [
        [1, 1, [1, 2, 3], [1, 2]],
        [2, 1, [2, 3, 1], [2, 1]],
        [None, 2, [3, 1, 2], [1, 2]],
    ]


@pytest.mark.parametrize("command", [("topics", "describe"), ("kafka-topics", "--describe")])
def test_kafkas_filters_of_partitions(
    cluster: ClusterRoot, run_json: RunJson, command: tuple[str, ...]
) -> None:
    def numbers(*words: str) -> list[int]:
        return [row["partition"] for row in run_json(*command, *words)]

    assert numbers("--under-replicated-partitions") == numbers("--unavailable-partitions") == []
    cluster.assign("orders", (1, 2))
    cluster.fence(3)
    assert numbers("--under-replicated-partitions") == [1, 2]
    assert numbers("--unavailable-partitions") == [2]
    assert numbers("--unavailable-partitions", "--topic", "orders") == [2]
    cluster.log.create_topic("other")
    assert numbers("--under-replicated-partitions", "--topic", "other") == []


def test_the_python_client_says_who_leads(cluster: ClusterRoot) -> None:
    cluster.fence(2)
    found = cluster.log.describe_topic("orders").partitions
    assert [(one.leader, one.leader_epoch, one.replicas, one.isr) for one in found] == [
        (1, 1, (1, 2, 3), (1, 3)),
        (None, 2, (2, 3, 1), (3, 1)),
        (3, 1, (3, 1, 2), (3, 1)),
    ]


# --- root and doctor ----------------------------------------------------------------------------------


def test_the_root_says_who_serves_it(cluster: ClusterRoot, run: Run, run_json: RunJson) -> None:
    cluster.fence(3)
    lines = run("root", "describe").stdout.splitlines()
    assert lines[1] == "Brokers: 1,2\tFenced: 3\tController: 1"
    found = run_json("root", "describe")
    assert [one["state"] for one in found["brokers"]] == ["running", "running", "fenced"]
    assert found["controller"] == 1


def checked(run_json: RunJson) -> tuple[str, str, str | None]:
    (found,) = [one for one in run_json("doctor") if one["check"] == "brokers"]
    return found["status"], found["detail"], found["fix"]


@pytest.mark.slow
def test_the_doctor_looks_at_the_brokers(cluster: ClusterRoot, run_json: RunJson) -> None:
    assert checked(run_json) == ("ok", "1 (controller), 2, 3", None)
    cluster.begin_shutdown(2)
    cluster.fence(3)
    status, detail, fix = checked(run_json)
    assert (status, fix is not None and "partitions list --unavailable" in fix) == ("warn", True)
    assert detail.startswith("1 (controller), 2 (stopping), 3 (fenced); ")
    assert detail.endswith("; partitions that nobody leads: 1")
    cluster.lead("orders", 1, 1, 1)
    status, detail, fix = checked(run_json)
    assert (status, fix is not None and "brokers unregister ID" in fix) == ("warn", True)
    assert "nobody leads" not in detail
    cluster.fence(1)
    assert checked(run_json)[1].endswith(": no controller")
    cluster.fence(2)
    assert "no broker runs" in checked(run_json)[1]


@pytest.mark.slow
def test_the_doctor_has_no_word_for_brokers_where_there_never_were_any(
    log: sparklog.SparkLog, run_json: RunJson
) -> None:
    log.create_topic("t")
    assert [one for one in run_json("doctor") if one["check"] == "brokers"] == []
