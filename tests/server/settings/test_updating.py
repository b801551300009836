"""Which settings can change while brokers run, and what is in force then."""

import pytest

from sparklog.log.config import broker_key
from sparklog_server.settings.config import SETTINGS, ServerConfig, config_in_force, topic_defaults_in_force
from sparklog_server.settings.updating import DYNAMIC, ROOT_KEYS, TOPIC_DEFAULTS, Update, update_of

STARTED_WITH = ServerConfig.parse({"num.io.threads": "4", "max.connections": "100"})


def test_what_can_change_is_declared() -> None:
    assert set(SETTINGS) >= DYNAMIC
    assert not DYNAMIC & set(ROOT_KEYS), "each is kept in one way"
    assert set(ROOT_KEYS) >= set(TOPIC_DEFAULTS)


@pytest.mark.parametrize(
    ("name", "update"),
    [
        ("max.connections", Update.PER_BROKER),
        ("message.max.bytes", Update.PER_BROKER),
        ("log.retention.ms", Update.CLUSTER_WIDE),
        ("log.cleanup.policy", Update.CLUSTER_WIDE),
        ("num.partitions", Update.CLUSTER_WIDE),
        ("listeners", Update.READ_ONLY),
        ("nothing", Update.READ_ONLY),
    ],
)
def test_for_whom_a_setting_can_change(name: str, update: Update) -> None:
    assert update_of(name) is update


def test_the_brokers_own_wins() -> None:
    of_all = {broker_key(None, "num.io.threads"): "5", broker_key(None, "max.connections"): "50"}
    own = {broker_key(1, "num.io.threads"): "6", broker_key(2, "num.io.threads"): "7"}
    found = [config_in_force(STARTED_WITH, configs, 1)[0] for configs in ({}, of_all, {**of_all, **own})]
    assert [one.broker.num_io_threads for one in found] == [4, 5, 6]
    assert [one.network.max_connections for one in found] == [100, 50, 50]
    assert found[0] == STARTED_WITH


def test_what_cannot_be_is_passed_over_and_told_of() -> None:
    stored = {broker_key(1, "num.io.threads"): "many", broker_key(None, "num.io.threads"): "5"}
    stored |= {broker_key(1, "node.id"): "2", broker_key(1, "max.connections"): "60"}
    config, problems = config_in_force(STARTED_WITH, stored, 1)
    assert (config.broker.num_io_threads, config.broker.node_id, config.network.max_connections) == (5, 1, 60)
    assert list(problems) == [broker_key(1, "num.io.threads")]


def test_a_brokers_own_setting_may_need_one_of_all() -> None:
    """By itself a limit of 0 cannot be, and the broker took 2,000 connections of each address."""
    stored = {broker_key(None, "max.connections.per.ip"): "0"}
    stored |= {broker_key(1, "max.connections.per.ip.overrides"): "10.0.0.7:5"}
    config, problems = config_in_force(STARTED_WITH, stored, 1)
    assert (config.network.max_connections_per_ip, config.network.per_ip_overrides()) == (0, {"10.0.0.7": 5})
    assert problems == {}
    config, problems = config_in_force(STARTED_WITH, stored, 2)  # which has no address that may connect
    assert (config, list(problems)) == (STARTED_WITH, [broker_key(None, "max.connections.per.ip")])


def test_what_is_behind_a_value_that_cannot_be_counts() -> None:
    stored = {broker_key(None, "max.connections"): "x", broker_key(1, "max.connections"): "y"}
    config, problems = config_in_force(STARTED_WITH, stored, 1)
    assert config == STARTED_WITH
    assert set(problems) == set(stored)


def test_settings_that_need_each_other_are_taken_together() -> None:
    nobody, one = ("max.connections.per.ip", "0"), ("max.connections.per.ip.overrides", "10.0.0.7:5")
    both = {broker_key(1, name): text for name, text in (nobody, one)}
    config, problems = config_in_force(STARTED_WITH, both, 1)
    assert (config.network.max_connections_per_ip, config.network.per_ip_overrides()) == (0, {"10.0.0.7": 5})
    assert problems == {}
    config, problems = config_in_force(STARTED_WITH, {broker_key(1, nobody[0]): nobody[1]}, 1)
    assert (config, list(problems)) == (STARTED_WITH, [broker_key(1, nobody[0])])


def test_topics_defaults_of_one_broker_are_those_of_how_it_writes() -> None:
    stored = {
        broker_key(1, "message.max.bytes"): "5", broker_key(1, "log.roll.ms"): "soon",
        broker_key(1, "log.retention.ms"): "7", broker_key(None, "compression.type"): "zstd",
    }  # fmt: skip
    assert topic_defaults_in_force(stored, 1) == {"max.message.bytes": "5"}
    assert topic_defaults_in_force(stored, 2) == {}
