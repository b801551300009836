"""AddOffsetsToTxn (key 25), versions 0-4.

Does: names a group whose offsets a transaction of the first protocol is going to commit. Any broker does it,
    in one commit; the offsets go to the group's coordinator (TxnOffsetCommit).
Versions: 2 PRODUCER_FENCED, which is INVALID_PRODUCER_EPOCH before; 3 flexible; 4 TRANSACTION_ABORTABLE
    (KIP-890), which is never answered here.
"""

import logging
from typing import Any

from sparklog.errors import SparklogError
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make
from sparklog_server.transactions.coordinator import Producer, masked, refusal_once_begun

_log = logging.getLogger("sparklog_server.coordinator")
_KNOWS_FENCED = 2


@api(ApiKey.ADD_OFFSETS_TO_TXN, versions=range(5))
async def handle_add_offsets_to_txn(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer when the group is added."""
    error = ErrorCode.none
    try:
        producer = Producer(request.producer_id, request.producer_epoch)
        await services.transactions.add_group(
            request.transactional_id, producer, request.group_id, context.peer_host
        )
    except SparklogError as refused:
        _log.info("no offsets for transactional id %r: %s", request.transactional_id[:100], refused)
        error = masked(refusal_once_begun(refused), knows_fenced=context.api_version >= _KNOWS_FENCED)
    return make(context.types.AddOffsetsToTxnResponse, error_code=error)
