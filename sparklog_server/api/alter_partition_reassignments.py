"""AlterPartitionReassignments (key 45), versions 0-1.

Does: let partitions have other replicas, or call that off (null). Nothing is copied: it is over in the same
    commit, unless a broker that is to come is not there; then as soon as it is.
    NOT_CONTROLLER elsewhere than at the controller.
Does not: throttle. A partition that is named twice is reassigned as it was named last.
Versions: 1 may forbid that the number of replicas changes (KIP-860).
"""

from typing import Any

from sparklog_server.admin.changes import Outcome
from sparklog_server.admin.leaders import Reassignments
from sparklog_server.api.controller_requests import decide
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, RequestContext
from sparklog_server.protocol.responses import field, make
from sparklog_server.protocol.wire import by_topic, in_slices


@api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=range(2))
async def handle_alter_partition_reassignments(
    request: Any, context: RequestContext, services: Services
) -> Any:
    """One commit for all that are legal."""
    types = context.types
    may_change = field(request, "allow_replication_factor_change", True)
    targets = {
        (topic.name, one.partition_index): one.replicas
        for topic in request.topics
        for one in topic.partitions
    }
    reassignments = Reassignments(targets, may_change_factor=may_change)
    outcome = await decide(services, reassignments, timeout_ms=field(request, "timeout", 0))
    told = dict.fromkeys(targets, outcome) if outcome.is_error else reassignments.outcomes

    def response(number: int, of: Outcome) -> Any:
        return make(
            types.ReassignablePartitionResponse,
            partition_index=number,
            error_code=of.code,
            error_message=of.message,
        )

    return make(
        types.AlterPartitionReassignmentsResponse,
        allow_replication_factor_change=may_change,
        error_code=outcome.code,
        error_message=outcome.message,
        responses=await in_slices(
            make(types.ReassignableTopicResponse, name=name, partitions=partitions)
            for name, partitions in by_topic(told, response).items()
        ),
    )
