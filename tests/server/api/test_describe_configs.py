"""DescribeConfigs: every version, the layers, and what cannot be described."""

from collections.abc import Callable
from typing import Any

import pytest

import sparklog
from sparklog.log.config import TopicConfig
from sparklog.log.setting import declared_settings
from sparklog_server.settings.config import SETTINGS
from sparklog_server.settings.updating import ROOT_KEYS
from tests.server.api.config_requests import (
    BROKER,
    DELETE,
    GROUP,
    LOGGER,
    SET,
    SUBTRACT,
    TOPIC,
    alter,
    describe,
    resource,
    synonyms,
)
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient


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
        assert entries["retention.ms"].documentation.startswith("Keep records for this long")
        names = (
            "preallocate",
            "compression.type",
            "segment.bytes",
            "min.cleanable.dirty.ratio",
            "cleanup.policy",
        )
        assert [entries[name].config_type for name in names] == [1, 2, 3, 6, 7]


def test_the_layers_of_a_topics_setting(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("t", configs={"retention.ms": "5"})
    log.alter_root(set={"retention.ms": "7"})
    _, entries = describe(asker, TOPIC, "t", keys=["retention.ms"])
    assert list(entries) == ["retention.ms"]
    assert synonyms(entries["retention.ms"]) == [
        ("retention.ms", "5", 1), ("log.retention.ms", "7", 3), ("log.retention.ms", "-1", 5),
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
    secrets = {name for name, (_, one) in SETTINGS.items() if one.is_secret}
    assert {name for name, one in entries.items() if one.is_sensitive} == secrets


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


def test_who_names_no_setting_is_told_of_all(asker: WireClient, log: sparklog.SparkLog) -> None:
    """An empty list is what many clients send who say nothing; Kafka takes it for none."""
    log.create_topic("t")
    assert describe(asker, TOPIC, "t", keys=[])[1] == describe(asker, TOPIC, "t")[1]


def test_secrets_have_no_value(start_broker: Callable[..., RunningBroker]) -> None:
    broker = start_broker({"ssl.key.password": "top-secret"})
    with WireClient(broker.host, broker.port) as client:
        resource = {"_": "DescribeConfigsResource", "resource_type": 4, "resource_name": "1"}
        answer = client.ask(
            32, 4, resources=[{**resource, "configuration_keys": None}], include_synonyms=True,
            include_documentation=False,
        )  # fmt: skip
    found = {one.name: one for one in answer.results[0].configs}
    assert {name for name, one in found.items() if one.is_sensitive} == {
        "ssl.key.password",
        "ssl.keystore.key",
    }
    assert found["ssl.key.password"].value is None
    assert found["ssl.key.password"].config_source == 4  # it is set
    assert "top-secret" not in repr(answer)


def test_a_group_has_settings_of_its_own_or_the_brokers(asker: WireClient) -> None:
    """kafka-configs --entity-type groups."""
    own = "a/b"
    names = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms")
    result, entries = describe(asker, GROUP, own)
    assert (result.error_code.name, set(names) <= set(entries)) == ("none", True)
    found = {(entries[name].value, entries[name].config_source) for name in names}
    assert found == {("45000", 5), ("5000", 5)}

    ((code, _),) = alter(asker, resource(GROUP, own, (names[0], SET, "50000")))
    assert code == "none"
    _, entries = describe(asker, GROUP, own)
    assert (entries[names[0]].value, entries[names[0]].config_source) == ("50000", 8)
    _, entries = describe(asker, GROUP, "a")
    assert entries[names[0]].value == "45000"
    ((code, _),) = alter(asker, resource(GROUP, own, (names[0], DELETE, None)))
    _, entries = describe(asker, GROUP, own)
    assert (code, entries[names[0]].value) == ("none", "45000")


@pytest.mark.parametrize(
    ("group", "name", "value", "error"),
    [
        ("g", "consumer.session.timeout.ms", "44999", "invalid_config"),
        ("g", "consumer.session.timeout.ms", "60001", "invalid_config"),
        ("g", "consumer.session.timeout.ms", "x", "invalid_config"),
        ("g", "consumer.heartbeat.interval.ms", "1", "invalid_config"),
        ("", "consumer.session.timeout.ms", "45000", "invalid_request"),
    ],
)
def test_a_setting_that_a_group_cannot_have(
    asker: WireClient, group: str, name: str, value: str, error: str
) -> None:
    ((code, _),) = alter(asker, resource(GROUP, group, (name, SET, value)))
    assert code == error


def test_share_groups_have_settings(asker: WireClient) -> None:
    """kafka-configs --entity-type groups --describe asks for every group that it has listed."""
    name = "share.record.lock.duration.ms"
    result, entries = describe(asker, GROUP, "a/b")
    assert (result.error_code.name, entries[name].value) == ("none", "30000")
    assert alter(asker, resource(GROUP, "a/b", (name, SET, "60000"))) == [("none", None)]
    _, entries = describe(asker, GROUP, "a/b")
    assert (entries[name].value, entries[name].config_source) == ("60000", 8)
    assert describe(asker, GROUP, "a")[1][name].value == "30000"
    assert alter(asker, resource(GROUP, "a/b", (name, DELETE, None))) == [("none", None)]
    assert describe(asker, GROUP, "a/b")[1][name].value == "30000"


@pytest.mark.parametrize(
    ("group", "name", "value", "code"),
    [
        ("g", "share.auto.offset.reset", "middle", "invalid_config"),
        ("g", "share.auto.offset.reset", "by_duration:P", "invalid_config"),
        ("g", "share.auto.offset.reset", "by_duration:PT", "invalid_config"),
        ("g", "share.auto.offset.reset", "by_duration:-PT1H", "invalid_config"),
        ("g", "share.delivery.count.limit", "1", "invalid_config"),
        ("g", "retention.ms", "1", "invalid_config"),
        ("g", "errors.deadletterqueue.topic.name", "orders", "invalid_config"),
        ("", "share.auto.offset.reset", "latest", "invalid_request"),
        ("g" * 10_001, "share.auto.offset.reset", "latest", "invalid_request"),
    ],
)
def test_settings_of_groups_that_are_refused(
    asker: WireClient, group: str, name: str, value: str, code: str
) -> None:
    ((found, _),) = alter(asker, resource(GROUP, group, (name, SET, value)))
    assert found == code
