"""Fetch (key 1), versions 4-12.

Does: record batches as stored (compressed ones stay so), long poll by min_bytes and max_wait_ms, limits per
    request and per partition, fetch sessions, both isolation levels (there are no open transactions: the
    last stable offset is the high watermark, no transaction is aborted), leader epoch checks.
Does not: followers (a replica id of a broker is refused, CVE-2018-1288), rack-aware reading, throttling.
Versions: 5 log start offset; 7 sessions (KIP-227); 9 current leader epoch (KIP-320); 11 rack id (KIP-392);
    12 flexible, last fetched epoch (KIP-595; epochs never diverge here).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sparklog.metadata import why_illegal_topic_name
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.cluster.leadership import NO_EPOCH
from sparklog_server.fetch.response import PartitionAnswer, encode_fetch_response
from sparklog_server.fetch.service import Fetched
from sparklog_server.fetch.sessions import FINAL_EPOCH, NO_SESSION, PartitionFetch
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import field
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.protocol.wire import Response

CONSUMER = -1
READ_COMMITTED = 1


@api(ApiKey.FETCH, versions=range(4, 13), waits=True)
async def handle_fetch(request: Any, context: RequestContext, services: Services) -> Response:
    version = context.api_version
    wanted = list({one.key: one for one in _partition_fetches(request)}.values())  # the last one counts
    if request.replica_id != CONSUMER:
        refused = _refused(wanted, ErrorCode.topic_authorization_failed)
        return Response(chunks=encode_fetch_response(version, refused))
    # They can never exist: a session that remembers them would keep up to 32 KB for each.
    illegal = {topic.topic for topic in request.topics if why_illegal_topic_name(topic.topic) is not None}
    refused = _refused([one for one in wanted if one.topic in illegal], ErrorCode.unknown_topic_or_partition)
    if illegal:
        wanted = [one for one in wanted if one.topic not in illegal]
    service = services.fetches
    session = service.sessions.begin(
        field(request, "session_id", NO_SESSION),
        field(request, "session_epoch", FINAL_EPOCH),
        wanted,
        [
            (topic.topic, partition)
            for topic in field(request, "forgotten_topics_data", ())
            for partition in topic.partitions
        ],
        now_ms=services.clock.monotonic_ms(),
        owner=context.connection_id,
    )
    if session.error is not ErrorCode.none:
        return Response(chunks=encode_fetch_response(version, (), error_code=session.error.value))
    waiting = service.fetch(
        session.fetches,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        max_wait_ms=0 if refused else field(request, "max_wait", 0),
        is_read_committed=request.isolation_level == READ_COMMITTED,
    )
    del request, wanted  # it may wait for weeks
    fetched = await waiting
    session_id, answers_to_send = service.sessions.finish(
        session, fetched.answers, now_ms=services.clock.monotonic_ms()
    )
    _count(services, fetched)
    chunks = encode_fetch_response(version, [*answers_to_send, *refused], session_id=session_id)
    return Response(chunks=chunks, release=fetched.release)


def _refused(fetches: Sequence[PartitionFetch], error: ErrorCode) -> list[PartitionAnswer]:
    return [
        PartitionAnswer(topic=one.topic, partition=one.partition, error_code=error.value) for one in fetches
    ]


def _partition_fetches(request: Any) -> Iterator[PartitionFetch]:
    for topic in request.topics:
        for one in topic.partitions:
            yield PartitionFetch(
                topic=topic.topic,
                partition=one.partition,
                offset=one.fetch_offset,
                max_bytes=one.partition_max_bytes,
                leader_epoch=field(one, "current_leader_epoch", NO_EPOCH),
            )


def _count(services: Services, fetched: Fetched) -> None:
    """Traffic by topic; once per topic with bytes or errors: polls of many idle topics are frequent."""
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
