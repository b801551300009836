"""Transactions of producers, from the producer's id to the end.

Not here: the decisions (transactions/coordinator.py), TxnOffsetCommit (offsets.py), descriptions
    (transaction_listing.py).
"""

import logging
from typing import Any, NamedTuple

from sparklog.errors import SparklogError
from sparklog.metadata import Image, is_internal
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext, error_code
from sparklog_server.protocol.responses import field, make
from sparklog_server.protocol.wire import by_topic, in_slices
from sparklog_server.transactions.coordinator import Marked, Producer, masked, refusal_of, refusal_once_begun

# --- InitProducerId ----------------------------------------------------------------------------------

_producer_log = logging.getLogger("sparklog_server.publish")
_NONE = -1
_NOBODY = Producer(_NONE, _NONE)
_INIT_KNOWS_FENCED = 4


@api(ApiKey.INIT_PRODUCER_ID, versions=range(6))
async def handle_init_producer_id(request: Any, context: RequestContext, services: Services) -> Any:
    """InitProducerId (key 22), versions 0-5.

    Does: without a transactional id a new producer id with epoch 0 for every request, whatever id the
        producer had before, as Kafka does; idempotent producers raise their epochs by themselves (KIP-360).
        With one: its producer id, with the next epoch. That fences every process that already uses the id,
        and aborts its open transaction, in the same commit: there is nothing to wait for, so
        CONCURRENT_TRANSACTIONS is never answered. A producer that names its id and epoch (version 3 on) gets
        the next epoch if they are the latest, the latest again if they are the ones before (it has missed the
        answer), and is fenced otherwise. When the epochs of a producer id are used up it gets another id. Any
        broker does it, in one commit.
    Does not: two-phase commit by others (KIP-939).
    Versions: 2 flexible; 3 the id and epoch that the producer has (KIP-360); 4 PRODUCER_FENCED, which is
        INVALID_PRODUCER_EPOCH before; 5 TRANSACTION_ABORTABLE (KIP-890), which is never answered here.
    """
    has = Producer(field(request, "producer_id", _NONE), field(request, "producer_epoch", _NONE))
    if (has.producer_id == _NONE) != (has.producer_epoch == _NONE) or request.transactional_id == "":
        error, given = ErrorCode.invalid_request, _NOBODY
    elif request.transactional_id is None:
        error, given = await _idempotent(context, services)
    else:
        error, given = await _transactional(request, has, context, services)
    return make(
        context.types.InitProducerIdResponse,
        error_code=error,
        producer_id=given.producer_id,
        producer_epoch=given.producer_epoch,
    )


async def _idempotent(context: RequestContext, services: Services) -> tuple[ErrorCode, Producer]:
    try:
        return ErrorCode.none, Producer(await services.producer_ids.allocate(), 0)
    except SparklogError as failed:
        error = error_code(failed)
        if error is ErrorCode.not_leader_or_follower:  # fenced: producers find the coordinator again
            error = ErrorCode.coordinator_not_available
        _producer_log.warning("no producer id for client %r: %s", context.client_id, failed)
        return error, _NOBODY


async def _transactional(
    request: Any, has: Producer, context: RequestContext, services: Services
) -> tuple[ErrorCode, Producer]:
    try:
        given = await services.transactions.initialise(
            request.transactional_id,
            field(request, "transaction_timeout"),
            None if has == _NOBODY else has,
            context.peer_host,
        )
    except SparklogError as refused:
        _producer_log.warning(
            "client %r is not initialised for transactional id %r: %s",
            context.client_id,
            request.transactional_id[:100],
            refused,
        )
        return masked(refusal_of(refused), knows_fenced=context.api_version >= _INIT_KNOWS_FENCED), _NOBODY
    return ErrorCode.none, given


# --- AddPartitionsToTxn ------------------------------------------------------------------------------

_log = logging.getLogger("sparklog_server.coordinator")
_KNOWS_FENCED = 2
_Partition = tuple[str, int]


