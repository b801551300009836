"""Kafka's tools for clusters against three brokers over one root."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sparklog
from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_tools import run_tool
from sparklog.metadata import Image
from tests.peers.conftest import Tool
from tests.server.api.controlling import reassign
from tests.support.broker_process import BrokerProcess, until
from tests.support.wire_client import WireClient

NODES = (1, 2, 3)
QUICK = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "300"}


@contextmanager
def running(root: Path) -> Iterator[dict[int, BrokerProcess]]:
    """By node id."""
    started: dict[int, BrokerProcess] = {}
    try:
        for node in NODES:
            settings = {**QUICK, "node.id": str(node), "broker.rack": f"rack-{node}"}
            started[node] = BrokerProcess(root, settings)
        yield started
        assert not any("Traceback" in one.errors() for one in started.values())
    finally:
        for one in started.values():
            one.close()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, BrokerProcess]]:
    """Which all tests share that kill none."""
    with running(tmp_path_factory.mktemp("brokers") / "log") as started:
        yield started


def tool_for(jars: Jars, brokers: dict[int, BrokerProcess]) -> Tool:
    """Runs a tool against them."""
    where = ("--bootstrap-server", ",".join(one.bootstrap for one in brokers.values()))

    def run(name: str, *words: str, stdin: str | None = None) -> str:
        if name == "kafka-cluster":  # its first word is what it is to do
            return run_tool(jars, name, *words, *where, stdin=stdin)
        return run_tool(jars, name, *where, *words, stdin=stdin)

    return run


@pytest.fixture
def tool(kafka_jars: Jars, brokers: dict[int, BrokerProcess]) -> Tool:
    return tool_for(kafka_jars, brokers)


@pytest.fixture
def image(brokers: dict[int, BrokerProcess]) -> Iterator[Callable[[], Image]]:
    """The newest."""
    with sparklog.open(str(brokers[1].root), create=False) as log:
        yield lambda: log.refresh(force=True)


def replicas(image: Image, topic: str) -> list[tuple[int, ...]]:
    return [one.leadership.replicas for one in image.topic(topic).partitions]


def leaders(image: Image, topic: str) -> list[int]:
    return [one.leadership.leader for one in image.topic(topic).partitions]


def plan_file(path: Path, topic: str, *lists: list[int]) -> str:
    """What --reassignment-json-file takes."""
    partitions = [{"topic": topic, "partition": number, "replicas": one} for number, one in enumerate(lists)]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def test_who_is_there(tool: Tool, brokers: dict[int, BrokerProcess], image: Callable[[], Image]) -> None:
    text = tool("kafka-broker-api-versions")
    for node, one in brokers.items():
        assert f"{one.bootstrap} (id: {node} rack: rack-{node} isFenced: false)" in text
    assert text.count("DescribeTopicPartitions(75): 0 [usable: 0]") == len(NODES)
    assert "UNSUPPORTED" not in re.sub(r"\w+\(\d+\): UNSUPPORTED", "", text)
    status = tool("kafka-metadata-quorum", "describe", "--status")
    found = dict(line.split(maxsplit=1) for line in status.splitlines())
    now = image().controller
    assert (found["LeaderId:"], found["LeaderEpoch:"]) == (str(now.node_id), str(now.controller_epoch))
    assert (found["MaxFollowerLag:"], found["MaxFollowerLagTimeMs:"]) == ("0", "0")
    assert sorted(map(int, re.findall(r'"id": (\d+)', found["CurrentVoters:"]))) == list(NODES)
    text = tool("kafka-metadata-quorum", "describe", "--replication")
    rows = [line.split() for line in text.splitlines() if line][1:]
    assert sorted(row[-1] for row in rows) == ["Follower", "Follower", "Leader"]
    assert {row[3] for row in rows} == {"0"}
    assert "FinalizedVersionLevel" in tool("kafka-features", "describe")
    text = tool("kafka-cluster", "list-endpoints")
    assert [line.split()[0] for line in text.splitlines() if line[:1].isdigit()] == ["1", "2", "3"]


def test_replicas_and_preferred_leaders(tool: Tool, image: Callable[[], Image]) -> None:
    words = ("--topic", "spread", "--partitions", "6", "--replication-factor", "3")
    assert "Created topic spread." in tool("kafka-topics", "--create", *words)
    text = tool("kafka-topics", "--describe", "--topic", "spread")
    assert "PartitionCount: 6\tReplicationFactor: 3" in text
    for number, (leader, one) in enumerate(
        zip(leaders(image(), "spread"), replicas(image(), "spread"), strict=True)
    ):
        listed = ",".join(map(str, one))
        assert f"Partition: {number}\tLeader: {leader}\tReplicas: {listed}\tIsr: {listed}" in text
    assert tool("kafka-topics", "--describe", "--unavailable-partitions").strip() == ""
    assert tool("kafka-topics", "--describe", "--under-replicated-partitions").strip() == ""


def test_reassignments(tool: Tool, image: Callable[[], Image], tmp_path: Path) -> None:
    tool("kafka-topics", "--create", "--topic", "moved", "--replica-assignment", "1:2,2:1")
    assert replicas(image(), "moved") == [(1, 2), (2, 1)]
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "moved"}]}))
    words = ("--topics-to-move-json-file", str(topics), "--broker-list", "2,3", "--generate")
    text = tool("kafka-reassign-partitions", *words)
    current, proposed = (json.loads(line) for line in text.splitlines() if line.startswith("{"))
    assert [one["replicas"] for one in current["partitions"]] == [[1, 2], [2, 1]]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(proposed))
    text = tool("kafka-reassign-partitions", "--reassignment-json-file", str(plan), "--execute")
    assert "Successfully started partition reassignments for moved-0,moved-1" in text
    wanted = [tuple(one["replicas"]) for one in sorted(proposed["partitions"], key=lambda p: p["partition"])]
    assert replicas(image(), "moved") == wanted
    text = tool("kafka-reassign-partitions", "--reassignment-json-file", str(plan), "--verify")
    assert "Reassignment of partition moved-0 is completed." in text
    assert "Reassignment of partition moved-1 is completed." in text
    assert "No partition reassignments found." in tool("kafka-reassign-partitions", "--list")


def test_elections(tool: Tool, image: Callable[[], Image], tmp_path: Path) -> None:
    tool("kafka-topics", "--create", "--topic", "elected", "--replica-assignment", "1:2,1:2")
    plan = plan_file(tmp_path / "plan.json", "elected", [2, 1], [2, 1])
    tool("kafka-reassign-partitions", "--reassignment-json-file", plan, "--execute")
    assert leaders(image(), "elected") == [1, 1]  # who leads stays, and is not preferred any more
    words = ("--election-type", "preferred", "--topic", "elected", "--partition", "0")
    text = tool("kafka-leader-election", *words)
    assert "Successfully completed leader election (PREFERRED) for partitions elected-0" in text
    assert leaders(image(), "elected") == [2, 1]
    assert "Valid replica already elected for partitions elected-0" in tool("kafka-leader-election", *words)
    everything = ("--election-type", "preferred", "--all-topic-partitions")
    assert "elected-1" in tool("kafka-leader-election", *everything)
    assert leaders(image(), "elected") == [2, 2]


def test_a_broker_that_is_away(kafka_jars: Jars, tmp_path: Path) -> None:
    root = tmp_path / "log"
    with running(root) as brokers, sparklog.open(str(root), create=False) as log:
        tool = tool_for(kafka_jars, brokers)
        tool("kafka-topics", "--create", "--topic", "lost", "--replica-assignment", "3:1,1:2")
        tool("kafka-topics", "--create", "--topic", "single", "--replica-assignment", "3")
        brokers[3].kill()
        until(lambda: log.refresh(force=True).brokers[3].is_fenced, what="broker 3 is fenced")
        text = tool("kafka-topics", "--describe", "--topic", "lost", "--under-replicated-partitions")
        assert re.findall(r"Partition: (\d+)", text) == ["0"]
        text = tool("kafka-topics", "--describe", "--unavailable-partitions")
        assert re.findall(r"Topic: (\S+)\tPartition: (\d+)\tLeader: (\S+)", text) == [("single", "0", "none")]
        text = tool("kafka-cluster", "list-endpoints", "--include-fenced-brokers")
        assert re.search(r"^3\s.*\sfenced\s", text, re.MULTILINE)
        # A reassignment to it (which the tool would not begin) waits, is listed, and is called off.
        plan = plan_file(tmp_path / "plan.json", "lost", [2, 3])
        now = brokers[log.refresh(force=True).controller.node_id]
        with WireClient(now.host, now.port) as asker:
            assert reassign(asker, {("lost", 0): (2, 3)}) == ("none", {("lost", 0): "none"})
        assert "lost-0: replicas: 2,3,1. adding: 2. removing: 1." in tool(
            "kafka-reassign-partitions", "--list"
        )
        text = tool("kafka-reassign-partitions", "--reassignment-json-file", plan, "--verify")
        assert "Reassignment of partition lost-0 is still in progress." in text
        # (It would ask broker 3, too, to forget throttles, and wait for it.)
        words = ("--reassignment-json-file", plan, "--cancel", "--preserve-throttles")
        text = tool("kafka-reassign-partitions", *words)
        assert "Successfully cancelled partition reassignment for: lost-0" in text
        assert replicas(log.refresh(force=True), "lost")[0] == (3, 1)
        # It will not come back: others are replicas in its place.
        assert "Broker 3 is no longer registered." in tool("kafka-cluster", "unregister", "--id", "3")
        assert sorted(log.refresh(force=True).brokers) == [1, 2]
        assert {node for one in replicas(log.refresh(force=True), "lost") for node in one} == {1, 2}
        assert replicas(log.refresh(force=True), "single")[0] in {(1,), (2,)}
        assert tool("kafka-topics", "--describe", "--unavailable-partitions").strip() == ""
