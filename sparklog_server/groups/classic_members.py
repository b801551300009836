"""Members of the classic protocol in a consumer group: their requests, translated.

While a fleet goes over from one protocol to the other, a group has members of both. The coordinator
assigns for all. A member of the classic protocol learns of a new assignment in the steps of its protocol:

    Heartbeat: REBALANCE_IN_PROGRESS -> JoinGroup, with what it keeps -> SyncGroup: its assignment

Its generation is its member epoch. It owns what it names in JoinGroup: nothing, if it gives everything up
before it joins (eager assignors); else it gives up what its assignment lacks, and joins once more.
Invariants: only its own JoinGroup changes what is assigned to a member, so that SyncGroup answers what
    JoinGroup has decided. A member that is told to join again, or has joined, is removed if it has not
    joined, or synced, within its rebalance timeout.
Not here: what becomes of a member's words (consumer_group.py), becoming a group of one protocol
    (migration.py), futures and writing (consumer_table.py).
Concurrency: none; a group is owned by its table.
Sources: Kafka GroupMetadataManager (classicGroupJoinToConsumerGroup, ...SyncTo..., ...HeartbeatTo...,
    ...LeaveTo...), 4.4; KIP-848, "Online Migration".
"""

from collections.abc import Sequence

from sparklog.format.consumer_group_records import (
    AssignedPartitions,
    ClassicMember,
    MemberState,
    Partitions,
)
from sparklog_server.groups.consumer_group import ConsumerGroup
from sparklog_server.groups.consumer_members import JOIN, Catalog, ConsumerMember, HeartbeatRequest
from sparklog_server.groups.consumer_protocol import (
    ConsumerSubscription,
    NamedPartitions,
    decode_subscription,
    encode_assignment,
    version_of,
)
from sparklog_server.groups.messages import (
    CONSUMER_PROTOCOL_TYPE,
    UNKNOWN_MEMBER,
    Instant,
    JoinRequest,
    JoinResult,
    Leaving,
    SyncRequest,
    SyncResult,
)
from sparklog_server.protocol.apis import ErrorCode


def read_join(
    group: ConsumerGroup, request: JoinRequest, catalog: Catalog
) -> tuple[HeartbeatRequest | None, JoinResult]:
    """Return what a JoinGroup says, for `join`, or the answer that refuses it.

    The first protocol counts, as in Kafka.
    """
    is_new = request.member_id == UNKNOWN_MEMBER
    member_id = request.new_member_id if is_new else request.member_id
    error = _refuse_join(group, request, member_id)
    if not error and is_new and request.instance_id is None and request.needs_member_id:
        return None, JoinResult(error=ErrorCode.member_id_required, member_id=member_id)  # KIP-394
    if not error and request.instance_id is not None and not is_new:
        error = _refuse_instance(group, member_id, request.instance_id)
    said = None if error else decode_subscription(request.protocols[0][1])
    if said is None:
        error = error or ErrorCode.inconsistent_group_protocol
    return (
        None if said is None else _as_heartbeat(request, member_id, said, catalog),
        JoinResult(error=error, member_id=request.member_id),
    )


def join(group: ConsumerGroup, said: HeartbeatRequest, catalog: Catalog, now: Instant) -> JoinResult:
    """JoinGroup: to be answered when what the group has written is durable."""
    member = group.follow(said, catalog, now)
    group.expect(member, now)  # SyncGroup
    return JoinResult(
        member_id=member.member_id,
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol=_classic(member).protocols[0][0],
    )


def _as_heartbeat(
    request: JoinRequest, member_id: str, said: ConsumerSubscription, catalog: Catalog
) -> HeartbeatRequest:
    return HeartbeatRequest(
        member_id=member_id,
        member_epoch=JOIN,
        instance_id=request.instance_id,
        rack_id=said.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=said.topics,
        regex="",
        owned=placed(said.owned, catalog),
        classic=ClassicMember(session_timeout_ms=request.session_timeout_ms, protocols=request.protocols),
    )


def _refuse_join(group: ConsumerGroup, request: JoinRequest, member_id: str) -> ErrorCode:
    has_place = member_id in group.members or request.instance_id in group.static
    if len(group.members) >= group.limits.max_size and not has_place:
        return ErrorCode.group_max_size_reached
    names = {name for name, _ in request.protocols}
    is_common = any(group.classic_votes[name] == group.classic_count for name in names)
    if (
        request.protocol_type != CONSUMER_PROTOCOL_TYPE
        or not is_common
        or len(names) < len(request.protocols)
    ):
        return ErrorCode.inconsistent_group_protocol
    return ErrorCode.none


