"""DeleteTopics (key 20), versions 1-6.

Does: delete topics by name or id in one commit; their records are gone for every later reader.
Does not: delete __consumer_offsets, which would forget every group's progress; the embedded client can.
Versions: 3 TOPIC_DELETION_DISABLED; 4 flexible; 5 error messages (KIP-599); 6 topic ids (KIP-516).
"""

import uuid
from typing import Any

from sparklog.metadata import Topic
from sparklog_server.admin.changes import Outcome, RefusedError, outcome_of
from sparklog_server.admin.topics import Asked, deletions
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make, topic_id_text

_ZERO = uuid.UUID(int=0)
_DISABLED_SINCE = 3  # before, clients do not know TOPIC_DELETION_DISABLED


@api(ApiKey.DELETE_TOPICS, versions=range(1, 7))
async def handle_delete_topics(request: Any, context: RequestContext, services: Services) -> Any:
    """Plan every topic by itself; one commit for all that can be."""
    asked = _asked(request)
    found: dict[Asked, Topic] = {}
    refusal = _refusal(context, services)
    if refusal is not None:
        outcomes = dict.fromkeys(asked, outcome_of(refusal))
    else:
        parts = deletions(asked, found)
        outcomes = await services.changes.make(parts, timeout_ms=field(request, "timeout", 0))
    return make(
        context.types.DeleteTopicsResponse,
        responses=[_result(context, found.get(one), one, outcome) for one, outcome in outcomes.items()],
    )


def _asked(request: Any) -> list[Asked]:
    topics = field(request, "topics")
    if topics is None:
        return [(name, None) for name in request.topic_names]
    return [
        (one.name, None if one.topic_id in (None, _ZERO) else topic_id_text(one.topic_id)) for one in topics
    ]


def _refusal(context: RequestContext, services: Services) -> RefusedError | None:
    if services.config.topics.delete_topic_enable:
        return None
    known = context.api_version >= _DISABLED_SINCE
    code = ErrorCode.topic_deletion_disabled if known else ErrorCode.invalid_request
    return RefusedError(code, "Topic deletion is disabled.")


def _result(context: RequestContext, topic: Topic | None, asked: Asked, outcome: Outcome) -> Any:
    name, topic_id = asked
    if topic is not None and not outcome.is_error:
        name, topic_id = topic.name, topic.topic_id
    return make(
        context.types.DeletableTopicResult,
        name=name,
        topic_id=topic_id or _ZERO,
        error_code=outcome.code,
        error_message=outcome.message,
    )
