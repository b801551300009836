"""A group coordinator on a real root; tests own its time, and hold, fail and release what is published."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.log.config import TopicConfig
from sparklog.metadata import PublishResult, plan_append
from sparklog_server.coordinator.coordinator import GroupCoordinator
from sparklog_server.coordinator.host import Host as CoordinatorHost
from sparklog_server.coordinator.messages import JoinRequest, JoinResult, SyncRequest, SyncResult
from sparklog_server.metrics import Metrics
from sparklog_server.publish.parts import AppendPart, PartOutcome
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.timer import Timer
from sparklog_server.settings.config import ServerConfig

T = TypeVar("T")
SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "10",
}


class HeldPublisher:
    """Appends as the broker's publisher does; `hold` keeps submissions back, `error` refuses them."""

    def __init__(self, host: "Host") -> None:
        self._host = host
        self.hold = False
        self.error: Exception | None = None
        self.submissions: list[int] = []  # parts' record counts
        self._held: list[tuple[Sequence[AppendPart], asyncio.Future[list[PartOutcome]]]] = []

    def submit(self, parts: Sequence[AppendPart]) -> asyncio.Future[list[PartOutcome]]:
        future: asyncio.Future[list[PartOutcome]] = asyncio.get_running_loop().create_future()
        self.submissions.append(sum(part.encoded.record_count for part in parts))
        self._held.append((parts, future))
        if not self.hold:
            asyncio.get_running_loop().call_soon(self.release)
        return future

    def release(self) -> None:
        held, self._held = self._held, []
        for parts, future in held:
            if self.error is not None:
                future.set_result([PartOutcome(error=self.error)])
            else:
                future.set_result([PartOutcome(base_offset=self._append(part)) for part in parts])
        self._host.root.show()

    def _append(self, part: AppendPart) -> int:
        log = self._host.log
        draft = log.writer.append(part.topic_id, part.partition, part.encoded, TopicConfig())
        assert draft is not None
        log.writer.sync([draft])
        result = log.metadata.publish(lambda image: [plan_append(image, [draft])])
        (action,) = result.actions
        (extent,) = action.extents  # type: ignore[union-attr]
        return int(extent.base_offset)

    async def submit_plan(self, plan: Any) -> PublishResult:
        result = self._host.log.metadata.publish(plan)
        await asyncio.sleep(0)
        self._host.root.show()
        return result


class HeldRoot(LiveRoot):
    """A root whose storage waits when a test says so."""

    reads: asyncio.Event | None = None  # storage waits for it

    async def run(self, function: Callable[..., T], /, *args: Any) -> T:
        if self.reads is not None:
            await self.reads.wait()
        await asyncio.sleep(0)
        return function(*args)


class Host:
    """A coordinator, and what it is built on."""

    def __init__(self, url: str, clock: ManualClock, settings: dict[str, str]) -> None:
        config = ServerConfig.parse({**SETTINGS, **settings})
        self.clock = clock
        self.log: SparkLog = sparklog.open(url, clock=clock)
        self.metrics = Metrics()
        self.root = HeldRoot(
            self.log, defaults=config.root_defaults(), metrics=self.metrics, storage_threads=1
        )
        self.timer = Timer(clock)
        self.publisher = HeldPublisher(self)
        self.is_in_charge = True
        self.groups = GroupCoordinator(
            CoordinatorHost(
                root=self.root,
                role=self,
                publisher=self.publisher,
                timer=self.timer,
                clock=clock,
                settings=config.groups,
                metrics=self.metrics,
            )
        )

    async def settle(self) -> None:
        """Let everything happen that can."""
        for _ in range(30):
            await asyncio.sleep(0)

    async def advance(self, ms: int) -> None:
        """Time passes; alarms ring."""
        self.clock.advance_ms(ms)
        self.timer.run_due()
        await self.settle()

    # Members

    def joins(self, group: str, member_id: str = "", **fields: Any) -> "asyncio.Task[JoinResult]":
        """A JoinGroup that waits."""
        instance_id = fields.get("instance_id")
        request = JoinRequest(
            **{
                "member_id": member_id,
                "new_member_id": self.groups.new_member_id("client", instance_id),
                "needs_member_id": False,
                "client_id": "client",
                "client_host": "/127.0.0.1",
                "rebalance_timeout_ms": 1_000,
                "session_timeout_ms": 500,
                "protocol_type": "consumer",
                "protocols": (("range", b"metadata"),),
                **fields,
            }
        )
        return asyncio.ensure_future(self.groups.join(group, request))

    async def join(self, group: str, member_id: str = "", **fields: Any) -> JoinResult:
        """A JoinGroup, answered when the initial delay of 0 ms is over."""
        task = self.joins(group, member_id, **fields)
        await self.advance(0)
        await self.advance(1)
        return await task

    def syncs(self, group: str, joined: JoinResult, **assignments: bytes) -> "asyncio.Task[SyncResult]":
        """A SyncGroup that waits; a leader gives `assignments` by position, as a0, a1, ..."""
        given = tuple(
            (one.member_id, assignments.get(f"a{number}", b"")) for number, one in enumerate(joined.members)
        )
        request = SyncRequest(
            member_id=joined.member_id, generation_id=joined.generation_id, assignments=given
        )
        return asyncio.ensure_future(self.groups.sync(group, request))

    async def stable_member(self, group: str, **fields: Any) -> JoinResult:
        """The only member of a stable group."""
        joined = await self.join(group, **fields)
        assert not joined.error
        synced = await self.syncs(group, joined, a0=b"everything")
        assert synced.assignment == b"everything"
        return joined


Scenario = Callable[[Host], Coroutine[Any, Any, None]]


class Roots:
    """Runs scenarios, one after the other, on the same root: each has a coordinator of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock()

    def run(self, scenario: Scenario, settings: dict[str, str] | None = None, *, start: bool = True) -> None:
        async def main() -> None:
            host = Host(self.url, self.clock, settings or {})
            if start:
                await host.groups.start()
                await host.settle()
            try:
                await scenario(host)
            finally:
                await host.groups.stop()
                await host.settle()
                host.timer.stop()
                await host.root.finish_upkeep()
                host.root.close()
                host.log.close()

        asyncio.run(main())


@pytest.fixture
def roots(tmp_path: Any) -> Roots:
    url = str(tmp_path / "root")
    with sparklog.open(url) as log:
        log.create_topic("orders", 4)
        log.create_topic("returns", 2)
    return Roots(url)
