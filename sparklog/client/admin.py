"""Topics and settings: create, alter, describe. Each change is one metadata commit.

The embedded client and the broker share the plans here; the broker adds Kafka's shapes and errors.
Invariants: only declared settings with legal values are stored (log/config.py); __consumer_offsets keeps its
    number of partitions and its cleanup.policy (topic_plan.py).
Not here: deleting (groups.py); what the metadata log checks itself: legal and colliding names,
    numbers of partitions.
Concurrency: any thread; conflicts are resolved by planning again.
Sources: kafka-topics, kafka-configs.
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping

from sparklog.client.cluster_view import describe_partition
from sparklog.client.topic_plan import (
    configs_of_new,
    partitions_of_new,
    validate_partitions,
    validate_settings,
)
from sparklog.errors import InvalidRequestError
from sparklog.log.config import (
    RootConfig,
    TopicConfig,
    broker_configs,
    validate_config_keys,
    validate_root_configs,
    validate_topic_configs,
)
from sparklog.log.setting import declared_settings
from sparklog.metadata import (
    NO_NODE,
    Action,
    AddPartitions,
    CreateTopic,
    Image,
    MetadataLog,
    PartitionState,
    SetConfigs,
    is_internal,
    new_id,
    plan_add_partitions,
    plan_advance_log_start,
    plan_create_topic,
    plan_set_configs,
)

# --- plans -------------------------------------------------------------------------------------------


def plan_new_topic(
    image: Image,
    name: str,
    *,
    topic_id: str,
    root: RootConfig,
    partitions: int | None = None,
    configs: Mapping[str, str] | None = None,
) -> CreateTopic:
    """Plan a topic, by default with as many partitions as the root's settings say.

    Raises:
        InvalidRequestError: TOPIC_EXISTS; an illegal name, number of partitions or setting.
    """
    validate_topic_configs(configs or {})
    count = partitions_of_new(name, root) if partitions is None else partitions
    return plan_create_topic(image, name, count, topic_id=topic_id, configs=configs_of_new(name, configs))


def plan_more_partitions(image: Image, name: str, total: int) -> AddPartitions | None:
    """Plan that a topic has `total` partitions; None: it has.

    Raises:
        InvalidRequestError: INVALID_PARTITION_COUNT: fewer than it has, or __consumer_offsets.
        UnknownTopicError: there is no such topic.
    """
    validate_partitions(image, name, total)
    return plan_add_partitions(image, name, total)


def plan_topic_configs(image: Image, name: str, changes: Mapping[str, str | None]) -> SetConfigs | None:
    """Plan to set (text) and delete (None) overrides of a topic; None: there is nothing to do.

    Deleting what is not set, known or not, is done already: MirrorMaker deletes every setting that has its
    default at the source.

    Raises:
        InvalidRequestError: an unknown setting, or an illegal value.
        UnknownTopicError: there is no such topic.
    """
    overrides = image.topic(name).configs
    validate_settings(image, name, changes)
    validate_topic_configs({key: value for key, value in changes.items() if value is not None})
    changes = {key: value for key, value in changes.items() if value is not None or key in overrides}
    return plan_set_configs(image, name, changes)


# --- changes -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """What a partition holds, `size_bytes` as stored, and its leader.

    Fields:
        leader: a broker's node id; None: it has no leader.
        replicas, isr: brokers that may lead it, and those that could now; empty where none is registered.
    """

    partition: int
    log_start_offset: int
    log_end_offset: int
    size_bytes: int
    extent_count: int
    leader: int | None = None
    leader_epoch: int = 0
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic: its overrides (`configs`) and the settings in force (`config`)."""

    name: str
    topic_id: str
    internal: bool
    configs: dict[str, str]
    config: TopicConfig
    partitions: tuple[PartitionDescription, ...]


