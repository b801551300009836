"""IncrementalAlterConfigs: operations, and what is refused."""

import pytest

import sparklog
from tests.server.api.config_requests import (
    APPEND,
    BROKER,
    DELETE,
    LOGGER,
    SET,
    SUBTRACT,
    TOPIC,
    alter,
    resource,
)
from tests.server.api.controlling import settled
from tests.support.wire_client import WireClient


def test_operations_on_a_topic(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("t", configs={"segment.ms": "9"})
    assert alter(asker, resource(TOPIC, "t", ("retention.ms", SET, "5"), ("segment.ms", DELETE, None))) == [
        ("none", None)]  # fmt: skip
    assert log.describe_topic("t").configs == {"retention.ms": "5"}
    alter(asker, resource(TOPIC, "t", ("cleanup.policy", APPEND, "compact")), version=0)
    assert log.describe_topic("t").configs["cleanup.policy"] == "delete,compact"
    alter(asker, resource(TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")))
    assert log.describe_topic("t").configs["cleanup.policy"] == "compact"
    alter(asker, resource(TOPIC, "t", ("cleanup.policy", APPEND, "compact")))
    assert log.describe_topic("t").configs["cleanup.policy"] == "compact"


def test_appending_to_nothing_adds_nothing_else(asker: WireClient, log: sparklog.SparkLog) -> None:
    """A topic that keeps everything must not begin to delete, because somebody has it compacted."""
    log.create_topic("t", configs={"cleanup.policy": ""})
    assert alter(asker, resource(TOPIC, "t", ("cleanup.policy", APPEND, "compact"))) == [("none", None)]
    assert log.describe_topic("t").configs["cleanup.policy"] == "compact"
    alter(asker, resource(BROKER, "", ("log.cleanup.policy", SET, "")))
    alter(asker, resource(BROKER, "", ("log.cleanup.policy", APPEND, "compact")))
    assert log.refresh().configs["cleanup.policy"] == "compact"


@pytest.mark.parametrize("change", [(SET, "delete"), (APPEND, "delete"), (DELETE, None)])
def test_committed_offsets_stay_compacted(
    asker: WireClient, log: sparklog.SparkLog, change: tuple[int, str | None]
) -> None:
    """Under a retention those of groups that are quiet would be lost."""
    log.create_topic("__consumer_offsets")
    ((code, text),) = alter(asker, resource(TOPIC, "__consumer_offsets", ("cleanup.policy", *change)))
    assert (code, "expected compact" in str(text)) == ("invalid_config", True)
    others = resource(TOPIC, "__consumer_offsets", ("segment.bytes", SET, "1000000"))
    assert alter(asker, others) == [("none", None)]
    assert log.describe_topic("__consumer_offsets").configs == {
        "cleanup.policy": "compact",
        "segment.bytes": "1000000",
    }


@pytest.mark.parametrize(
    ("configs", "code", "text"),
    [
        ([("retention.ms", SET, "soon")], "invalid_config", "expected integer"),
        ([("retention.mss", SET, "1")], "invalid_config", "retention.ms"),
        ([("retention.ms", SET, None)], "invalid_request", "Null value not supported for : retention.ms"),
        (
            [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)],
            "invalid_request",
            "duplicate config keys",
        ),
        ([("retention.ms", APPEND, "1")], "invalid_config", "its type is not LIST"),
        ([("zzz", SUBTRACT, "1")], "invalid_config", "its type is not LIST"),
        ([("cleanup.policy", APPEND, "shred")], "invalid_config", "any of delete, compact"),
        ([("retention.ms", 9, "1")], "invalid_request", "Unknown operations type 9"),
        ([("segment.ms", SET, "1"), ("retention.ms", SET, "-9")], "invalid_config", "at least -1"),
    ],
)
def test_all_of_a_resource_or_nothing(
    asker: WireClient,
    log: sparklog.SparkLog,
    configs: list[tuple[str, int, str | None]],
    code: str,
    text: str,
) -> None:
    log.create_topic("t")
    ((found, message),) = alter(asker, resource(TOPIC, "t", *configs))
    assert found == code
    assert text in str(message)
    assert log.describe_topic("t").configs == {}


def test_deleting_what_is_not_set_is_done_already(asker: WireClient, log: sparklog.SparkLog) -> None:
    """MirrorMaker 2 deletes every key that has its default at the source, Kafka's own included."""
    log.create_topic("t")
    before = settled(log).commit
    changes = resource(
        TOPIC, "t", *((key, DELETE, None) for key in ("retention.ms", "remote.storage.enable", "zzz"))
    )
    assert alter(asker, changes) == [("none", None)]
    assert log.refresh().commit == before


def test_resources_have_outcomes_of_their_own(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("t")
    log.create_topic("u")
    change = ("retention.ms", SET, "5")
    found = alter(
        asker,
        resource(TOPIC, "t", change), resource(TOPIC, "missing", change), resource(BROKER, "1", change),
        resource(TOPIC, "u", change), resource(TOPIC, "u", change), resource(LOGGER, "1", change),
    )  # fmt: skip
    assert [code for code, _ in found] == [
        "none", "unknown_topic_or_partition", "invalid_config", "invalid_request", "invalid_request",
        "invalid_request",
    ]  # fmt: skip
    assert "Write 'log.retention.ms'" in str(found[2][1])
    assert found[3][1] == "Each resource must appear at most once."
    assert log.describe_topic("t").configs == {"retention.ms": "5"}
    assert log.describe_topic("u").configs == {}


def test_what_one_broker_has_not_of_its_own_can_be_deleted(asker: WireClient, log: sparklog.SparkLog) -> None:
    """kafka-reassign-partitions --verify does so, with throttles that nobody has set."""
    commit = log.refresh().commit
    deleted = resource(BROKER, "1", ("leader.replication.throttled.rate", DELETE, None))
    assert alter(asker, deleted) == [("none", None)]
    both = resource(BROKER, "1", ("log.retention.ms", DELETE, None), ("num.partitions", SET, "3"))
    assert alter(asker, both)[0][0] == "invalid_request"
    assert alter(asker, resource(BROKER, "2", ("log.retention.ms", DELETE, None)))[0][0] == "invalid_request"
    assert log.refresh().commit == commit


def test_validate_only(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("t")
    ok = resource(TOPIC, "t", ("retention.ms", SET, "5"))
    assert alter(asker, ok, validate_only=True) == [("none", None)]
    assert (
        alter(asker, resource(TOPIC, "t", ("retention.ms", SET, "x")), validate_only=True)[0][0]
        == "invalid_config"
    )
    assert log.describe_topic("t").configs == {}


def test_the_clusters_settings_have_the_brokers_names(asker: WireClient, log: sparklog.SparkLog) -> None:
    changes = ("log.retention.ms", SET, "5"), ("message.max.bytes", SET, "99"), ("num.partitions", SET, "3")
    assert alter(asker, resource(BROKER, "", *changes)) == [("none", None)]
    assert dict(log.refresh().configs) == {
        "retention.ms": "5",
        "max.message.bytes": "99",
        "num.partitions": "3",
    }
    more = ("log.retention.ms", DELETE, None), ("log.cleanup.policy", APPEND, "compact")
    assert alter(asker, resource(BROKER, "", *more)) == [("none", None)]
    assert log.refresh().configs["cleanup.policy"] == "delete,compact"
    assert "retention.ms" not in log.image.configs


@pytest.mark.parametrize(
    ("key", "value", "code", "text"),
    [
        ("log.retention.ms", "x", "invalid_config", "expected integer"),
        ("log.retention.ms", "0", "invalid_config", "but not 0"),
        ("retention.ms", "1", "invalid_config", "log.retention.ms"),
        ("node.id", "7", "invalid_request", "Cannot update these configs dynamically: Set(node.id)"),
        ("zzz", "1", "invalid_config", "zzz"),
    ],
)
def test_what_cannot_be_set_for_the_cluster(
    asker: WireClient, log: sparklog.SparkLog, key: str, value: str, code: str, text: str
) -> None:
    ((found, message),) = alter(asker, resource(BROKER, "", (key, SET, value)))
    assert found == code
    assert text in str(message)
    assert dict(log.refresh().configs) == {}
