"""OffsetDelete (key 47), version 0.

Does: forgets committed offsets, of topics to which no member of the group subscribes (KIP-496).
"""

from typing import Any

from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make


@api(ApiKey.OFFSET_DELETE, versions=range(1))
async def handle_offset_delete(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer when the tombstones are durable."""
    await services.root.look()  # for what Spark has just committed
    types, topics = context.types, services.root.image.topics
    refused: dict[tuple[str, int], ErrorCode] = {}
    partitions: list[tuple[str, int]] = []
    for topic in request.topics:
        known = topics.get(topic.name)
        for one in topic.partitions:
            number = one.partition_index
            if known is None or not 0 <= number < len(known.partitions):
                refused[topic.name, number] = ErrorCode.unknown_topic_or_partition
            else:
                partitions.append((topic.name, number))
    error, results = await services.groups.delete_offsets(request.group_id, partitions)
    if error:
        return make(types.OffsetDeleteResponse, error_code=error)
    results |= refused
    return make(
        types.OffsetDeleteResponse,
        topics=[
            make(
                types.OffsetDeleteResponseTopic,
                name=topic.name,
                partitions=[
                    make(
                        types.OffsetDeleteResponsePartition,
                        partition_index=one.partition_index,
                        error_code=results[topic.name, one.partition_index],
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
