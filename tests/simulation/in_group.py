"""What a member of a group asks of brokers: to be given partitions, and where the group is in them.

Invariants: what is asked on a connection that was given up is read before that, or never.
Not here: what it does with its partitions (members.py), the coordinators, which are real (coordinators.py).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from sparklog.client.groups import partition_for_group
from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.metadata import NO_NODE
from sparklog_server.groups.messages import JoinRequest, SyncRequest
from sparklog_server.protocol.apis import ErrorCode
from tests.history.recorder import History
from tests.simulation.broker_life import Node, Sent
from tests.simulation.coordinators import OFFSETS_PARTITIONS, Asked, Coordinators
from tests.simulation.processes import Role, key_of
from tests.simulation.setting import TOPICS
from tests.simulation.world import SimProcess

GROUP = "g"
SOURCE, MADE = TOPICS[0], TOPICS[1]
SESSION_MS, REBALANCE_MS = 3_000, 2_000
PATIENCE_MS = 1_500
Place = tuple[str, int]


class NoAnswerError(Exception):
    """The connection broke, or it took too long; what was asked may be done or not."""


_OFFSETS_PARTITION = partition_for_group(GROUP, OFFSETS_PARTITIONS)
OVER = frozenset(
    {
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.rebalance_in_progress,
        ErrorCode.fenced_instance_id,
    }
)
ANOTHERS = frozenset({"NOT_LEADER", "BROKER_FENCED", "COORDINATOR_MOVED"})


@dataclass
class Grouped(Role):
    """See the module's docstring."""

    brokers: list[Node] = field(default_factory=list)
    member_id: str = ""
    generation: int = -1
    assigned: list[int] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    silent: Node | None = None  # has not answered, the last time

    # --- asking ------------------------------------------------------------------------------------------

    def any_broker(self) -> Node:
        return self.setting.dice.choice(self.brokers)

    def another_broker(self) -> Node:
        """Any, but for the one that does not answer."""
        others = [one for one in self.brokers if one is not self.silent]
        return self.setting.dice.choice(others or self.brokers)

    def coordinator(self) -> Node:
        node = self.any_broker().believed_leader(_OFFSETS_PARTITION, OFFSETS_TOPIC)
        found = next((one for one in self.brokers if one.node == node != NO_NODE), None)
        if found is None:
            raise NoAnswerError
        return found

    def ask(
        self,
        process: SimProcess,
        broker: Node,
        call: Callable[[Coordinators], Awaitable[Any]],
        *,
        patience_ms: int = PATIENCE_MS,
    ) -> Any:
        """What a broker's coordinators answer. Raises what they do; NoAnswerError."""
        answers: list[tuple[Any, Exception | None]] = []
        is_lost = process.world.chance(0.03, "answer of a coordinator lost")

        def told(result: Any, error: Exception | None) -> None:
            if not is_lost:
                answers.append((result, error))
                process.call()

        asked = Asked(call, told)
        self.wait(process, broker, asked, answers, patience_ms)
        result, error = answers[0]
        if getattr(error, "code", "") in ANOTHERS:
            raise NoAnswerError from error  # it was the broker's, and nobody knows what became of it
        if error is not None:
            raise error
        return result

    def wait(
        self,
        process: SimProcess,
        broker: Node,
        asked: Asked | Sent,
        answers: list[Any],
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        if not broker.is_up:
            process.sleep_ms(20)
            raise NoAnswerError
        broker.ask(asked)
        until_ms = process.monotonic_ms() + patience_ms
        while not answers:
            left_ms = until_ms - process.monotonic_ms()
            if left_ms <= 0:
                if asked in broker.inbox:  # the connection is closed: nobody reads it any more
                    broker.inbox.remove(asked)
                self.silent = broker
                raise NoAnswerError
            process.think_ms(left_ms)
        self.silent = None

    # --- the group ---------------------------------------------------------------------------------------

    def rejoin(self) -> None:
        self.generation = -1
        self.assigned, self.positions = [], {}

    def join(self, process: SimProcess) -> bool:
        coordinator = self.coordinator()
        joined = self.ask(
            process,
            coordinator,
            lambda c: c.groups.join(
                GROUP,
                JoinRequest(
                    member_id=self.member_id,
                    new_member_id=c.groups.new_member_id(self.name, None),
                    needs_member_id=False,
                    rebalance_timeout_ms=REBALANCE_MS,
                    session_timeout_ms=SESSION_MS,
                    protocol_type="consumer",
                    protocols=(("range", b""),),
                ),
            ),
            patience_ms=2 * REBALANCE_MS,
        )
        if joined.error:
            if joined.error == ErrorCode.unknown_member_id:
                self.member_id = ""
            return False
        self.member_id = joined.member_id
        shares: dict[str, list[str]] = {one.member_id: [] for one in joined.members}
        for number in range(self.setting.partitions):
            if shares:
                shares[joined.members[number % len(shares)].member_id].append(str(number))
        request = SyncRequest(
            member_id=joined.member_id,
            generation_id=joined.generation_id,
            assignments=tuple((name, ",".join(share).encode()) for name, share in shares.items()),
        )
        synced = self.ask(
            process, coordinator, lambda c: c.groups.sync(GROUP, request), patience_ms=2 * REBALANCE_MS
        )
        if synced.error:
            if synced.error == ErrorCode.unknown_member_id:
                self.member_id = ""
            return False
        self.generation = joined.generation_id
        self.assigned = [int(one) for one in synced.assignment.decode().split(",") if one]
        self.setting.world.met["members that were given partitions"] += 1
        return True

    def is_still_member(self, process: SimProcess) -> bool:
        async def beat(c: Coordinators) -> ErrorCode:
            return c.groups.heartbeat(GROUP, self.member_id, None, self.generation)

        error = self.ask(process, self.coordinator(), beat)
        if error == ErrorCode.unknown_member_id:
            self.member_id = ""
        if error in OVER:
            self.rejoin()
        return not error

    def find_position(self, history: History, process: SimProcess, source: int) -> bool:
        place = SOURCE, source

        async def look(c: Coordinators) -> tuple[ErrorCode, int | None]:
            error, committed = c.groups.fetch(GROUP)
            if not error and place in c.groups.table.unstable(GROUP):
                self.setting.world.met["offset that was not stable"] += 1
                error = ErrorCode.unstable_offset_commit
            return error, committed[place].offset if place in committed else None

        fetching = history.begin("fetch-committed", group=GROUP, key=key_of(place))
        error, offset = self.ask(process, self.coordinator(), look)
        if error:
            self.is_still_member(process)
            return False
        fetching.ok(offset=offset)
        self.positions[source] = offset or 0
        return True
