"""What goes into a group and what comes out of it: plain values, no Kafka entities, no futures.

A `ticket` stands for a request that waits for its answer; the group hands it back with the answer and never
looks at it.
Invariants: every ticket that a group was given comes back exactly once.
Concurrency: immutable.
"""

import enum
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sparklog.format.consumer_offsets import GroupValue
from sparklog_server.protocol.apis import ErrorCode

# --- subscription ------------------------------------------------------------------------------------
#
# The topics in a consumer's subscription: all that a coordinator reads of what members send.
#
# A group's subscriptions may be megabytes, and tens of thousands of names that differ, and 35 bytes may ask
# for them. So each is walked over once, when it comes; what is kept of that is where its topics end: a set of
# them would take ten times the bytes. Members with the same topics are looked at together.
# Invariants: bytes from clients are hostile: None for whatever is not a subscription, never an exception, and
#     no more work than there are bytes.
# Not here: which members are subscribed (group.py); assignments, which only clients read.
# Sources: Kafka ConsumerProtocolSubscription.json (versions 0 to 3 begin alike).


CONSUMER_PROTOCOL_TYPE: Final = "consumer"
MOST_TOPICS: Final = 100_000  # of all members of a group that differ: some 50 ms to go through
_BEGINNING = struct.Struct(">hi")  # version, how many topics
_VERSION_BYTES, _COUNT_BYTES = 2, 4
_LARGEST_HIGH_BYTE = 0x7F  # of a size; above it is negative


def topics_of(metadata: bytes, end: int | None = None) -> bytes | None:
    """The bytes that name the topics, to be compared and gone through; None if this is no subscription.

    Args:
        end: where they end, if that is known.
    """
    end = topics_end(metadata) if end is None else end
    return None if end is None else metadata[_VERSION_BYTES:end]


def topics_end(metadata: bytes) -> int | None:
    """Where the bytes end that name the topics; None if this is no subscription."""
    at, size = _BEGINNING.size, len(metadata)
    if size < at:
        return None
    version, count = _BEGINNING.unpack_from(metadata)
    if version < 0 or not 0 <= 2 * count <= size - at:
        return None
    for _ in range(count):
        if at + 2 > size or metadata[at] > _LARGEST_HIGH_BYTE:
            return None
        at += 2 + (metadata[at] << 8) + metadata[at + 1]
    return at if at <= size else None


def names_in(topics: bytes) -> Iterator[bytes]:
    """The names in what `topics_of` has found."""
    at, end = _COUNT_BYTES, len(topics)
    while at < end:
        first = at + 2
        at = first + (topics[at] << 8) + topics[at + 1]
        yield topics[first:at]


def named_among(subscriptions: Collection[bytes], topics: Collection[str]) -> frozenset[str] | None:
    """Which of these topics any of them (`topics_of`) names; None: they are too many to go through."""
    if sum(int.from_bytes(topics_named[:_COUNT_BYTES]) for topics_named in subscriptions) > MOST_TOPICS:
        return None
    wanted = {topic.encode(): topic for topic in topics}
    found: set[bytes] = set()
    for topics_named in subscriptions:
        found.update(name for name in names_in(topics_named) if name in wanted)
    return frozenset(wanted[name] for name in found)


# --- transitions -------------------------------------------------------------------------------------
#
# States of a group, what moves it from one to the next, and what each state answers.
#
#     Empty --------> PreparingRebalance --------> CompletingRebalance --------> Stable
#       ^  REBALANCE   |   ^         ALL_JOINED      |                 ASSIGNED    |
#       +--------------+   +-------------------------+-----------------------------+
#          ALL_LEFT                             REBALANCE
#     every state -- REMOVED --> Dead
#
# Invariants: a pair that TRANSITIONS lacks never happens: it is a bug, not an input. Every request has an
#     answer in every state.
# Not here: when a trigger fires (group.py).
# Sources: Kafka ClassicGroupState, GroupCoordinator.


