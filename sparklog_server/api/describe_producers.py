"""DescribeProducers (key 61), version 0.

Does: the producers that a partition remembers: epoch, last sequence, the time of the last batch. As of the
    newest image, whichever broker leads the partition. What is staged counts: sequences are those of staging.
Does not: tell where an open transaction begins (CurrentTxnStartOffset is -1): its records have no offsets
    yet. So `kafka-transactions abort` is to name the producer (--producer-id), and `find-hanging` finds none,
    which is right: a transaction that nobody knows cannot have staged anything.
Beyond 32 MiB of producers the rest of the partitions is answered UNKNOWN_SERVER_ERROR: ask for fewer at once.
Versions: 0 (KIP-664).
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from sparklog.metadata import Image
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.answers import in_slices
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import make
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.transactions.active_producers import ActiveProducer, active_producers

_NONE = -1
_PARTITION_BYTES, _PRODUCER_BYTES = 200, 100  # while the answer is made
_Partition = tuple[str, int]
_Found = tuple[ErrorCode, Sequence[ActiveProducer]]


@api(ApiKey.DESCRIBE_PRODUCERS, versions=range(1))
async def handle_describe_producers(request: Any, context: RequestContext, services: Services) -> Any:
    """Each partition once."""
    await services.root.look(force=True)
    types, image = context.types, services.root.image
    asked = dict.fromkeys(
        (topic.name, number) for topic in request.topics for number in topic.partition_indexes
    )
    answers: dict[str, list[Any]] = {}
    for name, number in asked:
        size = _size_of(image, name, number)
        found: _Found = ErrorCode.unknown_server_error, ()
        if size is None:
            found = ErrorCode.unknown_topic_or_partition, ()
        elif context.answer.fits(size):
            state = image.topics[name].partitions[number]
            found = ErrorCode.none, await services.root.run(active_producers, image, state)
        answers.setdefault(name, []).append(await _answer(types, number, *found))
    await context.answer.reserve()
    return make(
        types.DescribeProducersResponse,
        topics=[make(types.TopicResponse, name=name, partitions=found) for name, found in answers.items()],
    )


def _size_of(image: Image, name: str, number: int) -> int | None:
    """About what its description takes; None: there is no such partition."""
    topic = image.topics.get(name)
    if topic is None or not 0 <= number < len(topic.partitions):
        return None
    return _PARTITION_BYTES + _PRODUCER_BYTES * len(topic.partitions[number].producers)


async def _answer(types: ModuleType, number: int, error: ErrorCode, found: Sequence[ActiveProducer]) -> Any:
    return make(
        types.PartitionResponse,
        partition_index=number,
        error_code=error,
        error_message=None,
        active_producers=await in_slices(
            make(
                types.ProducerState,
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                last_sequence=one.last_sequence,
                last_timestamp=one.last_timestamp_ms,
                coordinator_epoch=_NONE,
                current_txn_start_offset=_NONE,
            )
            for one in found
        ),
    )
