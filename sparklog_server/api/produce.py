"""Produce (key 0), versions 3-13.

Does: validate, append, acknowledge, partition by partition: an error in one does not affect the others.
    acks 1 and all mean the same here, since there are no replicas to wait for: durable data, durable commit.
    acks 0: no answer; after an error the connection is closed, as Kafka does, so that the producer notices.
    Idempotent producers: duplicates get the offset of the first time, also over restarts.
    timeout: REQUEST_TIMED_OUT after this time; the records may still be appended.
    Partitions with another leader, or none: NOT_LEADER_OR_FOLLOWER, now or at the commit; the same for all
    partitions, also of accepted batches, while others may lead them without this broker's knowledge.
    Topics by id: UNKNOWN_TOPIC_ID for an unknown id, so that batches for a deleted topic are never appended
    to a new one of the same name.
    Transactions: batches are staged durably, and have no offset before the commit of their transaction: base
    offset -1. The transaction is checked when they are staged: INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE; NOT_ENOUGH_REPLICAS is retriable, before version 12 also
    if the open transaction is not the one that this broker knew when it read the request.
Does not: message sets (versions 0-2; ApiVersions lists them for librdkafka before 2.11);
    creating topics (Metadata does that); internal topics. Kafka lets a client with the id
    __admin_client write there: a single foreign record makes a partition's groups unavailable.
Versions: 3 record batches (KIP-98); 5 log start offset; 7 zstd (KIP-110); 8 record errors (KIP-467); 9
    flexible; 10 current leader (KIP-951); 11 TRANSACTION_ABORTABLE instead of INVALID_TXN_STATE; 12 second
    protocol of transactions (KIP-890): a batch adds its partition; 13 topic ids (KIP-516).
"""

import asyncio
import logging
import uuid
from typing import Any

import msgspec

from sparklog.errors import SparklogError, as_value
from sparklog.format.record_batch import HEADER, NO_PRODUCER_ID
from sparklog.metadata import (
    MOST_STAGED_WEIGHT,
    AclOperation,
    Image,
    ResourceType,
    Topic,
    is_internal,
)
from sparklog_server.api.cluster import hint_of, nodes_of_leaders
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext, error_code
from sparklog_server.protocol.metadata_response import LeaderHint
from sparklog_server.protocol.responses import (
    TOPIC_IDS_FROM,
    ProducedPartition,
    encode_produce,
    field,
    make,
    topic_id_text,
)
from sparklog_server.protocol.wire import CloseConnectionError, Response
from sparklog_server.publish.parts import InTransaction, PartOutcome, RefusedBatchError, SentAwayError
from sparklog_server.publish.produced_batches import (
    CheckTerms,
    UncheckedPart,
    is_transactional,
    producer_of,
    why_no_batch,
)
from sparklog_server.security.access import Caller
from sparklog_server.security.checks import CODES, MESSAGES

_log = logging.getLogger("sparklog_server.publish")
LEADER_HINTS_FROM = 10
ABORTABLE_FROM, SECOND_PROTOCOL_FROM = 11, 12
_ALL_ACKS = frozenset({-1, 0, 1})
# Topics of these errors are not counted by their names: there may be any number of them.
_UNKNOWN = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.topic_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
    }
)
_NOTHING_DONE = PartOutcome()


class _Target(msgspec.Struct):
    """One partition of a request: its part or error, and its outcome.

    Fields:
        key: the topic in the form of the request: its name, or the bytes of its id.
        topic: its name; "" if the id is unknown.
    """

    key: str | bytes
    topic: str
    partition: int
    records: bytes | None
    part: UncheckedPart | None = None
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    outcome: PartOutcome = _NOTHING_DONE


