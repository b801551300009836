"""DescribeQuorum: the metadata log, in Kafka's words for its own."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from sparklog.clock import SystemClock
from tests.server.api.controlling import settled
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

DESCRIBE_QUORUM = 55


def asked(name: str = "__cluster_metadata", *partitions: int) -> list[dict[str, Any]]:
    numbers = partitions or (0,)
    data = [{"_": "PartitionData", "partition_index": number} for number in numbers]
    return [{"_": "TopicData", "topic_name": name, "partitions": data}]


@pytest.mark.parametrize("version", range(3))
def test_one_broker_is_the_quorum(
    asker: WireClient, running_broker: RunningBroker, log: sparklog.SparkLog, version: int
) -> None:
    log.create_topic("a")
    settled(log)
    before_ms = SystemClock().now_ms()
    response = asker.ask(DESCRIBE_QUORUM, version, topics=asked())
    assert response.error_code is ErrorCode.none
    ((partition,),) = [topic.partitions for topic in response.topics]
    assert response.topics[0].topic_name == "__cluster_metadata"
    assert (partition.partition_index, partition.error_code) == (0, ErrorCode.none)
    assert (partition.leader_id, partition.observers) == (1, ())
    assert partition.leader_epoch == log.image.controller.controller_epoch == 1
    assert partition.high_watermark == log.refresh().commit + 1
    (voter,) = partition.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (1, partition.high_watermark)
    if version >= 1:
        assert voter.last_fetch_timestamp == -1
        assert before_ms <= voter.last_caught_up_timestamp <= SystemClock().now_ms()
    if version >= 2:
        (node,) = response.nodes
        assert node.node_id == 1
        assert [(one.host, one.port) for one in node.listeners] == [("127.0.0.1", running_broker.port)]


def test_there_is_no_other_quorum(asker: WireClient) -> None:
    for topics in (asked("orders"), asked("__cluster_metadata", 0, 1)):
        response = asker.ask(DESCRIBE_QUORUM, 2, topics=topics)
        errors = {one.error_code for topic in response.topics for one in topic.partitions}
        assert errors == {ErrorCode.unknown_topic_or_partition}
        assert response.nodes == ()
