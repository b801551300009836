"""What goes into a group and what comes out of it: plain values, no Kafka entities, no futures.

A `ticket` stands for a request that waits for its answer; the group hands it back with the answer and never
looks at it.
Invariants: every ticket that a group was given comes back exactly once.
Concurrency: immutable.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sparklog.format.group_metadata import GroupValue
from sparklog_server.protocol.errors import ErrorCode

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
        member_id: "" for somebody new, who then becomes `new_member_id`.
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
    """What the leader is told of a member."""

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
