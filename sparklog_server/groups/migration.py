"""Groups with members that go over from one protocol to the other (KIP-848, online migration).

    classic group  -- a member of the new protocol joins -------->  consumer group, with members of both
    consumer group -- its last member of the new protocol goes -->  classic group, which rebalances

Both ways the group that follows is made from its records, by the code that makes it after a start; the
records of the group that was are deleted in the same append.
Invariants: no partition is free that a member may use. A member of a classic group may use what its leader
    has assigned to it, and what it kept when it joined last: with cooperative assignors it gives that up
    after SyncGroup, while the group is stable already. (Kafka counts only the assignment.)
Not here: whether a group of this policy and size may change (coordinator.py, consumer_group.py), appending
    (consumer_table.py), groups without members, which end when one of the other protocol comes.
Concurrency: pure functions.
Sources: Kafka GroupMetadataManager (convertToConsumerGroup, convertToClassicGroup), ConsumerGroup
    (fromClassicGroup), ClassicGroup (fromConsumerGroup), 4.4; KIP-848.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from sparklog.format.consumer_group_records import (
    ClassicMember,
    ConsumerGroupKey,
    ConsumerGroupValue,
    CurrentAssignment,
    GroupEpoch,
    MemberState,
    MemberTarget,
    Partitions,
    RecordKind,
    Subscription,
    TargetEpoch,
)
from sparklog.format.consumer_offsets import GroupValue
from sparklog_server.groups.classic_members import named, placed
from sparklog_server.groups.consumer_group import ConsumerGroup
from sparklog_server.groups.consumer_members import (
    Catalog,
    ConsumerGroupLimits,
    ConsumerRecord,
    HeartbeatAnswer,
    refusal,
)
from sparklog_server.groups.consumer_protocol import (
    ConsumerSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    version_of,
)
from sparklog_server.groups.group import Group
from sparklog_server.groups.members import Member, Members
from sparklog_server.groups.messages import CONSUMER_PROTOCOL_TYPE, Instant
from sparklog_server.protocol.apis import ErrorCode

# Those of Kafka's clients. User data of their assignments is of no use to members: librdkafka's leader
# returns what a member has sent to it, with cooperative-sticky. (Kafka refuses any user data.)
KNOWN_ASSIGNORS: Final = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
_Place = tuple[str, int]

# --- upgrade -----------------------------------------------------------------------------------------


class Upgrade:
    """The consumer group that follows a classic one. `refused`: why there is none."""

    def __init__(self, classic: Group, catalog: Catalog) -> None:
        self.refused: HeartbeatAnswer | None = None
        self._classic = classic
        self._values: dict[ConsumerGroupKey, ConsumerGroupValue] = {}
        epoch = classic.generation_id
        self._set(RecordKind.GROUP, "", GroupEpoch(epoch=epoch))
        self._set(RecordKind.TARGET, "", TargetEpoch(epoch=epoch))
        subscriptions: list[tuple[Member, ConsumerSubscription]] = []
        owners: dict[_Place, str] = {}
        for member in classic.members:
            said = decode_subscription(_metadata(member, classic.protocol))
            given = decode_assignment(member.assignment)
            if said is None or given is None:
                self.refused = _not_upgraded("its members' subscriptions or assignments cannot be read")
                return
            if given.user_data and classic.protocol not in KNOWN_ASSIGNORS:
                self.refused = _not_upgraded(
                    "an assignor of its members' own would lose what it has assigned"
                )
                return
            subscriptions.append((member, said))
            for place in _places(placed(given.partitions, catalog)):
                owners.setdefault(place, member.member_id)
        assigned = _by_member(owners)
        for member, said in subscriptions:
            kept = placed(said.owned, catalog)
            giving_up = {place for place in _places(kept) if place not in owners}
            owners.update(dict.fromkeys(giving_up, member.member_id))
            self._add(member, said, assigned.get(member.member_id, set()), giving_up)

    def group(self, limits: ConsumerGroupLimits, now: Instant) -> ConsumerGroup:
        """Return the group, with fresh sessions."""
        group = ConsumerGroup(self._classic.group_id, limits)
        group.restore(self._values, now)
        return group

    @property
    def records(self) -> list[ConsumerRecord]:
        """Return the records of the group; the classic group's are to be deleted with them."""
        return [ConsumerRecord(key, value) for key, value in self._values.items()]

    def _add(
        self, member: Member, said: ConsumerSubscription, assigned: set[_Place], giving_up: set[_Place]
    ) -> None:
        subscription = Subscription(
            instance_id=member.instance_id,
            rack_id=said.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topics=tuple(sorted(set(said.topics))),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicMember(session_timeout_ms=member.session_timeout_ms, protocols=member.protocols),
        )
        epoch, target = self._classic.generation_id, _by_topic(assigned)
        current = CurrentAssignment(
            epoch=epoch,
            previous_epoch=epoch,
            state=MemberState.UNREVOKED_PARTITIONS if giving_up else MemberState.STABLE,
            assigned=_since(epoch, target),
            pending_revocation=_since(epoch, _by_topic(giving_up)),
        )
        self._set(RecordKind.MEMBER, member.member_id, subscription)
        self._set(RecordKind.MEMBER_TARGET, member.member_id, MemberTarget(partitions=target))
        self._set(RecordKind.MEMBER_ASSIGNMENT, member.member_id, current)

    def _set(self, kind: RecordKind, name: str, value: ConsumerGroupValue) -> None:
        self._values[ConsumerGroupKey(kind, self._classic.group_id, name)] = value


