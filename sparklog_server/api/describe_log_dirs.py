"""DescribeLogDirs (key 35), versions 1-4.

Does: name the root, as a URL (file:///data/log): whoever sees the same storage can go there directly, and
    Spark does (sparklog/client/broker_root.py). The stored bytes of each partition, and those of the
    file system.
Does not: tell what replication lags behind (nothing does) or is being moved.
Versions: 2 flexible; 3 top-level error; 4 total and usable bytes (KIP-827; -1 where storage does not tell).
"""

from typing import Any

from sparklog.client.admin import partition_size_bytes
from sparklog.metadata import Image, Topic
from sparklog.storage import Store
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import make
from sparklog_server.protocol.errors import ErrorCode


@api(ApiKey.DESCRIBE_LOG_DIRS, versions=range(1, 5))
async def handle_describe_log_dirs(request: Any, context: RequestContext, services: Services) -> Any:
    """Add up the extents, in a thread: a large root has many."""
    await services.root.look()
    image = services.root.image
    result = await services.root.run(_describe, context.types, services.root.store, image, request.topics)
    return make(context.types.DescribeLogDirsResponse, error_code=ErrorCode.none, results=[result])


def _describe(types: Any, store: Store, image: Image, asked: Any) -> Any:
    total, usable = store.space() or (-1, -1)
    topics = [
        make(
            types.DescribeLogDirsTopic,
            name=topic.name,
            partitions=[_partition(types, topic, number) for number in numbers],
        )
        for topic, numbers in _wanted(image, asked)
        if numbers
    ]
    return make(
        types.DescribeLogDirsResult,
        error_code=ErrorCode.none,
        log_dir=store.url,
        topics=topics,
        total_bytes=total,
        usable_bytes=usable,
    )


def _wanted(image: Image, asked: Any) -> list[tuple[Topic, list[int]]]:
    """What there is of what was asked for; null is everything."""
    if asked is None:
        return [(topic, list(range(len(topic.partitions)))) for topic in image.topics.values()]
    return [
        (
            image.topics[one.topic],
            [n for n in dict.fromkeys(one.partitions) if 0 <= n < len(image.topics[one.topic].partitions)],
        )
        for one in {one.topic: one for one in asked}.values()
        if one.topic in image.topics
    ]


def _partition(types: Any, topic: Topic, number: int) -> Any:
    return make(
        types.DescribeLogDirsPartition,
        partition_index=number,
        partition_size=partition_size_bytes(topic.partitions[number]),
        offset_lag=0,
        is_future_key=False,
    )
