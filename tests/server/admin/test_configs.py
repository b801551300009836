"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: layers, operations, and what is refused."""

from typing import Any

import pytest

import sparklog
from sparklog.log.config import RootConfig, TopicConfig
from sparklog.log.setting import NOT_ACTED_ON, declared_settings
from sparklog_server.admin.setting_names import BROKER_NAMES, ROOT_KEYS
from sparklog_server.settings.config import SETTINGS
from tests.support.wire_client import WireClient

TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(
    asker: WireClient, kind: int, name: str, *, keys: list[str] | None = None, version: int = 4
) -> tuple[Any, dict[str, Any]]:
    resource = {
        "_": "DescribeConfigsResource", "resource_type": kind, "resource_name": name,
        "configuration_keys": keys,
    }  # fmt: skip
    asked = {"resources": [resource], "include_synonyms": True}
    if version >= 3:
        asked["include_documentation"] = True
    (result,) = asker.ask(32, version, **asked).results
    return result, {one.name: one for one in result.configs}


def resource(kind: int, name: str, *configs: tuple[Any, ...]) -> dict[str, Any]:
    """For AlterConfigs (key, value) or IncrementalAlterConfigs (key, operation, value)."""
    names = ("name", "value") if configs and len(configs[0]) == 2 else ("name", "config_operation", "value")
    return {
        "_": "AlterConfigsResource", "resource_type": kind, "resource_name": name,
        "configs": [{"_": "AlterableConfig", **dict(zip(names, one, strict=True))} for one in configs],
    }  # fmt: skip


def alter(
    asker: WireClient,
    *resources: dict[str, Any],
    key: int = 44,
    version: int = 1,
    validate_only: bool = False,
) -> list[tuple[str, str | None]]:
    answer = asker.ask(key, version, resources=resources, validate_only=validate_only)
    return [(one.error_code.name, one.error_message) for one in answer.responses]


def synonyms(entry: Any) -> list[tuple[str, str, int]]:
    return [(one.name, one.value, one.source) for one in entry.synonyms]


@pytest.mark.parametrize("version", range(1, 5))
def test_every_version_describes_a_topic(asker: WireClient, log: sparklog.SparkLog, version: int) -> None:
    log.create_topic("t", configs={"retention.ms": "5"})
    result, entries = describe(asker, TOPIC, "t", version=version)
    assert result.error_code.name == "none"
    assert set(entries) == set(declared_settings(TopicConfig))
    assert (entries["retention.ms"].value, entries["retention.ms"].config_source) == ("5", 1)
    assert not entries["retention.ms"].read_only
    if version >= 3:
        assert entries["retention.ms"].config_type == 5
        assert entries["retention.ms"].documentation.startswith(NOT_ACTED_ON)
        names = (
            "preallocate",
            "compression.type",
            "segment.bytes",
            "min.cleanable.dirty.ratio",
            "cleanup.policy",
        )
        assert [entries[name].config_type for name in names] == [1, 2, 3, 6, 7]


def test_settings_that_nothing_acts_on_leave_a_line_in_the_log(
    asker: WireClient, log: sparklog.SparkLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.create_topic("t")
    changes = [
        resource(TOPIC, "t", ("cleanup.policy", "compact")),
        resource(BROKER, "", ("log.retention.ms", "7")),
    ]
    alter(asker, *changes, key=33, validate_only=True)
    assert not [one for one in caplog.messages if "not acted on" in one]
    assert alter(asker, *changes, key=33) == [("none", None), ("none", None)]
    told = [one.split(": kept")[0] for one in caplog.messages if "not acted on" in one]
    assert told == ["topic 't': cleanup.policy=compact", "root: retention.ms=7"]


def test_the_layers_of_a_topics_setting(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("t", configs={"retention.ms": "5"})
    log.alter_root(set={"retention.ms": "7"})
    _, entries = describe(asker, TOPIC, "t", keys=["retention.ms"])
    assert list(entries) == ["retention.ms"]
    assert synonyms(entries["retention.ms"]) == [
        ("retention.ms", "5", 1), ("log.retention.ms", "7", 3), ("log.retention.ms", "604800000", 5),
    ]  # fmt: skip
    log.alter_topic("t", delete=["retention.ms"])
    _, entries = describe(asker, TOPIC, "t", keys=["retention.ms"])
    assert (entries["retention.ms"].value, entries["retention.ms"].config_source) == ("7", 3)


def test_what_server_properties_says_is_a_layer(start_broker: Any, connect: Any) -> None:
    asker = connect(start_broker({"message.max.bytes": "2000000", "num.partitions": "3"}))
    _, entries = describe(asker, BROKER, "1")
    assert set(entries) == set(ROOT_KEYS) | set(SETTINGS)
    assert synonyms(entries["message.max.bytes"]) == [
        ("message.max.bytes", "2000000", 4), ("message.max.bytes", "1048588", 5)]  # fmt: skip
    assert (entries["num.partitions"].config_source, entries["num.partitions"].read_only) == (4, False)
    assert (entries["node.id"].config_source, entries["node.id"].read_only) == (5, True)
    assert (entries["listeners"].value, entries["listeners"].config_source) == ("PLAINTEXT://127.0.0.1:0", 4)
    assert not any(one.is_sensitive for one in entries.values())


def test_the_cluster_shows_what_is_set_for_it(asker: WireClient, log: sparklog.SparkLog) -> None:
    assert describe(asker, BROKER, "")[1] == {}
    log.alter_root(set={"retention.ms": "7", "num.partitions": "3"})
    _, entries = describe(asker, BROKER, "")
    assert {name: (one.value, one.config_source) for name, one in entries.items()} == {
        "log.retention.ms": ("7", 3), "num.partitions": ("3", 3)}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "code", "text"),
    [
        (TOPIC, "missing", "unknown_topic_or_partition", "missing"),
        (BROKER, "2", "invalid_request", "Unexpected broker id, expected 1, but received 2"),
        (BROKER, "one", "invalid_request", "must be an integer"),
        (LOGGER, "1", "invalid_request", "BROKER_LOGGER"),
        (77, "x", "invalid_request", "Unsupported resource type"),
    ],
)
def test_resources_that_cannot_be_described(
    asker: WireClient, kind: int, name: str, code: str, text: str
) -> None:
    result, entries = describe(asker, kind, name)
    assert result.error_code.name == code
    assert text in result.error_message
    assert (result.resource_type, result.resource_name, entries) == (kind, name, {})


