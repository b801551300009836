"""ElectLeaders (key 43), versions 0-2.

Does: make the preferred replica lead (the first of the list), or give partitions without a leader one that
    can lead; of partitions that are named, or of all, of which those that need none are not told.
    NOT_CONTROLLER elsewhere than at the controller.
Does not: lose records by an unclean election: all replicas read the same storage.
Versions: 0 preferred leaders only, NOT_CONTROLLER told of each partition; 1 election types, top-level error
    (KIP-460); 2 flexible.
"""

from typing import Any

from sparklog_server.admin.changes import Outcome
from sparklog_server.admin.leaders import Elections, ElectionType, NamedPartition
from sparklog_server.api.controller_requests import decide
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make
from sparklog_server.protocol.wire import by_topic, in_slices

_TOP_LEVEL_FROM = 1


@api(ApiKey.ELECT_LEADERS, versions=range(3))
async def handle_elect_leaders(request: Any, context: RequestContext, services: Services) -> Any:
    """One commit for all that can be elected."""
    types = context.types
    asked: list[NamedPartition] | None = None
    if request.topic_partitions is not None:
        asked = [(one.topic, number) for one in request.topic_partitions for number in one.partitions]
    kind = field(request, "election_type", ElectionType.PREFERRED)
    if kind not in set(ElectionType):
        return make(types.ElectLeadersResponse, error_code=ErrorCode.invalid_request)
    elections = Elections(ElectionType(kind), asked)
    outcome = await decide(services, elections, timeout_ms=field(request, "timeout", 0))
    told = elections.outcomes
    if outcome.is_error:
        told = {}
        if context.api_version < _TOP_LEVEL_FROM:
            told = dict.fromkeys(asked or (), outcome)

    def result(number: int, of: Outcome) -> Any:
        return make(types.PartitionResult, partition_id=number, error_code=of.code, error_message=of.message)

    return make(
        types.ElectLeadersResponse,
        error_code=outcome.code,
        replica_election_results=await in_slices(
            make(types.ReplicaElectionResult, topic=topic, partition_result=partitions)
            for topic, partitions in by_topic(told, result).items()
        ),
    )
