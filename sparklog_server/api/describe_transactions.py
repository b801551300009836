"""DescribeTransactions (key 65), version 0.

Does: state, producer, time-out, start and partitions of transactional ids, whichever broker coordinates them;
    the partitions of __consumer_offsets are among them, where offsets are staged, as in Kafka.
    TRANSACTIONAL_ID_NOT_FOUND as of the newest image only.
Beyond 32 MiB of partitions the rest of the ids is answered UNKNOWN_SERVER_ERROR: ask for fewer at once.
Versions: 0 (KIP-664).
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from sparklog.client.transaction_view import STATE_NAMES
from sparklog.metadata import Image, Transaction
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.answers import in_slices
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import make, maker
from sparklog_server.protocol.errors import ErrorCode

_NONE = -1
_STATE_BYTES, _PARTITION_BYTES = 300, 40  # while the answer is made


@api(ApiKey.DESCRIBE_TRANSACTIONS, versions=range(1))
async def handle_describe_transactions(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer as of the newest image, each id once."""
    await services.root.look(force=True)
    image = services.root.image
    names = dict.fromkeys(request.transactional_ids)
    fitting = {name for name in names if context.answer.fits(_size_of(name, image))}
    await context.answer.reserve()
    in_charge = services.membership.is_in_charge
    errors = {name: _error(image, name, name in fitting, in_charge) for name in names}
    failed = {error: _failed(context.types, error) for error in set(errors.values())}
    return make(
        context.types.DescribeTransactionsResponse,
        transaction_states=await in_slices(
            failed[error](name) if error else _described(context.types, image, name)
            for name, error in errors.items()
        ),
    )


def _size_of(name: str, image: Image) -> int:
    """About what its description takes."""
    one = image.transactions.get(name)
    return _STATE_BYTES + 2 * len(name) + (0 if one is None else _PARTITION_BYTES * len(one.partitions))


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


def _described(types: ModuleType, image: Image, name: str) -> Any:
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
        topics=_topics(types, image, one),
    )


def _topics(types: ModuleType, image: Image, one: Transaction) -> list[Any]:
    numbers: dict[str, list[int]] = {}
    for topic_id, partition in one.partitions:
        topic = image.topic_by_id.get(topic_id)
        if topic is not None:  # else it was deleted meanwhile, and its part is dropped
            numbers.setdefault(topic.name, []).append(partition)
    return [make(types.TopicData, topic=name, partitions=found) for name, found in numbers.items()]
