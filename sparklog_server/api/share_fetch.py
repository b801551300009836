"""Records of share groups: fetching, and acknowledging.

Not here: who gets which records (share/).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sparklog.metadata import AclOperation, ResourceType, SharePlace
from sparklog_server.api.cluster import hint_of, nodes_of_leaders
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.metadata_response import LeaderHint
from sparklog_server.protocol.responses import field, make, topic_id_text
from sparklog_server.protocol.wire import Pace
from sparklog_server.security.access import Caller
from sparklog_server.share.partition import AckBatch, AcquireMode
from sparklog_server.share.service import PartitionShare, ShareFetchRequest
from sparklog_server.share.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_GROUP_CHARACTERS,
    MAX_MEMBER_ID_CHARACTERS,
    ShareSession,
)

MAX_WAIT_MS: Final = 60_000
MAX_RECORDS: Final = 100_000
_PARTITION_BYTES: Final = 600  # of an answer, while it is built
_RANGE_BYTES: Final = 200  # of acquired records
Said = dict[SharePlace, list[AckBatch]]


# --- ShareFetch --------------------------------------------------------------------------------------


@api(ApiKey.SHARE_FETCH, versions=range(1, 3), waits=True, counts=True)
async def handle_share_fetch(request: Any, context: RequestContext, services: Services) -> Any:
    """ShareFetch (key 78), versions 1-2.

    Does: acquires records for a member of a share group, in a share session, and returns them with their
        delivery counts; first acknowledges what the request says, durably. A group begins in a partition with
        its first fetch there. Both acquire modes (KIP-1206): whole batches, or never more than MaxRecords.
    Does not: batches in another size than they are stored in (BatchSize); MinBytes: the first records end
        the wait.
    Versions: 2 acquire mode (KIP-1206), renewing locks (KIP-1222).
    """
    types, shares = context.types, services.shares
    group, member, epoch = request.group_id or "", request.member_id or "", request.share_session_epoch
    said, error = _said(request.topics)
    if error or not _are_names(group, member) or (epoch == INITIAL_EPOCH and said):
        return make(types.ShareFetchResponse, error_code=error or ErrorCode.invalid_request)
    is_renewing = field(request, "is_renew_ack", default=False)
    if epoch == INITIAL_EPOCH:
        shares.end_session(shares.sessions.end((group, member)), is_counted=False)
        session = shares.sessions.begin((group, member), context.connection_id)
    else:
        session = shares.sessions.next((group, member), epoch, context.connection_id)
    if not isinstance(session, ShareSession):
        return make(types.ShareFetchResponse, error_code=session)
    if epoch != FINAL_EPOCH and not shares.sessions.change(session, _places(request.topics), ()):
        shares.end_session(shares.sessions.end((group, member)), is_counted=False)
        return make(types.ShareFetchResponse, error_code=ErrorCode.share_session_limit_reached)
    wanted = ShareFetchRequest(
        max_wait_ms=min(max(0, field(request, "max_wait", 0)), MAX_WAIT_MS),
        max_bytes=max(1, request.max_bytes),
        max_records=min(max(0, request.max_records), MAX_RECORDS),
        mode=AcquireMode.RECORD_LIMIT
        if field(request, "share_acquire_mode", 0) == AcquireMode.RECORD_LIMIT
        else AcquireMode.BATCH_OPTIMIZED,
    )
    forgotten = list(_places(request.forgotten_topics_data))
    del request
    acknowledged = await shares.acknowledge(group, member, said, may_renew=is_renewing) if said else {}
    if not shares.sessions.is_current(session):  # ended meanwhile; the member may have begun another one
        return await _fetched(context, services, group, (), acknowledged)
    # The member keeps what it has of them, as in Kafka: it works on it, and acknowledges it later.
    shares.sessions.change(session, (), forgotten)
    del said, forgotten
    found: Sequence[PartitionShare] = ()
    if epoch == FINAL_EPOCH:
        shares.end_session(shares.sessions.end((group, member)), is_counted=False)
    elif wanted.max_records and not is_renewing:
        if not _may_read(services.access.caller(context), services, session):
            return make(types.ShareFetchResponse, error_code=ErrorCode.topic_authorization_failed)
        context.end_work()  # it may wait for a minute, and holds no more than its session, which has bounds
        found = await shares.fetch(session, wanted)
    return await _fetched(context, services, group, found, acknowledged)


async def _fetched(
    context: RequestContext,
    services: Services,
    group: str,
    found: Sequence[PartitionShare],
    acknowledged: Mapping[SharePlace, ErrorCode],
) -> Any:
    types = context.types
    try:
        size = sum(len(one.data) + _RANGE_BYTES * len(one.acquired) for one in found)
        await context.answer.hold(size + _PARTITION_BYTES * (len(found) + len(acknowledged)))
    finally:
        services.shares.give_back(found)
    by_place = {one.place: one for one in found}
    for place in acknowledged:
        by_place.setdefault(place, PartitionShare(place=place))
    hints: list[LeaderHint] = []
    topics: dict[str, list[Any]] = {}
    pace = Pace()
    for place, one in by_place.items():
        await pace.made(1)
        error = acknowledged.get(place, ErrorCode.none)
        leader = _leader(services, place, (one.error, error), hints)
        topics.setdefault(place[0], []).append(
            make(
                types.PartitionData,
                partition_index=place[1],
                error_code=one.error,
                acknowledge_error_code=error.value,
                current_leader=make(
                    types.LeaderIdAndEpoch, leader_id=leader.node_id, leader_epoch=leader.leader_epoch
                ),
                records=bytes(one.data),
                acquired_records=[
                    make(
                        types.AcquiredRecords,
                        first_offset=part.first,
                        last_offset=part.last,
                        delivery_count=part.deliveries,
                    )
                    for part in one.acquired
                ],
            )
        )
    return make(
        types.ShareFetchResponse,
        error_code=ErrorCode.none,
        acquisition_lock_timeout=services.shares.config_of(group).record_lock_duration_ms,
        responses=[
            make(types.ShareFetchableTopicResponse, topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
        node_endpoints=_endpoints(context, services, hints),
    )


# --- ShareAcknowledge --------------------------------------------------------------------------------


@api(ApiKey.SHARE_ACKNOWLEDGE, versions=range(1, 3), waits=True, counts=True)
async def handle_share_acknowledge(request: Any, context: RequestContext, services: Services) -> Any:
    """ShareAcknowledge (key 79), versions 1-2.

    Does: accept, release, reject and (version 2) renew acquired records; answers when that is durable.
        Records that the member has not acquired, or whose lock is over: INVALID_RECORD_STATE, and nothing of
        that partition is acknowledged. A rejected record, or one that was delivered too often, becomes a dead
        letter in the same commit, if the group has a dead-letter topic (KIP-1191).
    Versions: 2 renewing locks (KIP-1222).
    """
    types, shares = context.types, services.shares
    group, member, epoch = request.group_id or "", request.member_id or "", request.share_session_epoch
    said, error = _said(request.topics)
    if error or not _are_names(group, member):
        return make(types.ShareAcknowledgeResponse, error_code=error or ErrorCode.invalid_request)
    if epoch == INITIAL_EPOCH:
        return make(types.ShareAcknowledgeResponse, error_code=ErrorCode.invalid_share_session_epoch)
    session = shares.sessions.next((group, member), epoch, context.connection_id)
    if not isinstance(session, ShareSession):
        return make(types.ShareAcknowledgeResponse, error_code=session)
    is_renewing = field(request, "is_renew_ack", default=False)
    acknowledged = await shares.acknowledge(group, member, said, may_renew=is_renewing)
    if epoch == FINAL_EPOCH and shares.sessions.is_current(session):
        shares.end_session(shares.sessions.end((group, member)), is_counted=False)
    hints: list[LeaderHint] = []
    topics: dict[str, list[Any]] = {}
    for place, error in acknowledged.items():
        leader = _leader(services, place, (error,), hints)
        topics.setdefault(place[0], []).append(
            make(
                types.PartitionData,
                partition_index=place[1],
                error_code=error,
                current_leader=make(
                    types.LeaderIdAndEpoch, leader_id=leader.node_id, leader_epoch=leader.leader_epoch
                ),
            )
        )
    return make(
        types.ShareAcknowledgeResponse,
        error_code=ErrorCode.none,
        acquisition_lock_timeout=shares.config_of(group).record_lock_duration_ms,
        responses=[
            make(types.ShareAcknowledgeTopicResponse, topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
        node_endpoints=_endpoints(context, services, hints),
    )


# --- common ------------------------------------------------------------------------------------------

NO_LEADER = LeaderHint(0, 0)
_NOT_LED = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})


def _are_names(group: str, member: str) -> bool:
    return 1 <= len(group) <= MAX_GROUP_CHARACTERS and 1 <= len(member) <= MAX_MEMBER_ID_CHARACTERS


def _may_read(caller: Caller, services: Services, session: ShareSession) -> bool:
    """True if the client may read all topics of its session: permissions end while it goes on."""
    if not caller.is_limited:
        return True
    topics = services.root.image.topic_by_id
    names = {topics[topic_id].name for topic_id, _ in session.partitions if topic_id in topics}
    return all(caller.may(AclOperation.READ, ResourceType.TOPIC, name) for name in names)


def _places(topics: Iterable[Any]) -> Iterable[SharePlace]:
    """Yield the partitions of a request; those of forgotten topics are numbers."""
    for topic in topics:
        topic_id = "" if topic.topic_id is None else topic_id_text(topic.topic_id)
        for one in topic.partitions:
            yield topic_id, one if isinstance(one, int) else one.partition_index


def _said(topics: Iterable[Any]) -> tuple[Said, ErrorCode]:
    """Return what a request says of records; INVALID_REQUEST if it names a partition twice."""
    said: Said = {}
    for topic in topics:
        topic_id = "" if topic.topic_id is None else topic_id_text(topic.topic_id)
        for one in topic.partitions:
            if not one.acknowledgement_batches:
                continue
            place = topic_id, one.partition_index
            if place in said:
                return {}, ErrorCode.invalid_request
            said[place] = [
                AckBatch(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                for batch in one.acknowledgement_batches
            ]
    return said, ErrorCode.none


def _leader(
    services: Services, place: SharePlace, errors: Iterable[ErrorCode], hints: list[LeaderHint]
) -> LeaderHint:
    """Return the leader of a partition for an error that says that it is another."""
    topic = services.root.image.topic_by_id.get(place[0])
    if topic is None or not 0 <= place[1] < len(topic.partitions) or _NOT_LED.isdisjoint(errors):
        return NO_LEADER
    hint = hint_of(services, topic.partitions[place[1]])
    hints.append(hint)
    return hint


def _endpoints(context: RequestContext, services: Services, hints: Sequence[LeaderHint]) -> list[Any]:
    return [
        make(context.types.NodeEndpoint, node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
        for one in nodes_of_leaders(services, context.listener, hints)
    ]
