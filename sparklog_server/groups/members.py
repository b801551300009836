"""The members of a group: their identities, protocols, leader, and requests that wait.

Invariants: an instance id belongs to one member; `votes[p]` members know protocol p; `held_bytes` is what
    protocols and assignments of all of them take; the leader is a member,
    and there is one while there are members; a pending id is no member.
Not here: states, timeouts and answers (group.py).
Concurrency: none; owned by one group.
Sources: Kafka ClassicGroup (addMember, removeMember, replaceStaticMember, selectProtocol), KIP-345.
"""

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sparklog.format.consumer_offsets import GroupValue, StoredMember
from sparklog_server.groups.messages import (
    UNKNOWN_MEMBER,
    Answer,
    Effect,
    Generation,
    Instant,
    JoinedMember,
    JoinResult,
    Protocols,
    StoreGroup,
    SyncResult,
    Ticket,
    topics_end,
    topics_of,
)
from sparklog_server.protocol.apis import ErrorCode

MEMBER_BYTES, PENDING_BYTES = 1500, 500  # a member, and an id given to one to be, with names of common length
_PROTOCOL_BYTES = 200
_STORED_BYTES = 24  # a member in the group's record, without its names, its subscription and its assignment


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One member.

    Fields:
        is_new: does not know its generation, so cannot send heartbeats yet.
        session_deadline_ms: None while it waits for an answer: then it cannot be expected to call.
        record_bytes: as it counts in the sum of all members.
        topics_ends: by protocol, where the topics of its subscription end; None: it is none.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    session_deadline_ms: int | None = None
    record_bytes: int = 0
    topics_ends: dict[str, int | None] = field(default_factory=dict)
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None

    @classmethod
    def restored(cls, stored: StoredMember, protocol: str) -> "Member":
        """A member as the log has it: of its protocols only the chosen one is known."""
        return cls(
            member_id=stored.member_id,
            instance_id=stored.instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            session_timeout_ms=stored.session_timeout_ms,
            protocols=((protocol, stored.subscription),),
            assignment=stored.assignment,
        )

    @property
    def waits(self) -> bool:
        """True if one of its requests is unanswered."""
        return self.join_ticket is not None or self.sync_ticket is not None

    @property
    def held_bytes(self) -> int:
        """What its protocols, and it itself, take."""
        return protocols_bytes(self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """What it sent for one protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def walk_topics(self) -> None:
        """Of all its protocols, while no more is done than its request has bytes."""
        self.topics_ends = {name: topics_end(data) for name, data in self.protocols}

    def topics(self, protocol: str) -> bytes | None:
        """What it subscribes to with one protocol: see messages.py, `topics_of`."""
        if protocol not in self.topics_ends:  # it comes from the log
            self.walk_topics()
        end = self.topics_ends.get(protocol)
        return None if end is None else topics_of(self.metadata(protocol), end)


def protocols_bytes(protocols: Protocols) -> int:
    """What a member with these protocols takes."""
    return MEMBER_BYTES + sum(_PROTOCOL_BYTES + len(name) + len(data) for name, data in protocols)


def record_bytes(names: Iterable[str | None], protocols: Protocols) -> int:
    """What a member takes at most in the group's record, with whichever protocol; assignments come on top."""
    named = sum(len(name.encode()) for name in names if name is not None)
    return _STORED_BYTES + named + max((len(data) for _, data in protocols), default=0)


class Members:
    """All members of one group, and the ids handed out to members to be."""

    __slots__ = (
        "_assignment_bytes",
        "_joined_members",
        "_joining",
        "_members",
        "_protocols_bytes",
        "_static",
        "leader",
        "pending",
        "record_bytes",
        "votes",
    )

    def __init__(self) -> None:
        self.pending: dict[str, int] = {}  # member id -> when it is given up, monotonic ms
        self.leader: str | None = None
        self._assignment_bytes = 0
        self._protocols_bytes = 0
        self.record_bytes = 0  # of all members, without assignments
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # instance id -> member id
        self.votes: Counter[str] = Counter()  # protocol -> how many members know it
        self._joining = 0  # members with a join_ticket
        self._joined_members: dict[str | None, tuple[JoinedMember, ...]] = {}  # by protocol, until it changes

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> Member | None:
        """The member of this id."""
        return self._members.get(member_id)

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def static_member_id(self, instance_id: str) -> str | None:
        """Who holds this instance id now."""
        return self._static.get(instance_id)

    def place_of(self, member_id: str, instance_id: str | None) -> str:
        """The id of the member whose place this one takes: a static member comes back without its own."""
        if not member_id and instance_id is not None:
            return self.static_member_id(instance_id) or member_id
        return member_id

    def identity_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Why a member is not the one that it says it is."""
        if instance_id is not None:
            held_by = self.static_member_id(instance_id)
            if held_by is not None and held_by != member_id:
                return ErrorCode.fenced_instance_id
            if held_by is None:
                return ErrorCode.unknown_member_id
        return ErrorCode.none if member_id in self else ErrorCode.unknown_member_id

    @property
    def held_bytes(self) -> int:
        """Memory that clients fill as they like."""
        return self._protocols_bytes + self._assignment_bytes + PENDING_BYTES * len(self.pending)

    @property
    def assignment_bytes(self) -> int:
        """Of all members."""
        return self._assignment_bytes

    @property
    def joining(self) -> int:
        """How many wait for their JoinGroup to be answered."""
        return self._joining

    def rebalance_timeout_ms(self) -> int:
        """The longest that a member asks for."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def add(self, member: Member) -> None:
        """Take in a member; the first one leads."""
        assert member.member_id not in self._members
        self._members[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self._static
            self._static[member.instance_id] = member.member_id
        self._add_protocols(member)
        self._assignment_bytes += len(member.assignment)
        self._joining += member.join_ticket is not None
        self.pending.pop(member.member_id, None)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> None:
        """Let a member go; its tickets have been answered by now."""
        member = self._members.pop(member_id)
        assert not member.waits
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._subtract_protocols(member)
        self._assignment_bytes -= len(member.assignment)
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)

    def replace_static(self, old_member_id: str, new_member_id: str) -> Member:
        """The same member under a new id; leadership goes along. Its tickets have been answered by now."""
        old = self._members[old_member_id]
        assert not old.waits
        assert old.instance_id is not None
        was_leader = self.leader == old_member_id
        # The position stays: Kafka's leaders see their members in a stable order.
        old.member_id = new_member_id
        self._members = {member.member_id: member for member in self._members.values()}
        self._joined_members = {}
        self._static[old.instance_id] = new_member_id
        if was_leader:
            self.leader = new_member_id
        return old

    def update(
        self, member: Member, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        """What a member says when it joins again."""
        self._subtract_protocols(member)
        member.protocols = protocols
        member.walk_topics()
        self._add_protocols(member)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def assign(self, member: Member, assignment: bytes) -> None:
        """What the leader gave it."""
        self._assignment_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def await_join(self, member: Member, ticket: Ticket) -> None:
        """`member` waits for the rebalance."""
        assert member.join_ticket is None
        member.join_ticket = ticket
        self._joining += 1

    def take_join_ticket(self, member: Member) -> Ticket | None:
        """Stop waiting; the caller answers."""
        ticket, member.join_ticket = member.join_ticket, None
        self._joining -= ticket is not None
        return ticket

    def all_know_one_of(self, protocols: Collection[str]) -> bool:
        """True if every member knows one of them."""
        return any(self.votes[name] == len(self) for name in protocols)

    def choose_protocol(self) -> str:
        """The one with most votes, among those that all know; each votes for its first of these.

        Ties go to the one that the member who came first prefers.
        """
        common = {name for name, count in self.votes.items() if count == len(self)}
        votes: Counter[str] = Counter()
        for member in self:
            votes[next(name for name, _ in member.protocols if name in common)] += 1
        return max(votes, key=votes.__getitem__)

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined; False if no member has."""
        if self.leader is not None and self._members[self.leader].join_ticket is not None:
            return True
        joined = next((member.member_id for member in self if member.join_ticket is not None), None)
        if joined is not None:
            self.leader = joined
        return joined is not None

    def joined_members(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """Return the members for the leader's answer; made once for all answers, however often it asks."""
        if protocol not in self._joined_members:
            self._joined_members = {
                protocol: tuple(
                    JoinedMember(
                        member_id=member.member_id,
                        instance_id=member.instance_id,
                        metadata=member.metadata(protocol),
                    )
                    for member in self
                )
            }
        return self._joined_members[protocol]

    def stored_members(
        self, protocol: str | None, assignments: Mapping[str, bytes]
    ) -> tuple[StoredMember, ...]:
        """Return the members for the group's record."""
        return tuple(
            StoredMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(protocol),
                assignment=assignments[member.member_id],
            )
            for member in self
        )

    def _add_protocols(self, member: Member) -> None:
        self._joined_members = {}
        self.votes.update(name for name, _ in member.protocols)
        self._protocols_bytes += member.held_bytes
        names = (member.member_id, member.instance_id, member.client_id, member.client_host)
        member.record_bytes = record_bytes(names, member.protocols)
        self.record_bytes += member.record_bytes

    def _subtract_protocols(self, member: Member) -> None:
        self._joined_members = {}
        self._protocols_bytes -= member.held_bytes
        self.record_bytes -= member.record_bytes
        for name, _ in member.protocols:
            self.votes[name] -= 1
            if not self.votes[name]:
                del self.votes[name]


# --- replies -----------------------------------------------------------------------------------------
#
# Answers to the requests that wait in a group.
#
# Invariants: a ticket is answered once: it is taken from its member first.
# Not here: when to answer, and with which error (group.py, rebalancing.py).
# Concurrency: none; owned by one group.
# Sources: Kafka JoinGroupResponse, SyncGroupResponse.


class Replies:
    """Puts answers among a group's effects."""

    __slots__ = ("_effects", "_generation", "_members")

    def __init__(self, generation: Generation, members: Members, effects: list[Effect]) -> None:
        self._generation = generation
        self._members = members
        self._effects = effects

    # JoinGroup

    def joined(
        self, ticket: Ticket, member: Member, *, leader: str | None = None, skip_assignment: bool = False
    ) -> None:
        """Answer that it is in this generation. `leader`: which leader to name, if not the leader."""
        leader = self._members.leader or "" if leader is None else leader
        protocol = self._generation.protocol
        result = JoinResult(
            member_id=member.member_id,
            generation_id=self._generation.generation_id,
            protocol_type=self._generation.protocol_type,
            protocol=protocol,
            leader=leader,
            skip_assignment=skip_assignment,
            members=self._members.joined_members(protocol) if leader == member.member_id else (),
        )
        self._effects.append(Answer(ticket=ticket, result=result))

    def not_joined(self, ticket: Ticket, member_id: str, error: ErrorCode) -> None:
        """It is not, and why."""
        self._effects.append(Answer(ticket=ticket, result=JoinResult(error=error, member_id=member_id)))

    def end_join(self, member: Member, error: ErrorCode) -> None:
        """If this member waits for its JoinGroup, that is over."""
        ticket = self._members.take_join_ticket(member)
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
        """Answer the member's SyncGroup if it waits; True if it did."""
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


# --- writes ------------------------------------------------------------------------------------------
#
# Invariants: a write is handed out once, when it has arrived; what it holds counts until then. Of static
#     members that come back one write of a generation is on its way at a time, which is of the whole group:
#     those that come meanwhile share the next one.
# Not here: appending (table.py), what follows (group.py).
# Concurrency: none; owned by one group.


class Stores(enum.Enum):
    """What a write is for."""

    ASSIGNMENT = enum.auto()
    STATIC_MEMBER = enum.auto()
    EMPTY = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComingBack:
    """A static member that waits until its new id is durable."""

    member_id: str
    leader_before: str
    can_skip_assignment: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A StoreGroup that is on its way, and what to do when it has arrived.

    Fields:
        coming_back: the members that wait for it.
    """

    purpose: Stores
    generation_id: int
    assignments: dict[str, bytes]
    coming_back: tuple[ComingBack, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of assignments that are not the members' yet."""
        return sum(map(len, self.assignments.values())) if self.purpose is Stores.ASSIGNMENT else 0


class Writes:
    """Records of a group that are on their way to the log, and what is to be done when they have arrived."""

    __slots__ = ("_coming_back", "_effects", "_generation", "_members", "_next_write_id", "_writes")

    def __init__(self, generation: Generation, members: Members, effects: list[Effect]) -> None:
        self._generation = generation
        self._members = members
        self._effects = effects
        self._writes: dict[int, Write] = {}
        self._next_write_id = 0
        # By instance id. One that was answered with another generation meanwhile does not wait.
        self._coming_back: dict[str, ComingBack] = {}

    def begin(
        self,
        purpose: Stores,
        assignments: dict[str, bytes],
        now: Instant,
        coming_back: tuple[ComingBack, ...] = (),
    ) -> None:
        """Store the group as it is, with these assignments."""
        generation, members = self._generation, self._members
        write_id, self._next_write_id = self._next_write_id, self._next_write_id + 1
        self._writes[write_id] = Write(
            purpose=purpose,
            generation_id=generation.generation_id,
            assignments=assignments,
            coming_back=coming_back,
        )
        value = GroupValue(
            protocol_type=generation.protocol_type or "",
            generation_id=generation.generation_id,
            protocol=generation.protocol,
            leader=members.leader,
            state_timestamp_ms=now.wall_ms,
            members=members.stored_members(generation.protocol, assignments),
        )
        self._effects.append(StoreGroup(write_id=write_id, value=value))

    def await_store(self, instance_id: str, one: ComingBack) -> None:
        """Have a static member wait for the next write of its like; the last of its name counts."""
        self._coming_back[instance_id] = one

    def store_who_came_back(self, now: Instant) -> None:
        """In this generation, unless such a write is on its way: then again when it has arrived."""
        if self._coming_back and not self._are_on_their_way(Stores.STATIC_MEMBER):
            coming_back, self._coming_back = tuple(self._coming_back.values()), {}
            assignments = {member.member_id: member.assignment for member in self._members}
            self.begin(Stores.STATIC_MEMBER, assignments, now, coming_back)

    def take(self, write_id: int) -> Write | None:
        """A write that has arrived; None if the group has been closed meanwhile."""
        return self._writes.pop(write_id, None)

    def forget(self) -> None:
        """Whatever arrives, nothing is to be done."""
        self._writes.clear()
        self._coming_back.clear()

    @property
    def have_assignment(self) -> bool:
        """True if the assignment of this generation is being stored."""
        return self._are_on_their_way(Stores.ASSIGNMENT)

    @property
    def held_bytes(self) -> int:
        """What clients have them hold."""
        return sum(write.size_bytes for write in self._writes.values())

    def _are_on_their_way(self, purpose: Stores) -> bool:
        return any(
            write.purpose is purpose and write.generation_id == self._generation.generation_id
            for write in self._writes.values()
        )
