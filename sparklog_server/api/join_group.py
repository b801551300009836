"""JoinGroup (key 11), versions 0-9.

Does: dynamic and static members, choice of protocol by votes, election of a leader; answers when the
    rebalance is over.
Does not: consumer groups of KIP-848.
Versions: 1 rebalance timeout; 4 a member id is required (KIP-394); 5 static members (KIP-345); 6 flexible;
    7 protocol type; 8 reason; 9 SkipAssignment.
"""

import logging
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Final

from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.groups.coordinator import MAX_CLIENT_ID_CHARACTERS
from sparklog_server.groups.messages import JoinedMember, JoinRequest
from sparklog_server.protocol.apis import ApiKey, RequestContext
from sparklog_server.protocol.responses import field, make, maker
from sparklog_server.protocol.wire import in_slices

_log = logging.getLogger("sparklog_server.coordinator")
_MEMBER_ID_REQUIRED_SINCE = 4
_NULL_PROTOCOL_SINCE = 7
_INSTANCE_ID_SINCE = 5
_SKIP_ASSIGNMENT_SINCE = 9
_MAX_REASON_CHARACTERS = 255
_MEMBER_BYTES: Final = 500  # in the leader's answer while it is made, beside its subscription


@api(ApiKey.JOIN_GROUP, versions=range(10), waits=True)
async def handle_join_group(request: Any, context: RequestContext, services: Services) -> Any:
    """Become a member, or stay one."""
    version, types, groups = context.api_version, context.types, services.groups
    instance_id = field(request, "group_instance_id")
    session_timeout_ms = field(request, "session_timeout")
    group_id, reason = request.group_id, str(field(request, "reason"))[:_MAX_REASON_CHARACTERS]
    waiting = groups.join(
        group_id,
        JoinRequest(
            member_id=request.member_id,
            new_member_id=groups.new_member_id(context.client_id, instance_id),
            instance_id=instance_id,
            needs_member_id=version >= _MEMBER_ID_REQUIRED_SINCE,
            can_skip_assignment=version >= _SKIP_ASSIGNMENT_SINCE,
            client_id=context.client_id[:MAX_CLIENT_ID_CHARACTERS],
            client_host=f"/{context.peer_host}",
            rebalance_timeout_ms=max(0, field(request, "rebalance_timeout", session_timeout_ms)),
            session_timeout_ms=session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((one.name, bytes(one.metadata)) for one in request.protocols),
        ),
    )
    del request  # it may wait for minutes
    result = await waiting
    # A leader may ask a hundred times at once: each answer is megabytes, and waits before it is made.
    await context.answer.hold(sum(_MEMBER_BYTES + len(one.metadata) for one in result.members))
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s: %r joins (%s): %s", group_id, result.member_id, reason, result.error.name)
    protocol = result.protocol
    if protocol is None and version < _NULL_PROTOCOL_SINCE:
        protocol = ""
    return make(
        types.JoinGroupResponse,
        error_code=result.error,
        generation_id=result.generation_id,
        protocol_type=result.protocol_type,
        protocol_name=protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=await in_slices(_members(types, version, result.members)),
    )


def _members(types: ModuleType, version: int, members: Sequence[JoinedMember]) -> Iterator[Any]:
    kind = types.JoinGroupResponseMember
    if version >= _INSTANCE_ID_SINCE:
        told = maker(kind, "member_id", "group_instance_id", "metadata")
        return (told(one.member_id, one.instance_id, one.metadata) for one in members)
    told = maker(kind, "member_id", "metadata")
    return (told(one.member_id, one.metadata) for one in members)
