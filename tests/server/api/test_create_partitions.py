"""CreatePartitions: growing topics."""

from typing import Any

import pytest

import sparklog
from tests.server.api.topic_requests import more_partitions
from tests.support.wire_client import WireClient


def grow(
    asker: WireClient, *topics: dict[str, Any], version: int = 3, validate_only: bool = False
) -> list[Any]:
    answer = asker.ask(37, version, topics=topics, timeout=30_000, validate_only=validate_only)
    return [(one.name, one.error_code.name, one.error_message) for one in answer.results]


@pytest.mark.parametrize("version", range(4))
def test_every_version_adds(asker: WireClient, log: sparklog.SparkLog, version: int) -> None:
    log.create_topic("t", 2)
    assert grow(asker, more_partitions("t", 5), version=version) == [("t", "none", None)]
    assert log.partition_count("t") == 5


@pytest.mark.parametrize(
    ("one", "code", "text"),
    [
        (more_partitions("missing", 2), "unknown_topic_or_partition", "does not host"),
        (more_partitions("t", 2), "invalid_partitions", "Topic already has 2 partition(s)."),
        (more_partitions("t", 1), "invalid_partitions", "1 would not be an increase"),
        (more_partitions("t", 100_001), "invalid_partitions", "100000"),
        (more_partitions("t", 4, [[1]]), "invalid_replica_assignment", "only 1 assignment(s)"),
        (more_partitions("t", 3, [[7]]), "invalid_replica_assignment", "broker 7"),
    ],
)
def test_what_is_refused(
    asker: WireClient, log: sparklog.SparkLog, one: dict[str, Any], code: str, text: str
) -> None:
    log.create_topic("t", 2)
    ((_, found, message),) = grow(asker, one)
    assert found == code
    assert text in message
    assert log.partition_count("t") == 2


def test_assignments_duplicates_and_validate_only(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("t", 1)
    assert grow(asker, more_partitions("t", 2), more_partitions("t", 3)) == [
        ("t", "invalid_request", "Duplicate topic name.")
    ]
    assert grow(asker, more_partitions("t", 3, [[1], [1]]), validate_only=True) == [("t", "none", None)]
    assert log.partition_count("t") == 1
    assert grow(asker, more_partitions("t", 3, [[1], [1]])) == [("t", "none", None)]
    assert log.partition_count("t") == 3


@pytest.mark.parametrize("count", [1, 2, 60])
def test_groups_topic_keeps_its_number_by_which_groups_are_found(
    asker: WireClient, log: sparklog.SparkLog, count: int
) -> None:
    log.create_topic("__consumer_offsets", 2)
    ((_, code, message),) = grow(asker, more_partitions("__consumer_offsets", count))
    assert (code, "expected 2: its number cannot change" in message) == ("invalid_partitions", count > 2)
    assert log.partition_count("__consumer_offsets") == 2
