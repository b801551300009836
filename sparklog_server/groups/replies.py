"""Answers to the requests that wait in a group.

Invariants: a ticket is answered once: whoever answers takes it from its member.
Not here: when to answer, and with which error (group.py, joining.py, rebalancing.py).
Concurrency: none; owned by one group.
Sources: Kafka JoinGroupResponse, SyncGroupResponse.
"""

from sparklog_server.groups.generation import Generation
from sparklog_server.groups.messages import UNKNOWN_MEMBER, Answer, Effect, JoinResult, SyncResult, Ticket
from sparklog_server.groups.roster import Member, Roster
from sparklog_server.protocol.errors import ErrorCode


class Replies:
    """Puts answers among a group's effects."""

    __slots__ = ("_effects", "_generation", "_roster")

    def __init__(self, generation: Generation, roster: Roster, effects: list[Effect]) -> None:
        self._generation = generation
        self._roster = roster
        self._effects = effects

    # JoinGroup

    def joined(
        self, ticket: Ticket, member: Member, *, leader: str | None = None, skip_assignment: bool = False
    ) -> None:
        """It is in this generation. `leader`: who it is told leads, if that is another one."""
        leader = self._roster.leader or "" if leader is None else leader
        protocol = self._generation.protocol
        result = JoinResult(
            member_id=member.member_id,
            generation_id=self._generation.generation_id,
            protocol_type=self._generation.protocol_type,
            protocol=protocol,
            leader=leader,
            skip_assignment=skip_assignment,
            members=self._roster.joined_members(protocol) if leader == member.member_id else (),
        )
        self._effects.append(Answer(ticket=ticket, result=result))

    def not_joined(self, ticket: Ticket, member_id: str, error: ErrorCode) -> None:
        """It is not, and why."""
        self._effects.append(Answer(ticket=ticket, result=JoinResult(error=error, member_id=member_id)))

    def end_join(self, member: Member, error: ErrorCode) -> None:
        """If this member waits for its JoinGroup, that is over."""
        ticket = self._roster.take_join_ticket(member)
        if ticket is not None:
            keeps_id = error != ErrorCode.unknown_member_id
            self.not_joined(ticket, member.member_id if keeps_id else UNKNOWN_MEMBER, error)

    # SyncGroup

    def synced(self, ticket: Ticket, member: Member) -> None:
        """Its assignment."""
        result = SyncResult(
            protocol_type=self._generation.protocol_type,
            protocol=self._generation.protocol,
            assignment=member.assignment,
        )
        self._effects.append(Answer(ticket=ticket, result=result))

    def not_synced(self, ticket: Ticket, error: ErrorCode) -> None:
        """No assignment, and why."""
        self._effects.append(Answer(ticket=ticket, result=SyncResult(error=error)))

    def end_sync(self, member: Member, error: ErrorCode = ErrorCode.none) -> bool:
        """If this member waits for its SyncGroup, that is over; did it?"""
        ticket, member.sync_ticket = member.sync_ticket, None
        if ticket is None:
            return False
        if error:
            self.not_synced(ticket, error)
        else:
            self.synced(ticket, member)
        return True

    def end_all(self, member: Member, error: ErrorCode) -> None:
        """Whatever this member waits for is over."""
        self.end_join(member, error)
        self.end_sync(member, error)
