"""Settings of brokers among those of their root."""

from sparklog.log.config import (
    RootConfig,
    TopicConfig,
    broker_configs,
    broker_key,
    group_configs,
    group_key,
    is_broker_key,
    is_group_key,
    nodes_with_configs,
)
from sparklog.log.setting import declared_settings

CONFIGS = {
    "brokers/1/a": "1", "brokers/10/a": "10", "brokers/default/a": "all", "brokers/1/b": "2",
    "brokers/x/a": "3", "brokers/2": "4", "retention.ms": "5",
}  # fmt: skip


def test_each_broker_has_its_own() -> None:
    assert broker_configs(CONFIGS, 1) == {"a": "1", "b": "2"}
    assert broker_configs(CONFIGS, 10) == {"a": "10"}
    assert broker_configs(CONFIGS, None) == {"a": "all"}
    assert broker_configs(CONFIGS, 2) == broker_configs(CONFIGS, -1) == {}
    assert broker_configs({broker_key(7, "c"): "8", broker_key(None, "c"): "9"}, 7) == {"c": "8"}


def test_who_has_some_of_its_own() -> None:
    assert nodes_with_configs(CONFIGS) == [1, 2, 10]


def test_no_setting_of_a_topic_or_a_root_is_taken_for_a_brokers() -> None:
    declared = [*declared_settings(TopicConfig), *declared_settings(RootConfig)]
    assert not any("/" in key for key in declared)
    assert [key for key in CONFIGS if not is_broker_key(key)] == ["retention.ms"]


def test_each_group_has_its_own_whatever_its_name() -> None:
    stored = {group_key("a", "x"): "1", group_key("a/b", "x"): "2", group_key("a/b", "y"): "3", **CONFIGS}
    assert group_configs(stored) == {"a": {"x": "1"}, "a/b": {"x": "2", "y": "3"}}
    assert [key for key in CONFIGS if is_group_key(key)] == []