def create_topic(
    metadata: MetadataLog,
    name: str,
    *,
    partitions: int | None = None,
    configs: Mapping[str, str] | None = None,
    if_not_exists: bool = False,
) -> bool:
    """Create a topic; False if it was there and `if_not_exists`.

    Args:
        partitions: None means the root's num.partitions, or offsets.topic.num.partitions.

    Raises:
        InvalidRequestError: TOPIC_EXISTS; an illegal name, number of partitions or setting.
    """
    validate_topic_configs(configs or {})  # also of a topic that is there
    topic_id = new_id()

    def plan(image: Image) -> list[Action]:
        if if_not_exists and name in image.topics:
            return []
        root = RootConfig.parse(image.configs)
        return [
            plan_new_topic(image, name, topic_id=topic_id, root=root, partitions=partitions, configs=configs)
        ]

    return bool(metadata.publish(plan).actions)


def add_partitions(metadata: MetadataLog, name: str, total: int) -> None:
    """Let a topic have `total` partitions. Keys move: new records of a key may go elsewhere than the old."""
    metadata.publish(lambda image: _planned(plan_more_partitions(image, name, total)))


def alter_topic(
    metadata: MetadataLog,
    name: str,
    changed: Mapping[str, str],
    deleted: Iterable[str] = (),
    *,
    partitions: int | None = None,
) -> None:
    """Set and delete overrides of a topic, and let it have `partitions`: all, or nothing."""
    validate_topic_configs(changed)
    configs = _config_changes(changed, list(deleted), root=False)

    def plan(image: Image) -> list[Action]:
        more = None if partitions is None else plan_more_partitions(image, name, partitions)
        return _planned(plan_topic_configs(image, name, configs), more)

    metadata.publish(plan)


def alter_root(metadata: MetadataLog, changed: Mapping[str, str], deleted: Iterable[str] = ()) -> None:
    """Set and delete settings of the root, among them the defaults of its topics."""
    validate_root_configs(changed)
    configs = _config_changes(changed, list(deleted), root=True)
    metadata.publish(lambda image: _planned(plan_set_configs(image, None, configs)))


# --- deletion of records ---------------------------------------------------------------------------------

LOG_END = -1  # Kafka's -1: all that there is now


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRecords:
    """The start of a partition's log, before and after. The files go with the next vacuum."""

    log_start_offset: int
    new_log_start_offset: int


def delete_records(
    metadata: MetadataLog, before: Mapping[tuple[str, int], int], *, dry_run: bool = False
) -> dict[tuple[str, int], DeletedRecords]:
    """Delete all records before an offset of each partition; all in one commit, or nothing.

    Args:
        before: the new log start offsets, or LOG_END. Where the log starts later already, nothing changes.

    Raises:
        UnknownTopicError: a partition that there is none of.
        InvalidRequestError: INTERNAL_TOPIC; COMPACTED_TOPIC; OFFSET_OUT_OF_RANGE, past the log's end.
    """
    found: dict[tuple[str, int], DeletedRecords] = {}

    def plan(image: Image) -> list[Action]:
        found.clear()
        actions = []
        for (topic, partition), offset in before.items():
            state = image.partition(topic, partition)
            start = _new_log_start(image, topic, state, offset)
            found[topic, partition] = DeletedRecords(
                log_start_offset=state.log_start_offset,
                new_log_start_offset=max(start, state.log_start_offset),
            )
            actions.append(plan_advance_log_start(image, image.topic(topic).topic_id, partition, start))
        return _planned(*actions)

    if dry_run:
        plan(metadata.refresh(force=True))
    else:
        metadata.publish(plan)
    return found


def _new_log_start(image: Image, name: str, state: PartitionState, offset: int) -> int:
    """As Kafka's DeleteRecords: not of internal topics, nor of those that keep a record of each key."""
    if is_internal(name):
        raise InvalidRequestError(
            "INTERNAL_TOPIC", f"topic {name} is internal: its records stay", fix="name a topic of users"
        )
    if TopicConfig.parse(image.topic(name).configs, image.configs).cleanup_policy == ("compact",):
        raise InvalidRequestError(
            "COMPACTED_TOPIC",
            f"topic {name}: its cleanup.policy is compact, which keeps the last record of each key",
            fix="write tombstones, or set cleanup.policy=compact,delete",
        )
    start = state.log_end_offset if offset == LOG_END else offset
    if not 0 <= start <= state.log_end_offset:
        raise InvalidRequestError(
            "OFFSET_OUT_OF_RANGE",
            f"{name}-{state.partition}: found offset {offset} to delete before, expected 0 to "
            f"{state.log_end_offset}, or -1 for all",
            fix="name an offset of the log (`sparklog offsets get`)",
        )
    return start


