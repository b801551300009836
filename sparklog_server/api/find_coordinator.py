"""FindCoordinator (key 10), versions 0-4.

Does: this services, for every group; creates __consumer_offsets if there is none yet, as Kafka does.
Does not: transactions: TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which clients show and do not retry, with a
    message that says why.
Versions: 1 key types, error messages; 3 flexible; 4 several keys at once (KIP-699).
"""

import logging
from typing import Any

from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.answers import in_slices
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import field, make, maker
from sparklog_server.protocol.errors import ErrorCode

GROUP, TRANSACTION = 0, 1
_log = logging.getLogger("sparklog_server.coordinator")
_BATCHED_SINCE = 4


@api(ApiKey.FIND_COORDINATOR, versions=range(5))
async def handle_find_coordinator(request: Any, context: RequestContext, services: Services) -> Any:
    """Say where groups are."""
    key_type = field(request, "key_type", GROUP)
    error, message = await _refuse(key_type, services)
    if key_type == TRANSACTION:
        _log.warning(
            "client %r asked for transactions, which this broker does not have; it is told "
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED, and no ACL would help: remove transactional.id from its "
            "configuration; idempotence works without it",
            context.client_id,
        )
    where: dict[str, Any] = {"error_code": error, "error_message": message}
    if error:
        where |= {"node_id": -1, "host": "", "port": -1}
    else:
        node_id = services.node_id
        where |= {"node_id": node_id, "host": context.listener.host, "port": context.listener.port}
    types = context.types
    if context.api_version < _BATCHED_SINCE:
        return make(types.FindCoordinatorResponse, **where)
    return make(
        types.FindCoordinatorResponse,
        coordinators=await in_slices(
            map(maker(types.Coordinator, "key", **where), dict.fromkeys(request.coordinator_keys))
        ),
    )


async def _refuse(key_type: int, services: Services) -> tuple[ErrorCode, str | None]:
    if key_type == TRANSACTION:
        message = "transactions are not supported by this broker; use an idempotent producer without an id"
        return ErrorCode.transactional_id_authorization_failed, message
    if key_type != GROUP:
        return ErrorCode.invalid_request, f"unknown coordinator type {key_type}"
    error = await services.groups.ensure_topic()
    return error, "the offsets topic cannot be created" if error else None
