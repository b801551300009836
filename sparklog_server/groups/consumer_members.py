"""Members of a consumer group (KIP-848): their heartbeats, and how they get to the target assignment.

A member moves to the target's epoch once it has given up all that is not in its target. A partition is
assigned only after its previous owner has released it: that one says so by leaving it out of the partitions
that it owns, or it leaves, or its session ends.

    STABLE -> UNREVOKED_PARTITIONS (gives up) -> UNRELEASED_PARTITIONS (waits for others) -> STABLE

Invariants: `reconciled` adds only partitions that are free, and raises the epoch only when the member has
    nothing beyond its target.
Not here: the group's epochs, and who owns what (consumer_group.py).
Concurrency: pure functions; a member is owned by one group.
Sources: Kafka CurrentAssignmentBuilder, ConsumerGroupMember; KIP-848, KIP-1082.
"""

import enum
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from sparklog.format.consumer_group_records import (
    AssignedPartitions,
    ClassicMember,
    ConsumerGroupKey,
    ConsumerGroupValue,
    CurrentAssignment,
    MemberState,
    Partitions,
    Subscription,
)
from sparklog_server.groups.assignors import ASSIGNORS, AssignedMember, Assignment, TopicShape
from sparklog_server.groups.members import protocols_bytes
from sparklog_server.protocol.apis import ErrorCode

JOIN, LEAVE, LEAVE_FOR_NOW = 0, -1, -2  # member epochs of requests
MEMBER_BYTES: Final = 2_000  # a member, with names of common length
PARTITION_BYTES: Final = 240  # that is assigned: in the target, to its member, and among the owners
FOUND_BYTES: Final = 30  # a topic that a regular expression has found, without the name: the image has it
_TOPIC_BYTES: Final = 60  # of a subscription, without the name

# --- messages ----------------------------------------------------------------------------------------


