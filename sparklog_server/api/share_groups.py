"""Share groups: members, descriptions, and the offsets at which groups begin.

Not here: the decisions (share/coordinator.py), records (share_fetch.py).
"""

from collections.abc import Sequence
from typing import Any, Final

from sparklog.metadata import SharePlace, Topic
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make
from sparklog_server.protocol.wire import in_slices
from sparklog_server.security.access import group_operations
from sparklog_server.share.coordinator import ASSIGNOR, UNINITIALIZED, ShareOffset
from sparklog_server.share.members import ShareGroup, ShareHeartbeat, ShareMember

MAX_CLIENT_ID_CHARACTERS: Final = 255
_MEMBER_BYTES: Final = 500  # in a description, without its texts and partitions
_PARTITION_BYTES: Final = 100
_OFFSET_BYTES: Final = 600  # of a partition in a list of offsets, while it is made


# --- ShareGroupHeartbeat -----------------------------------------------------------------------------


@api(ApiKey.SHARE_GROUP_HEARTBEAT, versions=range(1, 2), waits=True, counts=True)
async def handle_share_group_heartbeat(request: Any, context: RequestContext, services: Services) -> Any:
    """ShareGroupHeartbeat (key 76), version 1.

    Does: joins (epoch 0), keeps and ends (epoch -1) memberships; assigns the partitions of the subscribed
        topics, each to one or several members. A member that is silent for its session is removed.
    Does not: store members: after a coordinator has changed they get UNKNOWN_MEMBER_ID, and join again.
    """
    groups = services.share_groups
    error = await services.groups.ensure_topic()
    if error:
        return make(context.types.ShareGroupHeartbeatResponse, error_code=error)
    topics = field(request, "subscribed_topic_names")
    result = await groups.heartbeat(
        request.group_id,
        ShareHeartbeat(
            member_id=request.member_id,
            epoch=request.member_epoch,
            client_id=context.client_id[:MAX_CLIENT_ID_CHARACTERS],
            client_host=f"/{context.peer_host}",
            rack=request.rack_id,
            topics=None if topics is None else tuple(topics),
        ),
    )
    types = context.types
    assignment = None
    if result.assignment is not None:
        await context.answer.hold(_PARTITION_BYTES * sum(map(len, result.assignment.values())))
        assignment = make(
            types.Assignment,
            topic_partitions=[
                make(types.TopicPartitions, topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in result.assignment.items()
            ],
        )
    return make(
        types.ShareGroupHeartbeatResponse,
        error_code=result.error,
        error_message=result.message,
        member_id=request.member_id,
        member_epoch=result.epoch,
        heartbeat_interval=groups.config_of(request.group_id).heartbeat_interval_ms,
        assignment=assignment,
    )


# --- ShareGroupDescribe ------------------------------------------------------------------------------


@api(ApiKey.SHARE_GROUP_DESCRIBE, versions=range(1, 2))
async def handle_share_group_describe(request: Any, context: RequestContext, services: Services) -> Any:
    """ShareGroupDescribe (key 77), version 1.

    Does: state, epochs and members of share groups, with their subscriptions and assignments. A group that
        is no share group, or unknown, is GROUP_ID_NOT_FOUND.
    Beyond 32 MiB of members the rest of the groups is answered UNKNOWN_SERVER_ERROR: request fewer.
    """
    names = list(dict.fromkeys(request.group_ids))
    found = {name: services.share_groups.find(name) for name in names}
    fitting = {name for name in names if context.answer.fits(_description_bytes(found[name]))}
    await context.answer.reserve()
    caller = services.access.caller(context) if request.include_authorized_operations else None
    return make(
        context.types.ShareGroupDescribeResponse,
        groups=await in_slices(
            _described(context, services, name, group_operations(caller, name), fits=name in fitting)
            for name in names
        ),
    )


def _description_bytes(group: ShareGroup | None) -> int:
    if group is None:
        return 0
    partitions = sum(len(one) for member in group for one in member.assignment.values())
    return group.held_bytes + _MEMBER_BYTES * len(group) + _PARTITION_BYTES * partitions


def _described(
    context: RequestContext, services: Services, group_id: str, operations: int, *, fits: bool
) -> Any:
    types, groups = context.types, services.share_groups
    error = groups.refusal_of(group_id)
    message = None
    if not error and not groups.has(group_id):
        error, message = ErrorCode.group_id_not_found, f"Group {group_id} not found."
    if not error and not fits:
        error = ErrorCode.unknown_server_error
    group = None if error else groups.find(group_id)
    return make(
        types.DescribedGroup,
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state="" if error else groups.state_of(group_id).value,
        group_epoch=0 if group is None else group.epoch,
        assignment_epoch=0 if group is None else group.assignment_epoch,
        assignor_name="" if error else ASSIGNOR,
        members=[_described_member(types, services, one) for one in group or ()],
        authorized_operations=operations,
    )


def _described_member(types: Any, services: Services, member: ShareMember) -> Any:
    topics = services.root.image.topic_by_id
    return make(
        types.Member,
        member_id=member.member_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        assignment=make(
            types.Assignment,
            topic_partitions=[
                make(
                    types.TopicPartitions,
                    topic_id=topic_id,
                    topic_name=topics[topic_id].name,
                    partitions=partitions,
                )
                for topic_id, partitions in member.assignment.items()
                if topic_id in topics
            ],
        ),
    )


# --- DescribeShareGroupOffsets -----------------------------------------------------------------------


@api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, versions=range(2))
async def handle_describe_share_group_offsets(
    request: Any, context: RequestContext, services: Services
) -> Any:
    """DescribeShareGroupOffsets (key 90), versions 0-1.

    Does: the start offset and the lag of groups in partitions, or in all in which they have begun (topics
        null); -1 where a group has not begun.
    Beyond 32 MiB the rest of the groups is answered UNKNOWN_SERVER_ERROR: request fewer.
    Versions: 1 lag (KIP-1226): the records from the start offset on that have not ended.
    """
    types = context.types
    await services.root.look()
    are_fitting = [
        context.answer.fits(_OFFSET_BYTES * _offset_count(one, services)) for one in request.groups
    ]
    await context.answer.reserve()
    groups = []
    for one, fits in zip(request.groups, are_fitting, strict=True):
        found = await _group_offsets(one, context, services, fits=fits)
        groups.append(make(types.DescribeShareGroupOffsetsResponseGroup, **found))
    return make(types.DescribeShareGroupOffsetsResponse, groups=groups)


