"""TxnOffsetCommit (key 28), versions 0-5.

Does: offsets that are committed when the producer's transaction is, and not before; answers when they are
    staged, durably. Members are checked as they are now (generation, instance), and not again at the end.
    Until the transaction is over OffsetFetch with `require_stable` is told UNSTABLE_OFFSET_COMMIT.
    The group must have been added to the transaction: INVALID_TXN_STATE, TRANSACTION_ABORTABLE in version 4.
    Before version 5: COORDINATOR_NOT_AVAILABLE, which all clients send again, if another transaction is open
    than this broker knew when it read the request.
Does not: member epochs of KIP-848.
Versions: 2 leader epochs; 3 flexible, members (KIP-447); 4 TRANSACTION_ABORTABLE; 5 the second protocol of
    transactions (KIP-890): the group adds itself.
"""

import logging
from typing import Any

from sparklog.errors import SparklogError
from sparklog.metadata import MOST_STAGED_WEIGHT
from sparklog_server.api.offset_commit import requested_offsets
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.coordination.staging import StagedBy
from sparklog_server.groups.offsets import OffsetToCommit
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make
from sparklog_server.publish.parts import InTransaction
from sparklog_server.transactions.coordinator import masked, refusal_once_begun

_log = logging.getLogger("sparklog_server.coordinator")
KNOWS_LOADING_FROM, ABORTABLE_FROM, SECOND_PROTOCOL_FROM = 2, 4, 5


@api(ApiKey.TXN_OFFSET_COMMIT, versions=range(6))
async def handle_txn_offset_commit(request: Any, context: RequestContext, services: Services) -> Any:
    """Refuse single partitions, stage the others together."""
    if context.api_version < SECOND_PROTOCOL_FROM:
        await services.transactions.look_before_reading()
    by = _staged_by(request, context.api_version, services)
    offsets, refused = await requested_offsets(request, services)
    error = _why_full(context, services) or await _stage(request, context.api_version, offsets, by, services)
    types = context.types
    return make(
        types.TxnOffsetCommitResponse,
        topics=[
            make(
                types.TxnOffsetCommitResponseTopic,
                name=topic.name,
                partitions=[
                    make(
                        types.TxnOffsetCommitResponsePartition,
                        partition_index=one.partition_index,
                        error_code=refused.get((topic.name, one.partition_index), error),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _staged_by(request: Any, version: int, services: Services) -> StagedBy:
    """Return whose offsets these are. To be called when the request is read, before anything is awaited."""
    producer = request.producer_id, request.producer_epoch
    name = request.transactional_id
    if version >= SECOND_PROTOCOL_FROM:
        transaction = InTransaction(transactional_id=name, opens_ms=services.clock.now_ms())
    else:
        transaction = InTransaction.of_first_protocol(
            services.root.image, name, *producer, group=request.group_id
        )
    return StagedBy(producer_id=producer[0], producer_epoch=producer[1], transaction=transaction)


def _why_full(context: RequestContext, services: Services) -> ErrorCode:
    """Return an error if the client has its share of what transactions may hold, else none."""
    refusal = services.transactions.shares.refusal(context.peer_host, services.root.image, MOST_STAGED_WEIGHT)
    return ErrorCode.none if refusal is None else _told(refusal_once_begun(refusal), context.api_version)


async def _stage(
    request: Any, version: int, offsets: list[OffsetToCommit], by: StagedBy, services: Services
) -> ErrorCode:
    """What is told of all that was not refused before."""
    try:
        error = await services.groups.staged.commit(
            request.group_id,
            offsets,
            by,
            member_id=field(request, "member_id", ""),
            instance_id=field(request, "group_instance_id"),
            generation_id=field(request, "generation_id", -1),
        )
    except SparklogError as why:
        _log.info("offsets of group %r not staged: %s", request.group_id[:100], why)
        error = _told(refusal_once_begun(why), version)
    if error is ErrorCode.coordinator_load_in_progress and version < KNOWS_LOADING_FROM:
        return ErrorCode.coordinator_not_available  # older clients end at the other one
    return error


def _told(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.not_leader_or_follower:
        return ErrorCode.not_coordinator  # else it asks again where it will never be answered
    if error is ErrorCode.concurrent_transactions:  # Java before 4.0 ends with that one here
        return ErrorCode.coordinator_not_available
    error = masked(error, knows_fenced=False)  # no version knows PRODUCER_FENCED
    if error is ErrorCode.transaction_abortable and version < ABORTABLE_FROM:
        return ErrorCode.invalid_txn_state
    if error is ErrorCode.invalid_txn_state and version == ABORTABLE_FROM:
        return ErrorCode.transaction_abortable
    return error