@api(ApiKey.PRODUCE, versions=range(3, 14), pipelined=True)
async def handle_produce(request: Any, context: RequestContext, services: Services) -> Any:
    """Append the request's batches, in the order of requests."""
    if request.transactional_id and context.api_version < SECOND_PROTOCOL_FROM:
        await services.transactions.look_before_reading()
    targets = _targets(request, context, services)
    wanted = [target for target in targets if target.part is not None]
    if wanted:
        parts = [target.part for target in wanted if target.part is not None]
        future = services.publisher.submit(parts, is_for_producer=True)
        if future.done():  # refused, and will be sent again: before later requests are read
            _note_first_batches(wanted, context, services)
        timeout_ms = field(request, "timeout", 0)
        # Cheaper than wait_for and shield; the publisher skips futures that are done.
        timer = asyncio.get_running_loop().call_later(max(timeout_ms, 1) / 1000, _time_out, future)
        try:
            outcomes = await future
        except TimeoutError:
            _fail(wanted, ErrorCode.request_timed_out, f"not published within {timeout_ms} ms")
        except SparklogError as error:
            if isinstance(error, SentAwayError):
                _note_first_batches(wanted, context, services)
            _fail(wanted, error_code(error), str(as_value(error)))
        else:
            for target, outcome in zip(wanted, outcomes, strict=True):
                target.outcome = outcome
                if outcome.error is not None:
                    target.error = _kafka_error(outcome.error, context.api_version)
                    target.message = str(outcome.error)
        finally:
            timer.cancel()
            del future  # it may hold the exception that holds this frame, and with it the request
    _count(targets, services)
    if request.acks == 0:
        _close_on_error(targets, context)
        return None
    return _response(targets, context, services)


# --- the request -----------------------------------------------------------------------------------------


def _targets(request: Any, context: RequestContext, services: Services) -> list[_Target]:
    image = services.root.image
    refused: ErrorCode | None = None
    message = None
    if request.acks not in _ALL_ACKS:
        refused, message = ErrorCode.invalid_required_acks, f"acks {request.acks}, expected -1, 0 or 1"
    caller = services.access.caller(context)
    if refused is None and not _may_use_id(request.transactional_id, caller):
        refused = CODES[ResourceType.TRANSACTIONAL_ID]
        message = MESSAGES[refused]
    transaction = None
    if refused is None and request.transactional_id is not None:
        refused, message, transaction = _transaction(request, context, services, image)
    targets = []
    parts = sum([len(topic.partition_data) for topic in request.topic_data])
    has_room = transaction is None or _has_room(transaction.transactional_id, parts, context, services)
    for topic in request.topic_data:
        key, name = _topic(topic, context, image)
        of_topic = [_Target(key, name, data.index, data.records) for data in topic.partition_data]
        targets += of_topic
        if refused is not None:
            _fail(of_topic, refused, message)
        elif name and not caller.may(AclOperation.WRITE, ResourceType.TOPIC, name, count=len(of_topic)):
            code = CODES[ResourceType.TOPIC]
            _fail(of_topic, code, MESSAGES[code])
        elif not has_room:
            _note_first_batches(of_topic, context, services)
            _fail(
                of_topic,
                ErrorCode.not_enough_replicas,
                "this client has its share of open transactions",
            )
        else:
            _aim(of_topic, name, image, context, services, parts, transaction)
    return targets


def _may_use_id(transactional_id: str | None, caller: Caller) -> bool:
    if not transactional_id:
        return True
    return caller.may(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)


def _transaction(
    request: Any, context: RequestContext, services: Services, image: Image
) -> tuple[ErrorCode | None, str | None, InTransaction | None]:
    """Return the request's transaction; or the error of the whole request."""
    if not request.transactional_id:
        return ErrorCode.invalid_request, "an empty transactional id", None
    producers = {
        producer_of(data.records)[:2]
        for topic in request.topic_data
        for data in topic.partition_data
        if is_transactional(data.records)
    }
    if len(producers) > 1:
        return ErrorCode.invalid_producer_id_mapping, f"found {len(producers)} producers, expected one", None
    name = request.transactional_id
    if context.api_version >= SECOND_PROTOCOL_FROM:
        said = InTransaction(transactional_id=name, opens_ms=services.clock.now_ms())
    else:
        producer = producers.pop() if producers else (NO_PRODUCER_ID, 0)
        said = InTransaction.of_first_protocol(image, name, *producer)
    return None, None, said


