"""A classic consumer group as a pure state machine: events in, effects out, time handed in.

    effects = group.join(request, ticket, now)      # also sync, leave, tick, stored, close
    # the caller answers each Answer, stores each StoreGroup and then calls group.stored(...);
    # and calls group.tick(now) at group.wake_at_ms

Plan, make durable, then show: an assignment, and a static member's new id, are told to nobody before the
record that holds them is durable.
Invariants: states move as transitions.py says; every ticket is answered once; one generation at a time, which
    only grows; at most one leader, a member; whoever does not wait for an answer has a session deadline.
Beyond Kafka: a request that the same member repeats answers the older one (Kafka forgets it, and the
    connection hangs); a member that leaves while it syncs is answered; a static member that comes back with
    other topics makes the group rebalance.
Not here: futures, records, timers (coordinator.py); members and votes (roster.py); offsets (offsets.py).
Concurrency: none; the coordinator calls from one thread.
After a crash: `restore` from the last StoreGroup that became durable.
Sources: Kafka GroupCoordinator, ClassicGroup; KIP-62, 134, 345, 394.
"""

from collections.abc import Sequence
from typing import Final

from sparklog.format.group_metadata import GroupValue
from sparklog_server.groups.messages import (
    UNKNOWN_MEMBER,
    Answer,
    Effect,
    Instant,
    JoinRequest,
    Leaving,
    SyncRequest,
    SyncResult,
    Ticket,
)
from sparklog_server.groups.rebalancing import GroupLimits, Rebalancing, Stores, Write
from sparklog_server.groups.roster import Member
from sparklog_server.groups.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from sparklog_server.groups.transitions import ANSWERS, GroupState, Request, Trigger
from sparklog_server.protocol.errors import ErrorCode

__all__ = ["NEW_MEMBER_JOIN_TIMEOUT_MS", "Group", "GroupLimits"]

