"""DescribeGroups (key 15), versions 0-5.

Does: state, protocol and members of groups; a group that has only offsets (Spark) is Empty, an unknown one
    Dead, as in Kafka; authorized operations, if asked for: all, as nobody is authorized yet.
Beyond 32 MiB of members the rest of the groups is answered UNKNOWN_SERVER_ERROR: ask for fewer at once.
Versions: 3 authorized operations; 4 static members; 5 flexible.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.groups.group import Group
from sparklog_server.groups.messages import GroupState
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make, maker
from sparklog_server.protocol.wire import in_slices
from sparklog_server.security.access import NOT_ASKED_FOR

_MEMBER_BYTES = 1000  # beside what it has sent itself


@api(ApiKey.DESCRIBE_GROUPS, versions=range(6))
async def handle_describe_groups(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer from memory, each group once."""
    types = context.types
    asked_for = field(request, "include_authorized_operations", default=False)
    operations = services.access.group_operations if asked_for else NOT_ASKED_FOR
    names = dict.fromkeys(request.groups)
    fitting = {name for name in names if context.answer.fits(_size_of(services.groups.find(name)))}
    await context.answer.reserve()
    told: _Told = {}
    return make(
        types.DescribeGroupsResponse,
        groups=await in_slices(
            _described(types, services, group_id, operations, told, fits=group_id in fitting)
            for group_id in names
        ),
    )


def _size_of(group: Group | None) -> int:
    """About what its description takes."""
    return 0 if group is None else group.roster.held_bytes + _MEMBER_BYTES * len(group.roster)


# What is told of groups without members, by error and state: thousands may be asked for.
_Told = dict[tuple[ErrorCode, str], Callable[[str], Any]]


def _described(
    types: ModuleType, services: Services, group_id: str, operations: int, told: _Told, *, fits: bool
) -> Any:
    error = services.groups.describe_error(group_id)
    group = None if error else services.groups.find(group_id)
    if group is not None and not fits:
        error, group = ErrorCode.unknown_server_error, None
    if group is None:
        exists = not error and services.groups.exists(group_id)
        state = "" if error else (GroupState.EMPTY if exists else GroupState.DEAD).value
        if (error, state) not in told:
            told[error, state] = maker(
                types.DescribedGroup,
                "group_id",
                error_code=error,
                group_state=state,
                protocol_type="",
                protocol_data="",
                authorized_operations=operations,
            )
        return told[error, state](group_id)
    # During a rebalance the members' metadata and assignments are not those of any generation.
    is_stable = group.state is GroupState.STABLE
    return make(
        types.DescribedGroup,
        error_code=error,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=group.protocol or "" if is_stable else "",
        members=_members(types, group, is_stable=is_stable),
        authorized_operations=operations,
    )


def _members(types: ModuleType, group: Group, *, is_stable: bool) -> list[Any]:
    return [
        make(
            types.DescribedGroupMember,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol) if is_stable else b"",
            member_assignment=member.assignment if is_stable else b"",
        )
        for member in group.roster
    ]
