"""DescribeTopicPartitions: what it says, and page after page."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from sparklog_server.api import metadata
from sparklog_server.protocol.responses import topic_id_text
from tests.server.api.controlling import settled
from tests.support.wire_client import WireClient

DESCRIBE_TOPIC_PARTITIONS = 75
MINIMUM = -(1 << 31)


def described(
    asker: WireClient, *names: str, cursor: tuple[str, int] | None = None, limit: int = 2000
) -> Any:
    fields: dict[str, Any] = {}
    if cursor is not None:
        fields["cursor"] = {"_": "Cursor", "topic_name": cursor[0], "partition_index": cursor[1]}
    topics = [{"_": "TopicRequest", "name": name} for name in names]
    return asker.ask(DESCRIBE_TOPIC_PARTITIONS, 0, topics=topics, response_partition_limit=limit, **fields)


def told(response: Any) -> list[tuple[str, str, list[int]]]:
    return [
        (topic.name, topic.error_code.name, [one.partition_index for one in topic.partitions])
        for topic in response.topics
    ]


def cursor_of(response: Any) -> tuple[str, int] | None:
    one = response.next_cursor
    return None if one is None else (one.topic_name, one.partition_index)


@pytest.fixture
def log(log: sparklog.SparkLog) -> sparklog.SparkLog:
    for name, partitions in (("b", 3), ("a", 2), ("c", 1), ("__consumer_offsets", 1)):
        log.create_topic(name, partitions)
    return log


def test_everything_about_a_topic(asker: WireClient, log: sparklog.SparkLog) -> None:
    settled(log)
    (topic,) = described(asker, "b").topics
    assert (topic.error_code, topic.name, topic.is_internal) == (ErrorCode.none, "b", False)
    assert topic_id_text(topic.topic_id) == log.image.topic("b").topic_id
    assert topic.topic_authorized_operations == 3576
    for number, one in enumerate(topic.partitions):
        assert (one.error_code, one.partition_index, one.leader_id) == (ErrorCode.none, number, 1)
        assert (one.leader_epoch, one.replica_nodes, one.isr_nodes) == (1, (1,), (1,))
        assert (one.offline_replicas, one.eligible_leader_replicas, one.last_known_elr) == ((), (), ())


def test_topics_are_told_once_and_in_the_order_of_their_names(
    asker: WireClient, log: sparklog.SparkLog
) -> None:
    assert log.partition_count("a") == 2
    assert told(described(asker)) == [
        ("__consumer_offsets", "none", [0]),
        ("a", "none", [0, 1]),
        ("b", "none", [0, 1, 2]),
        ("c", "none", [0]),
    ]
    assert described(asker).topics[0].is_internal
    assert told(described(asker, "c", "x", "../x", "a", "c")) == [
        ("../x", "invalid_topic_exception", []),
        ("a", "none", [0, 1]),
        ("c", "none", [0]),
        ("x", "unknown_topic_or_partition", []),
    ]


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_pages_hold_every_partition_once(asker: WireClient, log: sparklog.SparkLog, limit: int) -> None:
    assert log.partition_count("b") == 3
    found: list[tuple[str, int]] = []
    cursor = None
    for _ in range(10):
        response = described(asker, cursor=cursor, limit=limit)
        page = [(topic.name, one.partition_index) for topic in response.topics for one in topic.partitions]
        assert len(page) <= limit
        found += page
        cursor = cursor_of(response)
        if cursor is None:
            break
    wanted = [("__consumer_offsets", 0), ("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
    assert found == wanted
    assert cursor is None


def test_a_page_has_one_partition_at_least_and_a_bound(
    asker: WireClient, log: sparklog.SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert log.topics()
    for limit in (0, -1, MINIMUM):
        response = described(asker, "a", limit=limit)
        assert (told(response), cursor_of(response)) == ([("a", "none", [0])], ("a", 1))
    monkeypatch.setattr(metadata, "MAX_PARTITIONS", 4)
    response = described(asker, "a", "b", limit=(1 << 31) - 1)
    assert told(response) == [("a", "none", [0, 1]), ("b", "none", [0, 1])]
    assert cursor_of(response) == ("b", 2)


def test_a_cursor_may_be_of_a_topic_that_is_gone(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.delete_topic("b")
    assert told(described(asker, cursor=("b", 2))) == [("c", "none", [0])]
    assert told(described(asker, "b", "c", cursor=("b", 2))) == [
        ("b", "unknown_topic_or_partition", []),
        ("c", "none", [0]),
    ]
    assert told(described(asker, cursor=("a", 7)))[0] == ("a", "none", [])


@pytest.mark.parametrize("cursor", [("c", 0), ("a", -1)])
def test_a_cursor_that_makes_no_sense(
    asker: WireClient, log: sparklog.SparkLog, cursor: tuple[str, int]
) -> None:
    assert log.topics()
    assert told(described(asker, "a", "b", cursor=cursor)) == [
        ("a", "invalid_request", []),
        ("b", "invalid_request", []),
    ]
