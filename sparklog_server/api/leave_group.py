"""LeaveGroup (key 13), versions 0-5.

Does: removes members, static ones also by their instance id alone (an administrator).
Versions: 3 several members at once (KIP-345); 4 flexible; 5 reason.
"""

from typing import Any

from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.groups.messages import Leaving
from sparklog_server.protocol.apis import ApiKey, RequestContext
from sparklog_server.protocol.responses import make

_BATCHED_SINCE = 3


@api(ApiKey.LEAVE_GROUP, versions=range(6))
async def handle_leave_group(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer at once; the others learn of it by their heartbeats."""
    types = context.types
    if context.api_version < _BATCHED_SINCE:
        error, errors = services.groups.leave(request.group_id, [Leaving(member_id=request.member_id)])
        return make(types.LeaveGroupResponse, error_code=error or errors[0])
    leaving = list(
        dict.fromkeys(
            Leaving(member_id=one.member_id, instance_id=one.group_instance_id) for one in request.members
        )
    )
    error, errors = services.groups.leave(request.group_id, leaving)
    return make(
        types.LeaveGroupResponse,
        error_code=error,
        members=[
            make(
                types.MemberResponse,
                member_id=one.member_id,
                group_instance_id=one.instance_id,
                error_code=of_member,
            )
            for one, of_member in zip(leaving, errors, strict=False)
        ],
    )
