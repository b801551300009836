"""Consumer groups of the new protocol (KIP-848): heartbeats of members, and descriptions.

Not here: the decisions (groups/consumer_group.py), groups of the classic protocol (groups.py), offsets.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from sparklog.format.consumer_group_records import AssignedPartitions, Partitions
from sparklog.metadata import AclOperation, Image, ResourceType
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.groups.consumer_group import ConsumerGroup
from sparklog_server.groups.consumer_members import ConsumerMember, HeartbeatRequest
from sparklog_server.groups.consumer_protocol import gathered
from sparklog_server.groups.coordinator import MAX_CLIENT_ID_CHARACTERS
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make, topic_id_text
from sparklog_server.protocol.wire import in_slices
from sparklog_server.security.access import group_operations

# --- ConsumerGroupHeartbeat --------------------------------------------------------------------------

_MEMBER_MAKES_ID_SINCE = 1


@api(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=range(2))
async def handle_consumer_group_heartbeat(request: Any, context: RequestContext, services: Services) -> Any:
    """ConsumerGroupHeartbeat (key 68), versions 0-1.

    Does: members join (epoch 0), go on, leave (-1), or leave for a moment (-2, static members); they learn
        their assignment by the answers. Assignors `uniform` and `range`. Regular expressions match whole
        names of topics, and no internal ones. A classic group becomes a consumer group when a member joins,
        if it is empty, or group.consumer.migration.policy allows it and its members are consumers; else it
        is GROUP_ID_NOT_FOUND, as is a share group. Answered when what it says is durable.
    Versions: 1 the member makes its id (KIP-1082), regular expressions.
    """
    is_of_first_version = context.api_version < _MEMBER_MAKES_ID_SINCE
    if services.share_groups.owns(request.group_id):
        message = f"group {request.group_id} is a share group, and no consumer group"
        return make(
            context.types.ConsumerGroupHeartbeatResponse,
            error_code=ErrorCode.group_id_not_found,
            error_message=message,
        )
    owned = request.topic_partitions
    topics = request.subscribed_topic_names
    caller = services.access.caller(context)
    answer = await services.groups.consumer_heartbeat(
        request.group_id,
        HeartbeatRequest(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=field(request, "rebalance_timeout", -1),
            client_id=context.client_id[:MAX_CLIENT_ID_CHARACTERS],
            client_host=f"/{context.peer_host}",
            topics=None if topics is None else tuple(topics),
            regex=field(request, "subscribed_topic_regex"),
            assignor=request.server_assignor,
            owned=None if owned is None else _owned(owned),
        ),
        makes_ids=is_of_first_version,
        visible=lambda names: caller.visible(names, AclOperation.DESCRIBE, ResourceType.TOPIC, str),
    )
    types = context.types
    if answer.error:
        return make(
            types.ConsumerGroupHeartbeatResponse, error_code=answer.error, error_message=answer.message
        )
    assignment = None
    if answer.assigned is not None:
        count = sum(map(len, answer.assigned.values()))
        await context.answer.hold(_TOPIC_BYTES * len(answer.assigned) + _PARTITION_BYTES * count)
        assigned = await in_slices(
            make(types.TopicPartitions, topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in answer.assigned.items()
        )
        assignment = make(types.Assignment, topic_partitions=assigned)
    return make(
        types.ConsumerGroupHeartbeatResponse,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=services.groups.consumers.heartbeat_interval_ms(request.group_id),
        assignment=assignment,
    )


def _owned(owned: Any) -> Partitions:
    return gathered(
        ("" if one.topic_id is None else topic_id_text(one.topic_id), one.partitions) for one in owned
    )


# --- ConsumerGroupDescribe ---------------------------------------------------------------------------

_TOPIC_BYTES: Final = 300  # of an assignment, while it is made
_MEMBER_BYTES: Final = 1_500  # while the answer is made, without what it has sent itself
_PARTITION_BYTES: Final = 20
_CLASSIC_TYPE, _CONSUMER_TYPE = 0, 1


@api(ApiKey.CONSUMER_GROUP_DESCRIBE, versions=range(2))
async def handle_consumer_group_describe(request: Any, context: RequestContext, services: Services) -> Any:
    """ConsumerGroupDescribe (key 69), versions 0-1.

    Does: state, epochs, assignor and members of consumer groups, with their target and current assignments;
        GROUP_ID_NOT_FOUND for others. Topics that are gone are left out.
    Beyond 32 MiB of members the rest of the groups is answered UNKNOWN_SERVER_ERROR: request fewer.
    Versions: 1 the type of a member (KIP-1099).
    """
    types, groups = context.types, services.groups
    caller = services.access.caller(context) if request.include_authorized_operations else None
    described = []
    found: dict[str, ConsumerGroup | ErrorCode] = {}
    for group_id in dict.fromkeys(request.group_ids):
        error = groups.describe_error(group_id)
        group = None if error else groups.find_consumers(group_id)
        if group is None:
            found[group_id] = error or ErrorCode.group_id_not_found
        elif context.answer.fits(_description_bytes(group)):
            found[group_id] = group
        else:
            found[group_id] = ErrorCode.unknown_server_error
    await context.answer.reserve()
    for group_id, group_or_error in found.items():
        if isinstance(group_or_error, ErrorCode):
            is_unknown = group_or_error is ErrorCode.group_id_not_found
            message = "there is no such consumer group" if is_unknown else None
            described.append(_not_described(types, group_id, group_or_error, message))
        else:
            described.append(
                await _described(
                    types, group_or_error, services.root.image, group_operations(caller, group_id)
                )
            )
    return make(types.ConsumerGroupDescribeResponse, groups=described)


def _description_bytes(group: ConsumerGroup) -> int:
    partitions = 2 * len(group.owners)
    return group.subscription_bytes + _MEMBER_BYTES * len(group.members) + _PARTITION_BYTES * partitions


def _not_described(types: ModuleType, group_id: str, error: ErrorCode, message: str | None) -> Any:
    return make(
        types.DescribedGroup,
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


async def _described(types: ModuleType, group: ConsumerGroup, image: Image, operations: int) -> Any:
    members = await in_slices(
        _described_member(types, member, group.targets.get(member.member_id, {}), image)
        for member in list(group.members.values())
    )
    return make(
        types.DescribedGroup,
        error_code=ErrorCode.none,
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=members,
        authorized_operations=operations,
    )


def _described_member(types: ModuleType, member: ConsumerMember, target: Partitions, image: Image) -> Any:
    said = member.subscription
    return make(
        types.Member,
        member_id=member.member_id,
        instance_id=said.instance_id,
        rack_id=said.rack_id,
        member_epoch=member.epoch,
        client_id=said.client_id,
        client_host=said.client_host,
        subscribed_topic_names=said.topics,
        subscribed_topic_regex=said.regex,
        assignment=_named(types, member.current.assigned, image),
        target_assignment=_named(types, target, image),
        member_type=_CLASSIC_TYPE if member.is_classic else _CONSUMER_TYPE,
    )


def _named(types: ModuleType, assigned: AssignedPartitions | Partitions, image: Image) -> Any:
    topics: Mapping[str, Any] = assigned
    return make(
        types.Assignment,
        topic_partitions=[
            make(
                types.TopicPartitions,
                topic_id=topic_id,
                topic_name=image.topic_by_id[topic_id].name,
                partitions=sorted(partitions),
            )
            for topic_id, partitions in topics.items()
            if topic_id in image.topic_by_id
        ],
    )
