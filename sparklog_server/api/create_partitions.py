"""CreatePartitions (key 37), versions 0-3.

Does: let topics have more partitions, in one commit; validate only; assignments to this broker.
Does not: move records. New records of a key may go to another partition than the old ones.
Versions: 2 flexible; 3 as 2 (THROTTLING_QUOTA_EXCEEDED, KIP-599, which is never answered).
"""

from typing import Any

from sparklog.errors import UnknownTopicError
from sparklog.metadata import Action, Image, plan_add_partitions
from sparklog_server.admin.assignments import validate_assignment
from sparklog_server.admin.changes import Part, RefusedError, duplicates
from sparklog_server.admin.config_changes import invalid_request
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import field, make
from sparklog_server.protocol.errors import ErrorCode


@api(ApiKey.CREATE_PARTITIONS, versions=range(4))
async def handle_create_partitions(request: Any, context: RequestContext, services: Services) -> Any:
    """Plan every topic by itself; one commit for all that can be."""
    twice = duplicates([topic.name for topic in request.topics])
    parts: dict[str, Part] = {
        topic.name: _part(services, topic, duplicate=topic.name in twice) for topic in request.topics
    }
    outcomes = await services.changes.make(
        parts, timeout_ms=field(request, "timeout", 0), validate_only=request.validate_only
    )
    return make(
        context.types.CreatePartitionsResponse,
        results=[
            make(
                context.types.CreatePartitionsTopicResult,
                name=name,
                error_code=outcome.code,
                error_message=outcome.message,
            )
            for name, outcome in outcomes.items()
        ],
    )


def _part(services: Services, topic: Any, *, duplicate: bool) -> Part:
    def plan(image: Image) -> Action | None:
        if duplicate:
            raise invalid_request("Duplicate topic name.")
        try:
            count = len(image.topic(topic.name).partitions)
        except UnknownTopicError:
            raise RefusedError(
                ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
            ) from None
        _validate(services, topic, count)
        return plan_add_partitions(image, topic.name, topic.count)

    return plan


def _validate(services: Services, topic: Any, count: int) -> None:
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
        validate_assignment(services.leadership.brokers, assignment.broker_ids)
