"""AlterReplicaLogDirs (key 34), versions 1-2.

Does: answer for each partition. There is one log directory, the root (DescribeLogDirs names it), and every
    replica is in it: to move one there is done already, and any other directory is LOG_DIR_NOT_FOUND. What
    this broker is no replica of is REPLICA_NOT_AVAILABLE.
Does not: move anything.
Versions: 2 flexible.
"""

from typing import Any

from sparklog.metadata import Image
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make
from sparklog_server.protocol.wire import in_slices


@api(ApiKey.ALTER_REPLICA_LOG_DIRS, versions=range(1, 3))
async def handle_alter_replica_log_dirs(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer from the newest image; a partition that is named in several directories by the last one."""
    await services.root.look()
    image, types = services.root.image, context.types
    errors: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.dirs:
        is_ours = directory.path.rstrip("/") == services.root.store.url
        for topic in directory.topics:
            told = errors.setdefault(topic.name, {})
            for number in topic.partitions:
                told[number] = (
                    _error(image, services.node_id, topic.name, number)
                    if is_ours
                    else ErrorCode.log_dir_not_found
                )
    results = (
        make(
            types.AlterReplicaLogDirTopicResult,
            topic_name=name,
            partitions=[
                make(types.AlterReplicaLogDirPartitionResult, partition_index=number, error_code=error)
                for number, error in told.items()
            ],
        )
        for name, told in errors.items()
    )
    return make(types.AlterReplicaLogDirsResponse, results=await in_slices(results))


def _error(image: Image, node_id: int, name: str, number: int) -> ErrorCode:
    topic = image.topics.get(name)
    if topic is None or not 0 <= number < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    if node_id not in topic.partitions[number].leadership.replicas:
        return ErrorCode.replica_not_available
    return ErrorCode.none
