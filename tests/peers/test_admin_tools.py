"""Kafka's administrative tools against our broker."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.client import SparkLog
from tests.peers.conftest import Tool, numbered


def test_topics(tool: Tool, log: SparkLog) -> None:
    words = ("--topic", "made", "--partitions", "3", "--config", "retention.ms=1000000")
    assert "Created topic made." in tool("kafka-topics", "--create", *words)
    tool("kafka-topics", "--alter", "--topic", "made", "--partitions", "5")
    text = tool("kafka-topics", "--describe", "--topic", "made")
    assert "PartitionCount: 5" in text
    assert "retention.ms=1000000" in text
    assert "made" in tool("kafka-topics", "--list").split()
    tool("kafka-topics", "--delete", "--topic", "made")
    log.refresh()
    assert "made" not in log.topics()


def test_configs(tool: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tool("kafka-configs", "--alter", *entity, "--add-config", "retention.ms=77777,cleanup.policy=compact")
    text = tool("kafka-configs", "--describe", *entity)
    assert "retention.ms=77777 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=77777" in text
    tool("kafka-configs", "--alter", *entity, "--delete-config", "retention.ms")
    text = tool("kafka-configs", "--describe", *entity)
    assert "77777" not in text
    assert "cleanup.policy=compact" in text
    text = tool("kafka-configs", "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all")
    assert "num.partitions=1 " in text


def test_configs_of_running_brokers(tool: Tool) -> None:
    """Kafka's precedence, and how its tool shows it."""
    brokers, key = ("--entity-type", "brokers"), "max.connections"
    for words, value in ((("--entity-name", "1"), "700"), (("--entity-default",), "800")):
        tool("kafka-configs", "--alter", *brokers, *words, "--add-config", f"{key}={value}")
    text = tool("kafka-configs", "--describe", *brokers, "--entity-name", "1")
    layers = f"BROKER_CONFIG:{key}=700, DYNAMIC_DEFAULT_BROKER_CONFIG:{key}=800, DEFAULT_CONFIG:{key}=10000"
    assert f"{key}=700 sensitive=false synonyms={{DYNAMIC_{layers}}}" in text
    assert "num.io.threads" not in text
    assert f"{key}=800 " in tool("kafka-configs", "--describe", *brokers, "--entity-default")
    assert "num.io.threads=8 " in tool("kafka-configs", "--describe", *brokers, "--entity-name", "1", "--all")
    tool("kafka-configs", "--alter", *brokers, "--entity-name", "1", "--delete-config", key)
    assert f"{key}=800 " in tool("kafka-configs", "--describe", *brokers, "--entity-name", "1", "--all")
    tool("kafka-configs", "--alter", *brokers, "--entity-default", "--delete-config", key)
    assert key not in tool("kafka-configs", "--describe", *brokers, "--entity-default")


def test_consumer_groups(tool: Tool, log: SparkLog, new_topic: Callable[..., str]) -> None:
    topic, group = new_topic(2), "audited"
    for partition in (0, 1):
        log.append(topic, numbered(100), partition=partition)
    limits = ("--from-beginning", "--max-messages", "200", "--timeout-ms", "30000")
    tool("kafka-console-consumer", "--topic", topic, "--group", group, *limits)
    assert group in tool("kafka-consumer-groups", "--list").split()
    text = tool("kafka-consumer-groups", "--describe", "--group", group)
    assert [line.split()[2:6] for line in text.splitlines() if topic in line] == [
        ["0", "100", "100", "0"],
        ["1", "100", "100", "0"],
    ]
    assert "Empty" in tool("kafka-consumer-groups", "--describe", "--group", group, "--state")
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--execute")
    tool("kafka-consumer-groups", *reset, "--shift-by", "-30")
    assert {offset.offset for offset in log.describe_offsets(group).values()} == {70}
    tool("kafka-consumer-groups", *reset, "--to-datetime", "2020-01-01T00:00:00.000")
    assert log.committed_offsets(group) == {(topic, 0): 0, (topic, 1): 0}
    tool("kafka-consumer-groups", "--delete-offsets", "--group", group, "--topic", topic)
    assert log.committed_offsets(group) == {}
    tool("kafka-consumer-groups", "--delete", "--group", group)


