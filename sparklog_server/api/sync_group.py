"""SyncGroup (key 14), versions 0-5.

Does: takes the leader's assignment, makes it durable, and gives every member its part.
Versions: 3 static members (KIP-345); 4 flexible; 5 protocol type and name, which are then required.
"""

from typing import Any

from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.groups.messages import SyncRequest, SyncResult
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make

_PROTOCOL_SINCE = 5


@api(ApiKey.SYNC_GROUP, versions=range(6), waits=True)
async def handle_sync_group(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer when the assignment is there."""
    protocol_type, protocol = field(request, "protocol_type"), field(request, "protocol_name")
    if context.api_version >= _PROTOCOL_SINCE and (protocol_type is None or protocol is None):
        result = SyncResult(error=ErrorCode.inconsistent_group_protocol)
    else:
        waiting = services.groups.sync(
            request.group_id,
            SyncRequest(
                member_id=request.member_id,
                generation_id=request.generation_id,
                instance_id=field(request, "group_instance_id"),
                protocol_type=protocol_type,
                protocol=protocol,
                assignments=tuple((one.member_id, bytes(one.assignment)) for one in request.assignments),
            ),
        )
        del request  # while it waits, only what the leader has assigned is needed
        result = await waiting
        await context.answer.hold(len(result.assignment))  # before it is made, as JoinGroup's
    return make(
        context.types.SyncGroupResponse,
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )
