"""DeleteRecords (key 21), versions 0-2.

Does: move the log's start up to an offset, or to the high watermark (-1); all partitions in one commit.
Does not: free the storage (retention does), throttling. As in Kafka, the records of internal topics
    (INVALID_TOPIC_EXCEPTION) and of topics that are only compacted (POLICY_VIOLATION) stay.
Versions: 2 flexible.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from sparklog.client import is_internal
from sparklog.errors import SparklogError
from sparklog.metadata import Action, Image, plan_advance_log_start
from sparklog_server.protocol.entities import field, make
from sparklog_server.protocol.errors import error_code
from sparklog_server.protocol.registry import RequestContext, api

if TYPE_CHECKING:
    from sparklog_server.broker import Broker

HIGH_WATERMARK = -1
NONE = -1
_PartitionKey = tuple[str, int]  # topic id, partition
_log = logging.getLogger("sparklog_server.fetch")


@api(key=21, versions=range(3))
async def handle_delete_records(request: Any, context: RequestContext, broker: "Broker") -> Any:
    errors: dict[tuple[str, int], ErrorCode] = {}
    starts: dict[_PartitionKey, int] = {}
    for topic in request.topics:
        for one in topic.partitions:
            error = _check(broker, topic.name, one.partition_index, one.offset)
            errors[topic.name, one.partition_index] = error
            if error is ErrorCode.none:
                held = broker.image.topics[topic.name]
                end = held.partitions[one.partition_index].log_end_offset
                start = end if one.offset == HIGH_WATERMARK else one.offset
                starts[held.topic_id, one.partition_index] = start
    failure = await _publish(broker, starts, field(request, "timeout", 0))
    topics = []
    for topic in request.topics:
        partitions = []
        for one in topic.partitions:
            error = errors[topic.name, one.partition_index]
            error = failure if error is ErrorCode.none else error
            held_now = broker.image.topics.get(topic.name)
            if error is ErrorCode.none and held_now is None:
                error = ErrorCode.unknown_topic_or_partition
            low = NONE
            if error is ErrorCode.none and held_now is not None:
                low = held_now.partitions[one.partition_index].log_start_offset
            partitions.append(
                make(
                    context.types.DeleteRecordsPartitionResult,
                    partition_index=one.partition_index,
                    low_watermark=low,
                    error_code=error,
                )
            )
        topics.append(make(context.types.DeleteRecordsTopicResult, name=topic.name, partitions=partitions))
    return make(context.types.DeleteRecordsResponse, throttle_time=0, topics=topics)


def _check(broker: "Broker", name: str, partition: int, offset: int) -> ErrorCode:
    topic = broker.image.topics.get(name)
    if topic is None or not 0 <= partition < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    if is_internal(name):
        return ErrorCode.invalid_topic_exception
    if "delete" not in broker.topic_config(topic).cleanup_policy:
        return ErrorCode.policy_violation
    if offset != HIGH_WATERMARK and not 0 <= offset <= topic.partitions[partition].log_end_offset:
        return ErrorCode.offset_out_of_range
    return ErrorCode.none


async def _publish(broker: "Broker", starts: dict[_PartitionKey, int], timeout_ms: int) -> ErrorCode:
    if not starts:
        return ErrorCode.none

    def plan(image: Image) -> Sequence[Action]:
        actions = []
        for (topic_id, partition), start in starts.items():
            topic = image.topic_by_id.get(topic_id)
            if topic is None or start <= topic.partitions[partition].log_start_offset:
                continue  # deleted, or somebody else was there first
            action = plan_advance_log_start(image, topic_id, partition, start)
            if action is not None:
                actions.append(action)
        return actions

    publishing = asyncio.ensure_future(broker.publisher.submit_plan(plan))
    try:
        await asyncio.wait_for(asyncio.shield(publishing), max(1, timeout_ms) / 1000)
    except TimeoutError:
        return ErrorCode.request_timed_out
    except SparklogError as error:
        _log.warning("delete records of %d partitions: %s", len(starts), error)
        return error_code(error)
    return ErrorCode.none
