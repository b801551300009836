"""More partitions for topics that are there: what is asked for, checked and planned.

Invariants: a topic is planned by itself, against the image that its commit follows; there are never fewer.
Not here: carrying the parts out (changes.py), Kafka's entities (api/).
Sources: Kafka ReplicationControlManager.createPartitions.
"""

from collections.abc import Sequence
from typing import Protocol

from sparklog.errors import UnknownTopicError
from sparklog.metadata import Action, Image, plan_add_partitions
from sparklog_server.admin.assignments import validate_assignment
from sparklog_server.admin.changes import Part, RefusedError, duplicates
from sparklog_server.admin.config_changes import invalid_request
from sparklog_server.cluster.leadership import Leadership
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


def additions(leadership: Leadership, topics: Sequence[MorePartitions]) -> dict[str, Part]:
    """A part for each name."""
    twice = duplicates([topic.name for topic in topics])
    return {topic.name: _part(leadership, topic, duplicate=topic.name in twice) for topic in topics}


def _part(leadership: Leadership, topic: MorePartitions, *, duplicate: bool) -> Part:
    def plan(image: Image) -> Action | None:
        if duplicate:
            raise invalid_request("Duplicate topic name.")
        try:
            count = len(image.topic(topic.name).partitions)
        except UnknownTopicError:
            raise RefusedError(
                ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
            ) from None
        _validate(leadership, topic, count)
        return plan_add_partitions(image, topic.name, topic.count)

    return plan


def _validate(leadership: Leadership, topic: MorePartitions, count: int) -> None:
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
    for assignment in topic.assignments:
        validate_assignment(leadership.brokers, assignment.broker_ids)
