"""`groups` for share groups: what the root says of them, without a broker and with one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.metadata import plan_begin_share
from tests.cli.conftest import Run
from tests.server.api.share_requests import ACCEPT, Got, Worker, beat
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

RunJson = Callable[..., Any]


@pytest.fixture
def log(root: Path, run: Run) -> Iterator[SparkLog]:
    """Share group `workers` begins in both partitions of topic t, of 3 records each."""
    run("topics", "create", "--topic", "t", "--partitions", "2")
    for partition in "01":
        run("produce", "--topic", "t", "-p", partition, stdin="x\n" * 3)
    with sparklog.open(str(root), create=False) as log:
        topic_id = log.image.topic("t").topic_id
        starts = {(topic_id, number): number for number in range(2)}
        log.metadata.publish(lambda image: plan_begin_share(image, "workers", starts, is_reset=False))
        yield log


def rows(found: Any) -> list[tuple[object, ...]]:
    return [(one["topic"], one["partition"], one["current_offset"], one["lag"]) for one in found]


def test_described(log: SparkLog, run: Run, run_json: RunJson) -> None:
    assert run("groups", "list").stdout == "workers\n"
    found = run_json("groups", "describe", "--group", "workers")
    assert rows(found) == [("t", 0, 0, 3), ("t", 1, 1, 2)]
    assert rows(run_json("groups", "describe", "--all-groups")) == rows(found)
    assert run_json("groups", "describe", "--group", "workers", "--state")[0]["state"] == "Empty"


def test_reset(log: SparkLog, run: Run, run_json: RunJson) -> None:
    words = "groups", "reset-offsets", "--group", "workers"
    planned = run_json(*words, "--all-topics", "--to-latest")
    assert [one["current_offset"] for one in planned["partitions"]] == [0, 1]
    assert log.refresh(force=True).shares["workers"][log.image.topic("t").topic_id, 0].start_offset == 0
    run(*words, "--topic", "t:1", "--shift-by", "1", "--execute")
    assert rows(run_json("groups", "describe", "--group", "workers")) == [("t", 0, 0, 3), ("t", 1, 2, 1)]


def test_deleted(log: SparkLog, run: Run) -> None:
    words = "groups", "delete-offsets", "--group", "workers", "--yes", "--topic"
    assert "give whole topics" in run(*words, "t:0", exit_code=1).stderr
    assert "has not begun" in run(*words, "u", exit_code=1).stderr
    run("groups", "delete", "--group", "workers", "--yes")
    assert log.refresh(force=True).shares == {}
    assert "GROUP_ID_NOT_FOUND" in run("groups", "delete", "--group", "workers", "--yes", exit_code=1).stderr


def test_each_of_kafkas_tools_is_for_its_own_kind(log: SparkLog, run: Run, run_json: RunJson) -> None:
    """In Kafka --all-groups of kafka-share-groups touches no consumer group, nor the other way round."""
    log.commit_offsets("app", {("t", 0): 2})
    earliest = ("--reset-offsets", "--all-groups", "--topic", "t", "--to-earliest", "--execute")
    share, consumer = "kafka-share-groups", "kafka-consumer-groups"
    assert run(share, "--list").stdout == "workers\n"
    assert run(consumer, "--list").stdout == "app\n"
    assert rows(run_json(share, "--describe", "--all-groups")) == [("t", 0, 0, 3), ("t", 1, 1, 2)]
    assert rows(run_json(consumer, "--describe", "--all-groups")) == [("t", 0, 2, 1)]
    run(share, *earliest)
    assert log.committed_offsets("app") == {("t", 0): 2}
    for tool, name, kind in ((share, "app", "consumer"), (consumer, "workers", "share")):
        for words in (
            ("--describe",),
            ("--reset-offsets", "--topic", "t", "--to-latest", "--execute"),
            ("--delete-offsets", "--topic", "t", "--yes"),
            ("--delete", "--yes"),
        ):
            refused = run(tool, *words, "--group", name, exit_code=1)
            assert f"group '{name}' is a {kind} group: use kafka-{kind}-groups" in refused.stderr
    run(share, "--delete", "--all-groups", "--yes")
    assert run("groups", "list").stdout == "app\n"
    assert log.committed_offsets("app") == {("t", 0): 2}


def test_deleted_in_a_topic(log: SparkLog, run: Run) -> None:
    run("groups", "delete-offsets", "--group", "workers", "--yes", "--topic", "t")
    assert log.refresh(force=True).shares == {}


# --- with a broker -----------------------------------------------------------------------------------


@pytest.fixture
def ask(log: SparkLog, root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunJson]:
    """The commands, through a broker; member m-1 has acquired the records of partition 0."""
    broker = RunningBroker(str(root))
    try:
        broker.settle()
        monkeypatch.delenv("SPARKLOG_ROOT")
        with WireClient(broker.host, broker.port) as asker:
            beat(asker, topics=["t"])
            worker = Worker(asker, log.image.topic("t").topic_id)
            assert worker.fetch() == [Got(0, 2, 1)]
            assert worker.acknowledge({0: [(1, 1, ACCEPT)]}) == "none"
            yield lambda *words, **more: run("--bootstrap-server", broker.bootstrap, *words, **more)
    finally:
        broker.stop()


@pytest.mark.slow
def test_its_coordinator_knows_the_members(ask: RunJson) -> None:
    offsets = ask("groups", "describe", "--group", "workers").stdout.splitlines()[1:]
    assert [line.split()[:6] for line in offsets] == [
        ["workers", "t", "0", "0", "3", "2"],
        ["workers", "t", "1", "1", "3", "2"],
    ]
    members = ask("groups", "describe", "--group", "workers", "--members", "--verbose").stdout.splitlines()
    assert members[1].split() == ["workers", "m-1", "/127.0.0.1", "test", "2", "t:0,1"]
    state = ask("groups", "describe", "--group", "workers", "--state").stdout.splitlines()[1]
    assert state.split()[-4:] == ["simple", "Stable", "1", "share"]


@pytest.mark.slow
def test_a_group_with_members_is_not_changed(ask: RunJson) -> None:
    words = "groups", "reset-offsets", "--group", "workers", "--all-topics", "--to-earliest", "--execute"
    assert "only a group without members" in ask(*words, exit_code=1).stderr
    assert "NON_EMPTY_GROUP" in ask("groups", "delete", "--group", "workers", "--yes", exit_code=1).stderr
    words = "groups", "delete-offsets", "--group", "workers", "--topic", "t", "--yes"
    assert "NON_EMPTY_GROUP" in ask(*words, exit_code=1).stderr
