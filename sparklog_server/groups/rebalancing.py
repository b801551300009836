"""What happens in a group between requests: rebalances, assignments, sessions, deadlines.

Joins are gathered until everybody has come or the time is over; then there is a new generation, and one
leader assigns for all. The deadlines lie in the members and here; `wake_at_ms` is never later than the first
of them.
Invariants: states move as transitions.py says; who is told of a generation has been taken into it; an
    assignment is shown only after it is durable.
Not here: what requests may do (group.py); members and votes (roster.py).
Concurrency: none; see group.py.
Sources: Kafka GroupCoordinator (prepareRebalance, onCompleteJoin, onExpirePendingSync); KIP-62, KIP-134.
"""

import enum
from dataclasses import dataclass

from sparklog.format.group_metadata import GroupValue
from sparklog_server.groups.messages import (
    UNKNOWN_MEMBER,
    Answer,
    Effect,
    Instant,
    JoinResult,
    StoreGroup,
    SyncResult,
    Ticket,
)
from sparklog_server.groups.roster import Member, Roster
from sparklog_server.groups.transitions import GroupState, Trigger, next_state
from sparklog_server.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """group.max.size and group.initial.rebalance.delay.ms."""

    max_size: int
    initial_rebalance_delay_ms: int


class Stores(enum.Enum):
    ASSIGNMENT = enum.auto()
    STATIC_MEMBER = enum.auto()
    EMPTY = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A StoreGroup that is on its way, and what to do when it has arrived."""

    purpose: Stores
    generation_id: int
    assignments: dict[str, bytes]
    member_id: str = ""
    leader_before: str = ""
    can_skip_assignment: bool = False

    @property
    def size_bytes(self) -> int:
        """Of assignments that are not the members' yet."""
        return sum(map(len, self.assignments.values())) if self.purpose is Stores.ASSIGNMENT else 0


