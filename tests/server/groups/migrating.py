"""A group that goes from one protocol to the other, and clients of the classic protocol, for tests.

The group is a classic one (`classic`) or a consumer group (`group`); what is durable is in `value`, or in
`durable`. Clients of the consumer protocol are those of consumers.py.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from sparklog.format.consumer_offsets import GroupValue
from sparklog_server.groups import classic_members
from sparklog_server.groups.consumer_members import JOIN, ConsumerGroupLimits, HeartbeatAnswer, refusal
from sparklog_server.groups.consumer_protocol import decode_assignment, decode_subscription, encode_assignment
from sparklog_server.groups.group import Group
from sparklog_server.groups.messages import (
    Answer,
    Effect,
    JoinRequest,
    JoinResult,
    Leaving,
    SyncRequest,
    SyncResult,
)
from sparklog_server.groups.migration import Upgrade, downgraded
from sparklog_server.groups.rebalancing import GroupLimits
from sparklog_server.protocol.apis import ErrorCode
from tests.server.groups.consumers import REBALANCE_MS, SESSION_MS, Client, Places, World, topic_id

MAX_BYTES = 1 << 20
LOST = {ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.fenced_instance_id}


def text(name: str) -> bytes:
    return struct.pack(">h", len(name)) + name.encode()


def subscription(topics: Iterable[str], owned: Mapping[str, frozenset[int]], version: int = 1) -> bytes:
    """A subscription as Java's consumer sends it."""
    names = sorted(topics)
    parts = [struct.pack(">hi", version, len(names)), *map(text, names), b"\xff\xff\xff\xff"]
    if version >= 1:
        parts.append(struct.pack(">i", len(owned)))
        for name, some in sorted(owned.items()):
            parts += [text(name), struct.pack(f">i{len(some)}i", len(some), *sorted(some))]
    return b"".join(parts)


def by_name(places: Places) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for topic, partition in places:
        found[topic.rstrip("A")] = found.get(topic.rstrip("A"), frozenset()) | {partition}
    return found


class ClassicClient:
    """A member of the classic protocol as its consumer sees it; each call of `run` is one step of it."""

    def __init__(
        self,
        name: str,
        instance_id: str | None = None,
        *,
        eager: bool = False,
        topics: tuple[str, ...] = ("t",),
    ) -> None:
        self.name, self.instance_id, self.topics, self.is_eager = name, instance_id, topics, eager
        self.member_id = ""
        self.generation = -1
        self.owned: Places = frozenset()
        self.must_join = True
        self.joined: JoinResult | None = None  # it is to sync
        self.assigned: Places | None = None  # by SyncGroup: it is to follow
        self.waits = False  # for an answer
        self.error = ErrorCode.none  # the last

    @property
    def protocol(self) -> str:
        return "range" if self.is_eager else "cooperative-sticky"

    def run(self, world: "Migrating") -> None:
        if self.waits:
            return
        if self.assigned is not None:
            self.follow()
        elif self.joined is not None:
            self.sync(world)
        elif self.must_join:
            self.join(world)
        else:
            self.beat(world)

    def lose(self, error: ErrorCode) -> None:
        """The group has gone on without it."""
        self.error = error
        if error in LOST:
            self.owned, self.generation = frozenset(), -1
            if error is not ErrorCode.illegal_generation:
                self.member_id = ""
        self.joined, self.must_join = None, True

    def beat(self, world: "Migrating") -> ErrorCode:
        error = world.classic_beat(self)
        if error:
            self.lose(error)
        return error

    def join(self, world: "Migrating") -> None:
        if self.is_eager:
            self.owned = frozenset()
        self.must_join, self.waits = False, True
        world.classic_join(self)

    def take_joined(self, result: JoinResult) -> None:
        self.waits = False
        if result.error:
            if result.error is ErrorCode.member_id_required:
                self.member_id = result.member_id
            self.lose(result.error)
        else:
            self.member_id, self.generation, self.joined = result.member_id, result.generation_id, result

    def sync(self, world: "Migrating") -> None:
        joined, self.joined = self.joined, None
        assert joined is not None
        self.waits = True
        world.classic_sync(self, world.assignments(joined) if joined.members else {})

    def take_synced(self, result: SyncResult) -> None:
        self.waits = False
        if result.error:
            self.lose(result.error)
            return
        found = decode_assignment(result.assignment)
        assert found is not None
        self.assigned = frozenset(
            (topic_id(name), partition) for name, some in found.partitions.items() for partition in some
        )

    def follow(self) -> None:
        """Give up, and take; a cooperative one that has given up joins again."""
        assert self.assigned is not None
        self.must_join = not self.is_eager and not self.owned <= self.assigned
        self.owned, self.assigned = self.assigned, None


