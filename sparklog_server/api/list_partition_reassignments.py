"""ListPartitionReassignments (key 46), version 0.

Does: reassignments that are begun, and not over: they wait for a broker that is to come. Of partitions that
    are named, or of all (null). Any broker answers.
Versions: 0 (KIP-455).
"""

from typing import Any

from sparklog.metadata import PartitionLeadership
from sparklog_server.admin.leaders import under_way
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make
from sparklog_server.protocol.wire import by_topic, in_slices


@api(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=range(1))
async def handle_list_partition_reassignments(
    request: Any, context: RequestContext, services: Services
) -> Any:
    """Answer from the newest image."""
    await services.root.look()
    types = context.types
    asked = None
    if request.topics is not None:
        asked = [(topic.name, number) for topic in request.topics for number in topic.partition_indexes]

    def ongoing(number: int, partition: PartitionLeadership) -> Any:
        return make(
            types.OngoingPartitionReassignment,
            partition_index=number,
            replicas=partition.replicas,
            adding_replicas=partition.adding,
            removing_replicas=partition.removing,
        )

    return make(
        types.ListPartitionReassignmentsResponse,
        error_code=ErrorCode.none,
        topics=await in_slices(
            make(types.OngoingTopicReassignment, name=name, partitions=partitions)
            for name, partitions in by_topic(under_way(services.root.image, asked), ongoing).items()
        ),
    )
