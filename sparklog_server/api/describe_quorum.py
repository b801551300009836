"""DescribeQuorum (key 55), versions 0-2.

Does: tells of the metadata log in the words that Kafka has for its own, __cluster_metadata-0. Its leader is
    the controller, its leader epoch the controller's, and its high watermark the number of the next commit.
    Its voters are the brokers that are registered: each of them publishes commits, and reads all.
Does not: replicate: there is one log, on the storage that all share, so nobody lags behind. What a broker
    has seen of it is not known to others: the time at which it was caught up is told of the controller
    alone, and the log end of a fenced one is -1 (unknown). Directory ids are zero: nobody has a directory of
    its own.
Versions: 1 times; 2 directory ids, where the nodes are, error messages (KIP-853).
Sources: Kafka KafkaRaftClient.handleDescribeQuorumRequest; MetadataQuorumCommand, for what is made of it.
"""

from typing import Any

from sparklog.metadata import NO_NODE
from sparklog_server.api.nodes import nodes_of
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make

METADATA_TOPIC = "__cluster_metadata"
LISTENER_NAME = "PLAINTEXT"  # the names of brokers' listeners are their own affair; this is what they speak
UNKNOWN = -1


@api(ApiKey.DESCRIBE_QUORUM, versions=range(3))
async def handle_describe_quorum(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer from the newest image."""
    await services.root.look()
    types = context.types
    asked = {(topic.topic_name, one.partition_index) for topic in request.topics for one in topic.partitions}
    if asked != {(METADATA_TOPIC, 0)}:
        return _refused(types, request)
    partition = make(types.PartitionData, partition_index=0, **_quorum(types, services))
    nodes: dict[str, Any] = {}
    if hasattr(types, "Node"):
        nodes["nodes"] = [
            make(
                types.Node,
                node_id=node.node_id,
                listeners=[make(types.Listener, name=LISTENER_NAME, host=node.host, port=node.port)],
            )
            for node in nodes_of(services, context.listener)
        ]
    return make(
        types.DescribeQuorumResponse,
        error_code=ErrorCode.none,
        topics=[make(types.TopicData, topic_name=METADATA_TOPIC, partitions=[partition])],
        **nodes,
    )


def _quorum(types: Any, services: Services) -> dict[str, Any]:
    image = services.root.image
    leader, epoch = image.controller.node_id, image.controller.controller_epoch
    if leader == NO_NODE:
        return {
            "error_code": ErrorCode.leader_not_available,
            "error_message": "there is no controller at this moment",
            "leader_id": leader,
            "leader_epoch": epoch,
            "high_watermark": UNKNOWN,
        }
    end = image.commit + 1
    ends = {node_id: UNKNOWN if one.is_fenced else end for node_id, one in sorted(image.brokers.items())}
    others = {node_id: offset for node_id, offset in ends.items() if node_id != leader}
    return {
        "error_code": ErrorCode.none,
        "leader_id": leader,
        "leader_epoch": epoch,
        "high_watermark": end,
        "current_voters": [
            make(
                types.ReplicaState,
                replica_id=leader,
                log_end_offset=end,
                last_caught_up_timestamp=services.clock.now_ms(),
            ),
            *(
                make(types.ReplicaState, replica_id=node_id, log_end_offset=offset)
                for node_id, offset in others.items()
            ),
        ],
    }


def _refused(types: Any, request: Any) -> Any:
    topics = [
        make(
            types.TopicData,
            topic_name=topic.topic_name,
            partitions=[
                make(
                    types.PartitionData,
                    partition_index=one.partition_index,
                    error_code=ErrorCode.unknown_topic_or_partition,
                )
                for one in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return make(types.DescribeQuorumResponse, error_code=ErrorCode.none, topics=topics)