@api(ApiKey.ADD_PARTITIONS_TO_TXN, versions=range(4))
async def handle_add_partitions_to_txn(request: Any, context: RequestContext, services: Services) -> Any:
    """AddPartitionsToTxn (key 24), versions 0-3.

    Does: names partitions to which a transaction of the first protocol is going to write; the first of them
        begins it. All or none: if one is unknown or forbidden, the others are OPERATION_NOT_ATTEMPTED. Any
        broker does it, in one commit.
    Does not: requests between Kafka's brokers (versions 4 and 5).
    Versions: 2 PRODUCER_FENCED, which is INVALID_PRODUCER_EPOCH before; 3 flexible.
    """
    asked = [(one.name, number) for one in request.v3_and_below_topics for number in one.partitions]
    errors = _refused_partitions(asked, services)
    if ErrorCode.unknown_topic_or_partition in errors.values():
        await services.root.look(force=True)  # another broker may just have created it
        errors = _refused_partitions(asked, services)
    error = ErrorCode.operation_not_attempted
    if not errors:
        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        error = await _add_partitions(
            request.v3_and_below_transactional_id, producer, asked, context, services
        )
    types = context.types
    results: dict[str, list[Any]] = {}
    for name, number in dict.fromkeys(asked):
        results.setdefault(name, []).append(
            make(
                types.AddPartitionsToTxnPartitionResult,
                partition_index=number,
                partition_error_code=errors.get((name, number), error),
            )
        )
    return make(
        types.AddPartitionsToTxnResponse,
        results_by_topic_v3_and_below=await in_slices(
            make(types.AddPartitionsToTxnTopicResult, name=name, results_by_partition=tuple(found))
            for name, found in results.items()
        ),
    )


def _refused_partitions(asked: list[_Partition], services: Services) -> dict[_Partition, ErrorCode]:
    topics = services.root.image.topics
    errors: dict[_Partition, ErrorCode] = {}
    for name, number in asked:
        topic = topics.get(name)
        if is_internal(name):
            errors[name, number] = ErrorCode.topic_authorization_failed
        elif topic is None or not 0 <= number < len(topic.partitions):
            errors[name, number] = ErrorCode.unknown_topic_or_partition
    return errors


async def _add_partitions(
    transactional_id: str,
    producer: Producer,
    asked: list[_Partition],
    context: RequestContext,
    services: Services,
) -> ErrorCode:
    topics = services.root.image.topics
    partitions = [(topics[name].topic_id, number) for name, number in asked]
    try:
        await services.transactions.add_partitions(transactional_id, producer, partitions, context.peer_host)
    except SparklogError as refused:
        _log.info("no partitions for transactional id %r: %s", transactional_id[:100], refused)
        return masked(refusal_once_begun(refused), knows_fenced=context.api_version >= _KNOWS_FENCED)
    return ErrorCode.none


# --- AddOffsetsToTxn ---------------------------------------------------------------------------------


@api(ApiKey.ADD_OFFSETS_TO_TXN, versions=range(5))
async def handle_add_offsets_to_txn(request: Any, context: RequestContext, services: Services) -> Any:
    """AddOffsetsToTxn (key 25), versions 0-4.

    Does: names a group whose offsets a transaction of the first protocol is going to commit. Any broker does
        it, in one commit; the offsets go to the group's coordinator (TxnOffsetCommit).
    Versions: 2 PRODUCER_FENCED, which is INVALID_PRODUCER_EPOCH before; 3 flexible; 4 TRANSACTION_ABORTABLE
        (KIP-890), which is never answered here.
    """
    error = ErrorCode.none
    try:
        producer = Producer(request.producer_id, request.producer_epoch)
        await services.transactions.add_group(
            request.transactional_id, producer, request.group_id, context.peer_host
        )
    except SparklogError as refused:
        _log.info("no offsets for transactional id %r: %s", request.transactional_id[:100], refused)
        error = masked(refusal_once_begun(refused), knows_fenced=context.api_version >= _KNOWS_FENCED)
    return make(context.types.AddOffsetsToTxnResponse, error_code=error)


# --- EndTxn ------------------------------------------------------------------------------------------

_SECOND_PROTOCOL = 5


@api(ApiKey.END_TXN, versions=range(6))
async def handle_end_txn(request: Any, context: RequestContext, services: Services) -> Any:
    """EndTxn (key 26), versions 0-5.

    Does: commits or aborts all that a transaction has staged, over any number of partitions, and the offsets
        of its groups: in one commit of the metadata log, after which it is visible, or gone. A repeated end
        of a transaction gets the first decision, of any broker: NONE if it is the same, else
        INVALID_TXN_STATE. Version 5 is the second protocol's (KIP-890): the end raises the epoch, and returns
        it; a repetition is recognised by the epoch before.
    Does not: markers in partitions, so there is no wait for them.
    Versions: 2 PRODUCER_FENCED, which is INVALID_PRODUCER_EPOCH before; 3 flexible; 4 TRANSACTION_ABORTABLE,
        which is never answered here; 5 the next epoch (KIP-890).

    Answers when the end is durable.
    """
    error, given = ErrorCode.none, _NOBODY
    try:
        given = await services.transactions.end(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            commits=request.committed,
            raises=context.api_version >= _SECOND_PROTOCOL,
        )
    except SparklogError as refused:
        _log.info("transactional id %r: not ended: %s", request.transactional_id[:100], refused)
        error = masked(refusal_of(refused), knows_fenced=context.api_version >= _KNOWS_FENCED)
    return make(
        context.types.EndTxnResponse,
        error_code=error,
        producer_id=given.producer_id,
        producer_epoch=given.producer_epoch,
    )


