"""Records of a group that are on their way to the log, and what is to be done when they have arrived.

Invariants: a write is handed out once, when it has arrived; what it holds counts until then.
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
class Write:
    """A StoreGroup that is on its way, and what to do when it has arrived.

    Fields:
        member_id, leader_before, can_skip_assignment: of a static member that waits for it.
    """

    purpose: Stores
    generation_id: int
    assignments: dict[str, bytes]
    member_id: str
    leader_before: str
    can_skip_assignment: bool

    @property
    def size_bytes(self) -> int:
        """Of assignments that are not the members' yet."""
        return sum(map(len, self.assignments.values())) if self.purpose is Stores.ASSIGNMENT else 0


class Writes:
    """See the module's docstring."""

    __slots__ = ("_effects", "_generation", "_next_write_id", "_roster", "_writes")

    def __init__(self, generation: Generation, roster: Roster, effects: list[Effect]) -> None:
        self._generation = generation
        self._roster = roster
        self._effects = effects
        self._writes: dict[int, Write] = {}
        self._next_write_id = 0

    def begin(
        self,
        purpose: Stores,
        assignments: dict[str, bytes],
        now: Instant,
        *,
        member_id: str = "",
        leader_before: str = "",
        can_skip_assignment: bool = False,
    ) -> None:
        """Store the group as it is, with these assignments."""
        generation, roster = self._generation, self._roster
        write_id, self._next_write_id = self._next_write_id, self._next_write_id + 1
        self._writes[write_id] = Write(
            purpose=purpose,
            generation_id=generation.generation_id,
            assignments=assignments,
            member_id=member_id,
            leader_before=leader_before,
            can_skip_assignment=can_skip_assignment,
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

    def take(self, write_id: int) -> Write | None:
        """A write that has arrived; None if the group has been closed meanwhile."""
        return self._writes.pop(write_id, None)

    def forget(self) -> None:
        """Whatever arrives, nothing is to be done."""
        self._writes.clear()

    @property
    def have_assignment(self) -> bool:
        """Is the assignment of this generation on its way?"""
        return any(
            write.purpose is Stores.ASSIGNMENT and write.generation_id == self._generation.generation_id
            for write in self._writes.values()
        )

    @property
    def held_bytes(self) -> int:
        """What clients have them hold."""
        return sum(write.size_bytes for write in self._writes.values())
