"""Heartbeat (key 12), versions 0-4.

Does: keeps a member's session alive; tells of a rebalance.
Versions: 3 static members (KIP-345); 4 flexible.
"""

from typing import TYPE_CHECKING, Any

from sparklog_server.protocol.entities import field, make
from sparklog_server.protocol.registry import RequestContext, api

if TYPE_CHECKING:
    from sparklog_server.broker import Broker


@api(key=12, versions=range(5))
async def handle_heartbeat(request: Any, context: RequestContext, broker: "Broker") -> Any:
    """Answer at once."""
    error = broker.groups.heartbeat(
        request.group_id, request.member_id, field(request, "group_instance_id"), request.generation_id
    )
    return make(context.types.HeartbeatResponse, error_code=error)