# --- WriteTxnMarkers ---------------------------------------------------------------------------------

MOST_MARKERS = 1_000  # of a request, and so of its commit; Kafka's admin client sends one
_TOO_MANY = ErrorCode.invalid_request


@api(ApiKey.WRITE_TXN_MARKERS, versions=range(1, 3))
async def handle_write_txn_markers(request: Any, context: RequestContext, services: Services) -> Any:
    """WriteTxnMarkers (key 27), versions 1-2.

    Does: an administrator's abort, as of Kafka's admin client and `kafka-transactions abort`: names a
        producer id, its epoch and a partition. The transaction is aborted as a whole, with all its partitions
        and offsets, and its producer is fenced, so that it cannot commit the rest. NONE if it is no longer
        open. INVALID_PRODUCER_EPOCH if the producer has a newer epoch: then it is another transaction. Any
        broker does it; all markers of a request are one commit, and a refused one does not affect the others.
    Does not: commits (INVALID_REQUEST), which only a producer decides. Markers: there are none, and brokers
        do not send each other any.
    Versions: 1 flexible; 2 the protocol's version (KIP-1228), which makes no difference here.
    """
    types = context.types

    def result(partition: int, error: ErrorCode) -> Any:
        return make(types.WritableTxnMarkerPartitionResult, partition_index=partition, error_code=error)

    await services.root.look(force=True)  # the answers use this image; the commit is planned again
    found = [
        _checked_marker(marker, services.root.image)
        if number < MOST_MARKERS
        else _marker_of(marker, _TOO_MANY)
        for number, marker in enumerate(request.markers)
    ]
    await _abort_marked(found, services)
    results = [
        make(
            types.WritableTxnMarkerResult,
            producer_id=one.marked.producer.producer_id,
            topics=await in_slices(
                make(types.WritableTxnMarkerTopicResult, name=name, partitions=partitions)
                for name, partitions in by_topic(one.errors, result).items()
            ),
        )
        for one in found
    ]
    return make(types.WriteTxnMarkersResponse, markers=results)


class _Marker(NamedTuple):
    """A marker, and the answer for each of its partitions."""

    marked: Marked
    errors: dict[tuple[str, int], ErrorCode]


def _marker_of(marker: Any, error: ErrorCode) -> _Marker:
    asked = [(topic.name, one) for topic in marker.topics for one in topic.partition_indexes]
    producer = Producer(marker.producer_id, marker.producer_epoch)
    return _Marker(Marked(producer, ()), dict.fromkeys(asked, error))


def _checked_marker(marker: Any, image: Image) -> _Marker:
    """Check a marker without its transaction; `marked` has the existing partitions."""
    if marker.transaction_result:
        return _marker_of(marker, ErrorCode.invalid_request)
    asked = _marker_of(marker, ErrorCode.none)
    known: list[tuple[str, int]] = []
    for name, number in asked.errors:
        topic = image.topics.get(name)
        if topic is None or not 0 <= number < len(topic.partitions):
            asked.errors[name, number] = ErrorCode.unknown_topic_or_partition
        else:
            known.append((topic.topic_id, number))
    return asked._replace(marked=Marked(asked.marked.producer, known))


async def _abort_marked(found: list[_Marker], services: Services) -> None:
    """Abort all in one commit; set the errors of refused ones in the answers."""
    aborted = [one for one in found if one.marked.partitions]
    if not aborted:
        return
    try:
        refused = await services.transactions.abort([one.marked for one in aborted])
    except SparklogError as error:
        refused = [error] * len(aborted)
    for one, why in zip(aborted, refused, strict=True):
        if why is None:
            continue
        _log.warning(
            "the transaction of producer %d is not aborted: %s", one.marked.producer.producer_id, why
        )
        code = refusal_of(why)
        if code is ErrorCode.producer_fenced:
            code = ErrorCode.invalid_producer_epoch
        elif code in _LOOK_AGAIN:
            code = ErrorCode.not_leader_or_follower  # after which the admin client tries another broker
        for place, before in one.errors.items():
            if before is ErrorCode.none:
                one.errors[place] = code


_LOOK_AGAIN = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})
