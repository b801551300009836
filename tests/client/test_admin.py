"""Topics and settings through the client."""

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.client.admin import effective_configs
from sparklog.errors import InvalidRequestError, UnknownTopicError
from sparklog.log.config import TopicConfig


def test_topics_are_created_described_and_deleted(log: SparkLog, other: SparkLog) -> None:
    assert log.create_topic("events", 3, {"retention.ms": "1000"})
    assert other.topics() == ["events"]
    log.append("events", pa.table({"value": ["a", "b"]}), partition=2)
    described = other.describe_topic("events")
    assert (described.name, described.internal, described.configs) == (
        "events",
        False,
        {"retention.ms": "1000"},
    )
    assert described.config.retention_ms == 1000
    assert [one.log_end_offset for one in described.partitions] == [0, 0, 2]
    assert described.partitions[2].size_bytes > 60
    assert described.partitions[2].extent_count == 1
    log.delete_topic("events")
    assert other.topics() == []
    with pytest.raises(UnknownTopicError):
        other.describe_topic("events")


def test_a_topic_exists_once(log: SparkLog, other: SparkLog) -> None:
    log.create_topic("t")
    with pytest.raises(InvalidRequestError, match="TOPIC_EXISTS"):
        other.create_topic("t")
    assert other.create_topic("t", if_not_exists=True) is False


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "x" * 250, "\u00e9"])
def test_illegal_names_are_refused(log: SparkLog, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="INVALID_TOPIC_NAME"):
        log.create_topic(name)
    with pytest.raises(InvalidRequestError, match="INVALID_TOPIC_NAME"):
        log.append(name, pa.table({"value": ["a"]}))


def test_the_root_decides_the_number_of_partitions(log: SparkLog) -> None:
    log.alter_root({"num.partitions": "4"})
    log.create_topic("a")
    log.append("b", pa.table({"value": ["x"]}))
    assert (log.partition_count("a"), log.partition_count("b")) == (4, 4)


def test_partitions_only_grow(log: SparkLog) -> None:
    log.create_topic("t", 2)
    log.add_partitions("t", 5)
    assert log.partition_count("t") == 5
    with pytest.raises(InvalidRequestError, match="cannot shrink"):
        log.add_partitions("t", 3)


def test_settings_are_set_and_deleted(log: SparkLog) -> None:
    log.create_topic("t", configs={"retention.ms": "5", "segment.bytes": "100"})
    log.alter_topic("t", set={"retention.bytes": "7"}, delete=["retention.ms"])
    assert log.describe_topic("t").configs == {"segment.bytes": "100", "retention.bytes": "7"}
    log.alter_root(set={"retention.ms": "9"})
    assert log.describe_topic("t").config.retention_ms == 9
    log.alter_root(delete=["retention.ms"])
    assert log.describe_topic("t").config.retention_ms == -1


def test_wrong_settings_are_refused(log: SparkLog) -> None:
    log.create_topic("t")
    with pytest.raises(InvalidRequestError, match=r"Write 'retention\.ms'"):
        log.create_topic("u", configs={"retention.mss": "5"})
    with pytest.raises(InvalidRequestError, match="UNKNOWN_CONFIG"):
        log.alter_topic("t", delete=["nope"])
    with pytest.raises(InvalidRequestError, match=r"topic setting 'num\.partitions'"):
        log.alter_topic("t", set={"num.partitions": "5"})
    with pytest.raises(InvalidRequestError, match="both to set and to delete"):
        log.alter_topic("t", set={"retention.ms": "5"}, delete=["retention.ms"])
    with pytest.raises(InvalidRequestError, match="CONFIG_OUT_OF_BOUNDS"):
        log.alter_root(set={"num.partitions": "0"})


def test_internal_topics_are_listed_only_when_asked_for(log: SparkLog) -> None:
    log.create_topic("t")
    log.commit_offsets("g", {("t", 0): 0})
    assert log.topics() == ["t"]
    assert log.topics(include_internal=True) == ["__consumer_offsets", "t"]


def test_effective_settings_name_their_source_and_what_they_override(log: SparkLog) -> None:
    log.create_topic("t", configs={"retention.ms": "1000"})
    log.alter_root({"retention.ms": "2000", "segment.bytes": "65536"})
    found = {one.name: one for one in effective_configs(log.refresh(), "t")}
    assert list(found) == sorted(found)
    shown = {
        name: (
            found[name].value,
            found[name].source,
            [(one.value, one.source) for one in found[name].overridden],
        )
        for name in ("retention.ms", "segment.bytes", "cleanup.policy")
    }
    assert shown == {
        "retention.ms": ("1000", "topic", [("2000", "root"), ("-1", "default")]),
        "segment.bytes": ("65536", "root", [("1073741824", "default")]),
        "cleanup.policy": ("delete", "default", []),
    }
    config = log.describe_topic("t").config
    assert config == TopicConfig.parse({name: one.value for name, one in found.items()})
    with pytest.raises(UnknownTopicError):
        effective_configs(log.image, "nosuch")
