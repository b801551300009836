"""DescribeTransactions (key 65), version 0.

Does: state, producer, time-out, start and partitions of transactional ids, whichever broker coordinates them;
    the partitions of __consumer_offsets are among them, where offsets are staged, as in Kafka.
    TRANSACTIONAL_ID_NOT_FOUND as of the newest image only.
Beyond 32 MiB of partitions the rest of the ids is answered UNKNOWN_SERVER_ERROR: ask for fewer at once.
Versions: 0 (KIP-664).
"""

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from sparklog.client.cluster_view import STATE_NAMES
from sparklog.metadata import Image, Transaction
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make, maker
from sparklog_server.protocol.wire import Pace, in_slices, text_bytes

_NONE = -1
_STATE_BYTES, _TOPIC_BYTES, _PARTITION_BYTES = 300, 150, 40  # while the answer is made, beside names
_A_PIECE = 16  # partitions take as long as an entity


@api(ApiKey.DESCRIBE_TRANSACTIONS, versions=range(1))
async def handle_describe_transactions(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer as of the newest image, each id once."""
    await services.root.look(force=True)
    image = services.root.image
    names = dict.fromkeys(request.transactional_ids)
    pace = Pace()
    fitting = await _fitting(names, image, context, pace)
    await context.answer.reserve()
    in_charge = services.membership.is_in_charge
    errors = {name: _error(image, name, name in fitting, in_charge) for name in names}
    failed = {error: _failed(context.types, error) for error in set(errors.values())}
    described = {
        name: await _described(context.types, image, name, pace)
        for name, error in errors.items()
        if not error
    }
    return make(
        context.types.DescribeTransactionsResponse,
        transaction_states=await in_slices(
            failed[error](name) if error else described[name] for name, error in errors.items()
        ),
    )


async def _fitting(names: Iterable[str], image: Image, context: RequestContext, pace: Pace) -> set[str]:
    """Count about what their descriptions take; those that are not too much."""
    fitting = set()
    for name in names:
        one = image.transactions.get(name)
        size = _STATE_BYTES + 2 * text_bytes(name)
        if one is None:
            context.answer.fits(size)  # there is an error to tell, whether it fits or not
        elif context.answer.fits(size + _PARTITION_BYTES * len(one.partitions)):
            if context.answer.fits(_size_of_topics(one, image)):
                fitting.add(name)
            await pace.made(1 + len(one.partitions) // _A_PIECE)
    return fitting


def _size_of_topics(one: Transaction, image: Image) -> int:
    """What its topics take beside their partitions."""
    topics = (image.topic_by_id.get(topic_id) for topic_id in one.partitions.by_topic)
    names = (topic.name for topic in topics if topic is not None)
    return sum(_TOPIC_BYTES + 2 * text_bytes(topic) for topic in names)


def _error(image: Image, name: str, fits: bool, in_charge: bool) -> ErrorCode:
    if not in_charge:
        return ErrorCode.coordinator_not_available
    if not name:
        return ErrorCode.invalid_request
    if name not in image.transactions:
        return ErrorCode.transactional_id_not_found
    return ErrorCode.none if fits else ErrorCode.unknown_server_error


def _failed(types: ModuleType, error: ErrorCode) -> Callable[[str], Any]:
    """What makes those of which there is only an error to tell, by their ids."""
    return maker(
        types.TransactionState,
        "transactional_id",
        error_code=error,
        producer_id=_NONE,
        producer_epoch=_NONE,
    )


async def _described(types: ModuleType, image: Image, name: str, pace: Pace) -> Any:
    one = image.transactions[name]
    return make(
        types.TransactionState,
        error_code=ErrorCode.none,
        transactional_id=name,
        transaction_state=STATE_NAMES[one.phase],
        transaction_timeout=one.timeout_ms,
        transaction_start_time=one.started_ms if one.is_ongoing else _NONE,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        topics=await _topics(types, image, one, pace),
    )


async def _topics(types: ModuleType, image: Image, one: Transaction, pace: Pace) -> list[Any]:
    numbers: dict[str, list[int]] = {}
    for count, (topic_id, partition) in enumerate(one.partitions):
        if count % _A_PIECE == 0:
            await pace.made(1)
        topic = image.topic_by_id.get(topic_id)
        if topic is not None:  # else it was deleted meanwhile, and its part is dropped
            numbers.setdefault(topic.name, []).append(partition)
    told = []
    for name, found in numbers.items():
        told.append(make(types.TopicData, topic=name, partitions=found))
        await pace.made(1)
    return told
