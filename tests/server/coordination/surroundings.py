"""What coordinators stand on, over a real root; tests own its time, and hold, fail and release what is
published.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.log.config import TopicConfig
from sparklog.metadata import PartitionState, PublishResult, plan_append
from sparklog_server.cluster.leadership import Images, Leadership
from sparklog_server.coordination.host import Host
from sparklog_server.metrics import Metrics
from sparklog_server.publish.parts import AppendPart, PartOutcome
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.timer import Timer
from sparklog_server.settings.config import ServerConfig

T = TypeVar("T")


class HeldPublisher:
    """Appends as the broker's publisher does.

    `hold` keeps submissions back until `release`; `error` is what becomes of each part, `failure` of
    everything, as when the broker is fenced; with `loses_answers` an error is all that is heard of what has
    been appended.
    """

    def __init__(self, log: SparkLog, root: LiveRoot) -> None:
        self._log = log
        self._root = root
        self.hold = False
        self.error: Exception | None = None
        self.failure: Exception | None = None
        self.loses_answers = False
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
            if self.failure is not None:
                future.set_exception(self.failure)
                continue
            outcomes = [self._outcome(part) for part in parts]
            if not future.done():  # whoever waited may be gone
                future.set_result(outcomes)
        self._root.show()

    def _outcome(self, part: AppendPart) -> PartOutcome:
        if self.error is not None and not self.loses_answers:
            return PartOutcome(error=self.error)
        base_offset = self._append(part)
        return PartOutcome(base_offset=base_offset) if self.error is None else PartOutcome(error=self.error)

    def _append(self, part: AppendPart) -> int:
        draft = self._log.writer.append(part.topic_id, part.partition, part.encoded, TopicConfig())
        assert draft is not None
        self._log.writer.sync([draft])
        result = self._log.metadata.publish(lambda image: [plan_append(image, [draft])])
        (action,) = result.actions
        (extent,) = action.extents  # type: ignore[union-attr]
        return int(extent.base_offset)

    async def submit_plan(self, plan: Any) -> PublishResult:
        if self.failure is not None:
            raise self.failure
        result = self._log.metadata.publish(plan)
        await asyncio.sleep(0)
        self._root.show()
        return result


class HeldRoot(LiveRoot):
    """A root whose storage waits when a test says so."""

    reads: asyncio.Event | None = None  # storage waits for it

    async def run(self, function: Callable[..., T], /, *args: Any) -> T:
        if self.reads is not None:
            await self.reads.wait()
        await asyncio.sleep(0)
        return function(*args)


class SharedLeadership(Leadership):
    """Of a broker among several: others lead the partitions that a test names."""

    def __init__(self, node_id: int, images: Images) -> None:
        super().__init__(node_id, images)
        self.led_by_others: set[int] = set()

    def leads(self, partition: PartitionState) -> bool:
        return partition.partition not in self.led_by_others


class Surroundings:
    """The parts of a broker that coordinators are given."""

    def __init__(self, url: str, clock: ManualClock, settings: Mapping[str, str]) -> None:
        self.config = ServerConfig.parse(settings)
        self.clock = clock
        self.log: SparkLog = sparklog.open(url, clock=clock)
        self.metrics = Metrics()
        self.root = HeldRoot(
            self.log, defaults=self.config.root_defaults(), metrics=self.metrics, storage_threads=1
        )
        self.timer = Timer(clock)
        self.publisher = HeldPublisher(self.log, self.root)
        self.leadership = SharedLeadership(1, self.log)
        self.is_in_charge = True  # this is the role, too
        self.host = Host(
            root=self.root,
            role=self,
            leadership=self.leadership,
            publisher=self.publisher,
            timer=self.timer,
            clock=clock,
            metrics=self.metrics,
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

    async def close(self) -> None:
        """After whatever stands on it."""
        await self.settle()
        self.timer.stop()
        await self.root.finish_upkeep()
        self.root.close()
        self.log.close()
