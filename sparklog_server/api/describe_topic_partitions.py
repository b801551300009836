"""DescribeTopicPartitions (key 75), version 0.

Does: partitions of topics by name, or of all topics, in the order of their names: leaders, replicas, and
    which of these are there. At most 2,000 partitions (MAX_PARTITIONS), or as many as the request allows; the
    answer says where to go on.
Does not: eligible leader replicas: records are on shared storage, so every replica that comes back may lead,
    and none is remembered as the last one that had them all.
Versions: 0 (KIP-966).
Sources: Kafka DescribeTopicPartitionsRequestHandler.
"""

from collections.abc import Callable, Iterator
from typing import Any

from sparklog.metadata import Image, Topic, is_internal, why_illegal_topic_name
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.cluster.elections import told_replicas
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make, maker
from sparklog_server.protocol.wire import in_slices

MAX_PARTITIONS = 2000  # Kafka's max.request.partition.size.limit


@api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=range(1))
async def handle_describe_topic_partitions(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer from the newest image."""
    await services.root.look()
    image = services.root.image
    types, cursor = context.types, request.cursor
    asked = {one.name for one in request.topics}
    if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
        error_of = _Errors(types, services)
        refused = (error_of(name, ErrorCode.invalid_request) for name in sorted(asked))
        return make(types.DescribeTopicPartitionsResponse, topics=await in_slices(refused))
    first = "" if cursor is None else cursor.topic_name
    names = sorted(name for name in asked or image.topics if name >= first)
    start = 0 if cursor is None or names[:1] != [first] else cursor.partition_index
    limit = max(1, min(request.response_partition_limit, MAX_PARTITIONS))
    pages = _Pages(image, names, start, limit)
    error_of = _Errors(types, services)
    topics = await in_slices(
        _unknown(error_of, name) if topic is None else _topic(types, services, image, topic, numbers)
        for name, topic, numbers in pages.taken()
    )
    fields: dict[str, Any] = {}
    if pages.next is not None:
        name, number = pages.next
        fields["next_cursor"] = make(types.Cursor, topic_name=name, partition_index=number)
    return make(types.DescribeTopicPartitionsResponse, topics=topics, **fields)


class _Pages:
    """Which partitions go into this answer, and with which one the next begins."""

    def __init__(self, image: Image, names: list[str], start: int, limit: int) -> None:
        self._image = image
        self._names = names
        self._start = start
        self._left = limit
        self.next: tuple[str, int] | None = None

    def taken(self) -> Iterator[tuple[str, Topic | None, range]]:
        start = self._start
        for name in self._names:
            if self._left == 0:
                self.next = name, 0
                return
            topic = self._image.topics.get(name)
            count = 0 if topic is None else len(topic.partitions)
            end = min(count, start + self._left)
            yield name, topic, range(start, end)
            if end < count:
                self.next = name, end
                return
            self._left -= max(0, end - start)
            start = 0


def _topic(types: Any, services: Services, image: Image, topic: Topic, numbers: range) -> Any:
    return make(
        types.DescribeTopicPartitionsResponseTopic,
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[_partition(types, image, topic, number) for number in numbers],
        topic_authorized_operations=services.access.topic_operations,
    )


def _partition(types: Any, image: Image, topic: Topic, number: int) -> Any:
    told = told_replicas(image, topic.partitions[number])
    return make(
        types.DescribeTopicPartitionsResponsePartition,
        error_code=told.error,
        partition_index=number,
        leader_id=told.leader,
        leader_epoch=told.leader_epoch,
        replica_nodes=told.replicas,
        isr_nodes=told.in_sync,
        offline_replicas=told.offline,
        eligible_leader_replicas=(),  # never null: Kafka's admin client looks into them
        last_known_elr=(),
    )


def _unknown(error_of: "_Errors", name: str) -> Any:
    illegal = why_illegal_topic_name(name) is not None
    return error_of(
        name, ErrorCode.invalid_topic_exception if illegal else ErrorCode.unknown_topic_or_partition
    )


class _Errors:
    """What makes topics of which there is only an error to tell: thousands have the same."""

    def __init__(self, types: Any, services: Services) -> None:
        self._types = types
        self._operations = services.access.topic_operations
        self._makers: dict[tuple[ErrorCode, bool], Callable[[str], Any]] = {}

    def __call__(self, name: str, code: ErrorCode) -> Any:
        key = code, is_internal(name)
        if key not in self._makers:
            self._makers[key] = maker(
                self._types.DescribeTopicPartitionsResponseTopic,
                "name",
                error_code=code,
                is_internal=key[1],
                topic_authorized_operations=self._operations,
            )
        return self._makers[key](name)
