"""What coordinators stand on, over a real root; tests own its time, and hold, fail and release what is
published.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import FencedError
from sparklog.log.config import TopicConfig
from sparklog.metadata import (
    NO_NODE,
    Action,
    AppendExtents,
    BrokerListener,
    Image,
    PartitionState,
    Plan,
    PublishResult,
    may_append,
    plan_append,
)
from sparklog_server.cluster.leadership import LEADER_EPOCH, Images, Leader, Leadership
from sparklog_server.cluster.membership import Registration
from sparklog_server.coordination.internal_topic import Host
from sparklog_server.metrics import Metrics
from sparklog_server.publish.group_commit import GroupCommitter
from sparklog_server.publish.parts import NO_OFFSET, AppendPart, PartOutcome
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.timing import Timer
from sparklog_server.settings.config import ServerConfig
from tests.support.several_brokers import take_over

T = TypeVar("T")


class HeldPublisher:
    """Appends as the broker's publisher does.

    `hold` keeps submissions back until `release`; `error` is what becomes of each part, `failure` of
    everything, as when the broker is fenced; with `loses_answers` an error is all that is heard of what has
    been appended. With a registration, what was accepted in a leader epoch that is over is refused.
    """

    def __init__(self, log: SparkLog, root: LiveRoot, registration: Registration | None = None) -> None:
        self._log = log
        self._root = root
        self._registration = registration
        self.hold = False
        self.error: Exception | None = None
        self.failure: Exception | None = None
        self.loses_answers = False
        self.submissions: list[int] = []  # parts' record counts
        self.held: list[tuple[Sequence[AppendPart], asyncio.Future[list[PartOutcome]]]] = []

    def submit(self, parts: Sequence[AppendPart]) -> asyncio.Future[list[PartOutcome]]:
        future: asyncio.Future[list[PartOutcome]] = asyncio.get_running_loop().create_future()
        self.submissions.append(sum(part.encoded.record_count for part in parts))
        self.held.append((parts, future))
        if not self.hold:
            asyncio.get_running_loop().call_soon(self.release)
        return future

    def release(self) -> None:
        held, self.held = self.held, []
        for parts, future in held:
            if self.failure is not None:
                future.set_exception(self.failure)
                continue
            outcomes = [self._outcome(part) for part in parts]
            if not future.done():  # whoever waited may be gone
                future.set_result(outcomes)
        self._root.show()

    def release_together(self) -> None:
        """All that is held, in one group commit."""
        held, self.held = self.held, []
        outcomes = self._committer().write([part for parts, _ in held for part in parts])
        for parts, future in held:
            future.set_result(outcomes[: len(parts)])
            del outcomes[: len(parts)]
        self._root.show()

    def _outcome(self, part: AppendPart) -> PartOutcome:
        if self.error is not None and not self.loses_answers:
            return PartOutcome(error=self.error)
        if part.transaction is not None or part.at_offset != NO_OFFSET:
            outcome = self.stage_at_once(part)
            return outcome if self.error is None else PartOutcome(error=self.error)
        try:
            base_offset = self.append_at_once(part)
        except FencedError as error:
            return PartOutcome(error=error)
        return PartOutcome(base_offset=base_offset) if self.error is None else PartOutcome(error=self.error)

    def append_at_once(self, part: AppendPart) -> int:
        """Durable and visible, whatever is held back; returns its base offset."""
        draft = self._log.writer.append(part.topic_id, part.partition, part.encoded, TopicConfig())
        assert draft is not None
        self._log.writer.sync([draft])

        def plan(image: Image) -> Sequence[Action]:
            actions, registration = [plan_append(image, [draft])], self._registration
            if registration is None:
                return actions
            if not may_append(image, registration.node_id, part.topic_id, part.partition, part.leader_epoch):
                raise FencedError("NOT_LEADER", f"{part.topic}-{part.partition}", fix="look for its leader")
            return registration.act(image, actions, [part.leader_epoch])

        result = self._log.metadata.publish(plan)
        append = result.actions[-1]
        assert isinstance(append, AppendExtents)
        (extent,) = append.extents
        return extent.base_offset

    def stage_at_once(self, part: AppendPart) -> PartOutcome:
        """As the publisher does, which judges by the transaction, and by the image."""
        (outcome,) = self._committer().write([part])
        return outcome

    def _committer(self) -> GroupCommitter:
        registration = self._registration or _Nobody(node_id=NO_NODE, broker_epoch=0, incarnation_id="")
        return GroupCommitter(self._log, lambda: registration, lambda _: TopicConfig())

    async def submit_plan(self, plan: Any) -> PublishResult:
        if self.failure is not None:
            raise self.failure
        registration = self._registration
        result = self._log.metadata.publish(plan if registration is None else registration.fenced(plan))
        await asyncio.sleep(0)
        self._root.show()
        return result


class _Nobody(Registration):
    """The registration of a broker that is not registered, and leads everything all the same."""

    __slots__ = ()

    def validate(self, image: Image) -> None: ...

    def fenced(self, plan: Plan) -> Plan:
        return plan

    def act(
        self, image: Image, actions: Sequence[Action], leader_epochs: Sequence[int] = (), /
    ) -> Sequence[Action]:
        return actions


class HeldRoot(LiveRoot):
    """A root whose storage waits when a test says so."""

    reads: asyncio.Event | None = None  # storage waits for it
    waiting = 0  # how much does

    async def run(self, function: Callable[..., T], /, *args: Any) -> T:
        if self.reads is not None:
            self.waiting += 1
            await self.reads.wait()
            self.waiting -= 1
        await asyncio.sleep(0)
        return function(*args)

    run_apart = run


class SharedLeadership(Leadership):
    """Others lead the partitions that a test names; without a registration this broker leads the rest."""

    def __init__(self, node_id: int, images: Images, *, is_registered: bool) -> None:
        super().__init__(node_id, images)
        self.led_by_others: set[int] = set()
        self._is_registered = is_registered

    def leader_of(self, partition: PartitionState) -> Leader:
        if partition.partition in self.led_by_others:
            return Leader(NO_NODE, LEADER_EPOCH)
        return super().leader_of(partition) if self._is_registered else Leader(self.node_id, LEADER_EPOCH)


class Surroundings:
    """The parts of a broker that coordinators are given."""

    def __init__(
        self,
        url: str,
        clock: ManualClock,
        settings: Mapping[str, str],
        *,
        joins_as: int | None = None,
        takes_over: bool = False,
    ) -> None:
        """`joins_as`: the node id of a broker that registers; else it leads everything unregistered, or
        takes everything over as node 1.
        """
        self.config = ServerConfig.parse(settings)
        self.clock = clock
        self.log: SparkLog = sparklog.open(url, clock=clock)
        self.metrics = Metrics()
        self.root = HeldRoot(
            self.log, defaults=self.config.root_defaults(), metrics=self.metrics, storage_threads=1
        )
        self.timer = Timer(clock)
        self.registration = take_over(self.log) if takes_over else None
        if joins_as is not None:
            self.registration = _join(self.log, joins_as)
        self.root.show()
        self.publisher = HeldPublisher(self.log, self.root, self.registration)
        self.leadership = SharedLeadership(
            1 if joins_as is None else joins_as, self.log, is_registered=self.registration is not None
        )
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

    async def look(self) -> None:
        """Follow what others have done."""
        self.log.refresh()
        self.root.show()
        await self.settle()

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


def _join(log: SparkLog, node_id: int) -> Registration:
    listeners = (BrokerListener(host=f"node{node_id}.example", port=9092),)
    return Registration.join(log.metadata, node_id, listeners)
