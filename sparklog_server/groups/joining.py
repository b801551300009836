"""JoinGroup: who may become a member, and what that does to the generation there is.

Invariants: an id is given to one member; whoever has a place in the group keeps it; a static member's new id
    is told to nobody before it is durable.
Beyond Kafka: a static member that comes back with other topics makes the group rebalance.
Not here: gathering joins until there is a generation (rebalancing.py), other requests (group.py).
Concurrency: none; owned by one group.
Sources: Kafka GroupCoordinator (doUnknownJoinGroup, doJoinGroup, updateStaticMemberAndRebalance); KIP-345,
    KIP-394.
"""

from typing import Final

from sparklog_server.groups.generation import Generation
from sparklog_server.groups.messages import UNKNOWN_MEMBER, Instant, JoinRequest, Ticket
from sparklog_server.groups.rebalancing import GroupLimits, Rebalancing
from sparklog_server.groups.replies import Replies
from sparklog_server.groups.roster import Member, Roster
from sparklog_server.groups.subscription import names_in
from sparklog_server.groups.transitions import ANSWERS, GroupState, Request
from sparklog_server.groups.writes import ComingBack, Write, Writes
from sparklog_server.protocol.errors import ErrorCode

# A new member cannot send heartbeats while it waits; if it is still there, it asks again.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
_REBALANCES_FROM: Final = (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


class Joining:
    """See the module's docstring."""

    __slots__ = ("_generation", "_limits", "_rebalancing", "_replies", "_roster", "_writes")

    def __init__(
        self,
        limits: GroupLimits,
        generation: Generation,
        roster: Roster,
        replies: Replies,
        writes: Writes,
        rebalancing: Rebalancing,
    ) -> None:
        self._limits = limits
        self._generation = generation
        self._roster = roster
        self._replies = replies
        self._writes = writes
        self._rebalancing = rebalancing

    def join(self, request: JoinRequest, ticket: Ticket, now: Instant) -> None:
        """Answer at once, or have the member wait for the rebalance."""
        error = self._refuse(request, now)
        if error:
            keeps_id = (
                error == ErrorCode.inconsistent_group_protocol or self._generation.state is GroupState.DEAD
            )
            self._replies.not_joined(ticket, request.member_id if keeps_id else UNKNOWN_MEMBER, error)
        elif request.member_id == UNKNOWN_MEMBER:
            self._join_unknown(request, ticket, now)
        elif request.member_id in self._roster.pending and request.instance_id is None:
            self._add_member(request.member_id, request, ticket, now)
        else:
            self._rejoin(request, ticket, now)
        self._rebalancing.end_if_all_joined(now)

    def _refuse(self, request: JoinRequest, now: Instant) -> ErrorCode:
        generation, roster = self._generation, self._roster
        if generation.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if self._is_full_for(roster.place_of(request.member_id, request.instance_id)):
            member = roster.get(request.member_id)
            roster.pending.pop(request.member_id, None)
            if member is not None:
                self._rebalancing.remove(member, now)
            return ErrorCode.group_max_size_reached
        names = {name for name, _ in request.protocols}
        if not names or not request.protocol_type or len(names) != len(request.protocols):
            return ErrorCode.inconsistent_group_protocol
        if generation.state is not GroupState.EMPTY and (
            request.protocol_type != generation.protocol_type or not roster.all_know_one_of(names)
        ):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.none

    def _is_full_for(self, member_id: str) -> bool:
        """Members count, and for who is none the ids given out; whoever has a place keeps it."""
        roster = self._roster
        member = roster.get(member_id)
        others = len(roster.pending.keys() - {member_id}) if member is None else 0
        if self._generation.state is GroupState.PREPARING_REBALANCE:
            # Only those who have joined count: where the limit was lowered, the last to join have to go.
            has_place = member is not None and member.join_ticket is not None
            return not has_place and roster.joining + others >= self._limits.max_size
        return member is None and len(roster) + others >= self._limits.max_size

    def _join_unknown(self, request: JoinRequest, ticket: Ticket, now: Instant) -> None:
        if request.instance_id is not None:
            old_member_id = self._roster.static_member_id(request.instance_id)
            if old_member_id is None:
                self._add_member(request.new_member_id, request, ticket, now)
            else:
                self._replace_static(old_member_id, request, ticket, now)
        elif request.needs_member_id:
            # KIP-394: whoever never comes back with its id does not become a member to wait for.
            deadline_ms = now.monotonic_ms + request.session_timeout_ms
            self._roster.pending[request.new_member_id] = deadline_ms
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
        error = self._roster.identity_error(request.member_id, request.instance_id)
        error = error or ANSWERS[Request.REJOIN][state]
        if error:
            self._replies.not_joined(ticket, request.member_id, error)
            return
        member = self._roster[request.member_id]
        changed = member.protocols != request.protocols
        leads = state is GroupState.STABLE and self._roster.leader == member.member_id
        if state is not GroupState.PREPARING_REBALANCE and not changed and not leads:
            # The answer to its last JoinGroup may have been lost.
            self._replies.joined(ticket, member)
            return
        # A leader that joins again wants a rebalance: topics may have changed.
        self._replies.end_join(member, ErrorCode.rebalance_in_progress)
        self._update(member, request)
        self._roster.await_join(member, ticket)
        if state is not GroupState.PREPARING_REBALANCE:
            self._rebalancing.begin(now)

    def _update(self, member: Member, request: JoinRequest) -> None:
        self._roster.update(
            member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
        )

    # Static members

    def _replace_static(self, old_id: str, request: JoinRequest, ticket: Ticket, now: Instant) -> None:
        generation, roster = self._generation, self._roster
        leader_before = roster.leader or ""
        self._replies.end_all(roster[old_id], ErrorCode.fenced_instance_id)
        member = roster.replace_static(old_id, request.new_member_id)
        self._rebalancing.rename(old_id, member.member_id)
        topics_before = _topics_of(member, generation.protocol)
        member.client_id, member.client_host = request.client_id, request.client_host  # they count, too
        self._update(member, request)
        self._rebalancing.touch(member, now)
        roster.await_join(member, ticket)
        if generation.state is GroupState.PREPARING_REBALANCE:
            return
        if generation.state is GroupState.COMPLETING_REBALANCE or (
            roster.choose_protocol() != generation.protocol
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
        for one in write.coming_back:
            self._answer(one, error, now)
        self._writes.store_who_came_back(now)

    def _answer(self, one: ComingBack, error: ErrorCode, now: Instant) -> None:
        member = self._roster.get(one.member_id)
        ticket = None if member is None else self._roster.take_join_ticket(member)
        if member is None or ticket is None:
            return  # replaced once more, or gone
        self._rebalancing.touch(member, now)
        if error:
            self._replies.not_joined(ticket, UNKNOWN_MEMBER, error)
            return
        member.is_new = False
        if one.can_skip_assignment:
            leads = self._roster.leader == member.member_id
            self._replies.joined(ticket, member, skip_assignment=leads)
        else:
            # Told that somebody else leads, it does not assign: a stable group would ignore it.
            self._replies.joined(ticket, member, leader=one.leader_before)


def _topics_of(member: Member, protocol: str | None) -> frozenset[bytes] | None:
    topics = None if protocol is None else member.topics(protocol)
    return None if topics is None else frozenset(names_in(topics))
