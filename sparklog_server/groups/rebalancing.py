"""From one generation to the next: everybody joins again, one leader assigns for all, sessions end.

Joins are gathered until everybody has come or the time is over; then there is a new generation, and one
leader assigns for all. The deadlines lie in the members and here; `wake_at_ms` is never later than the first
of them.
Invariants: a member that is answered with a generation is in it; an assignment is shown only after it is
    durable; a member that does not wait for an answer has a session deadline.
Not here: members and votes (members.py).
Concurrency: none; owned by one group.
Sources: Kafka GroupCoordinator (prepareRebalance, onCompleteJoin, onExpirePendingSync); KIP-62, KIP-134.
"""

from dataclasses import dataclass
from typing import Final

from sparklog_server.groups.members import ComingBack, Member, Members, Replies, Stores, Write, Writes
from sparklog_server.groups.messages import (
    ANSWERS,
    UNKNOWN_MEMBER,
    Generation,
    GroupState,
    Instant,
    JoinRequest,
    Request,
    Ticket,
    Trigger,
    names_in,
)
from sparklog_server.protocol.apis import ErrorCode

LEAST_WAIT_MS: Final = 1_000  # for static members, before it is looked again whether any has joined


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """group.max.size and group.initial.rebalance.delay.ms."""

    max_size: int
    initial_rebalance_delay_ms: int