# --- descriptions ------------------------------------------------------------------------------------


def describe_topic(image: Image, name: str) -> TopicDescription:
    """What is known of a topic, as of an image."""
    topic = image.topic(name)
    return TopicDescription(
        name=name,
        topic_id=topic.topic_id,
        internal=is_internal(name),
        configs=dict(topic.configs),
        config=TopicConfig.parse(topic.configs, image.configs),
        partitions=tuple(_describe_partition(image, name, state) for state in topic.partitions),
    )


class ConfigSource(enum.StrEnum):
    """Where a value comes from. Of several the first in this order is in force."""

    TOPIC = "topic"
    GROUP = "group"
    BROKER = "broker"
    ALL_BROKERS = "all brokers"
    ROOT = "root"
    DEFAULT = "default"


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigValue:
    """A value of a setting, as text, at one of its sources."""

    value: str
    source: ConfigSource


@dataclasses.dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """A setting's value in force, its source, and the values that it overrides, the strongest first."""

    name: str
    value: str
    source: ConfigSource
    overridden: tuple[ConfigValue, ...]


def effective_configs(image: Image, topic: str) -> list[EffectiveConfig]:
    """All settings of a topic, sorted by name, as processes that use the root act on them.

    A broker's server.properties, and values of a single broker, are not in it: other processes do not have
    them.

    Raises:
        UnknownTopicError: there is no such topic.
    """
    own = image.topic(topic).configs
    return _in_force(
        {
            ConfigSource.TOPIC: own,
            ConfigSource.ROOT: image.configs,
            ConfigSource.DEFAULT: _defaults(TopicConfig),
        },
        declared_settings(TopicConfig),
    )


def effective_broker_configs(image: Image, node_id: int) -> list[EffectiveConfig]:
    """What the root says of a broker's settings, sorted by name; its server.properties are not known here.

    Among them are the root's own settings, and the defaults of topics under the topics' names.
    """
    defaults = _defaults(TopicConfig) | _defaults(RootConfig)
    sources = {
        ConfigSource.BROKER: broker_configs(image.configs, node_id),
        ConfigSource.ALL_BROKERS: broker_configs(image.configs, None),
        ConfigSource.ROOT: {name: value for name, value in image.configs.items() if name in defaults},
        ConfigSource.DEFAULT: defaults,
    }
    return _in_force(sources, {name for configs in sources.values() for name in configs})


def _defaults(cls: type) -> dict[str, str]:
    return {name: one.format(one.default) for name, (_, one) in declared_settings(cls).items()}


def _in_force(
    sources: Mapping[ConfigSource, Mapping[str, str]], names: Iterable[str]
) -> list[EffectiveConfig]:
    """The named settings of which a source has a value; the first source that has one wins."""
    found = []
    for name in sorted(names):
        first, *others = (
            ConfigValue(configs[name], source) for source, configs in sources.items() if name in configs
        )
        found.append(EffectiveConfig(name, first.value, first.source, tuple(others)))
    return found


def _describe_partition(image: Image, topic: str, state: PartitionState) -> PartitionDescription:
    led = describe_partition(image, topic, state)
    return PartitionDescription(
        partition=state.partition,
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        size_bytes=state.extents.stored_bytes,
        extent_count=len(state.extents),
        leader=None if led.leader == NO_NODE else led.leader,
        leader_epoch=led.leader_epoch,
        replicas=led.replicas,
        isr=led.isr,
    )


def _config_changes(changed: Mapping[str, str], deleted: list[str], *, root: bool) -> dict[str, str | None]:
    validate_config_keys(deleted, root=root)
    both = sorted(set(changed) & set(deleted))
    if both:
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"found {', '.join(both)} both to set and to delete",
            fix="name each setting once",
        )
    return {**changed, **dict.fromkeys(deleted)}


def _planned(*actions: Action | None) -> list[Action]:
    return [action for action in actions if action is not None]
