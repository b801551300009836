"""DescribeProducers (key 61), version 0.

Does: the producers that a partition remembers: epoch, last sequence, the time of the last batch. As of the
    newest image, whichever broker leads the partition. What is staged counts: sequences are those of staging.
Does not: tell where an open transaction begins (CurrentTxnStartOffset is -1): its records have no offsets
    yet. So `kafka-transactions abort` is to name the producer (--producer-id), and `find-hanging` finds none,
    which is right: a transaction that nobody knows cannot have staged anything.
Beyond 32 MiB of producers the rest of the partitions is answered UNKNOWN_SERVER_ERROR: ask for fewer at once.
Versions: 0 (KIP-664).
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from sparklog.metadata import Image, PartitionState
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.answers import in_slices
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import make, maker
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.transactions.active_producers import ActiveProducer, active_producers

_NONE = -1
_PARTITION_BYTES, _PRODUCER_BYTES = 200, 100  # while the answer is made
_LOOKED_AT_TOGETHER = 64  # partitions: a thread for each of thousands took longer than looking
_Place = tuple[str, int]
_Found = Sequence[ActiveProducer]


@api(ApiKey.DESCRIBE_PRODUCERS, versions=range(1))
async def handle_describe_producers(request: Any, context: RequestContext, services: Services) -> Any:
    """Each partition once."""
    await services.root.look(force=True)
    types, image = context.types, services.root.image
    asked = dict.fromkeys(
        (topic.name, number) for topic in request.topics for number in topic.partition_indexes
    )
    errors = {place: _error(image, place, context) for place in asked}
    await context.answer.reserve()
    found = await _look(services, image, [place for place, error in errors.items() if not error])
    described = {place: await _described(types, place[1], producers) for place, producers in found.items()}
    # Of most partitions there is nothing to tell but an error, or that nobody writes to them.
    short = {error: _short(types, error) for error in set(errors.values())}
    partitions = await in_slices(
        described[place] if place in described else short[error](place[1]) for place, error in errors.items()
    )
    answers: dict[str, list[Any]] = {}
    for (name, _), one in zip(errors, partitions, strict=True):
        answers.setdefault(name, []).append(one)
    return make(
        types.DescribeProducersResponse,
        topics=[make(types.TopicResponse, name=name, partitions=found) for name, found in answers.items()],
    )


def _error(image: Image, place: _Place, context: RequestContext) -> ErrorCode:
    name, number = place
    topic = image.topics.get(name)
    if topic is None or not 0 <= number < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    size = _PARTITION_BYTES + _PRODUCER_BYTES * len(topic.partitions[number].producers)
    return ErrorCode.none if context.answer.fits(size) else ErrorCode.unknown_server_error


async def _look(services: Services, image: Image, places: Sequence[_Place]) -> dict[_Place, _Found]:
    """The producers of those partitions that have any, many partitions in one call of a thread."""
    states = [(place, image.topics[place[0]].partitions[place[1]]) for place in places]
    wanted = [(place, state) for place, state in states if state.producers]
    found: dict[_Place, _Found] = {}
    for first in range(0, len(wanted), _LOOKED_AT_TOGETHER):
        some = wanted[first : first + _LOOKED_AT_TOGETHER]
        found |= await services.root.run(_look_at, image, some)
    return found


def _look_at(image: Image, some: Sequence[tuple[_Place, PartitionState]]) -> dict[_Place, _Found]:
    return {place: active_producers(image, state) for place, state in some}


def _short(types: ModuleType, error: ErrorCode) -> Callable[[int], Any]:
    """What makes partitions without producers."""
    return maker(types.PartitionResponse, "partition_index", error_code=error, error_message=None)


async def _described(types: ModuleType, number: int, found: _Found) -> Any:
    return make(
        types.PartitionResponse,
        partition_index=number,
        error_code=ErrorCode.none,
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