def _offset_count(wanted: Any, services: Services) -> int:
    if wanted.topics is None:
        return len(services.root.image.shares.get(wanted.group_id, ()))
    return sum(len(one.partitions) for one in wanted.topics)


async def _group_offsets(
    wanted: Any, context: RequestContext, services: Services, *, fits: bool
) -> dict[str, Any]:
    groups, types = services.share_groups, context.types
    error = groups.refusal_of(wanted.group_id)
    message = None
    if not error and not groups.has(wanted.group_id):
        error, message = ErrorCode.group_id_not_found, f"Group {wanted.group_id} not found."
    if not error and not fits:
        error = ErrorCode.unknown_server_error
    if error:
        return {"group_id": wanted.group_id, "error_code": error, "error_message": message, "topics": []}
    topics: list[Any] = []
    if wanted.topics is None:
        by_topic: dict[str, list[ShareOffset]] = {}
        for one in groups.offsets_of(wanted.group_id):
            by_topic.setdefault(one.topic.name, []).append(one)
        for name, found in by_topic.items():
            topics.append(await _topic_offsets(types, services, name, found[0].topic, found))
    else:
        for one in wanted.topics:
            topic = services.root.image.topics.get(one.topic_name)
            known = [
                groups.offset_of(wanted.group_id, topic, number)
                for number in dict.fromkeys(one.partitions)
                if topic is not None and 0 <= number < len(topic.partitions)
            ]
            missing = set(one.partitions) - {offset.partition for offset in known}
            topics.append(
                await _topic_offsets(types, services, one.topic_name, topic, known, sorted(missing))
            )
    return {"group_id": wanted.group_id, "error_code": ErrorCode.none, "topics": topics}