class GroupState(enum.StrEnum):
    """Kafka's states, by the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"  # no members; there may be offsets
    PREPARING_REBALANCE = "PreparingRebalance"  # waits for members to join
    COMPLETING_REBALANCE = "CompletingRebalance"  # waits for the leader's assignment
    STABLE = "Stable"  # everybody has an assignment
    DEAD = "Dead"  # removed; a holder of it must look the group up again


class Trigger(enum.Enum):
    """What can move a group."""

    REBALANCE = enum.auto()  # a member came, went or changed
    ALL_JOINED = enum.auto()  # the waiting is over, and there are members
    ALL_LEFT = enum.auto()  # the waiting is over, and no member is left
    ASSIGNED = enum.auto()  # the leader's assignment is durable
    RESTORED = enum.auto()  # members found in the log after a start
    REMOVED = enum.auto()  # deleted, expired, or the coordinator stops


class Request(enum.Enum):
    """Requests of members that are known, with the right generation."""

    HEARTBEAT = enum.auto()
    SYNC = enum.auto()
    COMMIT = enum.auto()
    REJOIN = enum.auto()


_E, _P, _C, _S, _D = GroupState

TRANSITIONS: Final[Mapping[tuple[GroupState, Trigger], GroupState]] = MappingProxyType(
    {
        (_E, Trigger.REBALANCE): _P,
        (_E, Trigger.RESTORED): _S,
        (_E, Trigger.REMOVED): _D,
        (_P, Trigger.ALL_JOINED): _C,
        (_P, Trigger.ALL_LEFT): _E,
        (_P, Trigger.REMOVED): _D,
        (_C, Trigger.REBALANCE): _P,
        (_C, Trigger.ASSIGNED): _S,
        (_C, Trigger.REMOVED): _D,
        (_S, Trigger.REBALANCE): _P,
        (_S, Trigger.REMOVED): _D,
        (_D, Trigger.REMOVED): _D,
    }
)

# How a valid request of a member is answered; `none` means that it is carried out.
ANSWERS: Final[Mapping[Request, Mapping[GroupState, ErrorCode]]] = MappingProxyType(
    {
        Request.HEARTBEAT: {
            _E: ErrorCode.unknown_member_id,
            # Kept alive, and asked to join again.
            _P: ErrorCode.rebalance_in_progress,
            # Some clients start their heartbeats before they have synced.
            _C: ErrorCode.none,
            _S: ErrorCode.none,
            _D: ErrorCode.coordinator_not_available,
        },
        Request.SYNC: {
            _E: ErrorCode.unknown_member_id,
            _P: ErrorCode.rebalance_in_progress,
            _C: ErrorCode.none,
            _S: ErrorCode.none,
            _D: ErrorCode.coordinator_not_available,
        },
        Request.COMMIT: {
            _E: ErrorCode.none,
            # What was read before the rebalance may still be committed: the heartbeat announces it.
            _P: ErrorCode.none,
            _C: ErrorCode.rebalance_in_progress,
            _S: ErrorCode.none,
            _D: ErrorCode.coordinator_not_available,
        },
        Request.REJOIN: {
            _E: ErrorCode.unknown_member_id,
            _P: ErrorCode.none,
            _C: ErrorCode.none,
            _S: ErrorCode.none,
            _D: ErrorCode.coordinator_not_available,
        },
    }
)


def next_state(state: GroupState, trigger: Trigger) -> GroupState:
    """Where `trigger` leads from `state`; an AssertionError where it must not happen."""
    following = TRANSITIONS.get((state, trigger))
    assert following is not None, f"{trigger.name} cannot happen in {state.value}"
    return following


# --- messages ----------------------------------------------------------------------------------------


UNKNOWN_MEMBER: Final = ""
NO_GENERATION: Final = -1
Ticket = Any
Protocols = tuple[tuple[str, bytes], ...]


class Instant(NamedTuple):
    """A point in time on both clocks: deadlines live on the monotonic one, records on the wall's."""

    monotonic_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """JoinGroup.

    Fields:
        member_id: "" for a new member, which then becomes `new_member_id`.
        needs_member_id: the client knows MEMBER_ID_REQUIRED (JoinGroup 4 and up, KIP-394).
        can_skip_assignment: the client knows SkipAssignment (JoinGroup 9 and up).
    """

    member_id: str
    new_member_id: str
    instance_id: str | None = None
    needs_member_id: bool = True
    can_skip_assignment: bool = False
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """SyncGroup; `protocol_type` and `protocol` are None where the version has none."""

    member_id: str
    generation_id: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """One member of a LeaveGroup; an administrator gives the instance id alone."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member in the leader's answer."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """The answer to a JoinGroup."""

    error: ErrorCode = ErrorCode.none
    member_id: str
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The answer to a SyncGroup."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


def refusal_of(result: JoinResult | SyncResult, error: ErrorCode) -> JoinResult | SyncResult:
    """An error in the place of an answer."""
    if isinstance(result, JoinResult):
        return JoinResult(error=error, member_id=result.member_id)
    return SyncResult(error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Effect: this request is answered."""

    ticket: Ticket
    result: JoinResult | SyncResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreGroup:
    """Effect: make this durable, then call `Group.stored(write_id, error)`."""

    write_id: int
    value: GroupValue


Effect = Answer | StoreGroup


# --- generation --------------------------------------------------------------------------------------
#
# Which generation a group is in: its number, its state, and the protocol that its members have in common.
#
# Invariants: states move as in the table of transitions; the number only grows, until it wraps.
# Not here: who the members are (members.py), what moves a group (rebalancing.py).
# Concurrency: none; owned by one group.
# Sources: Kafka ClassicGroup (transitionTo, initNextGeneration).


class Generation:
    """See the comment at the head of this section."""

    __slots__ = ("generation_id", "protocol", "protocol_type", "state", "state_since_ms")

    def __init__(self, now: Instant) -> None:
        self.state = GroupState.EMPTY
        self.state_since_ms = now.wall_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None

    def move(self, trigger: Trigger, now: Instant) -> None:
        """Go to the state to which `trigger` leads."""
        self.state = next_state(self.state, trigger)
        self.state_since_ms = now.wall_ms

    def begin_next(self) -> None:
        """Count the next one."""
        self.generation_id = (self.generation_id + 1) & 0x7FFFFFFF
