"""WriteTxnMarkers (key 27), versions 1-2.

Does: an administrator's abort, as Kafka's admin client and `kafka-transactions abort` ask for it: names a
    producer id, its epoch and a partition. The transaction is aborted as a whole, all its partitions and
    offsets with it, and its producer fenced, so that it cannot commit the rest. NONE if it is not open any
    more. INVALID_PRODUCER_EPOCH if the producer has a newer epoch: it is not the transaction that is meant.
    Any broker does it; all markers of a request are one commit, and one that is refused harms no other.
Does not: commits (INVALID_REQUEST), which only a producer decides. Markers: there are none, and brokers do
    not send each other any.
Versions: 1 flexible; 2 the protocol's version (KIP-1228), which makes no difference here.
"""

import logging
from typing import Any, NamedTuple

from sparklog.errors import SparklogError
from sparklog.metadata import Image
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make
from sparklog_server.protocol.wire import by_topic, in_slices
from sparklog_server.transactions.coordinator import Marked, Producer, refusal_of

_log = logging.getLogger("sparklog_server.coordinator")
MOST_MARKERS = 1_000  # of a request, and so of its commit; Kafka's admin client sends one
_TOO_MANY = ErrorCode.invalid_request


@api(ApiKey.WRITE_TXN_MARKERS, versions=range(1, 3))
async def handle_write_txn_markers(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer when what is aborted is aborted."""
    types = context.types

    def told(partition: int, error: ErrorCode) -> Any:
        return make(types.WritableTxnMarkerPartitionResult, partition_index=partition, error_code=error)

    await services.root.look(force=True)  # what the answers say is known by then; the commit is planned anew
    found = [
        _checked(marker, services.root.image) if number < MOST_MARKERS else _all(marker, _TOO_MANY)
        for number, marker in enumerate(request.markers)
    ]
    await _abort(found, services)
    results = [
        make(
            types.WritableTxnMarkerResult,
            producer_id=one.marked.producer.producer_id,
            topics=await in_slices(
                make(types.WritableTxnMarkerTopicResult, name=name, partitions=partitions)
                for name, partitions in by_topic(one.errors, told).items()
            ),
        )
        for one in found
    ]
    return make(types.WriteTxnMarkersResponse, markers=results)


class _Asked(NamedTuple):
    """A marker, and what is to be answered for each of its partitions."""

    marked: Marked
    errors: dict[tuple[str, int], ErrorCode]


def _all(marker: Any, error: ErrorCode) -> _Asked:
    asked = [(topic.name, one) for topic in marker.topics for one in topic.partition_indexes]
    producer = Producer(marker.producer_id, marker.producer_epoch)
    return _Asked(Marked(producer, ()), dict.fromkeys(asked, error))


def _checked(marker: Any, image: Image) -> _Asked:
    """As far as that can be said without the transaction; `marked` has the partitions that there are."""
    if marker.transaction_result:
        return _all(marker, ErrorCode.invalid_request)
    asked = _all(marker, ErrorCode.none)
    known: list[tuple[str, int]] = []
    for name, number in asked.errors:
        topic = image.topics.get(name)
        if topic is None or not 0 <= number < len(topic.partitions):
            asked.errors[name, number] = ErrorCode.unknown_topic_or_partition
        else:
            known.append((topic.topic_id, number))
    return asked._replace(marked=Marked(asked.marked.producer, known))


async def _abort(found: list[_Asked], services: Services) -> None:
    """All in one commit; puts what is refused into the answers."""
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
            code = ErrorCode.not_leader_or_follower  # by which the admin client looks for another broker
        for place, before in one.errors.items():
            if before is ErrorCode.none:
                one.errors[place] = code


_LOOK_AGAIN = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})