def test_a_topic_may_be_told_to_keep_everything(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("t")
    assert alter(asker, resource(TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"))) == [("none", None)]
    assert describe(asker, TOPIC, "t")[1]["cleanup.policy"].value == ""
    assert log.describe_topic("t").config.cleanup_policy == ()


def test_groups_have_no_settings_but_can_be_described(asker: WireClient) -> None:
    """kafka-configs --entity-type groups --describe asks for every group that it has listed."""
    result, entries = describe(asker, GROUP, "readers")
    assert (result.error_code.name, entries) == ("none", {})
    ((code, message),) = alter(asker, resource(GROUP, "readers", ("consumer.session.timeout.ms", SET, "1")))
    assert code == "invalid_request"
    assert "GROUP" in (message or "")


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
    before = log.image.commit
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
        "none", "unknown_topic_or_partition", "invalid_request", "invalid_request", "invalid_request",
        "invalid_request",
    ]  # fmt: skip
    assert "server.properties" in str(found[2][1])
    assert found[3][1] == "Each resource must appear at most once."
    assert log.describe_topic("t").configs == {"retention.ms": "5"}
    assert log.describe_topic("u").configs == {}


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
    assert log.refresh().configs == {"retention.ms": "5", "max.message.bytes": "99", "num.partitions": "3"}
    more = ("log.retention.ms", DELETE, None), ("log.cleanup.policy", APPEND, "compact")
    assert alter(asker, resource(BROKER, "", *more)) == [("none", None)]
    assert log.refresh().configs["cleanup.policy"] == "delete,compact"
    assert "retention.ms" not in log.image.configs


@pytest.mark.parametrize(
    ("key", "value", "code", "text"),
    [
        ("log.retention.ms", "x", "invalid_config", "expected integer"),
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
    assert log.refresh().configs == {}


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_everything(asker: WireClient, log: sparklog.SparkLog, version: int) -> None:
    log.create_topic("t", configs={"segment.ms": "9", "retention.ms": "1"})
    replaced = resource(TOPIC, "t", ("retention.ms", "5"), ("segment.bytes", "100"))
    assert alter(asker, replaced, key=33, version=version) == [("none", None)]
    assert log.describe_topic("t").configs == {"retention.ms": "5", "segment.bytes": "100"}
    log.alter_root(set={"num.partitions": "3"})
    assert alter(asker, resource(BROKER, "", ("log.retention.ms", "5")), key=33, version=version) == [
        ("none", None)
    ]
    assert log.refresh().configs == {"retention.ms": "5"}


def test_alter_configs_refuses_nulls_and_duplicates(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("t", configs={"segment.ms": "9"})
    twice = resource(TOPIC, "t", ("retention.ms", "5"), ("retention.ms", "6"))
    null = resource(TOPIC, "t", ("retention.ms", None))
    assert alter(asker, twice, key=33, version=2) == [
        ("invalid_request", "Error due to duplicate config keys")
    ]
    assert "Null value" in str(alter(asker, null, key=33, version=2)[0][1])
    assert alter(asker, resource(TOPIC, "t"), key=33, version=2) == [("none", None)]
    assert log.describe_topic("t").configs == {}


def test_every_topic_setting_has_one_name_at_the_broker() -> None:
    assert set(BROKER_NAMES) == set(declared_settings(TopicConfig))
    assert len(ROOT_KEYS) == len(declared_settings(TopicConfig)) + len(declared_settings(RootConfig))
    assert BROKER_NAMES["segment.ms"] == "log.roll.ms"
    assert BROKER_NAMES["min.compaction.lag.ms"] == "log.cleaner.min.compaction.lag.ms"
    assert BROKER_NAMES["cleanup.policy"] == "log.cleanup.policy"