def _not_upgraded(why: str) -> HeartbeatAnswer:
    return refusal(ErrorCode.group_id_not_found, f"the classic group cannot become a consumer group: {why}")


def _metadata(member: Member, protocol: str | None) -> bytes:
    """Return what a member has sent for the group's protocol; before there is one, for its first."""
    return member.metadata(protocol) or next((data for _, data in member.protocols), b"")


def _places(partitions: Partitions) -> Iterator[_Place]:
    return ((topic_id, partition) for topic_id, some in partitions.items() for partition in some)


def _by_member(owners: dict[_Place, str]) -> dict[str, set[_Place]]:
    found: dict[str, set[_Place]] = {}
    for place, member_id in owners.items():
        found.setdefault(member_id, set()).add(place)
    return found


def _by_topic(places: set[_Place]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for topic_id, partition in places:
        found.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(some) for topic_id, some in sorted(found.items())}


def _since(epoch: int, partitions: Partitions) -> dict[str, dict[int, int]]:
    return {topic_id: dict.fromkeys(sorted(some), epoch) for topic_id, some in partitions.items()}


# --- downgrade ---------------------------------------------------------------------------------------


def downgraded(group: ConsumerGroup, catalog: Catalog, now: Instant, *, max_bytes: int) -> GroupValue | None:
    """Return the classic group that follows, whose members are all of the classic protocol.

    It has no leader, so that it rebalances when it is made. Until then its assignments are what its members
    may use: it may become a consumer group once more. (Kafka has the target assignment there, which after a
    crash would be kept.) Its generation is the epoch of members that follow the last assignment: these are
    asked to join again, and others find that theirs is over.

    Args:
        max_bytes: of its record.
    Returns: None if there is no protocol in common, or its record would be too long.
    """
    members, assignments = Members(), {}
    for member in group.members.values():
        said = member.subscription
        assert said.classic is not None
        members.add(
            Member(
                member_id=member.member_id,
                instance_id=said.instance_id,
                client_id=said.client_id,
                client_host=said.client_host,
                rebalance_timeout_ms=said.rebalance_timeout_ms,
                session_timeout_ms=said.classic.session_timeout_ms,
                protocols=said.classic.protocols,
            )
        )
    if not members.all_know_one_of(members.votes):
        return None
    protocol = members.choose_protocol()
    for one in members:
        partitions = named(_in_use(group.members[one.member_id].current), catalog)
        version = version_of(one.metadata(protocol)) or 0
        assignments[one.member_id] = encode_assignment(partitions, version)
    if members.record_bytes + sum(map(len, assignments.values())) > max_bytes:
        return None
    return GroupValue(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation_id=group.target_epoch,
        protocol=protocol,
        leader=None,
        state_timestamp_ms=now.wall_ms,
        members=members.stored_members(protocol, assignments),
    )


def _in_use(current: CurrentAssignment) -> Mapping[str, Mapping[int, int]]:
    topics = current.assigned.keys() | current.pending_revocation.keys()
    return {
        topic: {**current.assigned.get(topic, {}), **current.pending_revocation.get(topic, {})}
        for topic in topics
    }
