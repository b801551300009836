"""Topics that clients create, grow and delete; and missing ones that are created when a client asks for them.

Requests are read as they came: anything with these attributes will do, Kafka's entities too, since thousands
of topics may be named in one request. The plans are the embedded client's (sparklog/client/admin.py).
Invariants: a topic is planned by itself, against the image that its commit follows; names that would be the
    same in metrics are refused within one request, too.
Not here: carrying the parts out (changes.py), Kafka's entities (api/).
Sources: Kafka ReplicationControlManager.createTopics, AutoTopicCreationManager.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from sparklog.client.admin import plan_more_partitions, plan_new_topic
from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.errors import UnknownTopicError
from sparklog.log.config import RootConfig
from sparklog.metadata import (
    NEVER_TOPICS,
    Action,
    DeleteTopic,
    Image,
    Topic,
    collision_key,
    new_id,
    plan_delete_topic,
    why_no_new_topic_name,
)
from sparklog_server.admin.assignments import (
    Placements,
    validate_assignment,
    validate_replication_factor,
    validate_usable,
)
from sparklog_server.admin.changes import Changes, Part, RefusedError, duplicates
from sparklog_server.admin.configs import invalid_request
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.root.live_root import LiveRoot

# --- partitions --------------------------------------------------------------------------------------
#
# More partitions for topics that are there: what is asked for, checked and planned.
#
# Invariants: a topic is planned by itself, against the image that its commit follows; there are never fewer.
#     __consumer_offsets stays as it is, for groups are found by how many partitions it has. Kafka lets it
#     grow, and forgets them (KAFKA-14418).
# Not here: carrying the parts out (changes.py), Kafka's entities (api/).
# Sources: Kafka ReplicationControlManager.createPartitions.


class Replicas(Protocol):
    """Where the replicas of one more partition are to be."""

    @property
    def broker_ids(self) -> Sequence[int]: ...


class MorePartitions(Protocol):
    """How many a topic is to have; a request's entity has these attributes."""

    @property
    def name(self) -> str: ...

    @property
    def count(self) -> int: ...

    @property
    def assignments(self) -> Sequence[Replicas] | None: ...


def additions(topics: Sequence[MorePartitions], placements: Placements) -> dict[str, Part]:
    """A part for each name; where the partitions are to be is left in `placements`."""
    twice = duplicates([topic.name for topic in topics])
    return {
        topic.name: _partitions_part(topic, placements, duplicate=topic.name in twice) for topic in topics
    }


def _partitions_part(topic: MorePartitions, placements: Placements, *, duplicate: bool) -> Part:
    def plan(image: Image) -> Action | None:
        if duplicate:
            raise invalid_request("Duplicate topic name.")
        try:
            found = image.topic(topic.name)
        except UnknownTopicError:
            raise RefusedError(
                ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
            ) from None
        count = len(found.partitions)
        factor = len(found.partitions[0].leadership.replicas)  # 0: it is not assigned yet
        if topic.count <= count:
            raise RefusedError(ErrorCode.invalid_partitions, _why_no_increase(topic, count))
        action = plan_more_partitions(image, topic.name, topic.count)
        if topic.assignments is not None:
            _validate_assignments(image, topic, topic.assignments, count, factor)
            lists = [one.broker_ids for one in topic.assignments]
            placements.want(image, found.topic_id, lists=lists, first=count)
        elif 1 <= factor <= len(image.brokers):
            placements.want(image, found.topic_id, factor=factor, first=count)
        return action

    return plan


def _why_no_increase(topic: MorePartitions, count: int) -> str:
    if topic.count == count:
        return f"Topic already has {count} partition(s)."
    return (
        f"The topic {topic.name} currently has {count} partition(s); {topic.count} would not be an increase."
    )


def _validate_assignments(
    image: Image, topic: MorePartitions, assignments: Sequence[Replicas], count: int, factor: int
) -> None:
    if len(assignments) != topic.count - count:
        raise RefusedError(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {topic.count - count} additional partition(s), but only "
            f"{len(assignments)} assignment(s) were specified.",
        )
    for place, assignment in enumerate(assignments):
        validate_assignment(image.brokers, assignment.broker_ids, factor=factor or None)
        validate_usable(image, count + place, assignment.broker_ids)


