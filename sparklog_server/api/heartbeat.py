"""Heartbeat (key 12), versions 0-4.

Does: keeps a member's session alive; tells of a rebalance.
Versions: 3 static members (KIP-345); 4 flexible.
"""

from typing import Any

from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, RequestContext
from sparklog_server.protocol.responses import field, make


@api(ApiKey.HEARTBEAT, versions=range(5))
async def handle_heartbeat(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer at once."""
    error = services.groups.heartbeat(
        request.group_id, request.member_id, field(request, "group_instance_id"), request.generation_id
    )
    return make(context.types.HeartbeatResponse, error_code=error)