def _has_room(transactional_id: str, parts: int, context: RequestContext, services: Services) -> bool:
    """True if the client may stage this many more parts."""
    shares, image = services.transactions.shares, services.root.image
    if shares.refusal(context.peer_host, image, parts * MOST_STAGED_WEIGHT) is not None:
        return False
    if transactional_id in image.transactions:
        shares.note(transactional_id, context.peer_host, image)
    return True


def _topic(topic: Any, context: RequestContext, image: Image) -> tuple[str | bytes, str]:
    """Return the topic's key and name."""
    if context.api_version < TOPIC_IDS_FROM:
        return topic.name, topic.name
    if topic.topic_id is None:
        return bytes(16), ""
    found = image.topic_by_id.get(topic_id_text(topic.topic_id))
    return topic.topic_id.bytes, "" if found is None else found.name


def _aim(
    targets: list[_Target],
    name: str,
    image: Image,
    context: RequestContext,
    services: Services,
    parts: int,
    transaction: InTransaction | None,
) -> None:
    """Create the parts for one topic, or set their errors."""
    topic, first_batches, terms = image.topics.get(name), services.first_batches, None
    # Others may lead by now the partitions that this broker led at its last refresh.
    may_lead = services.membership.is_in_charge or not services.leadership.has_others
    for target in targets:
        key, records = (target.key, target.partition), target.records
        if topic is None or not 0 <= target.partition < len(topic.partitions):
            first_batches.refuse(key, records, context.peer_host)
            has_no_id = not name and isinstance(target.key, bytes)
            target.error = ErrorCode.unknown_topic_id if has_no_id else ErrorCode.unknown_topic_or_partition
            continue
        # Also from the client "__admin_client", which Kafka's brokers allow.
        if is_internal(name) or services.access.audit.is_own_topic(name):
            target.error = ErrorCode.invalid_topic_exception
            target.message = f"Cannot append to internal topic {name}"
            continue
        state = topic.partitions[target.partition]
        leader = services.leadership.leader_of(state)
        if leader.node_id != services.node_id or not may_lead:  # also without a leader: clients retry
            first_batches.refuse(key, records, context.peer_host)
            target.error = ErrorCode.not_leader_or_follower
            continue
        if first_batches.is_behind(key, records, state):
            target.error = ErrorCode.not_leader_or_follower
            target.message = "an earlier batch of this producer was refused, and was not sent again yet"
            continue
        if records is None or len(records) < HEADER.size:
            error = why_no_batch(records or b"", f"{name}-{target.partition}")
            assert error is not None
            target.outcome = PartOutcome(error=error)
            target.error, target.message = error.kafka_code, str(error)
            continue
        if terms is None:
            terms = _terms(topic, context, services, parts, transaction)
        target.part = UncheckedPart.of(records, terms, target.partition, leader.epoch)


def _note_first_batches(targets: list[_Target], context: RequestContext, services: Services) -> None:
    """Record first batches that will be sent again: later batches must not take their place."""
    for target in targets:
        services.first_batches.refuse((target.key, target.partition), target.records, context.peer_host)


def _terms(
    topic: Topic, context: RequestContext, services: Services, parts: int, transaction: InTransaction | None
) -> CheckTerms:
    return CheckTerms(
        rules=services.topic_rules.rules_of(topic),
        topic_id=topic.topic_id,
        topic=topic.name,
        now_ms=services.clock.now_ms,
        api_version=context.api_version,
        parts=parts,
        memory=services.publisher.check_memory,
        transaction=transaction,
        client=context.peer_host,
    )


# --- the answer --------------------------------------------------------------------------------------------


def _fail(targets: list[_Target], error: ErrorCode, message: str | None) -> None:
    for target in targets:
        target.error, target.message = error, message


def _kafka_error(error: Exception, api_version: int) -> ErrorCode:
    if isinstance(error, RefusedBatchError):
        return error.kafka_code
    code = error_code(error)
    if code is ErrorCode.transaction_abortable and api_version < ABORTABLE_FROM:
        return ErrorCode.invalid_txn_state
    if code is ErrorCode.invalid_txn_state and api_version == ABORTABLE_FROM:
        return ErrorCode.transaction_abortable
    return code