# --- topic deletion ----------------------------------------------------------------------------------
#
# Deleting topics by name or id: what is asked for, checked and planned.
#
# Invariants: a topic is planned by itself, against the image that its commit follows, and deleted once,
#     however it is named. __consumer_offsets stays: without it every group's progress is forgotten.
# Not here: carrying the parts out (changes.py), whether clients may (api/), Kafka's entities (api/).
# Sources: Kafka ReplicationControlManager.deleteTopics.


Asked = tuple[str | None, str | None]  # name, topic id


def deletions(asked: Sequence[Asked], found: dict[Asked, Topic]) -> dict[Asked, Part]:
    """A part for each; `found` takes what the topics were."""
    twice = duplicates(list(asked))
    by_name = {name for name, topic_id in asked if name is not None and topic_id is None}
    return {
        one: functools.partial(_plan, one, duplicate=one in twice, by_name=by_name, found=found)
        for one in dict.fromkeys(asked)
    }


def _topic_deletion_validate(asked: Asked, *, duplicate: bool) -> None:
    name, topic_id = asked
    if duplicate:
        raise invalid_request("Duplicate topic name." if name is not None else "Duplicate topic id.")
    if name is None and topic_id is None:
        raise invalid_request("Neither topic name nor id were specified.")
    if name is not None and topic_id is not None:
        raise invalid_request("You may not specify both topic name and topic id.")


def _plan(
    asked: Asked,
    image: Image,
    *,
    duplicate: bool,
    by_name: Collection[str],
    found: dict[Asked, Topic],
) -> DeleteTopic:
    _topic_deletion_validate(asked, duplicate=duplicate)
    name, topic_id = asked
    topic = image.topics.get(name or "") if topic_id is None else image.topic_by_id.get(topic_id)
    if topic is None and topic_id is not None:
        raise RefusedError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
    if topic is None:
        raise RefusedError(
            ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
        )
    if topic_id is not None and topic.name in by_name:
        raise invalid_request("The provided topic name maps to an ID that was already supplied.")
    if topic.name == OFFSETS_TOPIC:
        raise invalid_request(
            f"{OFFSETS_TOPIC} is internal: without it every group's progress is forgotten. To do so all the "
            "same, stop the broker and use sparklog topics delete --internal"
        )
    found[asked] = topic
    return plan_delete_topic(image, topic.name)


# --- topic creation ----------------------------------------------------------------------------------


MAX_CREATED = 100  # missing topics that one request can create; the next request gets the next ones


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
    settings = _root_settings(root)
    return {
        topic.name: _part(
            topic,
            settings,
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
        parts[name] = _creation(name, config)
    outcomes = await changes.make(parts) if parts else {}
    return later | {name: outcome.code for name, outcome in outcomes.items() if outcome.is_error}


def _creation(name: str, config: RootConfig) -> Part:
    topic_id = new_id()

    def plan(image: Image) -> Action | None:
        if name in image.topics:
            return None
        return plan_new_topic(image, name, topic_id=topic_id, root=config)

    return plan


def _root_settings(root: LiveRoot) -> Callable[[Image], RootConfig]:
    """Return what parses the settings of an image once, not once for each of thousands of topics."""
    known: tuple[Image, RootConfig] | None = None

    def settings(image: Image) -> RootConfig:
        nonlocal known
        if known is None or known[0] is not image:
            known = image, root.root_config(image)
        return known[1]

    return settings


def _part(
    topic: NewTopic,
    settings: Callable[[Image], RootConfig],
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
        action = plan_new_topic(
            image,
            topic.name,
            topic_id=topic_id,
            root=settings(image),
            partitions=asked or None,
            configs=_configs(topic),
        )
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
    return {one.name: one.value for one in topic.configs if one.value is not None}
