"""DeleteTopics (key 20), versions 1-6.

Does: delete topics by name or id in one commit; their records are gone for every later reader.
Does not: delete __consumer_offsets, which would forget every group's progress; the embedded client can.
Versions: 3 TOPIC_DELETION_DISABLED; 4 flexible; 5 error messages (KIP-599); 6 topic ids (KIP-516).
"""

import functools
import uuid
from collections.abc import Callable, Collection
from typing import Any

from sparklog.client.groups import OFFSETS_TOPIC
from sparklog.metadata import DeleteTopic, Image, Topic, plan_delete_topic
from sparklog_server.admin.changes import Outcome, Part, RefusedError, duplicates
from sparklog_server.admin.config_changes import invalid_request
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import field, make, topic_id_text, topic_uuid
from sparklog_server.protocol.errors import ErrorCode

_ZERO = uuid.UUID(int=0)
_DISABLED_SINCE = 3  # before, clients do not know TOPIC_DELETION_DISABLED
Asked = tuple[str | None, uuid.UUID | None]


@api(ApiKey.DELETE_TOPICS, versions=range(1, 7))
async def handle_delete_topics(request: Any, context: RequestContext, services: Services) -> Any:
    """Plan every topic by itself; one commit for all that can be."""
    asked = _asked(request)
    twice = duplicates(asked)
    by_name = {name for name, topic_id in asked if name is not None and topic_id is None}
    found: dict[Asked, Topic] = {}
    parts: dict[Asked, Part] = {}
    for one in dict.fromkeys(asked):
        validate = functools.partial(_validate, context, services, one, duplicate=one in twice)
        parts[one] = functools.partial(_plan, one, validate=validate, by_name=by_name, found=found)
    outcomes = await services.changes.make(parts, timeout_ms=field(request, "timeout", 0))
    return make(
        context.types.DeleteTopicsResponse,
        responses=[_result(context, found.get(one), one, outcome) for one, outcome in outcomes.items()],
    )


def _asked(request: Any) -> list[Asked]:
    topics = field(request, "topics")
    if topics is None:
        return [(name, None) for name in request.topic_names]
    return [(one.name, None if one.topic_id in (None, _ZERO) else one.topic_id) for one in topics]


def _validate(context: RequestContext, services: Services, asked: Asked, *, duplicate: bool) -> None:
    name, topic_id = asked
    if not services.config.topics.delete_topic_enable:
        known = context.api_version >= _DISABLED_SINCE
        code = ErrorCode.topic_deletion_disabled if known else ErrorCode.invalid_request
        raise RefusedError(code, "Topic deletion is disabled.")
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
    validate: Callable[[], None],
    by_name: Collection[str],
    found: dict[Asked, Topic],
) -> DeleteTopic:
    validate()
    name, topic_id = asked
    topic = (
        image.topics.get(name or "") if topic_id is None else image.topic_by_id.get(topic_id_text(topic_id))
    )
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
            "same, stop the broker and use sparklog topics delete"
        )
    found[asked] = topic
    return plan_delete_topic(image, topic.name)


def _result(context: RequestContext, topic: Topic | None, asked: Asked, outcome: Outcome) -> Any:
    name, topic_id = asked
    if topic is not None and not outcome.is_error:
        name, topic_id = topic.name, topic_uuid(topic.topic_id)
    return make(
        context.types.DeletableTopicResult,
        name=name,
        topic_id=topic_id or _ZERO,
        error_code=outcome.code,
        error_message=outcome.message,
    )
