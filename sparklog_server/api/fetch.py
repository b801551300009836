"""Fetch (key 1), versions 4-17.

Does: record batches as stored (compressed ones stay so), long poll by min_bytes and max_wait_ms, limits per
    request and per partition, fetch sessions, both isolation levels (nothing that is open or aborted is in a
    partition: the last stable offset is the high watermark, the list of aborted transactions is empty),
    leader epoch checks; topics by id (UNKNOWN_TOPIC_ID for an unknown id, as after a deletion, even if
    another topic has the name now); reading from replicas (KIP-392): consumers from version 11 on may read
    from any replica, and replica.selector.class sends them to one in their rack.
Does not: followers (a replica id of a broker is refused, CVE-2018-1288; they do not exist here),
    tiered storage (OFFSET_MOVED_TO_TIERED_STORAGE is for followers).
Versions: 5 log start offset; 7 sessions (KIP-227); 9 current leader epoch (KIP-320); 11 rack id (KIP-392);
    12 flexible, last fetched epoch (KIP-595; epochs never diverge here); 13 topic ids (KIP-516); 14 as 13;
    15 the replica id is tagged (KIP-903); 16 current leaders and their endpoints (KIP-951); 17 the
    directory of a follower (KIP-853).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from sparklog.metadata import AclOperation, ResourceType, why_illegal_topic_name
from sparklog_server.api.cluster import hint_of, nodes_of_leaders
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.cluster.leadership import NO_EPOCH
from sparklog_server.fetch.service import Fetched
from sparklog_server.fetch.sessions import (
    FINAL_EPOCH,
    LEADER_HINT_VERSION,
    NO_SESSION,
    PREFERRED_REPLICA_VERSION,
    TOPIC_ID_VERSION,
    FetchContext,
    PartitionAnswer,
    PartitionFetch,
    encode_fetch_response,
)
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.metadata_response import LeaderHint, Node
from sparklog_server.protocol.responses import field, topic_id_text
from sparklog_server.protocol.wire import Response
from sparklog_server.security.access import Caller
from sparklog_server.security.quotas import FETCHED

CONSUMER = -1
READ_COMMITTED = 1
NO_TOPIC_ID = "A" * 22  # zeros, which no topic has
_NOT_LED = frozenset({ErrorCode.not_leader_or_follower.value, ErrorCode.fenced_leader_epoch.value})


@api(ApiKey.FETCH, versions=range(4, 18), waits=True)
async def handle_fetch(request: Any, context: RequestContext, services: Services) -> Response:
    version = context.api_version
    wanted = list({one.key: one for one in _partition_fetches(request)}.values())  # the last one counts
    if _replica_id(request) != CONSUMER:
        refused = _refused(wanted, ErrorCode.topic_authorization_failed)
        return Response(chunks=encode_fetch_response(version, refused))
    # Such topics cannot exist: a session would keep up to 32 KB for each.
    named = {one.topic for one in wanted if not one.topic_id}
    illegal = {name for name in named if why_illegal_topic_name(name) is not None}
    refused = []
    if illegal:
        refused = _refused(
            [one for one in wanted if one.topic in illegal], ErrorCode.unknown_topic_or_partition
        )
        wanted = [one for one in wanted if one.topic not in illegal]
    service = services.fetches
    session = _begin_session(request, wanted, context, services)
    if session.error is not ErrorCode.none:
        return Response(chunks=encode_fetch_response(version, (), error_code=session.error.value))
    # All of the session, each time: permissions change, and the id of a session is no secret.
    fetches, forbidden = _readable(session.fetches, services.access.caller(context))
    most = services.quotas.most_in_windows(FETCHED, context)
    waiting = service.fetch(
        fetches,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes if most is None else min(request.max_bytes, most),
        max_wait_ms=0 if refused or (forbidden and not fetches) else field(request, "max_wait", 0),
        is_read_committed=request.isolation_level == READ_COMMITTED,
        rack=request.rack_id if version >= PREFERRED_REPLICA_VERSION else None,
    )
    del request, wanted, fetches  # it may wait for weeks
    fetched = await waiting
    if forbidden:
        fetched.answers += _refused(forbidden, ErrorCode.topic_authorization_failed)
    try:
        if _is_throttled(fetched, context, services):
            fetched.release()
            session_id = NO_SESSION if session.session is None else session.session.session_id
            return Response(chunks=encode_fetch_response(version, (), session_id=session_id))
        session_id, answers_to_send = service.sessions.finish(
            session, fetched.answers, now_ms=services.clock.monotonic_ms()
        )
        _count(services, fetched)
        nodes = _tell_leaders(answers_to_send, context, services) if version >= LEADER_HINT_VERSION else ()
        sent = [*answers_to_send, *refused]
        chunks = encode_fetch_response(version, sent, session_id=session_id, nodes=nodes)
        del session, answers_to_send, refused, sent, waiting  # sending may take long
        fetched.answers = []
        await context.answer.hold(sum(len(one) for one in chunks if isinstance(one, bytearray)))
    except BaseException:
        fetched.release()
        raise
    return Response(chunks=chunks, release=fetched.release)


def _begin_session(
    request: Any, wanted: Sequence[PartitionFetch], context: RequestContext, services: Services
) -> FetchContext:
    return services.fetches.sessions.begin(
        field(request, "session_id", NO_SESSION),
        field(request, "session_epoch", FINAL_EPOCH),
        wanted,
        [
            (_topic_id(topic) or topic.topic, partition)
            for topic in field(request, "forgotten_topics_data", ())
            for partition in topic.partitions
        ],
        now_ms=services.clock.monotonic_ms(),
        owner=context.connection_id,
        uses_topic_ids=context.api_version >= TOPIC_ID_VERSION,
    )


def _replica_id(request: Any) -> int:
    state = field(request, "replica_state")  # since version 15
    return int(request.replica_id if state is None else state.replica_id)


def _is_throttled(fetched: Fetched, context: RequestContext, services: Services) -> bool:
    """True if the client is over its quota: its records are not sent, and not counted, as in Kafka."""
    if not services.quotas.has(FETCHED):
        return False
    size = sum(one.size for one in fetched.answers)
    context.answer.throttle_ms = services.quotas.count(FETCHED, context, size)
    if context.answer.throttle_ms < 1:
        return False
    services.quotas.take_back(FETCHED, context, size)
    return True


def _readable(
    fetches: Sequence[PartitionFetch], caller: Caller
) -> tuple[Sequence[PartitionFetch], Sequence[PartitionFetch]]:
    """Return the partitions that the client may read, and the others; unknown topic ids stay."""
    if not caller.is_limited:
        return fetches, ()
    counts = Counter(one.key[0] for one in fetches)
    forbidden = set()
    for one in {fetch.key[0]: fetch for fetch in fetches}.values():
        topic = caller.image.topic_by_id.get(one.topic_id) if one.topic_id else None
        name = one.topic if topic is None else topic.name
        count = counts[one.key[0]]
        if name and not caller.may(AclOperation.READ, ResourceType.TOPIC, name, count=count):
            forbidden.add(one.key[0])
    if not forbidden:
        return fetches, ()
    allowed = [one for one in fetches if one.key[0] not in forbidden]
    return allowed, [one for one in fetches if one.key[0] in forbidden]


def _refused(fetches: Sequence[PartitionFetch], error: ErrorCode) -> list[PartitionAnswer]:
    return [
        PartitionAnswer(
            topic=one.topic, topic_id=one.topic_id, partition=one.partition, error_code=error.value
        )
        for one in fetches
    ]


def _partition_fetches(request: Any) -> Iterator[PartitionFetch]:
    for topic in request.topics:
        topic_id = _topic_id(topic)
        name = "" if topic_id else topic.topic
        for one in topic.partitions:
            yield PartitionFetch(
                topic=name,
                topic_id=topic_id,
                partition=one.partition,
                offset=one.fetch_offset,
                max_bytes=one.partition_max_bytes,
                leader_epoch=field(one, "current_leader_epoch", NO_EPOCH),
            )


def _topic_id(topic: Any) -> str:
    """Return the topic id as text; "" in versions with topic names."""
    if topic.__version__ < TOPIC_ID_VERSION:
        return ""
    return NO_TOPIC_ID if topic.topic_id is None else topic_id_text(topic.topic_id)


def _tell_leaders(
    answers: Sequence[PartitionAnswer], context: RequestContext, services: Services
) -> Sequence[Node]:
    """Add the current leader to each error for another leader or leader epoch."""
    hints: list[LeaderHint] = []
    for answer in answers:
        if answer.error_code in _NOT_LED:
            topic = services.root.image.topic_by_id.get(answer.topic_id)
            if topic is not None and answer.partition < len(topic.partitions):
                answer.current_leader = hint_of(services, topic.partitions[answer.partition])
                hints.append(answer.current_leader)
    return list(nodes_of_leaders(services, context.listener, hints)) if hints else ()


def _count(services: Services, fetched: Fetched) -> None:
    """Count traffic by topic; only topics with bytes or errors: polls of many idle topics are frequent."""
    sizes: dict[str, int] = {}
    failed: dict[str, bool] = {}
    for answer in fetched.answers:
        if answer.size or answer.error_code:
            sizes[answer.topic] = sizes.get(answer.topic, 0) + answer.size
            failed[answer.topic] = failed.get(answer.topic, False) or bool(answer.error_code)
    topics: Sequence[str] = list(sizes)
    for topic in topics:
        known = topic if topic in services.root.image.topics else ""
        services.metrics.fetch_request(known, failed=failed[topic])
        if sizes[topic]:
            services.metrics.bytes_out(known, sizes[topic])
