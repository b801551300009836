"""__consumer_offsets: what cannot be changed of it, since groups' offsets would be lost by it."""

from collections.abc import Callable

import pytest

from sparklog.client import OFFSETS_TOPIC, SparkLog
from sparklog.client.admin import alter_topic
from sparklog.errors import InvalidRequestError

GROUPS = [f"group-{number}" for number in range(5)]


@pytest.fixture
def committed(log: SparkLog) -> SparkLog:
    log.create_topic("t")
    for group in GROUPS:
        log.commit_offsets(group, {("t", 0): 7})
    return log


@pytest.mark.parametrize(
    "grow",
    [
        lambda log: log.add_partitions(OFFSETS_TOPIC, 60),
        lambda log: alter_topic(log.metadata, OFFSETS_TOPIC, {}, partitions=60),
    ],
)
def test_it_keeps_its_number_of_partitions(committed: SparkLog, grow: Callable[[SparkLog], None]) -> None:
    """By another one a group would be looked for in another partition than it has committed to."""
    with pytest.raises(InvalidRequestError, match="found 60 partitions, expected 50: its number") as caught:
        grow(committed)
    assert caught.value.code == "INVALID_PARTITION_COUNT"
    assert [committed.committed_offsets(group) for group in GROUPS] == [{("t", 0): 7}] * 5
    committed.add_partitions(OFFSETS_TOPIC, 50)


def test_it_stays_compacted(committed: SparkLog) -> None:
    for policy in ("delete", "compact,delete"):
        with pytest.raises(InvalidRequestError, match=f"found cleanup.policy={policy}, expected compact"):
            committed.alter_topic(OFFSETS_TOPIC, {"cleanup.policy": policy})
    with pytest.raises(InvalidRequestError, match="expected compact"):
        committed.alter_topic(OFFSETS_TOPIC, delete=["cleanup.policy"])
    committed.alter_topic(OFFSETS_TOPIC, {"cleanup.policy": "compact", "segment.bytes": "1048576"})
    committed.alter_root({"cleanup.policy": "compact"})
    committed.alter_topic(OFFSETS_TOPIC, delete=["cleanup.policy"])


def test_other_topics_may_change(log: SparkLog) -> None:
    log.create_topic("t", configs={"cleanup.policy": "compact"})
    log.alter_topic("t", {"cleanup.policy": "delete"})
    log.add_partitions("t", 2)
    assert log.partition_count("t") == 2
