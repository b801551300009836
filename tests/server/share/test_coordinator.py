"""Assignments of share groups: with a heartbeat, by the timer, and in a thread."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog_server.groups.pacing import MAX_INLINE_WEIGHT
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.protocol.wire import SLICE
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.timing import Timer
from sparklog_server.settings.groups import GroupSettings
from sparklog_server.settings.share import ShareSettings
from sparklog_server.share.coordinator import EXPIRE_MS, ShareCoordinator
from sparklog_server.share.members import ShareGroup, ShareHeartbeat, ShareHeartbeatResult
from sparklog_server.share.writer import Publishing

INTERVAL_MS = 300
Scenario = Callable[["World"], Coroutine[Any, Any, None]]


class World:
    """A coordinator of all groups. Threads end when a test lets them."""

    def __init__(self, log: SparkLog, clock: ManualClock, max_bytes: int) -> None:
        self.clock = clock
        self.computing: list[asyncio.Future[None]] = []
        self.looks = 0  # at groups
        self.is_broken = False
        self.timer = Timer(clock)
        root = SimpleNamespace(image=log.image, run=self._run)
        self.coordinator = ShareCoordinator(
            cast("LiveRoot", root),
            cast("Publishing", None),
            ShareSettings(assignment_interval_ms=INTERVAL_MS, max_size=1_000),
            GroupSettings(group_max_bytes=max_bytes),
            refusal_of=self._refusal_of,
            is_other_kind=lambda _group: False,
            count_others=lambda _group: 0,
            timer=self.timer,
            clock=clock,
        )

    def _refusal_of(self, _group: str) -> ErrorCode:
        self.looks += 1
        if self.is_broken:
            raise RuntimeError
        return ErrorCode.none

    async def _run(self, compute: Callable[[], Any]) -> Any:
        self.computing.append(asyncio.get_running_loop().create_future())
        await self.computing[-1]
        return compute()

    async def beat(
        self,
        member: str,
        epoch: int = 0,
        topics: tuple[str, ...] | None = ("orders",),
        group: str = "g",
    ) -> ShareHeartbeatResult:
        request = ShareHeartbeat(
            member_id=member, epoch=epoch, client_id="c", client_host="/h", topics=None if epoch else topics
        )
        result = await self.coordinator.heartbeat(group, request)
        assert not result.error, result
        return result

    def pass_time(self, ms: int) -> None:
        self.clock.advance_ms(ms)
        self.timer.run_due()

    @property
    def group(self) -> ShareGroup:
        found = self.coordinator.find("g")
        assert found is not None
        return found

    def assigned(self) -> dict[str, int]:
        return {one.member_id: sum(map(len, one.assignment.values())) for one in self.group}


def run(log: SparkLog, clock: ManualClock, scenario: Scenario, max_bytes: int = 256 << 20) -> None:
    async def main() -> None:
        world = World(log, clock, max_bytes)
        await world.coordinator.start()
        await scenario(world)
        await world.coordinator.stop()
        world.timer.stop()

    asyncio.run(main())


def test_members_that_come_in_an_interval_are_assigned_together_by_the_timer(
    log: SparkLog, clock: ManualClock
) -> None:
    async def scenario(world: World) -> None:
        for member in ("a", "b", "c"):
            await world.beat(member)
        assert world.assigned() == {"a": 3, "b": 0, "c": 0}
        world.pass_time(INTERVAL_MS - 1)
        assert world.assigned() == {"a": 3, "b": 0, "c": 0}
        world.pass_time(1)
        assert world.assigned() == {"a": 1, "b": 1, "c": 1}
        assert (await world.beat("a", 2)).epoch == world.group.epoch

    run(log, clock, scenario)


def test_partitions_of_a_member_that_leaves_or_falls_silent_are_assigned_without_a_heartbeat(
    log: SparkLog, clock: ManualClock
) -> None:
    async def scenario(world: World) -> None:
        await world.beat("a")
        await world.beat("b")
        world.pass_time(INTERVAL_MS)
        await world.beat("a", -1)
        assert world.assigned() == {"b": 1}
        world.pass_time(INTERVAL_MS)
        assert world.assigned() == {"b": 3}
        world.pass_time(30_000)
        await world.beat("c")
        world.pass_time(INTERVAL_MS)
        assert world.assigned() == {"b": 2, "c": 1}
        for _ in range(15_000 // EXPIRE_MS):
            world.pass_time(EXPIRE_MS)
            await asyncio.sleep(0)
        assert world.assigned() == {"c": 3}

    run(log, clock, scenario)


def test_a_look_that_fails_is_not_the_last_one(log: SparkLog, clock: ManualClock) -> None:
    """Else silent members would keep their partitions as long as the broker runs."""

    async def scenario(world: World) -> None:
        await world.beat("a")
        await world.beat("b")
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        world.is_broken = True
        world.pass_time(EXPIRE_MS)
        await asyncio.sleep(0)
        world.is_broken = False
        for _ in range(45_000 // EXPIRE_MS):
            world.pass_time(EXPIRE_MS)
            await asyncio.sleep(0)
        assert world.coordinator.find("g") is None

    run(log, clock, scenario)


def test_silent_members_of_many_groups_are_looked_for_in_slices(log: SparkLog, clock: ManualClock) -> None:
    """There may be 100,000 groups, which were gone through in one turn each second."""

    async def scenario(world: World) -> None:
        count = 3 * SLICE
        for number in range(count):
            await world.beat("a", group=f"g{number}")
        world.looks = 0
        for _ in range(2):
            looked = world.looks + count
            world.pass_time(EXPIRE_MS)
            assert world.looks < looked
            while world.looks < looked:
                before = world.looks
                await asyncio.sleep(0)
                assert world.looks - before <= SLICE

    run(log, clock, scenario)


def test_a_large_assignment_is_computed_in_a_thread(log: SparkLog, clock: ManualClock) -> None:
    names = ("orders", *(f"t{number}" for number in range(999)))
    count = MAX_INLINE_WEIGHT // len(names) + 1

    async def scenario(world: World) -> None:
        for number in range(count):
            await world.beat(f"m{number:02}", topics=names)
        world.pass_time(INTERVAL_MS)
        world.pass_time(INTERVAL_MS)
        await asyncio.sleep(0)
        assert len(world.computing) == 1
        answer = await world.beat("late")
        assert (answer.epoch, answer.assignment) == (2, {})
        world.computing[0].set_result(None)
        for _ in range(3):
            await asyncio.sleep(0)
        assert sum(world.assigned().values()) == count
        assert world.group.needs_assignment  # for the last one
        world.pass_time(INTERVAL_MS)
        await asyncio.sleep(0)
        assert len(world.computing) == 2
        for number in range(count):
            await world.beat(f"m{number:02}", -1)
        await world.beat("late", -1)
        assert world.coordinator.find("g") is None
        world.computing[1].set_result(None)
        for _ in range(3):
            await asyncio.sleep(0)
        await world.beat("a")
        assert world.assigned() == {"a": 3}

    run(log, clock, scenario)


def test_many_short_names_of_topics_are_refused_too(log: SparkLog, clock: ManualClock) -> None:
    """Their objects, and what is assigned of them, take more than the names."""
    names = tuple(f"t{number}" for number in range(1_000))

    async def scenario(world: World) -> None:
        for number in range(6):
            await world.beat(f"m{number}", topics=names)
        late = ShareHeartbeat(member_id="late", epoch=0, client_id="c", client_host="/h", topics=names)
        answer = await world.coordinator.heartbeat("g", late)
        assert answer.error is ErrorCode.group_max_size_reached

    run(log, clock, scenario, max_bytes=1 << 20)


def test_what_is_due_goes_with_its_group(log: SparkLog, clock: ManualClock) -> None:
    async def scenario(world: World) -> None:
        await world.beat("a")
        await world.beat("b")
        for member in ("a", "b"):
            await world.beat(member, -1)
        await world.beat("c")
        await world.beat("d")
        world.pass_time(INTERVAL_MS)
        assert world.assigned() == {"c": 2, "d": 1}

    run(log, clock, scenario)
