"""DescribeLogDirs (key 35), versions 1-4.

Does: name the root, as a URL (file:///data/log): whoever sees the same storage can go there directly, and
    Spark does (sparklog/client/brokers.py). The stored bytes of each partition, and those of the
    file system.
Does not: tell what replication lags behind (nothing does) or is being moved.
Beyond 32 MiB, a million and a half partitions, the root is told with UNKNOWN_SERVER_ERROR: ask for fewer.
Versions: 2 flexible; 3 top-level error; 4 total and usable bytes (KIP-827; -1 where storage does not tell).
"""

from typing import Any

from sparklog.metadata import Image, Topic
from sparklog_server.api.log_dir_listing import told
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import FLEXIBLE_FROM, PARTITION_BYTES, encode_log_dir, make
from sparklog_server.protocol.wire import Response, text_bytes

_TOPIC_BYTES = 10  # beside its name and its partitions
_NOBODY_COUNTS = -1, -1


@api(ApiKey.DESCRIBE_LOG_DIRS, versions=range(1, 5))
async def handle_describe_log_dirs(request: Any, context: RequestContext, services: Services) -> Any:
    """Add up the extents, and tell nobody anew what has not changed: a large root has many."""
    await services.root.look()
    store, version, asked = services.root.store, context.api_version, request.topics
    wanted = None if asked is None else _wanted(services.root.image, asked)
    if not context.answer.fits(services.log_dirs.size() if wanted is None else _size_of(wanted)):
        return _too_large(context.types, store.url)
    await context.answer.reserve()
    space = await services.root.run(store.space) or _NOBODY_COUNTS
    if wanted is None:
        count, topics = await services.log_dirs.all(flexible=version >= FLEXIBLE_FROM)
    else:
        count, topics = len(wanted), await told(wanted, flexible=version >= FLEXIBLE_FROM)
    return Response(chunks=encode_log_dir(version, store.url, count, topics, space))


def _wanted(image: Image, asked: Any) -> list[tuple[Topic, list[int]]]:
    """What there is of what was asked for."""
    found = []
    for one in {one.topic: one for one in asked}.values():
        topic = image.topics.get(one.topic)
        if topic is not None:
            numbers = [n for n in dict.fromkeys(one.partitions) if 0 <= n < len(topic.partitions)]
            if numbers:
                found.append((topic, numbers))
    return found


def _size_of(wanted: list[tuple[Topic, list[int]]]) -> int:
    return sum(
        _TOPIC_BYTES + text_bytes(topic.name) + PARTITION_BYTES * len(numbers) for topic, numbers in wanted
    )


def _too_large(types: Any, url: str) -> Any:
    refused = make(types.DescribeLogDirsResult, error_code=ErrorCode.unknown_server_error, log_dir=url)
    return make(types.DescribeLogDirsResponse, error_code=ErrorCode.none, results=[refused])
