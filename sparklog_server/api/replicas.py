"""Replicas of partitions: their brokers, leaders and storage.

Not here: the decisions (admin/leaders.py), their order (cluster/controller.py).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from sparklog.errors import FencedError, SparklogError, as_value
from sparklog.metadata import Action, Image, PartitionLeadership, PublishResult, Topic
from sparklog_server.admin.changes import Outcome, outcome_of
from sparklog_server.admin.leaders import Elections, ElectionType, NamedPartition, Reassignments, under_way
from sparklog_server.api.listings import log_dir_topics
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import FLEXIBLE_FROM, PARTITION_BYTES, encode_log_dir, field, make
from sparklog_server.protocol.wire import Response, by_topic, in_slices, text_bytes

# --- controller requests -----------------------------------------------------------------------------
#
# Passes requests of clients to the controller, and waits for the outcome.
#
# Invariants: only the controller's broker decides; others answer NOT_CONTROLLER, after which clients find the
#     controller. Such a request has no effect.
# Not here: the decisions (admin/), their order (cluster/controller.py).
# Concurrency: event loop.
# Sources: Kafka KafkaController's events, before KRaft.

Order = Callable[[Image, int], Sequence[Action]]
_DONE = Outcome()
_ELSEWHERE = Outcome(ErrorCode.not_controller, "This is not the correct controller for this cluster.")


async def decide(services: Services, order: Order, *, timeout_ms: int) -> Outcome:
    """Let the controller commit the order; return the outcome."""
    if not services.controller.is_controller:
        return _ELSEWHERE
    deciding = services.controller.submit(order)
    done, _ = await asyncio.wait({deciding}, timeout=max(timeout_ms, 1) / 1000)
    if not done:
        deciding.add_done_callback(_retrieve_error)
        message = "the controller did not answer in time; the change may still be made: check again"
        return Outcome(ErrorCode.request_timed_out, message)
    try:
        deciding.result()
    except (FencedError, asyncio.CancelledError):
        return _ELSEWHERE  # another broker is the controller by now, or this one stops
    except SparklogError as error:
        return outcome_of(as_value(error))  # the future keeps the error
    return _DONE


def _retrieve_error(deciding: "asyncio.Future[PublishResult]") -> None:
    """Retrieve the error of a future without a waiter, so that asyncio logs no warning."""
    if not deciding.cancelled():
        deciding.exception()


# --- ElectLeaders ------------------------------------------------------------------------------------

_TOP_LEVEL_FROM = 1


@api(ApiKey.ELECT_LEADERS, versions=range(3))
async def handle_elect_leaders(request: Any, context: RequestContext, services: Services) -> Any:
    """ElectLeaders (key 43), versions 0-2.

    Does: elect the preferred replica (the first of the list), or a live replica for partitions without a
        leader; of the named partitions, or of all: then the answer leaves out those that need no election.
        NOT_CONTROLLER at other brokers than the controller.
    Does not: lose records by an unclean election: all replicas read the same storage.
    Versions: 0 preferred leaders only, NOT_CONTROLLER for each partition; 1 election types, top-level
        error (KIP-460); 2 flexible.
    """
    types = context.types
    asked: list[NamedPartition] | None = None
    if request.topic_partitions is not None:
        asked = [(one.topic, number) for one in request.topic_partitions for number in one.partitions]
    kind = field(request, "election_type", ElectionType.PREFERRED)
    if kind not in set(ElectionType):
        return make(types.ElectLeadersResponse, error_code=ErrorCode.invalid_request)
    elections = Elections(ElectionType(kind), asked)
    outcome = await decide(services, elections, timeout_ms=field(request, "timeout", 0))
    outcomes = elections.outcomes
    if outcome.is_error:
        outcomes = {}
        if context.api_version < _TOP_LEVEL_FROM:
            outcomes = dict.fromkeys(asked or (), outcome)

    def result(number: int, of: Outcome) -> Any:
        return make(types.PartitionResult, partition_id=number, error_code=of.code, error_message=of.message)

    return make(
        types.ElectLeadersResponse,
        error_code=outcome.code,
        replica_election_results=await in_slices(
            make(types.ReplicaElectionResult, topic=topic, partition_result=partitions)
            for topic, partitions in by_topic(outcomes, result).items()
        ),
    )


# --- AlterPartitionReassignments ---------------------------------------------------------------------


@api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=range(2))
async def handle_alter_partition_reassignments(
    request: Any, context: RequestContext, services: Services
) -> Any:
    """AlterPartitionReassignments (key 45), versions 0-1.

    Does: change the replicas of partitions, or cancel that (null). Nothing is copied: the reassignment
        completes in the same commit, unless a new broker is not live; then as soon as it is.
        NOT_CONTROLLER at other brokers than the controller.
    Does not: throttle. If a partition is named twice, the last entry counts.
    Versions: 1 may forbid that the number of replicas changes (KIP-860).
    """
    types = context.types
    may_change = field(request, "allow_replication_factor_change", True)
    targets = {
        (topic.name, one.partition_index): one.replicas
        for topic in request.topics
        for one in topic.partitions
    }
    reassignments = Reassignments(targets, may_change_factor=may_change)
    outcome = await decide(services, reassignments, timeout_ms=field(request, "timeout", 0))
    outcomes = dict.fromkeys(targets, outcome) if outcome.is_error else reassignments.outcomes

    def response(number: int, of: Outcome) -> Any:
        return make(
            types.ReassignablePartitionResponse,
            partition_index=number,
            error_code=of.code,
            error_message=of.message,
        )

    return make(
        types.AlterPartitionReassignmentsResponse,
        allow_replication_factor_change=may_change,
        error_code=outcome.code,
        error_message=outcome.message,
        responses=await in_slices(
            make(types.ReassignableTopicResponse, name=name, partitions=partitions)
            for name, partitions in by_topic(outcomes, response).items()
        ),
    )


# --- ListPartitionReassignments ----------------------------------------------------------------------


@api(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=range(1))
async def handle_list_partition_reassignments(
    request: Any, context: RequestContext, services: Services
) -> Any:
    """ListPartitionReassignments (key 46), version 0.

    Does: lists reassignments in progress, which wait for a new broker. Of the named partitions, or of all
        (null). Any broker answers.
    Versions: 0 (KIP-455).
    """
    await services.root.look()
    types = context.types
    asked = None
    if request.topics is not None:
        asked = [(topic.name, number) for topic in request.topics for number in topic.partition_indexes]

    def ongoing(number: int, partition: PartitionLeadership) -> Any:
        return make(
            types.OngoingPartitionReassignment,
            partition_index=number,
            replicas=partition.replicas,
            adding_replicas=partition.adding,
            removing_replicas=partition.removing,
        )

    return make(
        types.ListPartitionReassignmentsResponse,
        error_code=ErrorCode.none,
        topics=await in_slices(
            make(types.OngoingTopicReassignment, name=name, partitions=partitions)
            for name, partitions in by_topic(under_way(services.root.image, asked), ongoing).items()
        ),
    )


# --- DescribeLogDirs ---------------------------------------------------------------------------------

_TOPIC_BYTES = 10  # without its name and its partitions
_NOBODY_COUNTS = -1, -1


@api(ApiKey.DESCRIBE_LOG_DIRS, versions=range(1, 5))
async def handle_describe_log_dirs(request: Any, context: RequestContext, services: Services) -> Any:
    """DescribeLogDirs (key 35), versions 1-4.

    Does: returns the root as a URL (file:///data/log): a client with access to the same storage can open it
        directly, as Spark does (sparklog/client/brokers.py). The stored bytes of each partition, and the size
        of the file system.
    Does not: replication lag (there is none), replicas being moved.
    Beyond 32 MiB, a million and a half partitions, the root is answered with UNKNOWN_SERVER_ERROR:
    request fewer.
    Versions: 2 flexible; 3 top-level error; 4 total and usable bytes (KIP-827; -1 if unknown for the
        storage).
    """
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
        count, topics = len(wanted), await log_dir_topics(wanted, flexible=version >= FLEXIBLE_FROM)
    return Response(chunks=encode_log_dir(version, store.url, count, topics, space))


def _wanted(image: Image, asked: Any) -> list[tuple[Topic, list[int]]]:
    """Return the requested topics and partitions that exist."""
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


# --- AlterReplicaLogDirs -----------------------------------------------------------------------------


@api(ApiKey.ALTER_REPLICA_LOG_DIRS, versions=range(1, 3))
async def handle_alter_replica_log_dirs(request: Any, context: RequestContext, services: Services) -> Any:
    """AlterReplicaLogDirs (key 34), versions 1-2.

    Does: answer for each partition. There is one log directory, the root (DescribeLogDirs names it), and
        every replica is in it: a move to it succeeds without effect, and any other directory is
        LOG_DIR_NOT_FOUND. A partition without a replica on this broker is REPLICA_NOT_AVAILABLE.
    Does not: move anything.
    Versions: 2 flexible.

    If a partition is named in several directories, the last one counts.
    """
    await services.root.look()
    image, types = services.root.image, context.types
    errors: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.dirs:
        is_ours = directory.path.rstrip("/") == services.root.store.url
        for topic in directory.topics:
            of_topic = errors.setdefault(topic.name, {})
            for number in topic.partitions:
                of_topic[number] = (
                    _log_dir_error(image, services.node_id, topic.name, number)
                    if is_ours
                    else ErrorCode.log_dir_not_found
                )
    results = (
        make(
            types.AlterReplicaLogDirTopicResult,
            topic_name=name,
            partitions=[
                make(types.AlterReplicaLogDirPartitionResult, partition_index=number, error_code=error)
                for number, error in of_topic.items()
            ],
        )
        for name, of_topic in errors.items()
    )
    return make(types.AlterReplicaLogDirsResponse, results=await in_slices(results))


def _log_dir_error(image: Image, node_id: int, name: str, number: int) -> ErrorCode:
    topic = image.topics.get(name)
    if topic is None or not 0 <= number < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    if node_id not in topic.partitions[number].leadership.replicas:
        return ErrorCode.replica_not_available
    return ErrorCode.none
