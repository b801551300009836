"""ListOffsets (key 2), versions 1-9.

Does: latest (-1: the high watermark, under both isolation levels), earliest (-2), max timestamp (-3),
    earliest local (-4: as earliest, everything is local), latest tiered (-5: none is), and the first offset
    at or after a time.
Does not: followers, throttling.
Versions: 2 isolation level; 4 leader epoch (KIP-320); 6 flexible; 7 -3 (KIP-734); 8 -4 (KIP-405); 9 -5
    (KIP-1005). A special timestamp in a version before its own: UNSUPPORTED_VERSION for that partition.
"""

import logging
from collections import Counter
from typing import Any

from sparklog.errors import SparklogError
from sparklog.log.time_lookup import offset_for_time
from sparklog.metadata import PartitionState
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.cluster.leadership import NO_EPOCH
from sparklog_server.fetch.offsets import offset_of_max_timestamp
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import field, make
from sparklog_server.protocol.errors import ErrorCode, error_code

NONE = -1
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
_FIRST_VERSION = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
_Answer = tuple[ErrorCode, int, int, int]  # error, timestamp, offset, leader epoch
_log = logging.getLogger("sparklog_server.fetch")


@api(ApiKey.LIST_OFFSETS, versions=range(1, 10))
async def handle_list_offsets(request: Any, context: RequestContext, services: Services) -> Any:
    # Whoever asks where the log ends may come from Spark, whose commit the follower has not seen yet.
    failure = await services.root.look()
    refusal = ErrorCode.none if failure is None else error_code(failure)
    if not services.membership.is_in_charge:
        refusal = ErrorCode.not_leader_or_follower
    named = Counter((topic.name, one.partition_index) for topic in request.topics for one in topic.partitions)
    topics = []
    for topic in request.topics:
        partitions = []
        for one in topic.partitions:
            if named[topic.name, one.partition_index] > 1:
                answer = _failed(ErrorCode.invalid_request)
            elif refusal:
                answer = _failed(refusal)
            else:
                answer = await _list_offset(topic.name, one, context.api_version, services)
            error, timestamp, offset, epoch = answer
            partitions.append(
                make(
                    context.types.ListOffsetsPartitionResponse,
                    partition_index=one.partition_index,
                    error_code=error,
                    timestamp=timestamp,
                    offset=offset,
                    leader_epoch=epoch,
                )
            )
        topics.append(make(context.types.ListOffsetsTopicResponse, name=topic.name, partitions=partitions))
    return make(context.types.ListOffsetsResponse, throttle_time=0, topics=topics)


async def _list_offset(name: str, one: Any, version: int, services: Services) -> _Answer:
    topic = services.root.image.topics.get(name)
    if topic is None or not 0 <= one.partition_index < len(topic.partitions):
        return _failed(ErrorCode.unknown_topic_or_partition)
    state = topic.partitions[one.partition_index]
    error = services.leadership.epoch_error(state, field(one, "current_leader_epoch", NO_EPOCH))
    if error is not ErrorCode.none:
        return _failed(error)
    if one.timestamp < 0 and version < _FIRST_VERSION.get(one.timestamp, version + 1):
        return _failed(ErrorCode.unsupported_version)
    epoch = services.leadership.leader_of(state).epoch
    match one.timestamp:
        case -1:  # LATEST
            return ErrorCode.none, NONE, state.log_end_offset, epoch
        case -2 | -4:  # EARLIEST, EARLIEST_LOCAL
            return ErrorCode.none, NONE, state.log_start_offset, epoch
        case -5:  # LATEST_TIERED
            return ErrorCode.none, NONE, NONE, NO_EPOCH
        case timestamp:
            return await _look_up(services, name, state, timestamp)


async def _look_up(services: Services, name: str, state: PartitionState, timestamp_ms: int) -> _Answer:
    try:
        found = await services.root.run(_find, services.root.store, name, state, timestamp_ms)
    except SparklogError as error:
        _log.error("offset of %s-%d by time %d: %s", name, state.partition, timestamp_ms, error)
        return _failed(error_code(error))
    if found is None:
        return ErrorCode.none, NONE, NONE, NO_EPOCH
    offset, timestamp = found
    return ErrorCode.none, timestamp, offset, services.leadership.leader_of(state).epoch


def _find(store: Any, name: str, state: PartitionState, timestamp_ms: int) -> tuple[int, int] | None:
    if timestamp_ms == MAX_TIMESTAMP:
        return offset_of_max_timestamp(store, state, name)
    return offset_for_time(store, state, timestamp_ms, topic=name)


def _failed(error: ErrorCode) -> _Answer:
    return error, NONE, NONE, NO_EPOCH
