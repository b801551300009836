"""OffsetDelete (key 47), version 0.

Does: forgets committed offsets, of topics to which no member of the group subscribes (KIP-496).
"""

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from sparklog_server.protocol.entities import make
from sparklog_server.protocol.registry import RequestContext, api

if TYPE_CHECKING:
    from sparklog_server.broker import Broker


@api(key=47, versions=range(1))
async def handle_offset_delete(request: Any, context: RequestContext, broker: "Broker") -> Any:
    """Answer when the tombstones are durable."""
    types, topics = context.types, broker.image.topics
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
    error, results = await broker.groups.delete_offsets(request.group_id, partitions)
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
