"""AlterReplicaLogDirs: an answer for each partition, and nothing is moved."""

from typing import Any

import pytest

import sparklog
from tests.server.api.controlling import settled
from tests.support.wire_client import WireClient

ALTER_REPLICA_LOG_DIRS = 34


def answers(
    asker: WireClient, version: int, *dirs: tuple[str, dict[str, tuple[int, ...]]]
) -> dict[tuple[str, int], str]:
    asked: list[dict[str, Any]] = [
        {
            "_": "AlterReplicaLogDir",
            "path": path,
            "topics": [
                {"_": "AlterReplicaLogDirTopic", "name": name, "partitions": partitions}
                for name, partitions in topics.items()
            ],
        }
        for path, topics in dirs
    ]
    response = asker.ask(ALTER_REPLICA_LOG_DIRS, version, dirs=asked)
    return {
        (topic.topic_name, one.partition_index): one.error_code.name
        for topic in response.results
        for one in topic.partitions
    }


@pytest.mark.parametrize("version", [1, 2])
def test_every_partition_is_answered(asker: WireClient, log: sparklog.SparkLog, version: int) -> None:
    log.create_topic("a", 2)
    commit = settled(log).commit
    root = log.store.url
    found = answers(
        asker,
        version,
        (root, {"a": (0, 2, -1), "none": (0,)}),
        ("/somewhere/else", {"a": (1,), "none": (1,)}),
    )
    assert found == {
        ("a", 0): "none",
        ("a", 2): "unknown_topic_or_partition",
        ("a", -1): "unknown_topic_or_partition",
        ("none", 0): "unknown_topic_or_partition",
        ("a", 1): "log_dir_not_found",
        ("none", 1): "log_dir_not_found",
    }
    assert log.refresh().commit == commit


def test_a_partition_in_two_directories_is_where_it_was_named_last(
    asker: WireClient, log: sparklog.SparkLog
) -> None:
    log.create_topic("a", 1)
    root = log.store.url
    assert answers(asker, 2, (root, {"a": (0,)}), ("/x", {"a": (0,)})) == {("a", 0): "log_dir_not_found"}
    assert answers(asker, 2, ("/x", {"a": (0,)}), (root + "/", {"a": (0,)})) == {("a", 0): "none"}