def sync(group: ConsumerGroup, request: SyncRequest, catalog: Catalog, now: Instant) -> SyncResult:
    """SyncGroup: its assignment, to be answered when what the group has written is durable."""
    member, error = _found(group, request.member_id, request.instance_id, request.generation_id)
    if member is None:
        return SyncResult(error=error)
    protocol, metadata = _classic(member).protocols[0]
    if request.protocol_type not in {None, CONSUMER_PROTOCOL_TYPE} or request.protocol not in {
        None,
        protocol,
    }:
        return SyncResult(error=ErrorCode.inconsistent_group_protocol)
    # One that gives up partitions has joined already: it joins once more when it has given them up.
    is_behind = member.epoch < group.target_epoch
    if is_behind and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        _expect_join(group, member, now)
        return SyncResult(error=ErrorCode.rebalance_in_progress)
    member.rebalance_deadline_ms = None
    group.touch(member, now)
    assigned = named(member.current.assigned, catalog)
    return SyncResult(
        protocol_type=request.protocol_type,
        protocol=request.protocol,
        assignment=encode_assignment(assigned, version_of(metadata) or 0),
    )


def heartbeat(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int, now: Instant
) -> ErrorCode:
    """Heartbeat: REBALANCE_IN_PROGRESS if the member is to join again, since it would get on by that."""
    member, error = _found(group, member_id, instance_id, generation_id)
    if member is None:
        return error
    group.touch(member, now)
    state = member.current.state
    if (
        member.epoch < group.target_epoch
        or state is MemberState.UNREVOKED_PARTITIONS
        or (state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member))
    ):
        _expect_join(group, member, now)
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def leave(group: ConsumerGroup, leaving: Sequence[Leaving], now: Instant) -> list[ErrorCode]:
    """LeaveGroup: an error per member. As in Kafka, it also removes members of the new protocol."""
    errors, members = [], {}
    for one in leaving:
        member_id, error = one.member_id, ErrorCode.none
        if one.instance_id is not None:
            if member_id == UNKNOWN_MEMBER:  # an administrator
                member_id = group.static.get(one.instance_id, UNKNOWN_MEMBER)
            error = _refuse_instance(group, member_id, one.instance_id)
        member = group.members.get(member_id)
        if not error and member is None:
            error = ErrorCode.unknown_member_id
        elif not error and member is not None:
            members[member_id] = member
        errors.append(error)
    group.remove(members.values(), now)
    return errors


# --- checks ------------------------------------------------------------------------------------------


def _found(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
) -> tuple[ConsumerMember | None, ErrorCode]:
    """Return the member, if it is of the classic protocol and in this generation; else why not."""
    error = ErrorCode.none if instance_id is None else _refuse_instance(group, member_id, instance_id)
    member = group.members.get(member_id)
    if error or member is None or not member.is_classic:
        return None, error or ErrorCode.unknown_member_id
    if member.epoch != generation_id:
        return None, ErrorCode.illegal_generation
    return member, ErrorCode.none


def _refuse_instance(group: ConsumerGroup, member_id: str, instance_id: str) -> ErrorCode:
    held_by = group.static.get(instance_id)
    if held_by is None:
        return ErrorCode.unknown_member_id
    return ErrorCode.none if held_by == member_id else ErrorCode.fenced_instance_id


def _waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """True if partitions of its target are still with other members."""
    return any(
        group.owners.get((topic_id, partition), member.member_id) != member.member_id
        for topic_id, some in group.targets.get(member.member_id, {}).items()
        for partition in some
    )


def _expect_join(group: ConsumerGroup, member: ConsumerMember, now: Instant) -> None:
    if member.rebalance_deadline_ms is None:
        group.expect(member, now)


def _classic(member: ConsumerMember) -> ClassicMember:
    assert member.subscription.classic is not None
    return member.subscription.classic


# --- partitions by topic name and by topic id --------------------------------------------------------


def placed(partitions: NamedPartitions, catalog: Catalog) -> Partitions:
    """Return those of these partitions that there are, by topic id."""
    found: dict[str, frozenset[int]] = {}
    for name, some in partitions.items():
        shape = catalog.find(name)
        if shape is not None:
            found[shape.topic_id] = frozenset(p for p in some if 0 <= p < shape.partitions)
    return found


def named(partitions: AssignedPartitions, catalog: Catalog) -> NamedPartitions:
    """Return the partitions of topics that there are, by name."""
    names = ((catalog.name_of(topic_id), some) for topic_id, some in partitions.items())
    return {name: frozenset(some) for name, some in names if name is not None}
