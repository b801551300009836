"""Settings: parsing, bounds, layers of defaults, and the generated documents."""

from pathlib import Path

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.log.config import (
    REFUSED_TOPIC_SETTINGS,
    RootConfig,
    TopicConfig,
    describe_configs,
    render_properties,
    validate_config_keys,
    validate_root_configs,
    validate_topic_configs,
)
from sparklog.log.setting import LONG_MAX, declared_settings

PROPERTIES = Path(__file__).parents[2] / "conf" / "topic.properties"


def test_defaults_are_kafkas() -> None:
    config = TopicConfig()
    assert config.segment_bytes == 1 << 30
    assert config.segment_ms == 604_800_000
    assert config.retention_ms == -1  # but for this one: nothing goes that nobody asked to go
    assert config.index_interval_bytes == 4096
    assert config.segment_index_bytes == 10_485_760
    assert config.max_message_bytes == 1_048_588
    assert config.flush_messages == LONG_MAX
    assert config.cleanup_policy == ("delete",)
    assert RootConfig().offsets_topic_num_partitions == 50


def test_a_topic_overrides_the_root_which_overrides_the_default() -> None:
    root = {"retention.ms": "5000", "segment.bytes": "2000", "num.partitions": "7"}
    config = TopicConfig.parse({"segment.bytes": "1000", "cleanup.policy": "compact, delete"}, root)
    assert (config.segment_bytes, config.retention_ms) == (1000, 5000)
    assert config.cleanup_policy == ("compact", "delete")
    assert RootConfig.parse(root).num_partitions == 7


def test_unknown_key_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidRequestError, match=r"'segment\.byte'.*Fix: Write 'segment\.bytes'") as caught:
        validate_topic_configs({"segment.byte": "1000"})
    assert caught.value.code == "UNKNOWN_CONFIG"
    with pytest.raises(InvalidRequestError, match=r"Use one of cleanup\.policy"):
        validate_topic_configs({"zzz": "1"})
    with pytest.raises(InvalidRequestError, match=r"Fix: Write 'retention\.ms', in milliseconds"):
        validate_topic_configs({"retention.hours": "24"})
    with pytest.raises(InvalidRequestError, match=r"topic setting 'num\.partitions'"):
        validate_topic_configs({"num.partitions": "3"})
    validate_root_configs({"num.partitions": "3", "retention.ms": "-1"})
    with pytest.raises(InvalidRequestError, match="root setting 'num_partitions'"):
        validate_root_configs({"num_partitions": "3"})
    with pytest.raises(InvalidRequestError, match="UNKNOWN_CONFIG"):
        validate_config_keys(["num.partitions"])
    validate_config_keys(["num.partitions"], root=True)


@pytest.mark.parametrize(
    ("key", "text", "bound"),
    [
        ("segment.bytes", "13", "the minimum 14"),
        ("segment.bytes", "2147483648", "the maximum 2147483647"),
        ("retention.ms", "-2", "the minimum -1"),
        ("min.cleanable.dirty.ratio", "1.01", "the maximum 1"),
        ("min.cleanable.dirty.ratio", "nan", "the minimum 0"),
        ("flush.messages", "0", "the minimum 1"),
    ],
)
def test_out_of_bounds_names_the_bound(key: str, text: str, bound: str) -> None:
    with pytest.raises(InvalidRequestError, match=bound) as caught:
        validate_topic_configs({key: text})
    assert caught.value.code == "CONFIG_OUT_OF_BOUNDS"
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("segment.bytes", "1e3"),
        ("segment.bytes", "1_000"),
        ("segment.bytes", "\u0661\u0662\u0663"),
        ("segment.bytes", ""),
        ("compression.type", "brotli"),
        ("message.timestamp.type", "createtime"),
        ("cleanup.policy", "delete,delete"),
        ("cleanup.policy", ","),
        ("auto.create.topics.enable", "yes"),
    ],
)
def test_wrong_form_is_refused(key: str, text: str) -> None:
    with pytest.raises(InvalidRequestError, match="INVALID_CONFIG_VALUE"):
        validate_root_configs({key: text})


def test_values_must_be_strings() -> None:
    with pytest.raises(InvalidRequestError, match="of type int, expected a string"):
        validate_topic_configs({"segment.bytes": 1000})  # type: ignore[dict-item]


@pytest.mark.parametrize("cls", [TopicConfig, RootConfig])
def test_every_default_parses_to_itself_and_is_documented(cls: type[TopicConfig]) -> None:
    for key, (name, one) in declared_settings(cls).items():
        assert one.parse(one.format(one.default)) == one.default
        assert name == key.removeprefix("sparklog.").replace(".", "_")
        assert len(one.doc) > 40
        assert key in describe_configs()


def test_the_example_file_matches_the_declarations() -> None:
    assert PROPERTIES.read_text() == render_properties()


@pytest.mark.parametrize("key", sorted(REFUSED_TOPIC_SETTINGS))
def test_settings_that_only_kafka_has_are_refused_with_the_reason(key: str) -> None:
    assert key not in declared_settings(TopicConfig)
    for validate in (validate_topic_configs, validate_root_configs):
        with pytest.raises(InvalidRequestError, match="UNSUPPORTED_CONFIG") as caught:
            validate({key: "1"})
        assert REFUSED_TOPIC_SETTINGS[key] in str(caught.value)


def test_what_kafkas_own_clients_send_on_creation_is_accepted() -> None:
    """Kafka Connect, Streams' repartition, changelog and windowed changelog topics, a topic operator."""
    validate_topic_configs({"cleanup.policy": "compact", "min.insync.replicas": "2"})
    validate_topic_configs(
        {"cleanup.policy": "delete", "segment.bytes": "52428800", "retention.ms": "-1",
         "message.timestamp.type": "CreateTime"}
    )  # fmt: skip
    validate_topic_configs({"cleanup.policy": "compact,delete", "retention.ms": "86400000"})
    validate_topic_configs({"min.compaction.lag.ms": "60000", "unclean.leader.election.enable": "false"})