class Migrating(World):
    """A group of either protocol over a log that is durable at once."""

    def __init__(
        self, topics: Mapping[str, int] | None = None, *, interval_ms: int = 0, size: int = 100
    ) -> None:
        super().__init__(topics, interval_ms=interval_ms)
        self.limits = ConsumerGroupLimits(
            max_size=100,
            session_timeout_ms=SESSION_MS,
            assignment_interval_ms=interval_ms,
            max_classic_size=size,
        )
        self.group.limits = self.limits
        self.value: GroupValue | None = None
        self.classic: Group | None = self._new_classic()
        self.waiting: dict[str, ClassicClient] = {}
        self._number = 0

    def _new_classic(self) -> Group:
        return Group("g", GroupLimits(max_size=100, initial_rebalance_delay_ms=0), self.now)

    # The consumer protocol

    def beat(self, client: Client, *, is_full: bool = False, is_lost: bool = False) -> HeartbeatAnswer:
        if self.classic is not None:
            refused = self.upgrade(client)
            if refused is not None:
                client.take(refused)
                return refused
        answer = super().beat(client, is_full=is_full, is_lost=is_lost)
        self.turn()
        return answer

    def upgrade(self, client: Client) -> HeartbeatAnswer | None:
        assert self.classic is not None
        if client.epoch != JOIN:
            return refusal(ErrorCode.group_id_not_found, "no consumer group")
        upgrade = Upgrade(self.classic, self.catalog)
        if upgrade.refused is not None:
            return upgrade.refused
        self.group = upgrade.group(self.limits, self.now)
        self.take(self.classic.close(ErrorCode.rebalance_in_progress, self.now))
        self.classic = self.value = None
        self.store(upgrade.records)
        return None

    def turn(self) -> None:
        """A consumer group without members of its protocol becomes a classic one."""
        if self.classic is None and self.group.ends_as_classic:
            self.value = downgraded(self.group, self.catalog, self.now, max_bytes=MAX_BYTES)
            assert self.value is not None
            self.store([*self.group.take_records(), *self.group.tombstones()])
            assert not self.durable
            self.restart()

    def leave(self, client: Client, epoch: int = -1) -> ErrorCode:
        error = ErrorCode.group_id_not_found
        if self.classic is None:
            error = super().leave(client, epoch)
            self.turn()
        return error

    def pass_time(self, ms: int) -> None:
        if self.classic is None:
            super().pass_time(ms)
            self.turn()
            return
        self.now_ms += ms
        self.take(self.classic.tick(self.now))

    def restart(self) -> None:
        for client in list(self.waiting.values()):
            client.waits = False
            client.lose(ErrorCode.not_coordinator)
        self.waiting.clear()
        if self.durable:
            self.classic = None
            super().restart()
            return
        self.classic = self._new_classic()
        if self.value is not None:
            self.classic.restore(self.value, self.now)

    # The classic protocol

    def join_request(self, client: ClassicClient, **more: Any) -> JoinRequest:
        self._number += 1
        said = subscription(client.topics, by_name(client.owned))
        fields: dict[str, Any] = {
            "member_id": client.member_id,
            "new_member_id": f"{client.name}-{self._number}",
            "instance_id": client.instance_id,
            "client_id": client.name,
            "rebalance_timeout_ms": REBALANCE_MS,
            "session_timeout_ms": SESSION_MS,
            "protocol_type": "consumer",
            "protocols": ((client.protocol, said),),
        }
        return JoinRequest(**{**fields, **more})

    def classic_join(self, client: ClassicClient, **more: Any) -> None:
        request = self.join_request(client, **more)
        if self.classic is not None:
            ticket = f"join {self._number}"
            self.waiting[ticket] = client
            self.take(self.classic.join(request, ticket, self.now))
            return
        said, result = classic_members.read_join(self.group, request, self.catalog)
        if said is not None:
            result = classic_members.join(self.group, said, self.catalog, self.now)
        self.store(self.group.take_records())
        self.turn()
        client.take_joined(result)

    def classic_sync(self, client: ClassicClient, assignments: Mapping[str, bytes]) -> None:
        request = SyncRequest(
            member_id=client.member_id,
            generation_id=client.generation,
            instance_id=client.instance_id,
            protocol_type="consumer",
            protocol=client.protocol,
            assignments=tuple(assignments.items()),
        )
        if self.classic is not None:
            self._number += 1
            ticket = f"sync {self._number}"
            self.waiting[ticket] = client
            self.take(self.classic.sync(request, ticket, self.now))
        else:
            client.take_synced(classic_members.sync(self.group, request, self.catalog, self.now))

    def classic_beat(self, client: ClassicClient) -> ErrorCode:
        me = (client.member_id, client.instance_id, client.generation)
        if self.classic is not None:
            return self.classic.heartbeat(*me, self.now)
        return classic_members.heartbeat(self.group, *me, self.now)

    def classic_leave(self, client: ClassicClient, member_id: str | None = None) -> ErrorCode:
        leaving = [
            Leaving(
                member_id=client.member_id if member_id is None else member_id, instance_id=client.instance_id
            )
        ]
        if self.classic is not None:
            errors, effects = self.classic.leave(leaving, self.now)
            self.take(effects)
        else:
            errors = classic_members.leave(self.group, leaving, self.now)
            self.store(self.group.take_records())
            self.turn()
        return errors[0]

    def assignments(self, joined: JoinResult) -> dict[str, bytes]:
        """A leader's: equal numbers, sticky; a cooperative one leaves out what its owner has to give up."""
        said = {one.member_id: decode_subscription(one.metadata) for one in joined.members}
        owners: dict[tuple[str, int], str] = {}
        given: dict[str, dict[str, frozenset[int]]] = {member_id: {} for member_id in said}
        for member_id, one in said.items():
            assert one is not None
            owners |= {(name, p): member_id for name, some in one.owned.items() for p in some}
        for name, count in sorted(self.topics.items()):
            ids = [member_id for member_id, one in said.items() if one is not None and name in one.topics]
            for partition in range(count) if ids else ():
                member_id = ids[partition % len(ids)]
                owner = owners.get((name, partition), member_id)
                if owner == member_id or joined.protocol == "range":
                    given[member_id][name] = given[member_id].get(name, frozenset()) | {partition}
        return {member_id: encode_assignment(some, 1) for member_id, some in given.items()}

    def take(self, effects: list[Effect]) -> None:
        """Answers of the classic group, and its records, which are durable at once."""
        for effect in effects:
            if isinstance(effect, Answer):
                client = self.waiting.pop(effect.ticket, None)
                if client is not None and isinstance(effect.result, JoinResult):
                    client.take_joined(effect.result)
                elif client is not None and isinstance(effect.result, SyncResult):
                    client.take_synced(effect.result)
            elif self.classic is not None:
                self.value = effect.value
                self.take(self.classic.stored(effect.write_id, ErrorCode.none, self.now))
