"""InitProducerId (key 22), versions 0-5.

Does: without a transactional id a new producer id with epoch 0 for every request, whatever id the producer
    had before, as Kafka does; idempotent producers raise their epochs by themselves (KIP-360).
    With one: its producer id, with the next epoch. That fences every process that has the id already, and
    aborts what one of them has open, in the same commit: there is nothing to wait for, and so
    CONCURRENT_TRANSACTIONS is never answered. A producer that names its id and epoch (version 3 on) gets the
    next one if they are the last that were given out, the last one again if they are those before it (it has
    missed the answer), and is fenced otherwise. When the epochs of a producer id are used up it gets another
    id. Any broker does it, in one commit.
Does not: two-phase commit by others (KIP-939).
Versions: 2 flexible; 3 the id and epoch that the producer has (KIP-360); 4 PRODUCER_FENCED, which is
    INVALID_PRODUCER_EPOCH before; 5 TRANSACTION_ABORTABLE (KIP-890), which is never answered here.
"""

import logging
from typing import Any

from sparklog.errors import SparklogError
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext, error_code
from sparklog_server.protocol.responses import field, make
from sparklog_server.transactions.coordinator import Producer, masked, refusal_of

_log = logging.getLogger("sparklog_server.publish")
_NONE = -1
_NOBODY = Producer(_NONE, _NONE)
_KNOWS_FENCED = 4


@api(ApiKey.INIT_PRODUCER_ID, versions=range(6))
async def handle_init_producer_id(request: Any, context: RequestContext, services: Services) -> Any:
    """Hand out a producer id, or an epoch."""
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
        if error is ErrorCode.not_leader_or_follower:  # fenced: producers look for a coordinator
            error = ErrorCode.coordinator_not_available
        _log.warning("no producer id for client %r: %s", context.client_id, failed)
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
        _log.warning(
            "client %r is not initialised for transactional id %r: %s",
            context.client_id,
            request.transactional_id[:100],
            refused,
        )
        return masked(refusal_of(refused), knows_fenced=context.api_version >= _KNOWS_FENCED), _NOBODY
    return ErrorCode.none, given