class Rebalancing:
    """The part of a group that needs no requests. All times are milliseconds."""

    def __init__(self, group_id: str, limits: GroupLimits, now: Instant) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.roster = Roster()
        self.state_since_ms = now.wall_ms
        self.wake_at_ms: int | None = None  # `tick` has nothing to do before; monotonic
        self._limits = limits
        self._join_deadline_ms: int | None = None
        self._extension_left_ms: int | None = None  # of the initial delay; None: an ordinary rebalance
        self._new_member_added = False
        self._sync_deadline_ms: int | None = None
        self._unsynced: set[str] = set()
        self._writes: dict[int, Write] = {}
        self._next_write_id = 0
        self._effects: list[Effect] = []

    # Rebalancing

    def _rebalance(self, now: Instant) -> None:
        """Ask everybody to join again, and begin to wait."""
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._reset_assignments(ErrorCode.rebalance_in_progress, now)
        self._unsynced.clear()
        self._sync_deadline_ms = None
        timeout_ms = self.roster.rebalance_timeout_ms()
        if self.state is GroupState.EMPTY:
            # Consumers that are started together shall be in one generation.
            delay_ms = self._limits.initial_rebalance_delay_ms
            self._join_deadline_ms = now.monotonic_ms + delay_ms
            self._extension_left_ms = max(timeout_ms - delay_ms, 0)
            self._new_member_added = False
        else:
            self._join_deadline_ms = now.monotonic_ms + timeout_ms
            self._extension_left_ms = None
        self._wake_by(self._join_deadline_ms)
        self._move(Trigger.REBALANCE, now)
        self._try_complete_join(now)

    def _try_complete_join(self, now: Instant) -> None:
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._extension_left_ms is None
            and self.roster.joining == len(self.roster)
            and not self.roster.pending
        ):
            self._complete_join(now)

    def _end_joining(self, now: Instant) -> None:
        if self._extension_left_ms and self._new_member_added:
            delay_ms = min(self._limits.initial_rebalance_delay_ms, self._extension_left_ms)
            self._extension_left_ms -= delay_ms
            self._new_member_added = False
            self._join_deadline_ms = now.monotonic_ms + delay_ms
            return
        self._complete_join(now)

    def _complete_join(self, now: Instant) -> None:
        """The waiting is over: whoever is dynamic and did not join is out."""
        for member in list(self.roster):
            if member.join_ticket is None and member.instance_id is None:
                self.roster.remove(member.member_id)
        if self.roster and not self.roster.elect_joined_leader():
            # Only static members, and none has joined: wait until they do, or their sessions end.
            self._extension_left_ms = None
            self._join_deadline_ms = now.monotonic_ms + self.roster.rebalance_timeout_ms()
            return
        self._join_deadline_ms = self._extension_left_ms = None
        self.generation_id = (self.generation_id + 1) & 0x7FFFFFFF
        if not self.roster:
            self.protocol = None
            self._move(Trigger.ALL_LEFT, now)
            empty = Write(purpose=Stores.EMPTY, generation_id=self.generation_id, assignments={})
            self._store(empty, now)
            return
        self.protocol = self.roster.choose_protocol()
        self._move(Trigger.ALL_JOINED, now)
        for member in self.roster:
            self._unsynced.add(member.member_id)
            member.is_new = False
            self._touch(member, now)
            ticket = self.roster.take_join_ticket(member)
            if ticket is not None:
                self._effects.append(Answer(ticket=ticket, result=self._joined(member)))
        self._sync_deadline_ms = now.monotonic_ms + self.roster.rebalance_timeout_ms()
        self._wake_by(self._sync_deadline_ms)

    def _end_syncing(self, now: Instant) -> None:
        """Whoever has not asked for its assignment in time is out."""
        self._sync_deadline_ms = None
        late = [self.roster[member_id] for member_id in self._unsynced if member_id in self.roster]
        for member in late:
            self._answer_all(member, ErrorCode.unknown_member_id)
            self.roster.remove(member.member_id)
        if late:
            self._rebalance(now)

    def _assign(self, assignments: dict[str, bytes], error: ErrorCode, now: Instant) -> None:
        if error:
            self._reset_assignments(error, now)
            self._rebalance(now)
            return
        for member in self.roster:
            self.roster.assign(member, assignments[member.member_id])
        self._move(Trigger.ASSIGNED, now)
        for member in self.roster:
            self._answer_sync(member, ErrorCode.none)
            self._touch(member, now)

    def _reset_assignments(self, error: ErrorCode, now: Instant) -> None:
        for member in self.roster:
            self.roster.assign(member, b"")
            if self._answer_sync(member, error):
                self._touch(member, now)

    # Leaving

    def _expire_session(self, member: Member, now: Instant) -> None:
        deadline_ms = member.session_deadline_ms
        if deadline_ms is None or deadline_ms > now.monotonic_ms or member.member_id not in self.roster:
            return
        if member.waits and not member.is_new:
            member.session_deadline_ms = None  # it waits for us, not we for it
        else:
            self._remove(member, now)

    def _remove(self, member: Member, now: Instant) -> None:
        self._answer_all(member, ErrorCode.unknown_member_id)
        self.roster.remove(member.member_id)
        self._unsynced.discard(member.member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            self._try_complete_join(now)
        else:
            self._rebalance(now)

    # Answers

    def _joined(
        self, member: Member, *, leader: str | None = None, skip_assignment: bool = False
    ) -> JoinResult:
        leader = self.roster.leader or "" if leader is None else leader
        return JoinResult(
            member_id=member.member_id,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=leader,
            skip_assignment=skip_assignment,
            members=self.roster.joined_members(self.protocol) if leader == member.member_id else (),
        )

    def _assignment_of(self, member: Member) -> SyncResult:
        return SyncResult(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment
        )

    def _answer_join_error(self, ticket: Ticket, member_id: str, error: ErrorCode) -> None:
        self._effects.append(Answer(ticket=ticket, result=JoinResult(error=error, member_id=member_id)))

    def _answer_join_ticket(self, member: Member, error: ErrorCode) -> None:
        ticket = self.roster.take_join_ticket(member)
        if ticket is not None:
            keeps_id = error != ErrorCode.unknown_member_id
            self._answer_join_error(ticket, member.member_id if keeps_id else UNKNOWN_MEMBER, error)

    def _answer_sync(self, member: Member, error: ErrorCode) -> bool:
        ticket, member.sync_ticket = member.sync_ticket, None
        if ticket is None:
            return False
        result = SyncResult(error=error) if error else self._assignment_of(member)
        self._effects.append(Answer(ticket=ticket, result=result))
        return True

    def _answer_all(self, member: Member, error: ErrorCode) -> None:
        self._answer_join_ticket(member, error)
        self._answer_sync(member, error)

    # Time, state, effects

    def _touch(self, member: Member, now: Instant) -> None:
        member.session_deadline_ms = now.monotonic_ms + member.session_timeout_ms
        self._wake_by(member.session_deadline_ms)

    def _wake_by(self, deadline_ms: int) -> None:
        # Heartbeats move deadlines back, never the alarm: `tick` looks again when it rings.
        if self.wake_at_ms is None or deadline_ms < self.wake_at_ms:
            self.wake_at_ms = deadline_ms

    def _deadlines(self) -> list[int]:
        ends = [self._join_deadline_ms, self._sync_deadline_ms, *self.roster.pending.values()]
        ends += [member.session_deadline_ms for member in self.roster]
        return [end for end in ends if end is not None]

    def _move(self, trigger: Trigger, now: Instant) -> None:
        self.state = next_state(self.state, trigger)
        self.state_since_ms = now.wall_ms

    def _stores_assignment(self) -> bool:
        return any(
            write.purpose is Stores.ASSIGNMENT and write.generation_id == self.generation_id
            for write in self._writes.values()
        )

    def _store(self, write: Write, now: Instant) -> None:
        write_id, self._next_write_id = self._next_write_id, self._next_write_id + 1
        self._writes[write_id] = write
        members = self.roster.stored_members(self.protocol, write.assignments)
        value = GroupValue(
            protocol_type=self.protocol_type or "",
            generation_id=self.generation_id,
            protocol=self.protocol,
            leader=self.roster.leader,
            state_timestamp_ms=now.wall_ms,
            members=members,
        )
        self._effects.append(StoreGroup(write_id=write_id, value=value))

    @property
    def held_bytes(self) -> int:
        """What clients have it hold: members, and assignments on their way to the log."""
        return self.roster.held_bytes + sum(write.size_bytes for write in self._writes.values())

    def _drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
