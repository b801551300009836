"""More partitions for topics that are there: what is asked for, checked and planned.

Invariants: a topic is planned by itself, against the image that its commit follows; there are never fewer.
    __consumer_offsets stays as it is, for groups are found by how many partitions it has. Kafka lets it grow,
    and forgets them (KAFKA-14418).
Not here: carrying the parts out (changes.py), Kafka's entities (api/).
Sources: Kafka ReplicationControlManager.createPartitions.
"""

from collections.abc import Sequence
from typing import Protocol

from sparklog.client.offsets_topic import OFFSETS_TOPIC
from sparklog.errors import UnknownTopicError
from sparklog.metadata import Action, Image, plan_add_partitions
from sparklog_server.admin.assignments import (
    Placements,
    validate_assignment,
    validate_usable,
)
from sparklog_server.admin.changes import Part, RefusedError, duplicates
from sparklog_server.admin.config_changes import invalid_request
from sparklog_server.protocol.errors import ErrorCode


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
    return {topic.name: _part(topic, placements, duplicate=topic.name in twice) for topic in topics}


def _part(topic: MorePartitions, placements: Placements, *, duplicate: bool) -> Part:
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
        factor = len(found.partitions[0].leadership.replicas)  # 0: nobody has assigned it yet
        _validate(image, topic, count, factor)
        action = plan_add_partitions(image, topic.name, topic.count)
        if topic.assignments is not None:
            lists = [one.broker_ids for one in topic.assignments]
            placements.want(image, found.topic_id, lists=lists, first=count)
        elif 1 <= factor <= len(image.brokers):
            placements.want(image, found.topic_id, factor=factor, first=count)
        return action

    return plan


def _validate(image: Image, topic: MorePartitions, count: int, factor: int) -> None:
    if topic.name == OFFSETS_TOPIC:
        raise RefusedError(
            ErrorCode.invalid_partitions,
            f"{OFFSETS_TOPIC} has {count} partitions for ever: by another number groups' committed offsets "
            "would not be found any more.",
        )
    if topic.count == count:
        raise RefusedError(ErrorCode.invalid_partitions, f"Topic already has {count} partition(s).")
    if topic.count < count:
        raise RefusedError(
            ErrorCode.invalid_partitions,
            f"The topic {topic.name} currently has {count} partition(s); {topic.count} would not be an "
            "increase.",
        )
    if topic.assignments is None:
        return
    if len(topic.assignments) != topic.count - count:
        raise RefusedError(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {topic.count - count} additional partition(s), but only "
            f"{len(topic.assignments)} assignment(s) were specified.",
        )
    for place, assignment in enumerate(topic.assignments):
        validate_assignment(image.brokers, assignment.broker_ids, factor=factor or None)
        validate_usable(image, count + place, assignment.broker_ids)
