"""WriteTxnMarkers (key 27), versions 1-2.

Does: an administrator's abort, as Kafka's admin client and `kafka-transactions abort` ask for it: names a
    producer id, its epoch and a partition. The transaction is aborted as a whole, all its partitions and
    offsets with it, and its producer fenced, so that it cannot commit the rest. NONE if it is not open any
    more. INVALID_PRODUCER_EPOCH if the producer has a newer epoch: it is not the transaction that is meant.
    Any broker does it, in one commit.
Does not: commits (INVALID_REQUEST), which only a producer decides. Markers: there are none, and brokers do
    not send each other any.
Versions: 1 flexible; 2 the protocol's version (KIP-1228), which makes no difference here.
"""

import logging
from typing import Any

from sparklog.errors import SparklogError
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.answers import by_topic, in_slices
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import make
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.transactions.coordinator import Producer
from sparklog_server.transactions.refusals import refusal_of

_log = logging.getLogger("sparklog_server.coordinator")
_MOST_MARKERS = 1_000  # of a request: each is an operation; Kafka's admin client sends one


@api(ApiKey.WRITE_TXN_MARKERS, versions=range(1, 3))
async def handle_write_txn_markers(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer when what is aborted is aborted."""
    types = context.types

    def told(partition: int, error: ErrorCode) -> Any:
        return make(types.WritableTxnMarkerPartitionResult, partition_index=partition, error_code=error)

    results = []
    await services.root.look(force=True)  # once: each abort is planned against the newest image by itself
    for number, marker in enumerate(request.markers):
        asked = [(topic.name, one) for topic in marker.topics for one in topic.partition_indexes]
        fits = number < _MOST_MARKERS
        errors = await _abort(marker, asked, services) if fits else _all(asked, ErrorCode.invalid_request)
        results.append(
            make(
                types.WritableTxnMarkerResult,
                producer_id=marker.producer_id,
                topics=await in_slices(
                    make(types.WritableTxnMarkerTopicResult, name=name, partitions=found)
                    for name, found in by_topic(errors, told).items()
                ),
            )
        )
    return make(types.WriteTxnMarkersResponse, markers=results)


_Errors = dict[tuple[str, int], ErrorCode]


def _all(asked: list[tuple[str, int]], error: ErrorCode) -> _Errors:
    return dict.fromkeys(asked, error)


async def _abort(marker: Any, asked: list[tuple[str, int]], services: Services) -> _Errors:
    if marker.transaction_result:
        return _all(asked, ErrorCode.invalid_request)
    topics = services.root.image.topics
    errors: _Errors = {}
    known: list[tuple[str, int]] = []
    for name, number in asked:
        topic = topics.get(name)
        if topic is None or not 0 <= number < len(topic.partitions):
            errors[name, number] = ErrorCode.unknown_topic_or_partition
        else:
            errors[name, number] = ErrorCode.none
            known.append((topic.topic_id, number))
    if not known:
        return errors
    try:
        await services.transactions.abort(Producer(marker.producer_id, marker.producer_epoch), known)
    except SparklogError as refused:
        _log.warning("the transaction of producer %d is not aborted: %s", marker.producer_id, refused)
        error = refusal_of(refused)
        if error is ErrorCode.producer_fenced:
            error = ErrorCode.invalid_producer_epoch
        elif error in _LOOK_AGAIN:
            error = ErrorCode.not_leader_or_follower  # by which the admin client looks for another broker
        return {one: error if before is ErrorCode.none else before for one, before in errors.items()}
    return errors


_LOOK_AGAIN = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})
