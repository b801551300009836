"""CreateTopics: what Kafka accepts and refuses, in every version."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

import sparklog
from sparklog_server.protocol.responses import topic_uuid
from tests.server.api.controlling import settled
from tests.server.api.topic_requests import topic
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient


def create(
    asker: WireClient, *topics: dict[str, Any], version: int = 7, validate_only: bool = False
) -> list[Any]:
    answer = asker.ask(19, version, topics=topics, timeout=30_000, validate_only=validate_only)
    return list(answer.topics)


def refused(asker: WireClient, one: dict[str, Any]) -> tuple[ErrorCode, str]:
    (result,) = create(asker, one)
    assert result.error_message is not None
    return result.error_code, result.error_message


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version_creates(asker: WireClient, log: sparklog.SparkLog, version: int) -> None:
    (result,) = create(asker, topic("t", 3, 1, configs={"retention.ms": "1000"}), version=version)
    assert result.error_code is ErrorCode.none
    assert log.describe_topic("t").configs == {"retention.ms": "1000"}
    assert log.partition_count("t") == 3
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        told = {entry.name: (entry.value, entry.config_source) for entry in result.configs}
        assert told["retention.ms"] == ("1000", 1)
        assert told["segment.bytes"] == ("1073741824", 5)
    if version >= 7:
        assert result.topic_id == topic_uuid(log.describe_topic("t").topic_id)


def test_minus_one_means_the_roots_defaults(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.alter_root(set={"num.partitions": "5"})
    (result,) = create(asker, topic("t"))
    assert result.num_partitions == 5
    assert log.partition_count("t") == 5


def test_the_offsets_topic_is_made_as_its_coordinator_makes_it(
    asker: WireClient, log: sparklog.SparkLog
) -> None:
    log.alter_root(set={"num.partitions": "5"})
    (result,) = create(asker, topic("__consumer_offsets", configs={"segment.bytes": "1000000"}))
    assert result.num_partitions == 50
    configs = log.describe_topic("__consumer_offsets").configs
    assert configs == {"cleanup.policy": "compact", "segment.bytes": "1000000"}


def test_one_commit_for_all_and_an_error_for_each(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("there")
    before = settled(log).commit
    results = create(
        asker, topic("a"), topic("there"), topic("b", 2), topic("no/slash"), topic("b_c"), topic("b.c")
    )
    assert [(one.name, one.error_code.name) for one in results] == [
        ("a", "none"), ("there", "topic_already_exists"), ("b", "none"),
        ("no/slash", "invalid_topic_exception"),
        ("b_c", "invalid_topic_exception"), ("b.c", "invalid_topic_exception"),
    ]  # fmt: skip
    assert log.topics() == ["a", "b", "there"]
    assert log.image.commit == before + 1


def test_a_topic_that_is_named_twice_is_not_created(asker: WireClient, log: sparklog.SparkLog) -> None:
    (result,) = create(asker, topic("t"), topic("t", 4))
    assert (result.error_code, result.error_message) == (ErrorCode.invalid_request, "Duplicate topic name.")
    assert log.topics() == []


def test_validate_only_changes_nothing(asker: WireClient, log: sparklog.SparkLog) -> None:
    before = log.refresh().commit
    ok, bad = create(asker, topic("t", 2), topic("u", 0), validate_only=True)
    assert (ok.error_code, ok.num_partitions) == (ErrorCode.none, 2)
    assert bad.error_code is ErrorCode.invalid_partitions
    assert log.refresh().commit == before


@pytest.mark.parametrize(
    ("one", "code", "text"),
    [
        (topic("t", 0), "invalid_partitions", "non-positive"),
        (topic("t", -2), "invalid_partitions", "non-positive"),
        (topic("t", 100_001), "invalid_partitions", "100000"),
        (topic("t", 1, 0), "invalid_replication_factor", "larger than 0, or -1"),
        (topic("t", 1, 3), "invalid_replication_factor", "only 1 broker(s) are registered"),
        (topic("t", 1, 3), "invalid_replication_factor", "shared storage"),
        (topic("t", configs={"retention.mss": "1"}), "invalid_config", "retention.ms"),
        (topic("t", configs={"retention.ms": "soon"}), "invalid_config", "expected integer"),
        (topic("t", configs={"retention.ms": "-2"}), "invalid_config", "at least -1"),
        (topic("t", configs={"retention.ms": None}), "invalid_config", "Null value not supported"),
        (topic("t", configs={"remote.storage.enable": "true"}), "invalid_config", "shared storage"),
        (topic("__cluster_metadata"), "invalid_request", "prohibited"),
        (topic("__transaction_state"), "invalid_request", "prohibited"),
        (topic("-rf"), "invalid_topic_exception", "begins with"),
        (
            topic("__consumer_offsets", configs={"cleanup.policy": "delete"}),
            "invalid_config",
            "expected compact",
        ),
        (topic(".."), "invalid_topic_exception", "topic name '..'"),
        (topic("x" * 250), "invalid_topic_exception", "topic name"),
        (topic("t", 2, assignments=[(0, [1])]), "invalid_request", "numPartitions was not set to -1"),
        (
            topic("t", -1, 1, assignments=[(0, [1])]),
            "invalid_request",
            "replication factor was not set to -1",
        ),
        (topic("t", assignments=[(0, [1]), (0, [1])]), "invalid_replica_assignment", "multiple manual"),
        (topic("t", assignments=[(1, [1])]), "invalid_replica_assignment", "consecutive 0-based"),
        (topic("t", assignments=[(0, [])]), "invalid_replica_assignment", "empty replica list"),
        (topic("t", assignments=[(0, [1, 1])]), "invalid_replica_assignment", "more than once"),
        (topic("t", assignments=[(0, [1, 2])]), "invalid_replica_assignment", "broker 2, but no such broker"),
    ],
)
def test_what_is_refused(asker: WireClient, one: dict[str, Any], code: str, text: str) -> None:
    found, message = refused(asker, one)
    assert found.name == code
    assert text in message


def test_an_assignment_to_this_broker(asker: WireClient, log: sparklog.SparkLog) -> None:
    (result,) = create(asker, topic("t", assignments=[(1, [1]), (0, [1])]))
    assert result.error_code is ErrorCode.none
    assert log.partition_count("t") == 2


def test_what_kafka_connect_and_streams_ask_for(asker: WireClient, running_broker: RunningBroker) -> None:
    connect = topic(
        "connect-offsets", 25, 1, configs={"cleanup.policy": "compact", "min.insync.replicas": "1"}
    )
    windowed = {"cleanup.policy": "compact,delete", "retention.ms": "86400000"}
    changelog = topic("app-store-changelog", 4, configs={**windowed, "message.timestamp.type": "CreateTime"})
    assert [one.error_code for one in create(asker, connect, changelog)] == [ErrorCode.none] * 2
    assert (
        running_broker.broker.root.image.topics["app-store-changelog"].configs["cleanup.policy"]
        == "compact,delete"
    )


def test_one_request_makes_ten_thousand_partitions_at_most(asker: WireClient, log: sparklog.SparkLog) -> None:
    """As Kafka: they are there forever, for the price of 46 bytes."""
    for topics in ([topic("a", 10_001)], [topic(f"t{number}", 101) for number in range(100)]):
        for result in create(asker, *topics):
            assert result.error_code is ErrorCode.policy_violation
            assert "Excessively large number of partitions per request" in (result.error_message or "")
    assert [one.error_code for one in create(asker, topic("b", 9_999), topic("c", 1))] == [ErrorCode.none] * 2
    assert log.topics() == ["b", "c"]


def test_parts_of_a_request_share_the_roots_bound(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.alter_root(set={"sparklog.max.partitions": "10"})
    found = create(asker, topic("a", 6), topic("b", 5), topic("c", 4))
    codes = [one.error_code for one in found]
    assert codes == [ErrorCode.none, ErrorCode.policy_violation, ErrorCode.none]
    assert "expected at most 10 in all" in (found[1].error_message or "")
    grow = [{"_": "CreatePartitionsTopic", "name": "a", "count": 7, "assignments": None}]
    (result,) = asker.ask(37, 3, topics=grow, timeout=30_000, validate_only=False).results
    assert result.error_code is ErrorCode.policy_violation
