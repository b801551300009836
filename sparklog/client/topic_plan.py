"""Which topic rows go to: one that exists, or one that is planned and created with the first append.

Invariants: a planned topic's id is made up when it is planned; at publication all plans of one name,
    from any number of tasks, become one topic, and drafts that carry a planned id are moved to it. What users
    write is in no internal topic.
Not here: the commit (publish.py).
Concurrency: values are immutable; a `TopicPlanner` belongs to one thread.
"""

import dataclasses
from collections.abc import Mapping

from sparklog.client.offsets_topic import OFFSETS_TOPIC, configs_of_new, partitions_of_new
from sparklog.errors import InvalidRequestError, UnknownTopicError
from sparklog.log.config import TopicConfig, validate_topic_configs
from sparklog.log.root_config import RootConfig
from sparklog.metadata import Image, Topic, is_internal, new_id, plan_create_topic


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
    """Resolves names against one image, and remembers what it planned."""

    def __init__(
        self,
        image: Image,
        *,
        auto_create: bool | None = None,
        num_partitions: int | None = None,
        configs: Mapping[str, str] | None = None,
        overrides: Mapping[str, int] | None = None,
    ) -> None:
        """`auto_create` and `num_partitions`: instead of the root's; `configs`: of topics that have to be
        created, other than __consumer_offsets; `overrides`: fields of TopicConfig, which can only lower a
        topic's limits.

        Raises:
            InvalidRequestError: a topic cannot have these `configs`.
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
        """The topic called `name`, planned if it does not exist.

        Args:
            state: for what groups keep: it may be internal, and is planned even where rows create no topics.

        Raises:
            InvalidRequestError: INTERNAL_TOPIC, it is for state only; or no topic can have this name.
            UnknownTopicError: there is none, and it may not be created.
        """
        if not state:
            refuse_internal(name)
        found = self._targets.get(name)
        if found is None:
            found = self._existing(name) or self._plan(name, state=state)
            self._targets[name] = found
        return found

    def knows(self, topic: Topic) -> bool:
        """Was it there when these names began to be resolved?"""
        found = self._image.topics.get(topic.name)
        return found is not None and found.topic_id == topic.topic_id

    def planned(self) -> tuple[PlannedTopic, ...]:
        """What has to be created at publication."""
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
        if name == OFFSETS_TOPIC:  # what the planner was told is for rows' topics
            partitions, configs = partitions_of_new(name, self._root), configs_of_new(name)
        topic_id = new_id()
        plan_create_topic(self._image, name, partitions, topic_id=topic_id, configs=configs)  # is it legal?
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
    """Keep rows out of the topics in which groups and brokers keep their state, as Kafka's brokers do.

    One record there that is none of theirs, and the groups of its partition could not be loaded any more.

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
    """The error for a topic that is not there and may not be created."""
    return UnknownTopicError(
        "TOPIC_MISSING",
        f"found no topic {name!r}",
        fix="create it, correct the name, or let writers create topics: "
        "sparklog root alter --config auto.create.topics.enable=true",
    )