async def _topic_offsets(
    types: Any,
    services: Services,
    name: str,
    topic: Topic | None,
    offsets: Sequence[ShareOffset],
    missing: Sequence[int] = (),
) -> Any:
    kind = types.DescribeShareGroupOffsetsResponsePartition
    found = await in_slices(
        make(
            kind,
            partition_index=one.partition,
            start_offset=one.start_offset,
            leader_epoch=services.leadership.leader_of(one.topic.partitions[one.partition]).epoch,
            lag=one.lag,
            error_code=ErrorCode.none,
        )
        for one in offsets
    )
    found += [
        make(
            kind,
            partition_index=number,
            start_offset=UNINITIALIZED,
            lag=UNINITIALIZED,
            error_code=ErrorCode.unknown_topic_or_partition,
        )
        for number in missing
    ]
    return make(
        types.DescribeShareGroupOffsetsResponseTopic,
        topic_name=name,
        topic_id=None if topic is None else topic.topic_id,
        partitions=found,
    )


# --- AlterShareGroupOffsets --------------------------------------------------------------------------


@api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, versions=range(1))
async def handle_alter_share_group_offsets(request: Any, context: RequestContext, services: Services) -> Any:
    """AlterShareGroupOffsets (key 91), version 0.

    Does: lets a group without members begin anew at these offsets, brought within the log: what its members
        have done with records is forgotten. NON_EMPTY_GROUP while it has members.
    """
    types = context.types
    await services.root.look()
    starts: dict[SharePlace, int] = {}
    unknown: set[tuple[str, int]] = set()
    for one in request.topics:
        topic = services.root.image.topics.get(one.topic_name)
        for partition in one.partitions:
            number = partition.partition_index
            if topic is None or not 0 <= number < len(topic.partitions):
                unknown.add((one.topic_name, number))
            else:
                starts[topic.topic_id, number] = partition.start_offset
    error = await services.share_groups.alter_offsets(request.group_id, starts)
    if error:
        return make(types.AlterShareGroupOffsetsResponse, error_code=error, error_message=_why(error))
    return make(
        types.AlterShareGroupOffsetsResponse,
        error_code=ErrorCode.none,
        responses=[
            make(
                types.AlterShareGroupOffsetsResponseTopic,
                topic_name=one.topic_name,
                topic_id=_topic_id(services, one.topic_name),
                partitions=[
                    make(
                        types.AlterShareGroupOffsetsResponsePartition,
                        partition_index=partition.partition_index,
                        error_code=ErrorCode.unknown_topic_or_partition
                        if (one.topic_name, partition.partition_index) in unknown
                        else ErrorCode.none,
                    )
                    for partition in one.partitions
                ],
            )
            for one in request.topics
        ],
    )


# --- DeleteShareGroupOffsets -------------------------------------------------------------------------


@api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, versions=range(1))
async def handle_delete_share_group_offsets(request: Any, context: RequestContext, services: Services) -> Any:
    """DeleteShareGroupOffsets (key 92), version 0.

    Does: forgets a group without members in topics; if it subscribes to them again, it begins anew.
        NON_EMPTY_GROUP while it has members; UNKNOWN_TOPIC_OR_PARTITION for topics in which it has not begun.
    """
    types, groups = context.types, services.share_groups
    await services.root.look()
    begun = {one.topic.name: one.topic.topic_id for one in groups.offsets_of(request.group_id)}
    wanted = {one.topic_name: begun[one.topic_name] for one in request.topics if one.topic_name in begun}
    error = ErrorCode.none
    if wanted or not groups.has(request.group_id):
        error = await groups.forget(request.group_id, list(wanted.values()))
    if error:
        return make(types.DeleteShareGroupOffsetsResponse, error_code=error, error_message=_why(error))
    return make(
        types.DeleteShareGroupOffsetsResponse,
        error_code=ErrorCode.none,
        responses=[
            make(
                types.DeleteShareGroupOffsetsResponseTopic,
                topic_name=one.topic_name,
                topic_id=begun.get(one.topic_name) or _topic_id(services, one.topic_name),
                error_code=ErrorCode.none
                if one.topic_name in wanted
                else ErrorCode.unknown_topic_or_partition,
            )
            for one in request.topics
        ],
    )


def _topic_id(services: Services, name: str) -> str | None:
    topic = services.root.image.topics.get(name)
    return None if topic is None else topic.topic_id


def _why(error: ErrorCode) -> str | None:
    return "The group is not empty." if error is ErrorCode.non_empty_group else None
