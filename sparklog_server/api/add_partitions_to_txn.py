"""AddPartitionsToTxn (key 24), versions 0-3.

Does: names partitions to which a transaction of the first protocol is going to write; the first of them
    begins it. All or none: if one is unknown or forbidden, the others are OPERATION_NOT_ATTEMPTED. Any broker
    does it, in one commit.
Does not: what brokers of Kafka ask each other (versions 4 and 5).
Versions: 2 PRODUCER_FENCED, which is INVALID_PRODUCER_EPOCH before; 3 flexible.
"""

import logging
from typing import Any

from sparklog.errors import SparklogError
from sparklog.metadata import is_internal
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make
from sparklog_server.protocol.wire import in_slices
from sparklog_server.transactions.coordinator import Producer, masked, refusal_once_begun

_log = logging.getLogger("sparklog_server.coordinator")
_KNOWS_FENCED = 2
_Partition = tuple[str, int]


@api(ApiKey.ADD_PARTITIONS_TO_TXN, versions=range(4))
async def handle_add_partitions_to_txn(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer when the partitions are added."""
    asked = [(one.name, number) for one in request.v3_and_below_topics for number in one.partitions]
    errors = _refused(asked, services)
    if ErrorCode.unknown_topic_or_partition in errors.values():
        await services.root.look(force=True)  # it may have been made a moment ago, by another broker
        errors = _refused(asked, services)
    error = ErrorCode.operation_not_attempted
    if not errors:
        producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        error = await _add(request.v3_and_below_transactional_id, producer, asked, context, services)
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


def _refused(asked: list[_Partition], services: Services) -> dict[_Partition, ErrorCode]:
    topics = services.root.image.topics
    errors: dict[_Partition, ErrorCode] = {}
    for name, number in asked:
        topic = topics.get(name)
        if is_internal(name):
            errors[name, number] = ErrorCode.topic_authorization_failed
        elif topic is None or not 0 <= number < len(topic.partitions):
            errors[name, number] = ErrorCode.unknown_topic_or_partition
    return errors


async def _add(
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
