"""Consumer groups: requests of members and administrators, and coordinators.

Not here: the decisions (groups/coordinator.py), committed offsets (offsets.py).
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final

from sparklog.client.cluster_view import coordinators
from sparklog.metadata import NO_NODE
from sparklog_server.api.cluster import node_of
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.groups.coordinator import CLASSIC, MAX_CLIENT_ID_CHARACTERS
from sparklog_server.groups.group import Group
from sparklog_server.groups.messages import (
    GroupState,
    JoinedMember,
    JoinRequest,
    Leaving,
    SyncRequest,
    SyncResult,
)
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make, maker
from sparklog_server.protocol.wire import in_slices, text_bytes
from sparklog_server.security.access import group_operations

# --- JoinGroup ---------------------------------------------------------------------------------------

_log = logging.getLogger("sparklog_server.coordinator")
_MEMBER_ID_REQUIRED_SINCE = 4
_NULL_PROTOCOL_SINCE = 7
_INSTANCE_ID_SINCE = 5
_SKIP_ASSIGNMENT_SINCE = 9
_MAX_REASON_CHARACTERS = 255
_JOINED_MEMBER_BYTES: Final = 500  # in the leader's answer while it is made, without its subscription


@api(ApiKey.JOIN_GROUP, versions=range(10), waits=True)
async def handle_join_group(request: Any, context: RequestContext, services: Services) -> Any:
    """JoinGroup (key 11), versions 0-9.

    Does: dynamic and static members, choice of protocol by votes, election of a leader; answers when the
        rebalance is over. An empty consumer group (KIP-848) becomes a classic one; one with members takes
        members of the classic protocol, unless group.consumer.migration.policy is `disabled`
        (INCONSISTENT_GROUP_PROTOCOL), and answers when the member is durable.
    Does not: share groups (INCONSISTENT_GROUP_PROTOCOL).
    Versions: 1 rebalance timeout; 4 a member id is required (KIP-394); 5 static members (KIP-345); 6
        flexible; 7 protocol type; 8 reason; 9 SkipAssignment.
    """
    version, types, groups = context.api_version, context.types, services.groups
    instance_id = field(request, "group_instance_id")
    session_timeout_ms = field(request, "session_timeout")
    group_id, reason = request.group_id, str(field(request, "reason"))[:_MAX_REASON_CHARACTERS]
    if services.share_groups.owns(group_id):
        error = ErrorCode.inconsistent_group_protocol
        return make(types.JoinGroupResponse, error_code=error, member_id=request.member_id)
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
    # A leader may send a hundred requests: each answer is megabytes, and waits before it is made.
    await context.answer.hold(sum(_JOINED_MEMBER_BYTES + len(one.metadata) for one in result.members))
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
        members=await in_slices(_joined_members(types, version, result.members)),
    )


def _joined_members(types: ModuleType, version: int, members: Sequence[JoinedMember]) -> Iterator[Any]:
    kind = types.JoinGroupResponseMember
    if version >= _INSTANCE_ID_SINCE:
        with_instance = maker(kind, "member_id", "group_instance_id", "metadata")
        return (with_instance(one.member_id, one.instance_id, one.metadata) for one in members)
    without = maker(kind, "member_id", "metadata")
    return (without(one.member_id, one.metadata) for one in members)


# --- SyncGroup ---------------------------------------------------------------------------------------

_PROTOCOL_SINCE = 5


@api(ApiKey.SYNC_GROUP, versions=range(6), waits=True)
async def handle_sync_group(request: Any, context: RequestContext, services: Services) -> Any:
    """SyncGroup (key 14), versions 0-5.

    Does: stores the leader's assignment durably, and gives every member its part; in a consumer group
        (KIP-848) what the coordinator has assigned.
    Versions: 3 static members (KIP-345); 4 flexible; 5 protocol type and name, which are then required.
    """
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


# --- Heartbeat ---------------------------------------------------------------------------------------


@api(ApiKey.HEARTBEAT, versions=range(5))
async def handle_heartbeat(request: Any, context: RequestContext, services: Services) -> Any:
    """Heartbeat (key 12), versions 0-4.

    Does: keeps a member's session alive; announces a rebalance.
    Versions: 3 static members (KIP-345); 4 flexible.
    """
    error = services.groups.heartbeat(
        request.group_id, request.member_id, field(request, "group_instance_id"), request.generation_id
    )
    return make(context.types.HeartbeatResponse, error_code=error)


# --- LeaveGroup --------------------------------------------------------------------------------------

_MEMBERS_SINCE = 3


@api(ApiKey.LEAVE_GROUP, versions=range(6))
async def handle_leave_group(request: Any, context: RequestContext, services: Services) -> Any:
    """LeaveGroup (key 13), versions 0-5.

    Does: removes members, static ones also by their instance id alone (an administrator); in consumer groups
        (KIP-848) members of both protocols.
    Versions: 3 several members in one request (KIP-345); 4 flexible; 5 reason.
    """
    types = context.types
    if context.api_version < _MEMBERS_SINCE:
        error, errors = await services.groups.leave(request.group_id, [Leaving(member_id=request.member_id)])
        return make(types.LeaveGroupResponse, error_code=error or errors[0])
    leaving = list(
        dict.fromkeys(
            Leaving(member_id=one.member_id, instance_id=one.group_instance_id) for one in request.members
        )
    )
    error, errors = await services.groups.leave(request.group_id, leaving)
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


# --- FindCoordinator ---------------------------------------------------------------------------------

GROUP, TRANSACTION, SHARE = 0, 1, 2
_KEYS_SINCE = 4
_Coordinator = dict[str, Any]


@api(ApiKey.FIND_COORDINATOR, versions=range(7), waits=True, counts=True)
async def handle_find_coordinator(request: Any, context: RequestContext, services: Services) -> Any:
    """FindCoordinator (key 10), versions 0-6.

    Does: for each group the leader of its partition of __consumer_offsets, and its endpoint; creates the
        topic if it is missing, as Kafka does. COORDINATOR_NOT_AVAILABLE while the partition has no leader,
        after a short wait: the topic may just have been created.
        For each transactional id one of the live brokers, chosen by the id: any of them can coordinate it, so
        this only spreads the load.
        For a share group in a partition (group:topic id:partition) the partition's leader, which has its
        state.
    Versions: 1 key types, error messages; 3 flexible; 4 several keys in one request (KIP-699); 5 as 4; 6
        share groups (KIP-932).
    """
    types = context.types
    if context.api_version < _KEYS_SINCE:
        (where,) = await _find_coordinators(
            [request.key], field(request, "key_type", GROUP), context, services
        )
        return make(types.FindCoordinatorResponse, **where)
    keys = list(dict.fromkeys(request.coordinator_keys))
    found = await _find_coordinators(keys, request.key_type, context, services)
    makers: dict[int, Callable[[str], Any]] = {
        id(where): maker(types.Coordinator, "key", **where) for where in _distinct(found)
    }
    pieces = (makers[id(where)](key) for key, where in zip(keys, found, strict=True))
    return make(types.FindCoordinatorResponse, coordinators=await in_slices(pieces))


async def _find_coordinators(
    keys: Sequence[str], key_type: int, context: RequestContext, services: Services
) -> list[_Coordinator]:
    """Return the answer for each key; keys of one broker share it."""
    error, message = await _refuse_key_type(key_type, services)
    if error:
        return [_no_coordinator(error, message)] * len(keys)
    if key_type == TRANSACTION:
        nodes = await in_slices(map(coordinators(services.root.image), keys))
    elif key_type == SHARE:
        nodes = await in_slices(_leader_for_share(key, services) for key in keys)
    else:
        nodes = await services.groups.shards.coordinators_of(keys)
    found = {node_id: _coordinator_at(node_id, context, services) for node_id in set(nodes)}
    return [found[node_id] for node_id in nodes]


def _leader_for_share(key: str, services: Services) -> int:
    _, topic_id, number = ("", "", *key.rsplit(":", 2))[-3:]
    topic = services.root.image.topic_by_id.get(topic_id)
    is_number = number.isascii() and number.isdecimal() and len(number) < 10
    if topic is None or not is_number or int(number) >= len(topic.partitions):
        return NO_NODE
    return services.leadership.leader_of(topic.partitions[int(number)]).node_id


def _coordinator_at(node_id: int, context: RequestContext, services: Services) -> _Coordinator:
    node = node_of(services, context.listener, node_id)
    if node is None:
        return _no_coordinator(ErrorCode.coordinator_not_available, "its partition has no leader now; retry")
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "node_id": node.node_id,
        "host": node.host,
        "port": node.port,
    }


def _no_coordinator(error: ErrorCode, message: str | None) -> _Coordinator:
    return {"error_code": error, "error_message": message, "node_id": -1, "host": "", "port": -1}


def _distinct(found: Sequence[_Coordinator]) -> list[_Coordinator]:
    """Return the distinct coordinators."""
    return list({id(where): where for where in found}.values())


async def _refuse_key_type(key_type: int, services: Services) -> tuple[ErrorCode, str | None]:
    if key_type in (TRANSACTION, SHARE):
        return ErrorCode.none, None
    if key_type != GROUP:
        return ErrorCode.invalid_request, f"unknown coordinator type {key_type}"
    error = await services.groups.ensure_topic()
    return error, "the offsets topic cannot be created" if error else None


# --- DescribeGroups ----------------------------------------------------------------------------------

_DESCRIBED_MEMBER_BYTES = 1000  # without what it has sent itself


_NOT_FOUND_SINCE = 6


@api(ApiKey.DESCRIBE_GROUPS, versions=range(7))
async def handle_describe_groups(request: Any, context: RequestContext, services: Services) -> Any:
    """DescribeGroups (key 15), versions 0-6.

    Does: state, protocol and members of groups; a group that has only offsets (Spark) is Empty, an unknown
        one Dead, as in Kafka; so is one of another type, as consumer groups (KIP-848). Authorized operations,
        on request.
    Beyond 32 MiB of members the rest of the groups is answered UNKNOWN_SERVER_ERROR: request fewer.
    Versions: 3 authorized operations; 4 static members; 5 flexible; 6 GROUP_ID_NOT_FOUND for groups that are
        Dead (KIP-1043).
    """
    types = context.types
    asked_for = field(request, "include_authorized_operations", default=False)
    caller = services.access.caller(context) if asked_for else None
    names = dict.fromkeys(request.groups)
    fitting = {name for name in names if context.answer.fits(_description_bytes(services.groups.find(name)))}
    await context.answer.reserve()
    known: _WithoutMembers = {}
    return make(
        types.DescribeGroupsResponse,
        groups=await in_slices(
            _described_group(
                types,
                services,
                group_id,
                group_operations(caller, group_id),
                known,
                fits=group_id in fitting,
                knows_not_found=context.api_version >= _NOT_FOUND_SINCE,
            )
            for group_id in names
        ),
    )


def _description_bytes(group: Group | None) -> int:
    """Return the approximate size of its description."""
    return 0 if group is None else group.members.held_bytes + _DESCRIBED_MEMBER_BYTES * len(group.members)


# Constructors of groups without members, by error, state and operations: a request may name thousands.
_WithoutMembers = dict[tuple[ErrorCode, str | None, str, int], Callable[[str], Any]]
_NOT_FOUND: Final = "there is no such group"
_NOT_CLASSIC: Final = "the group is not a classic group"


def _described_group(
    types: ModuleType,
    services: Services,
    group_id: str,
    operations: int,
    known: _WithoutMembers,
    *,
    fits: bool,
    knows_not_found: bool,
) -> Any:
    error = services.groups.describe_error(group_id)
    group = None if error else services.groups.find(group_id)
    if group is not None and not fits:
        error, group = ErrorCode.unknown_server_error, None
    if group is None:
        is_classic = services.groups.listed(group_id).group_type == CLASSIC
        exists = not error and is_classic and services.groups.exists(group_id)
        message = None
        if not error and not exists and knows_not_found:
            error = ErrorCode.group_id_not_found
            message = _NOT_FOUND if is_classic else _NOT_CLASSIC
        is_dead = not exists and error in {ErrorCode.none, ErrorCode.group_id_not_found}
        state = GroupState.EMPTY.value if exists else GroupState.DEAD.value if is_dead else ""
        key = (error, message, state, operations)
        if key not in known:
            known[key] = maker(
                types.DescribedGroup,
                "group_id",
                error_code=error,
                error_message=message,
                group_state=state,
                protocol_type="",
                protocol_data="",
                authorized_operations=operations,
            )
        return known[key](group_id)
    # During a rebalance the members' metadata and assignments are not those of any generation.
    is_stable = group.state is GroupState.STABLE
    return make(
        types.DescribedGroup,
        error_code=error,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=group.protocol or "" if is_stable else "",
        members=_described_members(types, group, is_stable=is_stable),
        authorized_operations=operations,
    )


def _described_members(types: ModuleType, group: Group, *, is_stable: bool) -> list[Any]:
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
        for member in group.members
    ]


# --- ListGroups --------------------------------------------------------------------------------------

_GROUP_TYPE, _SHARE_TYPE = "classic", "share"
_GROUP_BYTES = 160  # while the answer is made, without the name


@api(ApiKey.LIST_GROUPS, versions=range(6))
async def handle_list_groups(request: Any, context: RequestContext, services: Services) -> Any:
    """ListGroups (key 16), versions 0-5.

    Does: all groups, filtered by state and type; Spark queries with a group id are among them, as Empty.
    Beyond some 32 MB (150,000 groups of ordinary names): UNKNOWN_SERVER_ERROR; describe them by name.
    Versions: 3 flexible; 4 states (KIP-518); 5 types (KIP-848): `classic`, `consumer` and `share`.

    Yields to the event loop: there may be a hundred thousand groups.
    """
    states = {state.lower() for state in field(request, "states_filter", ())}
    kinds = {kind.lower() for kind in field(request, "types_filter", ())}
    error, found = services.groups.group_ids()
    shares = list(services.share_groups.group_ids())
    if not context.answer.fits(
        sum(_GROUP_BYTES + 2 * text_bytes(group_id) for group_id in [*found, *shares])
    ):
        error, found, shares = ErrorCode.unknown_server_error, [], []
    await context.answer.reserve()
    types = context.types

    def listed(group_id: str) -> Any:
        """Return the entry; None if the filters exclude it."""
        one = services.groups.listed(group_id)
        if (states and one.state.lower() not in states) or (kinds and one.group_type not in kinds):
            return None
        return make(
            types.ListedGroup,
            group_id=one.group_id,
            protocol_type=one.protocol_type,
            group_state=str(one.state),
            group_type=one.group_type,
        )

    def listed_share(group_id: str) -> Any:
        """The same for a share group."""
        state = services.share_groups.state_of(group_id).value
        if (states and state.lower() not in states) or (kinds and _SHARE_TYPE not in kinds):
            return None
        return make(
            types.ListedGroup,
            group_id=group_id,
            protocol_type=_SHARE_TYPE,
            group_state=state,
            group_type=_SHARE_TYPE,
        )

    pieces = itertools.chain(map(listed, found), map(listed_share, shares))
    groups = [one for one in await in_slices(pieces) if one is not None]
    return make(types.ListGroupsResponse, error_code=error, groups=groups)


# --- DeleteGroups ------------------------------------------------------------------------------------


@api(ApiKey.DELETE_GROUPS, versions=range(3))
async def handle_delete_groups(request: Any, context: RequestContext, services: Services) -> Any:
    """DeleteGroups (key 42), versions 0-2.

    Does: removes empty groups with all their offsets (KIP-229), and share groups without members.
    Versions: 2 flexible.

    Answers when the tombstones are durable.
    """
    await services.root.look()  # for what Spark has just committed
    types, names = context.types, list(dict.fromkeys(request.groups_names))
    shares = [name for name in names if services.share_groups.has(name)]
    errors = await services.groups.delete_groups([name for name in names if name not in set(shares)])
    for name in shares:
        errors[name] = await services.share_groups.forget(name)
    deleted = maker(types.DeletableGroupResult, "group_id", "error_code")
    return make(
        types.DeleteGroupsResponse, results=await in_slices(deleted(name, errors[name]) for name in names)
    )
