"""Records of a group that are on their way to the log, and what is to be done when they have arrived.

Invariants: a write is handed out once, when it has arrived; what it holds counts until then. Of static
    members that come back one write of a generation is on its way at a time, which is of the whole group:
    those that come meanwhile share the next one.
Not here: appending (table.py), what follows (group.py).
Concurrency: none; owned by one group.
"""

import enum
from dataclasses import dataclass

from sparklog.format.group_metadata import GroupValue
from sparklog_server.groups.generation import Generation
from sparklog_server.groups.messages import Effect, Instant, StoreGroup
from sparklog_server.groups.roster import Roster


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
        coming_back: who waits for it.
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
    """See the module's docstring."""

    __slots__ = ("_coming_back", "_effects", "_generation", "_next_write_id", "_roster", "_writes")

    def __init__(self, generation: Generation, roster: Roster, effects: list[Effect]) -> None:
        self._generation = generation
        self._roster = roster
        self._effects = effects
        self._writes: dict[int, Write] = {}
        self._next_write_id = 0
        # By instance id. Some may have been told of another generation meanwhile: they wait for nothing then.
        self._coming_back: dict[str, ComingBack] = {}

    def begin(
        self,
        purpose: Stores,
        assignments: dict[str, bytes],
        now: Instant,
        coming_back: tuple[ComingBack, ...] = (),
    ) -> None:
        """Store the group as it is, with these assignments."""
        generation, roster = self._generation, self._roster
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
            leader=roster.leader,
            state_timestamp_ms=now.wall_ms,
            members=roster.stored_members(generation.protocol, assignments),
        )
        self._effects.append(StoreGroup(write_id=write_id, value=value))

    def await_store(self, instance_id: str, one: ComingBack) -> None:
        """Have a static member wait for the next write of its like; the last of its name counts."""
        self._coming_back[instance_id] = one

    def store_who_came_back(self, now: Instant) -> None:
        """In this generation, unless such a write is on its way: then again when it has arrived."""
        if self._coming_back and not self._are_on_their_way(Stores.STATIC_MEMBER):
            coming_back, self._coming_back = tuple(self._coming_back.values()), {}
            assignments = {one.member_id: one.assignment for one in self._roster}
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
        """Is the assignment of this generation on its way?"""
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
