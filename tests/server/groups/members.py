"""A pure group and its members, for tests: what Kafka's coordinator does, said in a line."""

from typing import Any

from kio.schema.errors import ErrorCode

from sparklog.format.consumer_offsets import GroupValue
from sparklog_server.groups.group import Group
from sparklog_server.groups.messages import (
    Answer,
    Effect,
    GroupState,
    Instant,
    JoinRequest,
    JoinResult,
    Leaving,
    StoreGroup,
    SyncRequest,
    SyncResult,
)
from sparklog_server.groups.rebalancing import GroupLimits

E, P, C, S, D = GroupState
NONE = ErrorCode.none
WALL_MS = 1_700_000_000_000


class Members:
    """A group, and its members by name: their tickets are their names, their member ids get a number."""

    def __init__(self, *, max_size: int = 100, delay_ms: int = 0) -> None:
        self.now_ms = 0
        limits = GroupLimits(max_size=max_size, initial_rebalance_delay_ms=delay_ms)
        self.group = Group("g", limits, self.now)
        self.delay_ms = delay_ms
        self.answers: dict[Any, JoinResult | SyncResult] = {}
        self.stores: list[StoreGroup] = []
        self.ids: dict[str, str] = {}
        self._next = 0

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, WALL_MS + self.now_ms)

    @property
    def state(self) -> GroupState:
        return self.group.state

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert effect.ticket not in self.answers
                self.answers[effect.ticket] = effect.result
                if isinstance(effect.result, JoinResult) and not effect.result.error:
                    self.ids[effect.ticket.partition(":")[0]] = effect.result.member_id
            else:
                self.stores.append(effect)

    def answer(self, ticket: str) -> Any:
        return self.answers.pop(ticket)

    def join(self, name: str, ticket: str | None = None, **fields: Any) -> Any:
        """JoinGroup; `name` joins again if it has an id. The answer, or None if it has to wait."""
        self._next += 1
        values = {
            "member_id": self.ids.get(name, ""),
            "new_member_id": f"{name}-{self._next}",
            "needs_member_id": False,
            "rebalance_timeout_ms": 300,
            "session_timeout_ms": 100,
            "protocol_type": "consumer",
            "protocols": (("range", b"m"), ("sticky", b"m")),
            **fields,
        }
        ticket = ticket or name
        self.take(self.group.join(JoinRequest(**values), ticket, self.now))
        return self.answers.pop(ticket, None)

    def sync(self, name: str, assignments: dict[str, bytes] | None = None, **fields: Any) -> Any:
        """SyncGroup; assignments by name."""
        values = {
            "member_id": self.ids.get(name, ""),
            "generation_id": self.group.generation_id,
            "assignments": tuple((self.ids[who], data) for who, data in (assignments or {}).items()),
            **fields,
        }
        ticket = f"{name}:sync"
        self.take(self.group.sync(SyncRequest(**values), ticket, self.now))
        return self.answers.pop(ticket, None)

    def stored(self, error: ErrorCode = NONE) -> None:
        self.take(self.group.stored(self.stores.pop(0).write_id, error, self.now))

    def heartbeat(self, name: str, **fields: Any) -> ErrorCode:
        values = {"instance_id": None, "generation_id": self.group.generation_id, **fields}
        return self.group.heartbeat(self.ids.get(name, "?"), now=self.now, **values)

    def commit(self, name: str, **fields: Any) -> ErrorCode:
        values = {"instance_id": None, "generation_id": self.group.generation_id, **fields}
        return self.group.check_commit(self.ids.get(name, "?"), now=self.now, **values)

    def leave(self, *names: str) -> list[ErrorCode]:
        leaving = [Leaving(member_id=self.ids.get(name, "?")) for name in names]
        errors, effects = self.group.leave(leaving, self.now)
        self.take(effects)
        return errors

    def advance(self, ms: int) -> None:
        """Time passes, the alarm rings whenever it is due."""
        end_ms = self.now_ms + ms
        while self.group.wake_at_ms is not None and self.group.wake_at_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.group.wake_at_ms)
            self.take(self.group.tick(self.now))
        self.now_ms = end_ms

    def stable(self, *names: str, **fields: Any) -> "Members":
        """Everybody joins at once, and has an assignment; the first one leads."""
        for name in names:
            assert self.join(name, **fields) is None
        self.advance(max(1, self.delay_ms))
        if self.group.generation_id == 0:
            self.advance(1)
        for name in names:
            assert not self.answer(name).error
        for name in reversed(names):
            assert self.sync(name, {who: who.encode() for who in names}) is None
        self.stored()
        for name in names:
            assert self.answer(f"{name}:sync").assignment == name.encode()
        assert self.state is S
        return self


def value_of(members: Members) -> Any:
    """What the log says of a stable group."""
    group = members.group
    assignments = {one.member_id: one.assignment for one in group.members}
    return GroupValue(
        protocol_type="consumer",
        generation_id=group.generation_id,
        protocol=group.protocol,
        leader=group.members.leader,
        members=group.members.stored_members(group.protocol, assignments),
    )
