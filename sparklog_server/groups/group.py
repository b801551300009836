"""A classic consumer group as a pure state machine: events in, effects out, time handed in.

    effects = group.join(request, ticket, now)      # also sync, leave, tick, stored, close
    # the caller answers each Answer, stores each StoreGroup and then calls group.stored(...);
    # and calls group.tick(now) at group.wake_at_ms

Plan, make durable, then show: an assignment, and a static member's new id, are in no answer before the
record that holds them is durable.
Made of: the members and what is owed to them and to the log (members.py), the generation that they are in
    (messages.py), how they come and how they get from one generation to the next (rebalancing.py). All may
    look at them; requests change them.
Invariants: states move as messages.py says; every ticket is answered once; one generation at a time, which
    only grows; at most one leader, a member; a member without a waiting request has a session deadline.
Beyond Kafka: a request that the same member repeats answers the older one (Kafka forgets it, and the
    connection hangs); a member that leaves while it syncs is answered.
Not here: futures, records, timers (table.py); offsets (offsets.py).
Concurrency: none; the coordinator calls from one thread.
After a crash: `restore` from the last StoreGroup that became durable.
Sources: Kafka GroupCoordinator, ClassicGroup; KIP-62, 134, 345, 394.
"""

from collections.abc import Collection, Sequence

from sparklog.format.consumer_offsets import GroupValue
from sparklog_server.groups.members import Member, Members, Replies, Stores, Writes
from sparklog_server.groups.messages import (
    ANSWERS,
    CONSUMER_PROTOCOL_TYPE,
    UNKNOWN_MEMBER,
    Effect,
    Generation,
    GroupState,
    Instant,
    JoinRequest,
    Leaving,
    Request,
    SyncRequest,
    Ticket,
    Trigger,
    named_among,
)
from sparklog_server.groups.rebalancing import GroupLimits, Joining, Rebalancing
from sparklog_server.protocol.apis import ErrorCode