def _count(targets: list[_Target], services: Services) -> None:
    for target in targets:
        known = target.topic if target.error not in _UNKNOWN else ""
        services.metrics.produce_request(known, failed=target.error is not ErrorCode.none)
        if isinstance(target.outcome.error, RefusedBatchError):
            services.metrics.bytes_rejected(known, len(target.records or b""))


def _close_on_error(targets: list[_Target], context: RequestContext) -> None:
    failed = [f"{one.topic}-{one.partition}: {one.error.name}" for one in targets if one.error]
    if failed:
        raise CloseConnectionError(
            f"request {context.correlation_id} of client {context.client_id!r}: acks=0 and failed: "
            + ", ".join(failed[:10])
        )


def _response(targets: list[_Target], context: RequestContext, services: Services) -> Any:
    if not any(map(_needs_entities, targets)):
        return _without_entities(targets, context)
    types = context.types
    hints: list[LeaderHint] = []
    by_topic: dict[str | bytes, list[Any]] = {}
    for target in targets:
        hint = _hint(target, services)
        hints += () if hint is None else (hint,)
        by_topic.setdefault(target.key, []).append(_partition_response(types, target, hint))
    nodes: dict[str, Any] = {}
    if hints and context.api_version >= LEADER_HINTS_FROM:
        nodes["node_endpoints"] = [
            make(types.NodeEndpoint, **node._asdict())
            for node in nodes_of_leaders(services, context.listener, hints)
        ]
    return make(
        types.ProduceResponse,
        responses=[
            make(types.TopicProduceResponse, partition_responses=partitions, **_named(key))
            for key, partitions in by_topic.items()
        ],
        **nodes,
    )


def _named(key: str | bytes) -> dict[str, Any]:
    return {"name": key} if isinstance(key, str) else {"topic_id": uuid.UUID(bytes=key)}


def _hint(target: _Target, services: Services) -> LeaderHint | None:
    """Return the leader, if the error is due to another leader; None: no other is known."""
    if target.error is not ErrorCode.not_leader_or_follower:
        return None
    topic = services.root.image.topics.get(target.topic)
    if topic is None or target.partition >= len(topic.partitions):
        return None
    hint = hint_of(services, topic.partitions[target.partition])
    return None if hint.node_id == services.node_id else hint


def _needs_entities(target: _Target) -> bool:
    error = target.outcome.error
    return target.error is ErrorCode.not_leader_or_follower or (
        isinstance(error, RefusedBatchError) and bool(error.record_errors)
    )


def _without_entities(targets: list[_Target], context: RequestContext) -> Response:
    topics: dict[str | bytes, list[ProducedPartition]] = {}
    for target in targets:
        outcome = target.outcome
        topics.setdefault(target.key, []).append(
            ProducedPartition(
                target.partition,
                outcome.base_offset,
                outcome.log_append_time_ms,
                outcome.log_start_offset,
                target.error,
                target.message,
            )
        )
    return Response(chunks=[encode_produce(context.api_version, topics)])


def _partition_response(types: Any, target: _Target, hint: LeaderHint | None) -> Any:
    outcome = target.outcome
    error = outcome.error
    kind: Any = getattr(types, "BatchIndexAndErrorMessage", None)  # since version 8
    errors = error.record_errors if isinstance(error, RefusedBatchError) and kind is not None else ()
    leader: dict[str, Any] = {}
    if hint is not None and hasattr(types, "LeaderIdAndEpoch"):  # since version 10
        leader["current_leader"] = make(
            types.LeaderIdAndEpoch, leader_id=hint.node_id, leader_epoch=hint.leader_epoch
        )
    return make(
        types.PartitionProduceResponse,
        index=target.partition,
        error_code=target.error,
        base_offset=outcome.base_offset,
        log_append_time=outcome.log_append_time_ms,
        log_start_offset=outcome.log_start_offset,
        record_errors=[
            make(kind, batch_index=index, batch_index_error_message=text) for index, text in errors
        ],
        error_message=target.message,
        **leader,
    )


def _time_out(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_exception(TimeoutError())
