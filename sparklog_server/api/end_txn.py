"""EndTxn (key 26), versions 0-5.

Does: commits or aborts all that a transaction has staged, over any number of partitions, and the offsets of
    its groups: in one commit of the metadata log, after which it is visible, or gone. A repeated end of a
    transaction is answered by what was decided, whichever broker decided it: with NONE if it is the same,
    with INVALID_TXN_STATE if it is not. Version 5 is the second protocol's (KIP-890): the end raises the
    epoch, and tells it; the repetition is known by the epoch before.
Does not: markers in partitions, and so nobody waits for any.
Versions: 2 PRODUCER_FENCED, which is INVALID_PRODUCER_EPOCH before; 3 flexible; 4 TRANSACTION_ABORTABLE,
    which is never answered here; 5 the next epoch (KIP-890).
"""

import logging
from typing import Any

from sparklog.errors import SparklogError
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make
from sparklog_server.transactions.coordinator import Producer, masked, refusal_of

_log = logging.getLogger("sparklog_server.coordinator")
_KNOWS_FENCED = 2
_SECOND_PROTOCOL = 5
_NOBODY = Producer(-1, -1)


@api(ApiKey.END_TXN, versions=range(6))
async def handle_end_txn(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer when it is decided, durably."""
    error, given = ErrorCode.none, _NOBODY
    try:
        given = await services.transactions.end(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            commits=request.committed,
            raises=context.api_version >= _SECOND_PROTOCOL,
        )
    except SparklogError as refused:
        _log.info("transactional id %r: not ended: %s", request.transactional_id[:100], refused)
        error = masked(refusal_of(refused), knows_fenced=context.api_version >= _KNOWS_FENCED)
    return make(
        context.types.EndTxnResponse,
        error_code=error,
        producer_id=given.producer_id,
        producer_epoch=given.producer_epoch,
    )