class Rebalancing:
    """The part of a group that needs no requests. All times are milliseconds."""

    __slots__ = (
        "_extension_left_ms",
        "_generation",
        "_limits",
        "_members",
        "_new_member_added",
        "_replies",
        "_writes",
        "join_deadline_ms",
        "sync_deadline_ms",
        "unsynced",
        "wake_at_ms",
    )

    def __init__(
        self, limits: GroupLimits, generation: Generation, members: Members, replies: Replies, writes: Writes
    ) -> None:
        self._limits = limits
        self._generation = generation
        self._members = members
        self._replies = replies
        self._writes = writes
        self.wake_at_ms: int | None = None  # `tick` has nothing to do before; monotonic
        self.join_deadline_ms: int | None = None
        self.sync_deadline_ms: int | None = None
        self.unsynced: set[str] = set()  # member ids that have not asked for their assignment
        self._extension_left_ms: int | None = None  # of the initial delay; None: an ordinary rebalance
        self._new_member_added = False

    # Joining

    def begin(self, now: Instant) -> None:
        """Ask everybody to join again, and begin to wait."""
        if self._generation.state is GroupState.COMPLETING_REBALANCE:
            self._reset_assignments(ErrorCode.rebalance_in_progress, now)
        self.unsynced.clear()
        self.sync_deadline_ms = None
        timeout_ms = self._members.rebalance_timeout_ms()
        if self._generation.state is GroupState.EMPTY:
            # Consumers that are started together shall be in one generation.
            delay_ms = self._limits.initial_rebalance_delay_ms
            self.join_deadline_ms = now.monotonic_ms + delay_ms
            self._extension_left_ms = max(timeout_ms - delay_ms, 0)
            self._new_member_added = False
        else:
            self.join_deadline_ms = now.monotonic_ms + timeout_ms
            self._extension_left_ms = None
        self.wake_by(self.join_deadline_ms)
        self._generation.move(Trigger.REBALANCE, now)
        self.end_if_all_joined(now)

    def add(self, member: Member, now: Instant, *, session_timeout_ms: int) -> None:
        """Add a new member, whose session lasts so long while it waits."""
        if self._generation.state is GroupState.PREPARING_REBALANCE and self._generation.generation_id == 0:
            self._new_member_added = True
        self._members.add(member)
        member.session_deadline_ms = now.monotonic_ms + session_timeout_ms
        self.wake_by(member.session_deadline_ms)

    def end_if_all_joined(self, now: Instant) -> None:
        """Wait no longer if all members have joined."""
        if (
            self._generation.state is GroupState.PREPARING_REBALANCE
            and self._extension_left_ms is None
            and self._members.joining == len(self._members)
            and not self._members.pending
        ):
            self._complete_join(now)

    def _end_joining(self, now: Instant) -> None:
        if self._extension_left_ms and self._new_member_added:
            delay_ms = min(self._limits.initial_rebalance_delay_ms, self._extension_left_ms)
            self._extension_left_ms -= delay_ms
            self._new_member_added = False
            self.join_deadline_ms = now.monotonic_ms + delay_ms
            return
        self._complete_join(now)

    def _complete_join(self, now: Instant) -> None:
        """The waiting is over: dynamic members that did not join are removed."""
        generation, members = self._generation, self._members
        for member in list(members):
            if member.join_ticket is None and member.instance_id is None:
                members.remove(member.member_id)
        if members and not members.elect_joined_leader():
            # Only static members, and none has joined: wait until they do, or their sessions end.
            self._extension_left_ms = None
            # They may have asked for no time at all, which would be waited for again and again.
            self.join_deadline_ms = now.monotonic_ms + max(LEAST_WAIT_MS, members.rebalance_timeout_ms())
            return
        self.join_deadline_ms = self._extension_left_ms = None
        generation.begin_next()
        if not members:
            generation.protocol = None
            generation.move(Trigger.ALL_LEFT, now)
            self._writes.begin(Stores.EMPTY, {}, now)
            return
        generation.protocol = members.choose_protocol()
        generation.move(Trigger.ALL_JOINED, now)
        for member in members:
            self.unsynced.add(member.member_id)
            member.is_new = False
            self.touch(member, now)
            ticket = members.take_join_ticket(member)
            if ticket is not None:
                self._replies.joined(ticket, member)
        self.sync_deadline_ms = now.monotonic_ms + members.rebalance_timeout_ms()
        self.wake_by(self.sync_deadline_ms)

    # Assigning

    def assign(self, assignments: dict[str, bytes], error: ErrorCode, now: Instant) -> None:
        """The assignment is durable, or (`error`) could not be stored."""
        if error:
            self._reset_assignments(error, now)
            self.begin(now)
            return
        for member in self._members:
            self._members.assign(member, assignments[member.member_id])
        self._generation.move(Trigger.ASSIGNED, now)
        for member in self._members:
            self._replies.end_sync(member)
            self.touch(member, now)

    def _end_syncing(self, now: Instant) -> None:
        """Remove members that have not asked for their assignment in time."""
        self.sync_deadline_ms = None
        late = [self._members[member_id] for member_id in self.unsynced if member_id in self._members]
        for member in late:
            self._replies.end_all(member, ErrorCode.unknown_member_id)
            self._members.remove(member.member_id)
        if late:
            self.begin(now)

    def _reset_assignments(self, error: ErrorCode, now: Instant) -> None:
        for member in self._members:
            self._members.assign(member, b"")
            if self._replies.end_sync(member, error):
                self.touch(member, now)

    # Leaving

    def remove(self, member: Member, now: Instant) -> None:
        """Go on without this member."""
        self._replies.end_all(member, ErrorCode.unknown_member_id)
        self._members.remove(member.member_id)
        self.unsynced.discard(member.member_id)
        if self._generation.state is GroupState.PREPARING_REBALANCE:
            self.end_if_all_joined(now)
        else:
            self.begin(now)

    def _expire_session(self, member: Member, now: Instant) -> None:
        deadline_ms = member.session_deadline_ms
        if deadline_ms is None or deadline_ms > now.monotonic_ms or member.member_id not in self._members:
            return
        if member.waits and not member.is_new:
            member.session_deadline_ms = None  # it waits for us, not we for it
        else:
            self.remove(member, now)

    def rename(self, old_member_id: str, member_id: str) -> None:
        """The same member has another id."""
        if old_member_id in self.unsynced:
            self.unsynced.remove(old_member_id)
            self.unsynced.add(member_id)

    def stop(self) -> None:
        """Wait for no member any more."""
        self.unsynced.clear()
        self.join_deadline_ms = self.sync_deadline_ms = self.wake_at_ms = None

    # Time

    def tick(self, now: Instant) -> None:
        """Time has passed: sessions, pending ids, and the waiting for joins and syncs end."""
        if self.wake_at_ms is None or now.monotonic_ms < self.wake_at_ms:
            return
        pending = self._members.pending
        overdue = [name for name, deadline in pending.items() if deadline <= now.monotonic_ms]
        for member_id in overdue:
            del pending[member_id]
        for member in list(self._members):
            self._expire_session(member, now)
        self.end_if_all_joined(now)
        if self.join_deadline_ms is not None and self.join_deadline_ms <= now.monotonic_ms:
            self._end_joining(now)
        if self.sync_deadline_ms is not None and self.sync_deadline_ms <= now.monotonic_ms:
            self._end_syncing(now)
        self.wake_at_ms = min(self.deadlines(), default=None)

    def touch(self, member: Member, now: Instant) -> None:
        """A member is alive."""
        member.session_deadline_ms = now.monotonic_ms + member.session_timeout_ms
        self.wake_by(member.session_deadline_ms)

    def wake_by(self, deadline_ms: int) -> None:
        """Have `tick` called by then."""
        # Heartbeats move deadlines back, never the alarm: `tick` looks again when it rings.
        if self.wake_at_ms is None or deadline_ms < self.wake_at_ms:
            self.wake_at_ms = deadline_ms

    def deadlines(self) -> list[int]:
        """When something ends by itself."""
        ends = [self.join_deadline_ms, self.sync_deadline_ms, *self._members.pending.values()]
        ends += [member.session_deadline_ms for member in self._members]
        return [end for end in ends if end is not None]


