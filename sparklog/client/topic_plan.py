"""Resolves topic names to existing topics, or to planned ones, which the first append creates.

Invariants: a planned topic's id is generated when it is planned. At publication all plans of one name, from
    any number of tasks, become one topic, and drafts with a planned id are moved to it. Users cannot write
    to internal topics.
Not here: the commit (publish.py).
Concurrency: values are immutable; a `TopicPlanner` belongs to one thread.
"""

import dataclasses
from collections.abc import Mapping

from sparklog.errors import InvalidRequestError, UnknownTopicError
from sparklog.format.consumer_offsets import TOPIC
from sparklog.log.config import RootConfig, TopicConfig, validate_topic_configs
from sparklog.metadata import Image, Topic, is_internal, new_id, plan_create_topic

# --- offsets topic -----------------------------------------------------------------------------------
#
# The settings of __consumer_offsets: a coordinator, a commit, a write or an administrator may create it.
#
# Invariants: only compaction removes its records: a retention would lose the offsets of idle groups.
#     Its number of partitions never changes: a group's partition depends on it.
# Not here: its records (groups.py), altering topics (admin.py).
# Sources: Kafka GroupCoordinator.groupMetadataTopicConfigs.


OFFSETS_TOPIC = TOPIC
OFFSETS_TOPIC_CONFIGS = {"cleanup.policy": "compact"}


def validate_partitions(image: Image, name: str, total: int) -> None:
    """Refuse to change the number of partitions of __consumer_offsets.

    A group's partition is computed from its name and this number. With another number its committed offsets
    would not be found, and every group would start over.

    Raises:
        InvalidRequestError: INVALID_PARTITION_COUNT.
    """
    topic = image.topics.get(OFFSETS_TOPIC)
    if name == OFFSETS_TOPIC and topic is not None and total != len(topic.partitions):
        raise InvalidRequestError(
            "INVALID_PARTITION_COUNT",
            f"topic {name!r}: found {total} partitions, expected {len(topic.partitions)}: its number cannot "
            "change, since committed offsets of groups would be lost",
            fix="keep the number; a new root uses offsets.topic.num.partitions",
        )


def validate_settings(image: Image, name: str, changes: Mapping[str, str | None]) -> None:
    """Refuse a cleanup.policy of __consumer_offsets other than compact.

    Raises:
        InvalidRequestError: INVALID_CONFIG_VALUE.
    """
    topic = image.topics.get(name)
    if name != OFFSETS_TOPIC or topic is None or "cleanup.policy" not in changes:
        return
    overrides = {**topic.configs, **changes}
    _validate_policy(
        name, {key: value for key, value in overrides.items() if value is not None}, image.configs
    )


def partitions_of_new(name: str, root: RootConfig) -> int:
    """Return the default number of partitions of a new topic."""
    return root.offsets_topic_num_partitions if name == OFFSETS_TOPIC else root.num_partitions