def test_offsets_and_deleted_records(
    tool: Tool, log: SparkLog, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(2)
    log.append(topic, numbered(100), partition=1)
    latest = tool("kafka-get-offsets", "--topic", topic).split()
    assert latest == [f"{topic}:0:0", f"{topic}:1:100"]
    request = tmp_path / "records.json"
    where = {"topic": topic, "partition": 1, "offset": 40}
    request.write_text(json.dumps({"partitions": [where], "version": 1}))
    assert "low_watermark: 40" in tool("kafka-delete-records", "--offset-json-file", str(request))
    assert f"{topic}:1:40" in tool("kafka-get-offsets", "--topic", topic, "--time", "earliest").split()


def test_cluster(tool: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    assert "Produce(0): 0 to" in tool("kafka-broker-api-versions")
    text = tool("kafka-log-dirs", "--describe", "--topic-list", topic)
    assert f'"partition":"{topic}-0"' in text


def test_features(tool: Tool) -> None:
    lines = tool("kafka-features", "describe").splitlines()
    found = [dict(re.findall(r"([\w]+): (\S+)", line)) for line in lines]
    assert all(words.pop("Epoch").isdigit() for words in found)
    newest = {"group.version": "1", "share.version": "2", "transaction.version": "2"}
    assert found == [
        {
            "Feature": name,
            "SupportedMinVersion": "1",
            "SupportedMaxVersion": level,
            "FinalizedVersionLevel": level,
        }
        for name, level in newest.items()
    ]


@pytest.mark.parametrize("direction", ["upgrade", "downgrade"])
def test_features_are_the_owners(tool: Tool, direction: str) -> None:
    with pytest.raises(RuntimeError, match="The node does not support UPDATE_FEATURES"):
        tool("kafka-features", direction, "--feature", "transaction.version=1")


def test_metadata_quorum(tool: Tool, log: SparkLog) -> None:
    commit = log.refresh().commit
    text = tool("kafka-metadata-quorum", "describe", "--status")
    found = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert found["ClusterId:"] == log.cluster_id
    assert found["LeaderId:"] == "1"
    assert int(found["HighWatermark:"]) > commit
    assert (found["MaxFollowerLag:"], found["MaxFollowerLagTimeMs:"]) == ("0", "0")
    assert found["CurrentVoters:"].startswith('[{"id": 1, "endpoints": ["PLAINTEXT://127.0.0.1:')
    assert found["CurrentObservers:"] == "[]"
    text = tool("kafka-metadata-quorum", "describe", "--replication", "--human-readable")
    heads, row = (line.split() for line in text.splitlines() if line)
    assert heads[:4] == ["NodeId", "DirectoryId", "LogEndOffset", "Lag"]
    assert (row[0], row[3], row[-1]) == ("1", "0", "Leader")


def test_topics_that_lack_something(tool: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    text = tool("kafka-topics", "--describe", "--topic", topic)
    assert "Leader: 1\tReplicas: 1\tIsr: 1" in text
    assert tool("kafka-topics", "--describe", "--unavailable-partitions").strip() == ""
    assert tool("kafka-topics", "--describe", "--under-replicated-partitions").strip() == ""


def test_resources_with_settings(tool: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1, {"retention.ms": "77777"})
    text = tool("kafka-configs", "--describe", "--entity-type", "topics")
    assert f"Dynamic configs for topic {topic} are:" in text
    assert "retention.ms=77777" in text
    assert "error" not in tool("kafka-configs", "--describe", "--entity-type", "client-metrics").lower()