class Group:
    """One group: requests, and what becomes of them. All times are milliseconds."""

    __slots__ = (
        "_effects",
        "_generation",
        "_joining",
        "_limits",
        "_replies",
        "group_id",
        "members",
        "rebalancing",
        "writes",
    )

    def __init__(self, group_id: str, limits: GroupLimits, now: Instant) -> None:
        self.group_id = group_id
        self.members = members = Members()
        self._limits = limits
        self._effects: list[Effect] = []
        self._generation = generation = Generation(now)
        self._replies = replies = Replies(generation, members, self._effects)
        self.writes = writes = Writes(generation, members, self._effects)
        self.rebalancing = rebalancing = Rebalancing(limits, generation, members, replies, writes)
        self._joining = Joining(limits, generation, members, replies, writes, rebalancing)

    # Requests

    def join(self, request: JoinRequest, ticket: Ticket, now: Instant) -> list[Effect]:
        """JoinGroup: answered immediately, or when the rebalance is over."""
        self._joining.join(request, ticket, now)
        return self._drain()

    def sync(self, request: SyncRequest, ticket: Ticket, now: Instant) -> list[Effect]:
        """SyncGroup: the leader brings the assignment, all others wait for it."""
        error = self._refuse_sync(request)
        if error:
            self._replies.not_synced(ticket, error)
            return self._drain()
        member = self.members[request.member_id]
        self.rebalancing.unsynced.discard(member.member_id)
        if self.state is GroupState.STABLE:
            self._replies.synced(ticket, member)
            self.rebalancing.touch(member, now)
            return self._drain()
        self._replies.end_sync(member, ErrorCode.rebalance_in_progress)  # an older one of the same member
        member.sync_ticket = ticket
        if self.members.leader == member.member_id and not self.writes.have_assignment:
            given = dict(request.assignments)
            assignments = {member.member_id: given.get(member.member_id, b"") for member in self.members}
            self.writes.begin(Stores.ASSIGNMENT, assignments, now)
        return self._drain()

    def refuse_assignment(
        self, request: SyncRequest, error: ErrorCode, now: Instant
    ) -> tuple[ErrorCode, list[Effect]]:
        """Fail all members: the leader's assignment is too large, and they join again, as where it could not
        be stored. Return the error for the leader, which does not wait.
        """
        refusal = self._refuse_sync(request)
        if refusal:
            return refusal, []
        if self.state is GroupState.COMPLETING_REBALANCE and not self.writes.have_assignment:
            self.rebalancing.assign({}, error, now)
        return error, self._drain()

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation_id: int, now: Instant
    ) -> ErrorCode:
        """Heartbeat: keeps the member's session alive, unless it is refused."""
        error = self._refuse_member(member_id, instance_id, generation_id)
        if error:
            return error
        answer = ANSWERS[Request.HEARTBEAT][self.state]
        if answer in {ErrorCode.none, ErrorCode.rebalance_in_progress}:
            self.rebalancing.touch(self.members[member_id], now)
        return answer

    def leave(self, leaving: Sequence[Leaving], now: Instant) -> tuple[list[ErrorCode], list[Effect]]:
        """LeaveGroup: an error per member."""
        if self.state is GroupState.DEAD:
            return [ErrorCode.coordinator_not_available] * len(leaving), []
        errors = [self._leave_one(member, now) for member in leaving]
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
            self.rebalancing.touch(self.members[member_id], now)
        return answer

    def check_staged_commit(self, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
        """May this one commit offsets with a transaction?

        Who says nothing of itself may, as older clients cannot; so may members while the group rebalances.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if generation_id < 0 and (self.state is GroupState.EMPTY or not (member_id or instance_id)):
            return ErrorCode.none
        return self._refuse_member(member_id, instance_id, generation_id)

    # What happens by itself

    def tick(self, now: Instant) -> list[Effect]:
        """Time has passed."""
        self.rebalancing.tick(now)
        return self._drain()

    def stored(self, write_id: int, error: ErrorCode, now: Instant) -> list[Effect]:
        """A StoreGroup has become durable, or (`error`) could not be written."""
        write = self.writes.take(write_id)
        if write is None:
            return []  # closed meanwhile
        if write.generation_id == self.generation_id:
            if write.purpose is Stores.ASSIGNMENT and self.state is GroupState.COMPLETING_REBALANCE:
                self.rebalancing.assign(write.assignments, error, now)
            elif write.purpose is Stores.STATIC_MEMBER and self.state is GroupState.STABLE:
                self._joining.static_members_stored(write, error, now)
        return self._drain()

    def close(self, error: ErrorCode, now: Instant) -> list[Effect]:
        """The group is deleted, or moves away: requests that wait are answered `error`."""
        for member in list(self.members):
            self._replies.end_all(member, error)
            self.members.remove(member.member_id)
        self.members.pending.clear()
        self.writes.forget()
        self.rebalancing.stop()
        self._generation.move(Trigger.REMOVED, now)
        return self._drain()

    def restore(self, value: GroupValue, now: Instant) -> None:
        """Go on from the log: members have fresh sessions, so that no member needs to rebalance.

        A group that has become too large in the meantime (group.max.size) rebalances, and so does one that
        has no leader yet: it was a consumer group (migration.py), whose members are to assign from now on.
        """
        assert self.state is GroupState.EMPTY
        assert not self.members
        generation = self._generation
        generation.generation_id = value.generation_id
        generation.protocol_type = value.protocol_type or None
        if value.members and value.protocol is not None:
            for stored in value.members:
                member = Member.restored(stored, value.protocol)
                self.members.add(member)
                self.rebalancing.touch(member, now)
            generation.protocol = value.protocol
            if value.leader is not None and value.leader in self.members:
                self.members.leader = value.leader
            generation.move(Trigger.RESTORED, now)
            if value.leader is None or len(self.members) > self._limits.max_size:
                self.rebalancing.begin(now)
        since_ms = value.state_timestamp_ms
        generation.state_since_ms = since_ms if since_ms >= 0 else now.wall_ms

    def begin_sessions(self, now: Instant) -> None:
        """Start the sessions of members that do not wait: none could send a heartbeat until now."""
        for member in self.members:
            if member.session_deadline_ms is not None:
                self.rebalancing.touch(member, now)

    # What others ask

    @property
    def state(self) -> GroupState:
        """Kafka's state."""
        return self._generation.state

    @property
    def state_since_ms(self) -> int:
        """Since when it is in this state; of the wall clock."""
        return self._generation.state_since_ms

    @property
    def generation_id(self) -> int:
        """How many generations there were; 0: it has never had a member."""
        return self._generation.generation_id

    @property
    def protocol_type(self) -> str | None:
        """What its members are: consumers, workers of Connect, ..."""
        return self._generation.protocol_type

    @property
    def protocol(self) -> str | None:
        """What its members assign by."""
        return self._generation.protocol

    @property
    def wake_at_ms(self) -> int | None:
        """When `tick` has something to do, at the earliest; None: never."""
        return self.rebalancing.wake_at_ms

    @property
    def held_bytes(self) -> int:
        """What clients have it hold: members, and assignments on their way to the log."""
        return self.members.held_bytes + self.writes.held_bytes

    @property
    def is_disposable(self) -> bool:
        """Nothing of it is, or needs to be, in the log, apart from offsets."""
        return self.state is GroupState.EMPTY and not self.generation_id and not self.members.pending

    def subscribed_among(self, topics: Collection[str]) -> frozenset[str] | None:
        """Which of these any member of a consumer group reads; None: not known, so perhaps all."""
        if self.state is GroupState.EMPTY:
            return frozenset()
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol is None:
            return None
        if not topics:
            return frozenset()
        subscriptions: set[bytes] = set()
        for member in self.members:
            of_member = member.topics(self.protocol)
            if of_member is None:
                return None
            subscriptions.add(of_member)
        return named_among(subscriptions, topics)

    # Leaving

    def _leave_one(self, leaving: Leaving, now: Instant) -> ErrorCode:
        member_id = leaving.member_id
        if member_id == UNKNOWN_MEMBER:
            # An administrator removes a static member.
            held = leaving.instance_id and self.members.static_member_id(leaving.instance_id)
            if not held:
                return ErrorCode.unknown_member_id
            member_id = held
        elif member_id in self.members.pending:
            del self.members.pending[member_id]
            self.rebalancing.end_if_all_joined(now)
            return ErrorCode.none
        else:
            error = self.members.identity_error(member_id, leaving.instance_id)
            if error:
                return error
        self.rebalancing.remove(self.members[member_id], now)
        return ErrorCode.none

    # Checks

    def _refuse_member(self, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
        generation = self._generation
        if generation.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        error = self.members.identity_error(member_id, instance_id)
        if not error and generation_id != generation.generation_id:
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

    def _drain(self) -> list[Effect]:
        effects = self._effects.copy()
        self._effects.clear()
        return effects