def configs_of_new(name: str, asked: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the settings of a new topic, given the requested ones, which are valid.

    Raises:
        InvalidRequestError: INVALID_CONFIG_VALUE, not allowed for __consumer_offsets.
    """
    if name != OFFSETS_TOPIC:
        return dict(asked or {})
    configs = {**OFFSETS_TOPIC_CONFIGS, **(asked or {})}
    _validate_policy(name, configs, {})
    return configs


def _validate_policy(name: str, overrides: Mapping[str, str], root: Mapping[str, str]) -> None:
    policy = TopicConfig.parse(overrides, root).cleanup_policy
    if policy != ("compact",):
        raise InvalidRequestError(
            "INVALID_CONFIG_VALUE",
            f"topic {name!r}: found cleanup.policy={','.join(policy)}, expected compact: groups' committed "
            "offsets would be lost",
            fix="keep cleanup.policy=compact",
        )


# --- topic plan --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTopic:
    """A topic to be created together with the first records for it. Picklable."""

    name: str
    topic_id: str
    partitions: int
    configs: tuple[tuple[str, str], ...] = ()
    keyed: bool = False  # rows were placed by key: another number of partitions would misplace them


@dataclasses.dataclass(slots=True, kw_only=True)
class TopicTarget:
    """A topic as the writer needs it; `planned` until it exists."""

    name: str
    topic_id: str
    partitions: int
    config: TopicConfig
    planned: PlannedTopic | None = None
    keyed: bool = False


class TopicPlanner:
    """Resolves names against one image, and remembers the planned topics."""

    def __init__(
        self,
        image: Image,
        *,
        auto_create: bool | None = None,
        num_partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
        overrides: Mapping[str, int] | None = None,
    ) -> None:
        """Resolve names against `image`.

        Args:
            auto_create, num_partitions: None: the root's settings.
            configs: of topics that are created, other than __consumer_offsets.
            overrides: fields of TopicConfig; they can only lower a topic's limits.

        Raises:
            InvalidRequestError: invalid `configs`.
        """
        validate_topic_configs(configs or {})
        self._image = image
        self._root = RootConfig.parse(image.configs)
        self._auto_create = self._root.auto_create_topics_enable if auto_create is None else auto_create
        self._num_partitions = num_partitions or self._root.num_partitions
        self._configs = dict(configs or {})
        self._overrides = dict(overrides or {})
        self._targets: dict[str, TopicTarget] = {}

    def target(self, name: str, *, state: bool = False) -> TopicTarget:
        """Return the topic, planned if it does not exist.

        Args:
            state: for state of groups: the topic may be internal, and is planned without auto_create.

        Raises:
            InvalidRequestError: INTERNAL_TOPIC, or an invalid name.
            UnknownTopicError: the topic does not exist, and may not be created.
        """
        if not state:
            refuse_internal(name)
        found = self._targets.get(name)
        if found is None:
            found = self._existing(name) or self._plan(name, state=state)
            self._targets[name] = found
        return found

    def knows(self, topic: Topic) -> bool:
        """Return True if this planner's image has the topic, with the same id."""
        found = self._image.topics.get(topic.name)
        return found is not None and found.topic_id == topic.topic_id

    def planned(self) -> tuple[PlannedTopic, ...]:
        """Return the topics to create at publication."""
        return tuple(
            dataclasses.replace(target.planned, keyed=target.keyed)
            for target in self._targets.values()
            if target.planned
        )

    def _existing(self, name: str) -> TopicTarget | None:
        topic = self._image.topics.get(name)
        if topic is None:
            return None
        return TopicTarget(
            name=name,
            topic_id=topic.topic_id,
            partitions=len(topic.partitions),
            config=self._config(topic.configs),
        )

    def _plan(self, name: str, *, state: bool) -> TopicTarget:
        if not (state or self._auto_create):
            raise unknown_topic(name)
        partitions, configs = self._num_partitions, self._configs
        if name == OFFSETS_TOPIC:  # the planner's own settings are for topics of rows
            partitions, configs = partitions_of_new(name, self._root), configs_of_new(name)
        topic_id = new_id()
        plan_create_topic(self._image, name, partitions, topic_id=topic_id, configs=configs)  # validates
        plan = PlannedTopic(
            name=name,
            topic_id=topic_id,
            partitions=partitions,
            configs=tuple(sorted(configs.items())),
        )
        return TopicTarget(
            name=name,
            topic_id=plan.topic_id,
            partitions=partitions,
            config=self._config(configs),
            planned=plan,
        )

    def _config(self, configs: Mapping[str, str]) -> TopicConfig:
        config = TopicConfig.parse(configs, self._image.configs)
        lowered = {name: min(value, getattr(config, name)) for name, value in self._overrides.items()}
        return dataclasses.replace(config, **lowered)


def refuse_internal(name: str) -> None:
    """Refuse rows in internal topics, as Kafka's brokers do.

    A single foreign record would make the groups of its partition impossible to load.

    Raises:
        InvalidRequestError: INTERNAL_TOPIC.
    """
    if is_internal(name):
        raise InvalidRequestError(
            "INTERNAL_TOPIC",
            f"topic {name} is internal: groups and brokers keep their state in it, not rows",
            fix="name another topic; commit a group's offsets with commit_offsets, or consume --group",
        )


def unknown_topic(name: str) -> UnknownTopicError:
    """Return the error for a topic that does not exist and may not be created."""
    return UnknownTopicError(
        "TOPIC_MISSING",
        f"found no topic {name!r}",
        fix="create it, correct the name, or let writers create topics: "
        "sparklog root alter --config auto.create.topics.enable=true",
    )
