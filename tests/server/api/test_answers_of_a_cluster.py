"""What brokers of one root tell clients of each other, and what is asked of their controller."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from tests.server.api.controlling import elect, reassign, reassignments, unregister
from tests.server.api.topic_requests import more_partitions, topic
from tests.support.broker_process import until
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

METADATA, CREATE_TOPICS, CREATE_PARTITIONS, DESCRIBE_QUORUM, DESCRIBE_CLUSTER = 3, 19, 37, 55, 60
Start = Callable[[int], RunningBroker]


@pytest.fixture
def start(start_broker: Callable[..., RunningBroker], tmp_path: Path) -> Start:
    """Start the broker of a number, in the rack of its letter, over the same root."""

    def one(node_id: int) -> RunningBroker:
        configs = {
            "node.id": str(node_id),
            "broker.rack": f"rack-{'abc'[(node_id - 1) % 3]}",
            "broker.session.timeout.ms": "60000",  # nobody is to be fenced by a busy machine
            "broker.heartbeat.interval.ms": "200",
        }
        return start_broker(configs, root=str(tmp_path / "log"))

    return one


@pytest.fixture
def three(start: Start) -> list[RunningBroker]:
    return [start(1), start(2), start(3)]


@pytest.fixture
def asked(three: list[RunningBroker]) -> Iterator[list[WireClient]]:
    """A client of each."""
    clients = [WireClient(one.host, one.port) for one in three]
    yield clients
    for client in clients:
        client.close()


@pytest.fixture
def log(three: list[RunningBroker]) -> Iterator[sparklog.SparkLog]:
    with sparklog.open(three[0].root, create=False) as log:
        yield log


def create(asker: WireClient, *topics: dict[str, Any], **fields: Any) -> list[Any]:
    values: dict[str, Any] = {"timeout": 30_000, "validate_only": False, **fields}
    return list(asker.ask(CREATE_TOPICS, 7, topics=topics, **values).topics)


def lists(log: sparklog.SparkLog, name: str) -> list[tuple[int, ...]]:
    return [one.leadership.replicas for one in log.refresh(force=True).topic(name).partitions]


def leaders(log: sparklog.SparkLog, name: str) -> list[int]:
    return [one.leadership.leader for one in log.refresh(force=True).topic(name).partitions]


def controller(log: sparklog.SparkLog, asked: list[WireClient]) -> WireClient:
    return asked[log.refresh(force=True).controller.node_id - 1]


def test_all_tell_of_all(three: list[RunningBroker], asked: list[WireClient], log: sparklog.SparkLog) -> None:
    (made,) = create(asked[1], topic("t", 6, 2))
    assert (made.error_code, made.num_partitions, made.replication_factor) == (ErrorCode.none, 6, 2)
    where = {node + 1: (one.host, one.port, f"rack-{'abc'[node]}") for node, one in enumerate(three)}
    for client in asked:
        for version in (12, 13):
            told = client.ask(METADATA, version, topics=None)
            assert {one.node_id: (one.host, one.port, one.rack) for one in told.brokers} == where
            assert told.controller_id == log.image.controller.node_id
            partitions = [one for each in told.topics if each.name == "t" for one in each.partitions]
            assert [one.replica_nodes for one in partitions] == lists(log, "t")
            assert {one.leader_id for one in partitions} == {1, 2, 3}
            assert all(set(one.isr_nodes) == set(one.replica_nodes) for one in partitions)
            assert {one.offline_replicas for one in partitions} == {()}
        cluster = client.ask(DESCRIBE_CLUSTER, 2)
        assert {one.broker_id: (one.host, one.port, one.rack) for one in cluster.brokers} == where
        assert cluster.controller_id == log.image.controller.node_id


def test_the_quorum_is_the_brokers(asked: list[WireClient], log: sparklog.SparkLog) -> None:
    topics = [
        {
            "_": "TopicData",
            "topic_name": "__cluster_metadata",
            "partitions": [{"_": "PartitionData", "partition_index": 0}],
        }
    ]
    for client in asked:
        response = client.ask(DESCRIBE_QUORUM, 2, topics=topics)
        (partition,) = response.topics[0].partitions
        now = log.refresh(force=True).controller
        assert (partition.leader_id, partition.leader_epoch) == (now.node_id, now.controller_epoch)
        voters = [one.replica_id for one in partition.current_voters]
        assert (voters[0], sorted(voters)) == (now.node_id, [1, 2, 3])
        assert {one.log_end_offset for one in partition.current_voters} == {partition.high_watermark}
        assert sorted(node.node_id for node in response.nodes) == [1, 2, 3]


def test_replicas_that_clients_ask_for(asked: list[WireClient], log: sparklog.SparkLog) -> None:
    assignments = [(0, [2, 1]), (1, [3, 2])]
    results = create(
        asked[2],
        topic("by-hand", assignments=assignments),
        topic("three", 2, 3),
        topic("one", 2, 1),
        topic("default", 2),
        topic("too-many", 2, 4),
        topic("stranger", assignments=[(0, [9])]),
    )
    assert {one.name: (one.error_code.name, one.replication_factor) for one in results} == {
        "by-hand": ("none", 2),
        "three": ("none", 3),
        "one": ("none", 1),
        "default": ("none", 3),
        "too-many": ("invalid_replication_factor", -1),
        "stranger": ("invalid_replica_assignment", -1),
    }
    (validated,) = create(asked[2], topic("not-made"), validate_only=True)
    assert validated.replication_factor == 3
    assert lists(log, "by-hand") == [(2, 1), (3, 2)]
    assert leaders(log, "by-hand") == [2, 3]
    assert [len(one) for one in lists(log, "three") + lists(log, "one")] == [3, 3, 1, 1]
    # More of them have as many, unless they are named.
    grown = asked[0].ask(
        CREATE_PARTITIONS,
        3,
        topics=[more_partitions("by-hand", 3, [[1, 3]]), more_partitions("one", 3)],
        timeout=30_000,
        validate_only=False,
    )
    assert [one.error_code for one in grown.results] == [ErrorCode.none] * 2
    assert lists(log, "by-hand") == [(2, 1), (3, 2), (1, 3)]
    assert [len(one) for one in lists(log, "one")] == [1, 1, 1]


def test_only_the_controller_reassigns_and_elects(asked: list[WireClient], log: sparklog.SparkLog) -> None:
    create(asked[0], topic("t", assignments=[(0, [1, 2]), (1, [1, 2])]))
    now = log.refresh(force=True).controller.node_id
    for node, client in enumerate(asked, 1):
        if node != now:
            told = dict.fromkeys([("t", 0)], "not_controller")
            assert reassign(client, {("t", 0): (2, 3)}) == ("not_controller", told)
            assert elect(client, ("t", 0)) == ("not_controller", {})
            assert elect(client, ("t", 0), version=0) == ("none", {("t", 0): "not_controller"})
    asker = controller(log, asked)
    assert reassign(asker, {("t", 0): (3, 2), ("t", 1): (2, 1)}) == (
        "none",
        {("t", 0): "none", ("t", 1): "none"},
    )
    assert (lists(log, "t"), leaders(log, "t")) == ([(3, 2), (2, 1)], [3, 1])
    assert elect(asker, ("t", 0), ("t", 1)) == (
        "none",
        {("t", 0): "election_not_needed", ("t", 1): "none"},
    )
    assert leaders(log, "t") == [3, 2]
    assert elect(asker, everything=True) == ("none", {})


def test_a_reassignment_to_who_is_not_there_waits_and_is_called_off(
    three: list[RunningBroker], asked: list[WireClient], log: sparklog.SparkLog
) -> None:
    create(asked[0], topic("t", assignments=[(0, [1, 2])]))
    three[2].stop()
    until(lambda: log.refresh(force=True).brokers[3].is_fenced, what="broker 3 is fenced")
    asker = controller(log, asked)
    assert reassign(asker, {("t", 0): (1, 3)}) == ("none", {("t", 0): "none"})
    waiting = {("t", 0): ((1, 3, 2), (3,), (2,))}
    for client in asked[:2]:
        assert reassignments(client) == reassignments(client, ("t", 0), ("none", 1)) == waiting
        assert reassignments(client, ("t", 1)) == {}
    assert reassign(asker, {("t", 0): None}) == ("none", {("t", 0): "none"})
    assert reassignments(asker) == {}
    assert lists(log, "t") == [(1, 2)]
    told = asked[0].ask(DESCRIBE_CLUSTER, 2, include_fenced_brokers=True)
    assert {one.broker_id: one.is_fenced for one in told.brokers} == {1: False, 2: False, 3: True}
    assert len(asked[0].ask(DESCRIBE_CLUSTER, 2).brokers) == 2
    assert len(asked[0].ask(METADATA, 13, topics=()).brokers) == 2


def test_a_broker_that_is_gone_is_forgotten(
    three: list[RunningBroker], asked: list[WireClient], log: sparklog.SparkLog
) -> None:
    create(asked[0], topic("t", assignments=[(0, [3, 1]), (1, [3, 2]), (2, [1, 2])]))
    assert unregister(asked[0], 3)[0] == "invalid_request"
    three[2].stop()
    until(lambda: log.refresh(force=True).brokers[3].is_fenced, what="broker 3 is fenced")
    now = log.refresh(force=True).controller.node_id
    elsewhere = asked[0 if now == 2 else 1]
    assert unregister(elsewhere, 3) == ("none", "")
    assert sorted(log.refresh(force=True).brokers) == [1, 2]
    assert {node for one in lists(log, "t") for node in one} == {1, 2}
    assert set(leaders(log, "t")) <= {1, 2}
    assert unregister(elsewhere, 3)[0] == "broker_id_not_registered"