class ConsumerGroupState(enum.StrEnum):
    """Kafka's states, by the names that ConsumerGroupDescribe and ListGroups show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"  # the target assignment is not computed yet
    RECONCILING = "Reconciling"  # members are on their way to it
    STABLE = "Stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """ConsumerGroupHeartbeat; None (-1 of the timeout) stands for: as in the last one.

    Fields:
        topics, regex: the subscription; an empty regex ends one.
        owned: partitions that the member has now, by topic id.
        classic: of a JoinGroup: what a member of the classic protocol says.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    classic: ClassicMember | None = None

    @property
    def is_full(self) -> bool:
        """True if it says everything: of a member that joins, or has missed an answer."""
        return self.member_epoch == JOIN or (
            self.rebalance_timeout_ms != -1
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """The answer. `assigned`: None if it is as in the last one."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    assigned: AssignedPartitions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """The topics that there are.

    Fields:
        version: differs whenever any of them may have changed.
        name_of: of a topic id.
    """

    version: int
    find: Callable[[str], TopicShape | None]
    name_of: Callable[[str], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupLimits:
    """Settings of a group.

    Fields:
        assignors: the first one is the default.
        max_classic_size: members that it may have when it becomes a classic group; 0: it never does.
    """

    max_size: int
    session_timeout_ms: int
    assignment_interval_ms: int
    assignors: tuple[str, ...] = tuple(ASSIGNORS)
    max_classic_size: int = 0


class ConsumerRecord(NamedTuple):
    """A record of the group; without a value it is deleted."""

    key: ConsumerGroupKey
    value: ConsumerGroupValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentTask:
    """What an assignor needs, apart from the group: it may run in a thread."""

    epoch: int
    assignor: str
    members: Mapping[str, AssignedMember]
    topics: Mapping[str, TopicShape]

    def run(self) -> Assignment:
        """Compute the target assignment."""
        return ASSIGNORS[self.assignor](self.members, self.topics)


def refusal(error: ErrorCode, message: str) -> HeartbeatAnswer:
    """Return an answer with an error."""
    return HeartbeatAnswer(error=error, message=message)


def refuse_request(
    request: HeartbeatRequest, assignors: Collection[str], *, makes_ids: bool
) -> HeartbeatAnswer | None:
    """Return the answer to a request that is wrong by itself. `makes_ids`: in version 0 the broker may."""
    epoch = request.member_epoch
    wrong = None
    if epoch < LEAVE_FOR_NOW:
        wrong = f"found member epoch {epoch}, expected 0 to join, -1 or -2 to leave, or the member's own"
    elif not request.member_id and not (makes_ids and epoch == JOIN):
        wrong = "found no member id"
    elif request.instance_id == "" or request.rack_id == "":
        wrong = "found an empty instance id or rack, expected none"
    elif epoch == LEAVE_FOR_NOW and request.instance_id is None:
        wrong = "found member epoch -2 without an instance id"
    elif epoch == JOIN:
        wrong = _refuse_joining(request)
    if wrong is not None:
        return refusal(ErrorCode.invalid_request, wrong)
    if request.assignor is not None and request.assignor not in assignors:
        known = ", ".join(assignors)
        return refusal(
            ErrorCode.unsupported_assignor,
            f"found the server assignor {request.assignor[:100]!r}, expected one of {known}",
        )
    return None


def _refuse_joining(request: HeartbeatRequest) -> str | None:
    if request.rebalance_timeout_ms == -1:
        return "found no rebalance timeout in the first request"
    if request.owned is None or any(request.owned.values()):
        return "found partitions, or none named, in the first request; expected an empty list"
    # No topics are a subscription, too: Java's consumer may join before its own pattern has found any.
    if request.topics is None and request.regex is None:
        return "found no subscription in the first request; expected names or a regular expression"
    return None


# --- member ------------------------------------------------------------------------------------------

_NOTHING: Final = CurrentAssignment(epoch=0, previous_epoch=0, state=MemberState.STABLE)


@dataclass(slots=True, kw_only=True, eq=False)
class ConsumerMember:
    """A member. Deadlines are monotonic.

    Fields:
        rebalance_deadline_ms: by when it must have given up partitions, or, of the classic protocol, have
            joined again or synced; None: nothing is expected.
    """

    member_id: str
    subscription: Subscription = field(default_factory=Subscription)
    current: CurrentAssignment = _NOTHING
    session_deadline_ms: int = 0
    rebalance_deadline_ms: int | None = None

    @property
    def epoch(self) -> int:
        """The epoch that its next request must have."""
        return self.current.epoch

    @property
    def is_classic(self) -> bool:
        """True if it is of the classic protocol."""
        return self.subscription.classic is not None

    def is_late(self, monotonic_ms: int) -> bool:
        """True if its session is over, or it has not done in time what was expected of it."""
        expected_ms = self.rebalance_deadline_ms
        return self.session_deadline_ms <= monotonic_ms or (
            expected_ms is not None and expected_ms <= monotonic_ms
        )

    @property
    def held_bytes(self) -> int:
        """What its subscription and it itself take."""
        return held_bytes(self.subscription)


def held_bytes(subscription: Subscription) -> int:
    """Return about what a member with this subscription takes."""
    topics = sum(map(len, subscription.topics)) + _TOPIC_BYTES * len(subscription.topics)
    classic = 0 if subscription.classic is None else protocols_bytes(subscription.classic.protocols)
    return MEMBER_BYTES + topics + len(subscription.regex or "") + classic


def changed_subscription(subscription: Subscription, request: HeartbeatRequest) -> Subscription:
    """Return what a member says of itself after this request."""
    changes: dict[str, object] = {}
    if request.instance_id is not None and request.instance_id != subscription.instance_id:
        changes["instance_id"] = request.instance_id
    if request.rack_id is not None and request.rack_id != subscription.rack_id:
        changes["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms not in {-1, subscription.rebalance_timeout_ms}:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.client_id != subscription.client_id or request.client_host != subscription.client_host:
        changes |= {"client_id": request.client_id, "client_host": request.client_host}
    if request.topics is not None and (topics := tuple(sorted(set(request.topics)))) != subscription.topics:
        changes["topics"] = topics
    if request.regex is not None and (request.regex or None) != subscription.regex:
        changes["regex"] = request.regex or None
    if request.assignor is not None and request.assignor != subscription.assignor:
        changes["assignor"] = request.assignor
    if request.classic != subscription.classic:
        changes["classic"] = request.classic
    return replace(subscription, **changes) if changes else subscription  # type: ignore[arg-type]


def assigned_bytes(names: Collection[str], catalog: Catalog) -> int:
    """Return about what the partitions of these topics take when they are assigned."""
    shapes = (catalog.find(name) for name in names)
    return PARTITION_BYTES * sum(shape.partitions for shape in shapes if shape is not None)


def changes_topics(subscription: Subscription, request: HeartbeatRequest) -> bool:
    """True if a member reads other topics after this request."""
    after = changed_subscription(subscription, request)
    return (after.topics, after.regex) != (subscription.topics, subscription.regex)


# --- reconciliation ----------------------------------------------------------------------------------


def _both(assigned: AssignedPartitions, wanted: Partitions) -> dict[str, dict[int, int]]:
    found = {}
    for topic, some in assigned.items():
        of_topic = wanted.get(topic, frozenset())
        kept = {partition: epoch for partition, epoch in some.items() if partition in of_topic}
        if kept:
            found[topic] = kept
    return found


def _without(assigned: AssignedPartitions, kept: AssignedPartitions) -> dict[str, dict[int, int]]:
    found = {}
    for topic, some in assigned.items():
        of_topic = kept.get(topic, {})
        left = {partition: epoch for partition, epoch in some.items() if partition not in of_topic}
        if left:
            found[topic] = left
    return found


def _owns_any(owned: Partitions | None, of: AssignedPartitions) -> bool:
    """True if a member still has any of these, or does not say so."""
    if owned is None:
        return True
    return any(not of.get(topic, {}).keys().isdisjoint(some) for topic, some in owned.items())


def reconciled(
    current: CurrentAssignment,
    target: Partitions,
    target_epoch: int,
    *,
    owned: Partitions | None,
    is_free: Callable[[str, int], bool],
    must_check: bool = False,
) -> CurrentAssignment:
    """Return a member's next assignment on its way to the target.

    Args:
        target: of subscribed topics only.
        owned: what the member says it has; None: it does not say.
        is_free: no other member has the partition, or still has to give it up.
        must_check: the member's topics have changed: go by the target also where nothing else has.
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch and not must_check:
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, current.pending_revocation):
        if not must_check:
            return current
        kept = _both(current.assigned, target)
        pending = {topic: dict(some) for topic, some in current.pending_revocation.items()}
        for topic, given_up in _without(current.assigned, kept).items():
            pending.setdefault(topic, {}).update(given_up)
        return replace(current, assigned=kept, pending_revocation=pending)
    kept = _both(current.assigned, target)
    pending = _without(current.assigned, kept)
    if pending and _owns_any(owned, pending):
        return replace(
            current, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending_revocation=pending
        )
    assigned, is_waiting = kept, False
    for topic, some in target.items():
        missing = [partition for partition in some if partition not in kept.get(topic, {})]
        free = [partition for partition in missing if is_free(topic, partition)]
        is_waiting = is_waiting or len(free) < len(missing)
        if free:
            assigned.setdefault(topic, {}).update(dict.fromkeys(sorted(free), target_epoch))
    return CurrentAssignment(
        epoch=target_epoch,
        previous_epoch=current.previous_epoch if current.epoch == target_epoch else current.epoch,
        state=MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE,
        assigned=assigned,
    )


def places(current: CurrentAssignment) -> Iterator[tuple[str, int]]:
    """Yield the partitions that a member has, or still has to give up."""
    for some in (current.assigned, current.pending_revocation):
        for topic_id, partitions in some.items():
            for partition in partitions:
                yield topic_id, partition


def first_epoch(stored: tuple[str, CurrentAssignment]) -> tuple[int, str]:
    current = stored[1]
    epochs = [
        epoch
        for some in (current.assigned, current.pending_revocation)
        for p in some.values()
        for epoch in p.values()
    ]
    return min(epochs, default=0), stored[0]


def unowned(current: CurrentAssignment, owners: Mapping[tuple[str, int], str]) -> CurrentAssignment:
    """Return the assignment without what others own."""
    if not any(place in owners for place in places(current)):
        return current

    def left(some: AssignedPartitions) -> dict[str, dict[int, int]]:
        return {
            topic: {p: epoch for p, epoch in partitions.items() if (topic, p) not in owners}
            for topic, partitions in some.items()
        }

    return replace(
        current, assigned=left(current.assigned), pending_revocation=left(current.pending_revocation)
    )
