"""FindCoordinator (key 10), versions 0-4.

Does: for each group the broker that leads its partition of __consumer_offsets, and where clients reach it;
    creates the topic if there is none yet, as Kafka does. COORDINATOR_NOT_AVAILABLE while nobody leads it,
    which is waited for a moment: the topic may have been made just now.
    For each transactional id one of the brokers that live, by the id: any of them can do the work, so this
    only spreads it.
Versions: 1 key types, error messages; 3 flexible; 4 several keys at once (KIP-699).
"""

from collections.abc import Callable, Sequence
from typing import Any

from sparklog.client.cluster_view import coordinators
from sparklog_server.api.nodes import node_of
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make, maker
from sparklog_server.protocol.wire import in_slices

GROUP, TRANSACTION = 0, 1
_BATCHED_SINCE = 4
_Where = dict[str, Any]


@api(ApiKey.FIND_COORDINATOR, versions=range(5), waits=True, counts=True)
async def handle_find_coordinator(request: Any, context: RequestContext, services: Services) -> Any:
    """Say where groups are."""
    types = context.types
    if context.api_version < _BATCHED_SINCE:
        (where,) = await _find([request.key], field(request, "key_type", GROUP), context, services)
        return make(types.FindCoordinatorResponse, **where)
    keys = list(dict.fromkeys(request.coordinator_keys))
    found = await _find(keys, request.key_type, context, services)
    makers: dict[int, Callable[[str], Any]] = {
        id(where): maker(types.Coordinator, "key", **where) for where in _each(found)
    }
    pieces = (makers[id(where)](key) for key, where in zip(keys, found, strict=True))
    return make(types.FindCoordinatorResponse, coordinators=await in_slices(pieces))


async def _find(
    keys: Sequence[str], key_type: int, context: RequestContext, services: Services
) -> list[_Where]:
    """What to answer for each key; those of one broker share it."""
    error, message = await _refuse(key_type, services)
    if error:
        return [_nowhere(error, message)] * len(keys)
    if key_type == TRANSACTION:
        nodes = await in_slices(map(coordinators(services.root.image), keys))
    else:
        nodes = await services.groups.shards.coordinators_of(keys)
    told = {node_id: _told(node_id, context, services) for node_id in set(nodes)}
    return [told[node_id] for node_id in nodes]


def _told(node_id: int, context: RequestContext, services: Services) -> _Where:
    node = node_of(services, context.listener, node_id)
    if node is None:
        return _nowhere(ErrorCode.coordinator_not_available, "nobody leads its partition now; ask again")
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "node_id": node.node_id,
        "host": node.host,
        "port": node.port,
    }


def _nowhere(error: ErrorCode, message: str | None) -> _Where:
    return {"error_code": error, "error_message": message, "node_id": -1, "host": "", "port": -1}


def _each(found: Sequence[_Where]) -> list[_Where]:
    """Each that occurs, once."""
    return list({id(where): where for where in found}.values())


async def _refuse(key_type: int, services: Services) -> tuple[ErrorCode, str | None]:
    if key_type == TRANSACTION:
        return ErrorCode.none, None
    if key_type != GROUP:
        return ErrorCode.invalid_request, f"unknown coordinator type {key_type}"
    error = await services.groups.ensure_topic()
    return error, "the offsets topic cannot be created" if error else None
