"""Deleting topics by name or id: what is asked for, checked and planned.

Invariants: a topic is planned by itself, against the image that its commit follows, and deleted once, however
    it is named. __consumer_offsets stays: without it every group's progress is forgotten.
Not here: carrying the parts out (changes.py), whether clients may (api/), Kafka's entities (api/).
Sources: Kafka ReplicationControlManager.deleteTopics.
"""

import functools
from collections.abc import Collection, Sequence

from sparklog.client.offsets_topic import OFFSETS_TOPIC
from sparklog.metadata import DeleteTopic, Image, Topic, plan_delete_topic
from sparklog_server.admin.changes import Part, RefusedError, duplicates
from sparklog_server.admin.config_changes import invalid_request
from sparklog_server.protocol.errors import ErrorCode

Asked = tuple[str | None, str | None]  # name, topic id


def deletions(asked: Sequence[Asked], found: dict[Asked, Topic]) -> dict[Asked, Part]:
    """A part for each; `found` takes what the topics were."""
    twice = duplicates(list(asked))
    by_name = {name for name, topic_id in asked if name is not None and topic_id is None}
    return {
        one: functools.partial(_plan, one, duplicate=one in twice, by_name=by_name, found=found)
        for one in dict.fromkeys(asked)
    }


def _validate(asked: Asked, *, duplicate: bool) -> None:
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
    _validate(asked, duplicate=duplicate)
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
