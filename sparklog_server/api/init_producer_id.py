"""InitProducerId (key 22), versions 0-4.

Does: a new producer id with epoch 0 for every request of an idempotent producer, whatever id it had before,
    as Kafka does; idempotent producers raise their epochs by themselves (KIP-360).
Does not: transactions: a transactional id is answered with TRANSACTIONAL_ID_AUTHORIZATION_FAILED. Of all
    codes that fit it is the one that Java, librdkafka and kafka-python take as final and show to the user;
    others they retry for ever (librdkafka), or report as an unexpected error.
Versions: 2 flexible; 3 the id and epoch that the producer has (KIP-360); 4 PRODUCER_FENCED.
"""

import logging
from typing import Any

from sparklog.errors import SparklogError
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import field, make
from sparklog_server.protocol.errors import ErrorCode, error_code

_log = logging.getLogger("sparklog_server.publish")
_NONE = -1


@api(ApiKey.INIT_PRODUCER_ID, versions=range(5))
async def handle_init_producer_id(request: Any, context: RequestContext, services: Services) -> Any:
    """Hand out a producer id."""
    error, producer_id = _refusal(request), _NONE
    if error is ErrorCode.transactional_id_authorization_failed:
        _log.warning(
            "client %r asked for transactions (transactional.id %r), which this broker does not have: remove "
            "transactional.id from its configuration; idempotence works without it",
            context.client_id,
            request.transactional_id,
        )
    if error is ErrorCode.none:
        try:
            producer_id = await services.producer_ids.allocate()
        except SparklogError as failed:
            error = error_code(failed)
            if error is ErrorCode.not_leader_or_follower:  # fenced: producers look for a coordinator
                error = ErrorCode.coordinator_not_available
            _log.warning("no producer id for client %r: %s", context.client_id, failed)
    return make(
        context.types.InitProducerIdResponse,
        error_code=error,
        producer_id=producer_id,
        producer_epoch=0 if error is ErrorCode.none else _NONE,
    )


def _refusal(request: Any) -> ErrorCode:
    if request.transactional_id is not None:
        empty = not request.transactional_id
        return ErrorCode.invalid_request if empty else ErrorCode.transactional_id_authorization_failed
    known = (field(request, "producer_id", _NONE), field(request, "producer_epoch", _NONE))
    if (known[0] == _NONE) != (known[1] == _NONE):
        return ErrorCode.invalid_request
    return ErrorCode.none
