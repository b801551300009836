"""CreatePartitions (key 37), versions 0-3.

Does: let topics have more partitions, in one commit, with as many replicas as they have; validate only;
    assignments to brokers.
Does not: move records, for which new ones of a key may go to another partition than the old; let
    __consumer_offsets grow, which would forget every group's progress.
Versions: 2 flexible; 3 as 2 (THROTTLING_QUOTA_EXCEEDED, KIP-599, which is never answered).
"""

from typing import Any

from sparklog_server.admin.assignments import Placements
from sparklog_server.admin.topics import additions
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, RequestContext
from sparklog_server.protocol.responses import field, make


@api(ApiKey.CREATE_PARTITIONS, versions=range(4))
async def handle_create_partitions(request: Any, context: RequestContext, services: Services) -> Any:
    """Plan every topic by itself; one commit for all that can be."""
    placements = Placements()
    outcomes = await services.changes.make(
        additions(request.topics, placements),
        timeout_ms=field(request, "timeout", 0),
        validate_only=request.validate_only,
        completing=placements.complete,
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