# --- joining -----------------------------------------------------------------------------------------
#
# Invariants: an id is given to one member; a member that has a place in the group keeps it; a static member's
#     new id is in no answer before it is durable.
# Beyond Kafka: a static member that comes back with other topics makes the group rebalance.
# Not here: other requests (group.py).
# Concurrency: none; owned by one group.
# Sources: Kafka GroupCoordinator (doUnknownJoinGroup, doJoinGroup, updateStaticMemberAndRebalance); KIP-345,
#     KIP-394.


# A new member cannot send heartbeats while it waits; if it is still there, it asks again.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
_REBALANCES_FROM: Final = (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


class Joining:
    """JoinGroup: which clients may become members, and how that changes the generation."""

    __slots__ = ("_generation", "_limits", "_members", "_rebalancing", "_replies", "_writes")

    def __init__(
        self,
        limits: GroupLimits,
        generation: Generation,
        members: Members,
        replies: Replies,
        writes: Writes,
        rebalancing: Rebalancing,
    ) -> None:
        self._limits = limits
        self._generation = generation
        self._members = members
        self._replies = replies
        self._writes = writes
        self._rebalancing = rebalancing

    def join(self, request: JoinRequest, ticket: Ticket, now: Instant) -> None:
        """Answer immediately, or let the member wait for the rebalance."""
        error = self._refuse(request, now)
        if error:
            keeps_id = (
                error == ErrorCode.inconsistent_group_protocol or self._generation.state is GroupState.DEAD
            )
            self._replies.not_joined(ticket, request.member_id if keeps_id else UNKNOWN_MEMBER, error)
        elif request.member_id == UNKNOWN_MEMBER:
            self._join_unknown(request, ticket, now)
        elif request.member_id in self._members.pending and request.instance_id is None:
            self._add_member(request.member_id, request, ticket, now)
        else:
            self._rejoin(request, ticket, now)
        self._rebalancing.end_if_all_joined(now)

    def _refuse(self, request: JoinRequest, now: Instant) -> ErrorCode:
        generation, members = self._generation, self._members
        if generation.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if self._is_full_for(members.place_of(request.member_id, request.instance_id)):
            member = members.get(request.member_id)
            members.pending.pop(request.member_id, None)
            if member is not None:
                self._rebalancing.remove(member, now)
            return ErrorCode.group_max_size_reached
        names = {name for name, _ in request.protocols}
        if not names or not request.protocol_type or len(names) != len(request.protocols):
            return ErrorCode.inconsistent_group_protocol
        if generation.state is not GroupState.EMPTY and (
            request.protocol_type != generation.protocol_type or not members.all_know_one_of(names)
        ):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.none

    def _is_full_for(self, member_id: str) -> bool:
        """True if there is no room: members count, and for a new one the ids given out, too."""
        members = self._members
        member = members.get(member_id)
        others = len(members.pending.keys() - {member_id}) if member is None else 0
        if self._generation.state is GroupState.PREPARING_REBALANCE:
            # Only those who have joined count: where the limit was lowered, the last to join have to go.
            has_place = member is not None and member.join_ticket is not None
            return not has_place and members.joining + others >= self._limits.max_size
        return member is None and len(members) + others >= self._limits.max_size

    def _join_unknown(self, request: JoinRequest, ticket: Ticket, now: Instant) -> None:
        if request.instance_id is not None:
            old_member_id = self._members.static_member_id(request.instance_id)
            if old_member_id is None:
                self._add_member(request.new_member_id, request, ticket, now)
            else:
                self._replace_static(old_member_id, request, ticket, now)
        elif request.needs_member_id:
            # KIP-394: a client that never comes back with its id is no member to wait for.
            deadline_ms = now.monotonic_ms + request.session_timeout_ms
            self._members.pending[request.new_member_id] = deadline_ms
            self._rebalancing.wake_by(deadline_ms)
            self._replies.not_joined(ticket, request.new_member_id, ErrorCode.member_id_required)
        else:
            self._add_member(request.new_member_id, request, ticket, now)

    def _add_member(self, member_id: str, request: JoinRequest, ticket: Ticket, now: Instant) -> None:
        if self._generation.state is GroupState.EMPTY:
            self._generation.protocol_type = request.protocol_type
        member = Member(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
            join_ticket=ticket,
        )
        member.walk_topics()
        self._rebalancing.add(member, now, session_timeout_ms=NEW_MEMBER_JOIN_TIMEOUT_MS)
        if self._generation.state in _REBALANCES_FROM:
            self._rebalancing.begin(now)

    def _rejoin(self, request: JoinRequest, ticket: Ticket, now: Instant) -> None:
        state = self._generation.state
        error = self._members.identity_error(request.member_id, request.instance_id)
        error = error or ANSWERS[Request.REJOIN][state]
        if error:
            self._replies.not_joined(ticket, request.member_id, error)
            return
        member = self._members[request.member_id]
        changed = member.protocols != request.protocols
        leads = state is GroupState.STABLE and self._members.leader == member.member_id
        if state is not GroupState.PREPARING_REBALANCE and not changed and not leads:
            # The answer to its last JoinGroup may have been lost.
            self._replies.joined(ticket, member)
            return
        # A leader that joins again wants a rebalance: topics may have changed.
        self._replies.end_join(member, ErrorCode.rebalance_in_progress)
        self._update(member, request)
        self._members.await_join(member, ticket)
        if state is not GroupState.PREPARING_REBALANCE:
            self._rebalancing.begin(now)

    def _update(self, member: Member, request: JoinRequest) -> None:
        self._members.update(
            member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
        )

    # Static members

    def _replace_static(self, old_id: str, request: JoinRequest, ticket: Ticket, now: Instant) -> None:
        generation, members = self._generation, self._members
        leader_before = members.leader or ""
        self._replies.end_all(members[old_id], ErrorCode.fenced_instance_id)
        member = members.replace_static(old_id, request.new_member_id)
        self._rebalancing.rename(old_id, member.member_id)
        topics_before = _topics_of(member, generation.protocol)
        member.client_id, member.client_host = request.client_id, request.client_host  # they count, too
        self._update(member, request)
        self._rebalancing.touch(member, now)
        members.await_join(member, ticket)
        if generation.state is GroupState.PREPARING_REBALANCE:
            return
        if generation.state is GroupState.COMPLETING_REBALANCE or (
            members.choose_protocol() != generation.protocol
            or _topics_of(member, generation.protocol) != topics_before
        ):
            # While the leader assigns, it assigns to the old id.
            self._rebalancing.begin(now)
            return
        one = ComingBack(
            member_id=member.member_id,
            leader_before=leader_before,
            can_skip_assignment=request.can_skip_assignment,
        )
        self._writes.await_store(member.instance_id or "", one)
        self._writes.store_who_came_back(now)

    def static_members_stored(self, write: Write, error: ErrorCode, now: Instant) -> None:
        """Static members' new ids are durable, or (`error`) could not be stored."""
        for coming_back in write.coming_back:
            self._answer(coming_back, error, now)
        self._writes.store_who_came_back(now)

    def _answer(self, coming_back: ComingBack, error: ErrorCode, now: Instant) -> None:
        member = self._members.get(coming_back.member_id)
        ticket = None if member is None else self._members.take_join_ticket(member)
        if member is None or ticket is None:
            return  # replaced once more, or gone
        self._rebalancing.touch(member, now)
        if error:
            self._replies.not_joined(ticket, UNKNOWN_MEMBER, error)
            return
        member.is_new = False
        if coming_back.can_skip_assignment:
            leads = self._members.leader == member.member_id
            self._replies.joined(ticket, member, skip_assignment=leads)
        else:
            # With another leader in its answer it does not assign: a stable group would ignore it.
            self._replies.joined(ticket, member, leader=coming_back.leader_before)


def _topics_of(member: Member, protocol: str | None) -> frozenset[bytes] | None:
    topics = None if protocol is None else member.topics(protocol)
    return None if topics is None else frozenset(names_in(topics))
