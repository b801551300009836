"""The start and end offsets of partitions, and offsets by timestamp.

Not here: committed offsets (offsets.py).
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sparklog.errors import SparklogError
from sparklog.log.partition_reader import PartitionReader
from sparklog.log.time_lookup import Wanted, largest_of_whole_extents, offsets_for_times
from sparklog.metadata import PartitionState
from sparklog_server.admin.changes import Part, TopicPartition, deletion
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.cluster.leadership import NO_EPOCH
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext, error_code
from sparklog_server.protocol.responses import field, make

# --- ListOffsets -------------------------------------------------------------------------------------

NONE = -1
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
_FIRST_VERSION = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
_Answer = tuple[ErrorCode, int, int, int]  # error, timestamp, offset, leader epoch
_LOOKED_UP_TOGETHER = 64  # partitions: a thread for each of thousands took longer than the reads
TURN_MS = 50  # of reading large batches: each may take several
_log = logging.getLogger("sparklog_server.fetch")


class _LookUp(NamedTuple):
    """An answer that requires a read of the log."""

    name: str
    state: PartitionState
    timestamp_ms: int


@api(ApiKey.LIST_OFFSETS, versions=range(1, 10))
async def handle_list_offsets(request: Any, context: RequestContext, services: Services) -> Any:
    # The client may come from Spark, whose commit the follower has not seen yet.
    """ListOffsets (key 2), versions 1-9.

    Does: latest (-1: the high watermark, under both isolation levels), earliest (-2), max timestamp (-3),
        earliest local (-4: as earliest, everything is local), latest tiered (-5: none is), and the first
        offset at or after a time. Only the leader answers, as in Kafka: it has the newest log end.
    Does not: followers, throttling.
    Versions: 2 isolation level; 4 leader epoch (KIP-320); 6 flexible; 7 -3 (KIP-734); 8 -4 (KIP-405); 9 -5
        (KIP-1005). A special timestamp in a version before its own: UNSUPPORTED_VERSION for that partition.
    """
    failure = await services.root.look()
    refusal = ErrorCode.none if failure is None else error_code(failure)
    if not services.membership.is_in_charge:
        refusal = ErrorCode.not_leader_or_follower
    named = Counter((topic.name, one.partition_index) for topic in request.topics for one in topic.partitions)
    answers: list[_Answer | _LookUp] = []
    for topic in request.topics:
        for one in topic.partitions:
            if named[topic.name, one.partition_index] > 1:
                answers.append(_failed(ErrorCode.invalid_request))
            elif refusal:
                answers.append(_failed(refusal))
            else:
                answers.append(_list_offset(topic.name, one, context.api_version, services))
    answered = iter(await _look_up(answers, services))
    types = context.types
    topics = [
        make(
            types.ListOffsetsTopicResponse,
            name=topic.name,
            partitions=[
                _listed_offset(types, one.partition_index, next(answered)) for one in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return make(types.ListOffsetsResponse, topics=topics)


def _listed_offset(types: Any, partition: int, answer: _Answer) -> Any:
    error, timestamp, offset, epoch = answer
    return make(
        types.ListOffsetsPartitionResponse,
        partition_index=partition,
        error_code=error,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch,
    )


def _list_offset(name: str, one: Any, version: int, services: Services) -> _Answer | _LookUp:
    topic = services.root.image.topics.get(name)
    if topic is None or not 0 <= one.partition_index < len(topic.partitions):
        return _failed(ErrorCode.unknown_topic_or_partition)
    state = topic.partitions[one.partition_index]
    error = services.leadership.leader_error(state, field(one, "current_leader_epoch", NO_EPOCH))
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
            return _LookUp(name, state, timestamp)


async def _look_up(answers: Sequence[_Answer | _LookUp], services: Services) -> list[_Answer]:
    """Return all answers; read the log in other threads if necessary: in one batch as far as possible, then
    one by one.
    """
    wanted = [one for one in answers if isinstance(one, _LookUp)]
    found: dict[int, _Answer] = {}
    for first in range(0, len(wanted), _LOOKED_UP_TOGETHER):
        some = dict(enumerate(wanted[first : first + _LOOKED_UP_TOGETHER], first))
        found |= await services.root.run_at_length(_find_together, some, services)
    left = {number: one for number, one in enumerate(wanted) if number not in found}
    while left:
        some_more = await services.root.run_at_length(_find_some, left, services)
        found |= some_more
        left = {number: one for number, one in left.items() if number not in some_more}
    numbers = iter(range(len(wanted)))
    return [found[next(numbers)] if isinstance(one, _LookUp) else one for one in answers]


def _find_together(wanted: Mapping[int, _LookUp], services: Services) -> dict[int, _Answer]:
    timed = [(number, time) for number, one in wanted.items() if (time := _by_time(one)) is not None]
    known = offsets_for_times(services.root.store, [time for _, time in timed])
    numbers = {timed[index][0]: place for index, place in known.items()}
    return {number: _found(wanted[number].state, place, services) for number, place in numbers.items()}


def _find_some(wanted: Mapping[int, _LookUp], services: Services) -> dict[int, _Answer]:
    """Find at least one answer, and then as many as fit into TURN_MS."""
    clock = services.clock
    end_ms = clock.monotonic_ms() + TURN_MS
    answers: dict[int, _Answer] = {}
    for number, one in wanted.items():
        answers[number] = _find(one, services)
        if clock.monotonic_ms() >= end_ms:
            break
    return answers


def _by_time(one: _LookUp) -> Wanted | None:
    """Return the lookup by time; also for the largest timestamp, if the image has it."""
    name, state, timestamp_ms = one
    if timestamp_ms != MAX_TIMESTAMP:
        return Wanted(name, state, timestamp_ms)
    if not len(state.extents) or state.extents[0].base_offset < state.log_start_offset:
        return None
    largest = largest_of_whole_extents(state)
    return None if largest is None else Wanted(name, state, largest)


def _find(one: _LookUp, services: Services) -> _Answer:
    name, state, timestamp_ms = one
    root = services.root
    reader = PartitionReader(
        root.store,
        lambda: root.newest(state.topic_id, state.partition),
        topic=name,
        partition=state.partition,
        state=state,
    )
    try:
        if timestamp_ms == MAX_TIMESTAMP:
            found = reader.offset_of_max_timestamp()
        else:
            found = reader.offset_for_time(timestamp_ms)
    except SparklogError as error:
        _log.error("offset of %s-%d by time %d: %s", name, state.partition, timestamp_ms, error)
        return _failed(error_code(error))
    return _found(state, found, services)


def _found(state: PartitionState, found: tuple[int, int] | None, services: Services) -> _Answer:
    if found is None:
        return ErrorCode.none, NONE, NONE, NO_EPOCH
    offset, timestamp = found
    return ErrorCode.none, timestamp, offset, services.leadership.leader_of(state).epoch


def _failed(error: ErrorCode) -> _Answer:
    return error, NONE, NONE, NO_EPOCH


# --- OffsetForLeaderEpoch ----------------------------------------------------------------------------

UNDEFINED = -1


@api(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=range(2, 5))
async def handle_offset_for_leader_epoch(request: Any, context: RequestContext, services: Services) -> Any:
    """OffsetForLeaderEpoch (key 23), versions 2-4.

    Does: return the end offset of an epoch, so that consumers detect truncation. There is none: a new leader
        continues at the end of the old one, on the same storage. So every epoch up to the leader's ends at
        the present log end. The metadata log is refreshed first: a stale end would look like a truncation to
        a client that has read more at another broker. Only a restore from a backup truncates: older epochs
        end at the end of the partition in the backup. A later epoch is unknown (-1).
    Does not: followers, throttling.
    Versions: 2 current leader epoch (KIP-320); 3 replica id; 4 flexible.
    """
    failure = await services.root.look(force=True)
    refusal = ErrorCode.none if failure is None else error_code(failure)
    if not services.membership.is_in_charge:
        refusal = ErrorCode.not_leader_or_follower
    topics = []
    for topic in request.topics:
        partitions = []
        for one in topic.partitions:
            error, epoch, end_offset = refusal, UNDEFINED, UNDEFINED
            if not refusal:
                error, epoch, end_offset = _end_of_epoch(topic.topic, one, services)
            partitions.append(
                make(
                    context.types.EpochEndOffset,
                    partition=one.partition,
                    error_code=error,
                    leader_epoch=epoch,
                    end_offset=end_offset,
                )
            )
        topics.append(
            make(context.types.OffsetForLeaderTopicResult, topic=topic.topic, partitions=partitions)
        )
    return make(context.types.OffsetForLeaderEpochResponse, topics=topics)


def _end_of_epoch(name: str, one: Any, services: Services) -> tuple[ErrorCode, int, int]:
    topic = services.root.image.topics.get(name)
    if topic is None or not 0 <= one.partition < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition, UNDEFINED, UNDEFINED
    state = topic.partitions[one.partition]
    epoch = services.leadership.leader_of(state).epoch
    error = services.leadership.leader_error(state, field(one, "current_leader_epoch", NO_EPOCH))
    if error is not ErrorCode.none or not 0 <= one.leader_epoch <= epoch:
        return error, UNDEFINED, UNDEFINED
    if one.leader_epoch < services.root.image.incarnation.leader_epoch:
        return ErrorCode.none, one.leader_epoch, state.restored_end_offset
    return ErrorCode.none, one.leader_epoch, state.log_end_offset


# --- DeleteRecords -----------------------------------------------------------------------------------


@api(ApiKey.DELETE_RECORDS, versions=range(3))
async def handle_delete_records(request: Any, context: RequestContext, services: Services) -> Any:
    """DeleteRecords (key 21), versions 0-2.

    Does: advance the log start to an offset, or to the high watermark (-1); all partitions in one commit,
        each checked against the image that the commit follows.
    Does not: free the storage (retention does), throttling; time out: the request's time-out is for the
        replication to followers, which do not exist here. As in Kafka, the records of internal topics
        (INVALID_TOPIC_EXCEPTION) and of topics that are only compacted (POLICY_VIOLATION) stay.
    Versions: 2 flexible.
    """
    lows: dict[TopicPartition, int] = {}
    parts: dict[TopicPartition, Part] = {}
    for topic in request.topics:
        for one in topic.partitions:
            key = topic.name, one.partition_index
            parts[key] = deletion(services.root, key, one.offset, lows)
    outcomes = await services.changes.make(parts, fenced=ErrorCode.not_leader_or_follower)
    refused = {key: outcome.message for key, outcome in outcomes.items() if outcome.is_error}
    if refused:  # a line for a request, whatever its size; the answer has codes only
        (name, partition), why = next(iter(refused.items()))
        _log.info("delete records: %d refused, %r-%d first: %s", len(refused), name[:100], partition, why)
    types = context.types
    return make(
        types.DeleteRecordsResponse,
        topics=[
            make(
                types.DeleteRecordsTopicResult,
                name=topic.name,
                partitions=[
                    _deleted_records(types, one.partition_index, outcomes[key].code, lows.get(key, NONE))
                    for one in topic.partitions
                    for key in [(topic.name, one.partition_index)]
                ],
            )
            for topic in request.topics
        ],
    )


def _deleted_records(types: Any, partition: int, error: ErrorCode, low_watermark: int) -> Any:
    return make(
        types.DeleteRecordsPartitionResult,
        partition_index=partition,
        low_watermark=NONE if error else low_watermark,
        error_code=error,
    )
