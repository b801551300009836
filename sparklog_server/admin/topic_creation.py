"""Creating topics: what is asked for, checked and planned; and those that are missing when somebody asks.

What is asked for is looked at as it came: whatever has these attributes will do, a request's entity too, for
thousands of topics may be named at once.
Invariants: a topic is planned by itself, against the image that its commit follows; names that would be the
    same in metrics are refused within one request, too.
Not here: carrying the parts out (changes.py), Kafka's entities (api/).
Sources: Kafka ReplicationControlManager.createTopics, AutoTopicCreationManager.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from sparklog.client.offsets_topic import OFFSETS_TOPIC, configs_of_new, partitions_of_new
from sparklog.log.config import validate_topic_configs
from sparklog.log.root_config import RootConfig
from sparklog.metadata import (
    NEVER_TOPICS,
    Action,
    Image,
    collision_key,
    new_id,
    plan_create_topic,
    why_no_new_topic_name,
)
from sparklog_server.admin.assignments import (
    Placements,
    validate_assignment,
    validate_replication_factor,
    validate_usable,
)
from sparklog_server.admin.changes import Changes, Part, RefusedError, duplicates
from sparklog_server.admin.config_changes import invalid_request
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.root.live_root import LiveRoot

MAX_CREATED = 100  # missing topics that one request can create; who asks again gets the next ones


class NewAssignment(Protocol):
    """Where the replicas of one partition are to be."""

    @property
    def partition_index(self) -> int: ...

    @property
    def broker_ids(self) -> Sequence[int]: ...


class NewConfig(Protocol):
    """One setting."""

    @property
    def name(self) -> str: ...

    @property
    def value(self) -> str | None: ...


class NewTopic(Protocol):
    """What a topic is to be; -1: the default."""

    @property
    def name(self) -> str: ...

    @property
    def num_partitions(self) -> int: ...

    @property
    def replication_factor(self) -> int: ...

    @property
    def assignments(self) -> Sequence[NewAssignment]: ...

    @property
    def configs(self) -> Sequence[NewConfig]: ...


def creations(root: LiveRoot, topics: Sequence[NewTopic], placements: Placements) -> dict[str, Part]:
    """A part for each name; where the partitions are to be is left in `placements`."""
    names = [topic.name for topic in topics]
    twice = duplicates(names)
    colliding = duplicates([collision_key(name) for name in dict.fromkeys(names)])
    default = _default_partitions(root)
    return {
        topic.name: _part(
            topic,
            default,
            placements,
            duplicate=topic.name in twice,
            colliding=collision_key(topic.name) in colliding,
        )
        for topic in topics
    }


async def create_missing(root: LiveRoot, changes: Changes, names: Iterable[str]) -> dict[str, ErrorCode]:
    """Create what is not there and may be created, with the defaults; name -> what went wrong."""
    image = root.image
    missing = [name for name in names if name not in image.topics and why_no_new_topic_name(name) is None]
    if not missing:
        return {}
    config = root.root_config()
    parts: dict[str, Part] = {}
    later: dict[str, ErrorCode] = {}
    collisions: set[str] = set()
    for name in missing:
        key = collision_key(name)
        if name != OFFSETS_TOPIC and not config.auto_create_topics_enable:
            continue
        if len(parts) == MAX_CREATED or key in collisions:
            later[name] = ErrorCode.leader_not_available  # "ask again", as Kafka while it creates
            continue
        collisions.add(key)
        parts[name] = _creation(name, partitions_of_new(name, config), configs_of_new(name))
    outcomes = await changes.make(parts) if parts else {}
    return later | {name: outcome.code for name, outcome in outcomes.items() if outcome.is_error}


def _creation(name: str, partitions: int, configs: dict[str, str]) -> Part:
    topic_id = new_id()

    def plan(image: Image) -> Action | None:
        if name in image.topics:
            return None
        return plan_create_topic(image, name, partitions, topic_id=topic_id, configs=configs)

    return plan


def _default_partitions(root: LiveRoot) -> Callable[[Image, str], int]:
    """Of a name, as of an image; settings are parsed once, not once for each of thousands of topics."""
    known: tuple[Image, RootConfig] | None = None

    def default(image: Image, name: str) -> int:
        nonlocal known
        if known is None or known[0] is not image:
            known = image, root.root_config(image)
        return partitions_of_new(name, known[1])

    return default


def _part(
    topic: NewTopic,
    default: Callable[[Image, str], int],
    placements: Placements,
    *,
    duplicate: bool,
    colliding: bool,
) -> Part:
    topic_id = new_id()

    def plan(image: Image) -> Action:
        if duplicate:
            raise invalid_request("Duplicate topic name.")
        if topic.name in NEVER_TOPICS:
            raise invalid_request(f"Creation of internal topic {topic.name} is prohibited.")
        if colliding:
            raise RefusedError(
                ErrorCode.invalid_topic_exception,
                f"Topic '{topic.name}' collides with another one of this request: '.' and '_' are the same "
                "in metric names",
            )
        asked = _assigned(image, topic) if topic.assignments else _partitions(image, topic)
        partitions = asked or default(image, topic.name)
        action = plan_create_topic(image, topic.name, partitions, topic_id=topic_id, configs=_configs(topic))
        if topic.assignments:
            lists = sorted(topic.assignments, key=lambda one: one.partition_index)
            placements.want(image, topic_id, lists=[one.broker_ids for one in lists])
        elif topic.replication_factor != -1:
            placements.want(image, topic_id, factor=topic.replication_factor)
        return action

    return plan


def _partitions(image: Image, topic: NewTopic) -> int:
    """How many are asked for; 0: the default."""
    validate_replication_factor(image.brokers, topic.replication_factor)
    count = topic.num_partitions
    if count == 0 or count < -1:
        raise RefusedError(
            ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
        )
    return 0 if count == -1 else count


def _assigned(image: Image, topic: NewTopic) -> int:
    """How many are assigned by hand."""
    for name, value in (
        ("replication factor", topic.replication_factor),
        ("numPartitions", topic.num_partitions),
    ):
        if value != -1:
            raise invalid_request(
                f"A manual partition assignment was specified, but {name} was not set to -1."
            )
    indexes = [one.partition_index for one in topic.assignments]
    factor = len(topic.assignments[0].broker_ids)
    for one in topic.assignments:
        validate_assignment(image.brokers, one.broker_ids, factor=factor)
        validate_usable(image, one.partition_index, one.broker_ids)
    if twice := duplicates(indexes):
        raise RefusedError(
            ErrorCode.invalid_replica_assignment,
            f"Found multiple manual partition assignments for partition {min(twice)}",
        )
    if sorted(indexes) != list(range(len(indexes))):
        raise RefusedError(
            ErrorCode.invalid_replica_assignment,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return len(indexes)


def _configs(topic: NewTopic) -> dict[str, str]:
    keys = [one.name for one in topic.configs]
    if len(set(keys)) < len(keys):
        raise invalid_request("Error due to duplicate config keys")
    nulls = [one.name for one in topic.configs if one.value is None]
    if nulls:
        raise RefusedError(
            ErrorCode.invalid_config, f"Null value not supported for topic configs: {','.join(nulls)}"
        )
    configs = {one.name: one.value for one in topic.configs if one.value is not None}
    validate_topic_configs(configs)
    return configs_of_new(topic.name, configs)
