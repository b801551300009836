"""From one generation to the next: everybody joins again, one leader assigns for all, sessions end.

Joins are gathered until everybody has come or the time is over; then there is a new generation, and one
leader assigns for all. The deadlines lie in the members and here; `wake_at_ms` is never later than the first
of them.
Invariants: who is told of a generation has been taken into it; an assignment is shown only after it is
    durable; whoever does not wait for an answer has a session deadline.
Not here: what requests may do (group.py, joining.py); members and votes (roster.py).
Concurrency: none; owned by one group.
Sources: Kafka GroupCoordinator (prepareRebalance, onCompleteJoin, onExpirePendingSync); KIP-62, KIP-134.
"""

from dataclasses import dataclass
from typing import Final

from sparklog_server.groups.generation import Generation
from sparklog_server.groups.messages import Instant
from sparklog_server.groups.replies import Replies
from sparklog_server.groups.roster import Member, Roster
from sparklog_server.groups.transitions import GroupState, Trigger
from sparklog_server.groups.writes import Stores, Writes
from sparklog_server.protocol.errors import ErrorCode

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
        "_new_member_added",
        "_replies",
        "_roster",
        "_writes",
        "join_deadline_ms",
        "sync_deadline_ms",
        "unsynced",
        "wake_at_ms",
    )

    def __init__(
        self, limits: GroupLimits, generation: Generation, roster: Roster, replies: Replies, writes: Writes
    ) -> None:
        self._limits = limits
        self._generation = generation
        self._roster = roster
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
        timeout_ms = self._roster.rebalance_timeout_ms()
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
        """Take in somebody new, whose session lasts so long while it waits."""
        if self._generation.state is GroupState.PREPARING_REBALANCE and self._generation.generation_id == 0:
            self._new_member_added = True
        self._roster.add(member)
        member.session_deadline_ms = now.monotonic_ms + session_timeout_ms
        self.wake_by(member.session_deadline_ms)

    def end_if_all_joined(self, now: Instant) -> None:
        """Wait no longer if there is nobody left to wait for."""
        if (
            self._generation.state is GroupState.PREPARING_REBALANCE
            and self._extension_left_ms is None
            and self._roster.joining == len(self._roster)
            and not self._roster.pending
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
        """The waiting is over: whoever is dynamic and did not join is out."""
        generation, roster = self._generation, self._roster
        for member in list(roster):
            if member.join_ticket is None and member.instance_id is None:
                roster.remove(member.member_id)
        if roster and not roster.elect_joined_leader():
            # Only static members, and none has joined: wait until they do, or their sessions end.
            self._extension_left_ms = None
            # They may have asked for no time at all, which would be waited for again and again.
            self.join_deadline_ms = now.monotonic_ms + max(LEAST_WAIT_MS, roster.rebalance_timeout_ms())
            return
        self.join_deadline_ms = self._extension_left_ms = None
        generation.begin_next()
        if not roster:
            generation.protocol = None
            generation.move(Trigger.ALL_LEFT, now)
            self._writes.begin(Stores.EMPTY, {}, now)
            return
        generation.protocol = roster.choose_protocol()
        generation.move(Trigger.ALL_JOINED, now)
        for member in roster:
            self.unsynced.add(member.member_id)
            member.is_new = False
            self.touch(member, now)
            ticket = roster.take_join_ticket(member)
            if ticket is not None:
                self._replies.joined(ticket, member)
        self.sync_deadline_ms = now.monotonic_ms + roster.rebalance_timeout_ms()
        self.wake_by(self.sync_deadline_ms)

    # Assigning

    def assign(self, assignments: dict[str, bytes], error: ErrorCode, now: Instant) -> None:
        """The assignment is durable, or (`error`) could not be stored."""
        if error:
            self._reset_assignments(error, now)
            self.begin(now)
            return
        for member in self._roster:
            self._roster.assign(member, assignments[member.member_id])
        self._generation.move(Trigger.ASSIGNED, now)
        for member in self._roster:
            self._replies.end_sync(member)
            self.touch(member, now)

    def _end_syncing(self, now: Instant) -> None:
        """Whoever has not asked for its assignment in time is out."""
        self.sync_deadline_ms = None
        late = [self._roster[member_id] for member_id in self.unsynced if member_id in self._roster]
        for member in late:
            self._replies.end_all(member, ErrorCode.unknown_member_id)
            self._roster.remove(member.member_id)
        if late:
            self.begin(now)

    def _reset_assignments(self, error: ErrorCode, now: Instant) -> None:
        for member in self._roster:
            self._roster.assign(member, b"")
            if self._replies.end_sync(member, error):
                self.touch(member, now)

    # Leaving

    def remove(self, member: Member, now: Instant) -> None:
        """Go on without this member."""
        self._replies.end_all(member, ErrorCode.unknown_member_id)
        self._roster.remove(member.member_id)
        self.unsynced.discard(member.member_id)
        if self._generation.state is GroupState.PREPARING_REBALANCE:
            self.end_if_all_joined(now)
        else:
            self.begin(now)

    def _expire_session(self, member: Member, now: Instant) -> None:
        deadline_ms = member.session_deadline_ms
        if deadline_ms is None or deadline_ms > now.monotonic_ms or member.member_id not in self._roster:
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
        """Wait for nobody any more."""
        self.unsynced.clear()
        self.join_deadline_ms = self.sync_deadline_ms = self.wake_at_ms = None

    # Time

    def tick(self, now: Instant) -> None:
        """Time has passed: sessions, pending ids, and the waiting for joins and syncs end."""
        if self.wake_at_ms is None or now.monotonic_ms < self.wake_at_ms:
            return
        pending = self._roster.pending
        overdue = [name for name, deadline in pending.items() if deadline <= now.monotonic_ms]
        for member_id in overdue:
            del pending[member_id]
        for member in list(self._roster):
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
        ends = [self.join_deadline_ms, self.sync_deadline_ms, *self._roster.pending.values()]
        ends += [member.session_deadline_ms for member in self._roster]
        return [end for end in ends if end is not None]