# A new member cannot send heartbeats while it waits; if it is still there, it asks again.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
_REBALANCES_FROM = (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


class Group(Rebalancing):
    """One group: requests, and what becomes of them."""

    # Requests

    def join(self, request: JoinRequest, ticket: Ticket, now: Instant) -> list[Effect]:
        """JoinGroup: answered at once, or when the rebalance is over."""
        error = self._refuse_join(request, now)
        if error:
            keeps_id = error == ErrorCode.inconsistent_group_protocol or self.state is GroupState.DEAD
            self._answer_join_error(ticket, request.member_id if keeps_id else UNKNOWN_MEMBER, error)
        elif request.member_id == UNKNOWN_MEMBER:
            self._join_unknown(request, ticket, now)
        elif request.member_id in self.roster.pending and request.instance_id is None:
            self._add_member(request.member_id, request, ticket, now)
        else:
            self._rejoin(request, ticket, now)
        self._try_complete_join(now)
        return self._drain()

    def sync(self, request: SyncRequest, ticket: Ticket, now: Instant) -> list[Effect]:
        """SyncGroup: the leader brings the assignment, all others wait for it."""
        error = self._refuse_sync(request)
        if error:
            self._effects.append(Answer(ticket=ticket, result=SyncResult(error=error)))
            return self._drain()
        member = self.roster[request.member_id]
        self._unsynced.discard(member.member_id)
        if self.state is GroupState.STABLE:
            self._effects.append(Answer(ticket=ticket, result=self._assignment_of(member)))
            self._touch(member, now)
            return self._drain()
        self._answer_sync(member, ErrorCode.rebalance_in_progress)  # an older request of the same member
        member.sync_ticket = ticket
        if self.roster.leader == member.member_id and not self._stores_assignment():
            given = dict(request.assignments)
            self._store(
                Write(
                    purpose=Stores.ASSIGNMENT,
                    generation_id=self.generation_id,
                    assignments={one.member_id: given.get(one.member_id, b"") for one in self.roster},
                ),
                now,
            )
        return self._drain()

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation_id: int, now: Instant
    ) -> ErrorCode:
        """Heartbeat: keeps the member's session alive, unless it is refused."""
        error = self._refuse_member(member_id, instance_id, generation_id)
        if error:
            return error
        answer = ANSWERS[Request.HEARTBEAT][self.state]
        if answer in {ErrorCode.none, ErrorCode.rebalance_in_progress}:
            self._touch(self.roster[member_id], now)
        return answer

    def leave(self, leaving: Sequence[Leaving], now: Instant) -> tuple[list[ErrorCode], list[Effect]]:
        """LeaveGroup: an error per member."""
        if self.state is GroupState.DEAD:
            return [ErrorCode.coordinator_not_available] * len(leaving), []
        errors = [self._leave_one(one, now) for one in leaving]
        return errors, self._drain()

    def check_commit(
        self, member_id: str, instance_id: str | None, generation_id: int, now: Instant
    ) -> ErrorCode:
        """May this one commit offsets? If it is a member, it is alive."""
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if self.state is GroupState.EMPTY and generation_id < 0:
            return ErrorCode.none  # an administrator, or a consumer that assigns its partitions itself
        if generation_id < 0 and member_id == UNKNOWN_MEMBER and instance_id is None:
            return ErrorCode.none if self.state is GroupState.EMPTY else ErrorCode.unknown_member_id
        error = self._refuse_member(member_id, instance_id, generation_id)
        if error:
            return error
        answer = ANSWERS[Request.COMMIT][self.state]
        if not answer:
            self._touch(self.roster[member_id], now)
        return answer

    # What happens by itself

    def tick(self, now: Instant) -> list[Effect]:
        """Time has passed: sessions, pending ids, and the waiting for joins and syncs end."""
        if self.wake_at_ms is None or now.monotonic_ms < self.wake_at_ms:
            return []
        overdue = [name for name, deadline in self.roster.pending.items() if deadline <= now.monotonic_ms]
        for member_id in overdue:
            del self.roster.pending[member_id]
        for member in list(self.roster):
            self._expire_session(member, now)
        self._try_complete_join(now)
        if self._join_deadline_ms is not None and self._join_deadline_ms <= now.monotonic_ms:
            self._end_joining(now)
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now.monotonic_ms:
            self._end_syncing(now)
        self.wake_at_ms = min(self._deadlines(), default=None)
        return self._drain()

    def stored(self, write_id: int, error: ErrorCode, now: Instant) -> list[Effect]:
        """A StoreGroup has become durable, or (`error`) could not be written."""
        write = self._writes.pop(write_id, None)
        if write is None:
            return []  # closed meanwhile
        if write.generation_id == self.generation_id:
            if write.purpose is Stores.ASSIGNMENT and self.state is GroupState.COMPLETING_REBALANCE:
                self._assign(write.assignments, error, now)
            elif write.purpose is Stores.STATIC_MEMBER and self.state is GroupState.STABLE:
                self._answer_static_member(write, error, now)
        return self._drain()

    def close(self, error: ErrorCode, now: Instant) -> list[Effect]:
        """The group is deleted, or moves away: whoever waits is told so."""
        for member in list(self.roster):
            self._answer_all(member, error)
            self.roster.remove(member.member_id)
        self.roster.pending.clear()
        self._unsynced.clear()
        self._writes.clear()
        self._join_deadline_ms = self._sync_deadline_ms = self.wake_at_ms = None
        self._move(Trigger.REMOVED, now)
        return self._drain()

    def restore(self, value: GroupValue, now: Instant) -> None:
        """Go on from the log: members have fresh sessions, so that nobody needs to rebalance.

        A group that has become too large in the meantime (group.max.size) rebalances.
        """
        assert self.state is GroupState.EMPTY
        assert not self.roster
        self.generation_id = value.generation_id
        self.protocol_type = value.protocol_type or None
        if value.members and value.protocol is not None:
            for stored in value.members:
                member = Member.restored(stored, value.protocol)
                self.roster.add(member)
                self._touch(member, now)
            self.protocol = value.protocol
            if value.leader is not None and value.leader in self.roster:
                self.roster.leader = value.leader
            self._move(Trigger.RESTORED, now)
            if len(self.roster) > self._limits.max_size:
                self._rebalance(now)
        self.state_since_ms = value.state_timestamp_ms if value.state_timestamp_ms >= 0 else now.wall_ms

    # What others ask

    @property
    def is_disposable(self) -> bool:
        """Nothing of it is, or needs to be, in the log, apart from offsets."""
        return self.state is GroupState.EMPTY and not self.generation_id and not self.roster.pending

    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics that any member of a consumer group reads; None: not known, so perhaps all."""
        if self.state is GroupState.EMPTY:
            return frozenset()
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol is None:
            return None
        topics: frozenset[str] = frozenset()
        for member in self.roster:
            of_member = subscribed_topics(member.metadata(self.protocol))
            if of_member is None:
                return None
            topics |= of_member
        return topics

    # Joining

    def _refuse_join(self, request: JoinRequest, now: Instant) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if self._is_full_for(request.member_id):
            member = self.roster.get(request.member_id)
            self.roster.pending.pop(request.member_id, None)
            if member is not None:
                self._remove(member, now)
            return ErrorCode.group_max_size_reached
        names = {name for name, _ in request.protocols}
        if not names or not request.protocol_type or len(names) != len(request.protocols):
            return ErrorCode.inconsistent_group_protocol
        if self.state is not GroupState.EMPTY and (
            request.protocol_type != self.protocol_type or not self.roster.all_know_one_of(names)
        ):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.none

    def _is_full_for(self, member_id: str) -> bool:
        """Members, and ids given to members to be, count; whoever has a place keeps it."""
        others = len(self.roster.pending.keys() - {member_id})
        member = self.roster.get(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            # Only those who have joined count: where the limit was lowered, the last to join have to go.
            has_place = member is not None and member.join_ticket is not None
            return not has_place and self.roster.joining + others >= self._limits.max_size
        return member is None and len(self.roster) + others >= self._limits.max_size

    def _join_unknown(self, request: JoinRequest, ticket: Ticket, now: Instant) -> None:
        if request.instance_id is not None:
            old_member_id = self.roster.static_member_id(request.instance_id)
            if old_member_id is None:
                self._add_member(request.new_member_id, request, ticket, now)
            else:
                self._replace_static(old_member_id, request, ticket, now)
        elif request.needs_member_id:
            # KIP-394: whoever never comes back with its id does not become a member to wait for.
            deadline_ms = now.monotonic_ms + request.session_timeout_ms
            self.roster.pending[request.new_member_id] = deadline_ms
            self._wake_by(deadline_ms)
            self._answer_join_error(ticket, request.new_member_id, ErrorCode.member_id_required)
        else:
            self._add_member(request.new_member_id, request, ticket, now)

    def _add_member(self, member_id: str, request: JoinRequest, ticket: Ticket, now: Instant) -> None:
        if self.state is GroupState.EMPTY:
            self.protocol_type = request.protocol_type
        if self.state is GroupState.PREPARING_REBALANCE and self.generation_id == 0:
            self._new_member_added = True
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
        self.roster.add(member)
        member.session_deadline_ms = now.monotonic_ms + NEW_MEMBER_JOIN_TIMEOUT_MS
        self._wake_by(member.session_deadline_ms)
        if self.state in _REBALANCES_FROM:
            self._rebalance(now)

    def _rejoin(self, request: JoinRequest, ticket: Ticket, now: Instant) -> None:
        error = self.roster.identity_error(request.member_id, request.instance_id)
        error = error or ANSWERS[Request.REJOIN][self.state]
        if error:
            self._answer_join_error(ticket, request.member_id, error)
            return
        member = self.roster[request.member_id]
        changed = member.protocols != request.protocols
        leads = self.state is GroupState.STABLE and self.roster.leader == member.member_id
        if self.state is not GroupState.PREPARING_REBALANCE and not changed and not leads:
            # The answer to its last JoinGroup may have been lost.
            self._effects.append(Answer(ticket=ticket, result=self._joined(member)))
            return
        # A leader that joins again wants a rebalance: topics may have changed.
        self._answer_join_ticket(member, ErrorCode.rebalance_in_progress)
        self._update(member, request)
        self.roster.await_join(member, ticket)
        if self.state is not GroupState.PREPARING_REBALANCE:
            self._rebalance(now)

    def _replace_static(self, old_id: str, request: JoinRequest, ticket: Ticket, now: Instant) -> None:
        leader_before = self.roster.leader or ""
        self._answer_all(self.roster[old_id], ErrorCode.fenced_instance_id)
        member = self.roster.replace_static(old_id, request.new_member_id)
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(member.member_id)
        topics_before = subscribed_topics(member.metadata(self.protocol))
        self._update(member, request)
        member.client_id, member.client_host = request.client_id, request.client_host
        self._touch(member, now)
        self.roster.await_join(member, ticket)
        if self.state is GroupState.PREPARING_REBALANCE:
            return
        if self.state is GroupState.COMPLETING_REBALANCE or (
            self.roster.choose_protocol() != self.protocol
            or subscribed_topics(member.metadata(self.protocol)) != topics_before
        ):
            # While the leader assigns, it assigns to the old id.
            self._rebalance(now)
            return
        self._store(
            Write(
                purpose=Stores.STATIC_MEMBER,
                generation_id=self.generation_id,
                assignments={one.member_id: one.assignment for one in self.roster},
                member_id=member.member_id,
                leader_before=leader_before,
                can_skip_assignment=request.can_skip_assignment,
            ),
            now,
        )

    def _answer_static_member(self, write: Write, error: ErrorCode, now: Instant) -> None:
        member = self.roster.get(write.member_id)
        ticket = None if member is None else self.roster.take_join_ticket(member)
        if member is None or ticket is None:
            return  # replaced once more, or gone
        self._touch(member, now)
        if error:
            self._answer_join_error(ticket, UNKNOWN_MEMBER, error)
            return
        member.is_new = False
        leads = self.roster.leader == member.member_id
        if write.can_skip_assignment:
            result = self._joined(member, skip_assignment=leads)
        else:
            # Told that somebody else leads, it does not assign: a stable group would ignore it.
            result = self._joined(member, leader=write.leader_before)
        self._effects.append(Answer(ticket=ticket, result=result))

    def _update(self, member: Member, request: JoinRequest) -> None:
        self.roster.update(
            member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms
        )

    # Leaving

    def _leave_one(self, leaving: Leaving, now: Instant) -> ErrorCode:
        member_id = leaving.member_id
        if member_id == UNKNOWN_MEMBER:
            # An administrator removes a static member.
            held = leaving.instance_id and self.roster.static_member_id(leaving.instance_id)
            if not held:
                return ErrorCode.unknown_member_id
            member_id = held
        elif member_id in self.roster.pending:
            del self.roster.pending[member_id]
            self._try_complete_join(now)
            return ErrorCode.none
        else:
            error = self.roster.identity_error(member_id, leaving.instance_id)
            if error:
                return error
        self._remove(self.roster[member_id], now)
        return ErrorCode.none

    # Checks

    def _refuse_member(self, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        error = self.roster.identity_error(member_id, instance_id)
        if not error and generation_id != self.generation_id:
            return ErrorCode.illegal_generation
        return error

    def _refuse_sync(self, request: SyncRequest) -> ErrorCode:
        error = self._refuse_member(request.member_id, request.instance_id, request.generation_id)
        if error:
            return error
        if request.protocol_type is not None and request.protocol_type != self.protocol_type:
            return ErrorCode.inconsistent_group_protocol
        if request.protocol is not None and request.protocol != self.protocol:
            return ErrorCode.inconsistent_group_protocol
        return ANSWERS[Request.SYNC][self.state]
