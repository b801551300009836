"""A coordinator over a log in memory, whose publisher lets others commit before it does."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.metadata import (
    DraftExtent,
    Plan,
    PublishResult,
    Staging,
    Transaction,
    plan_stage,
)
from sparklog.storage import MemoryStore
from sparklog_server.metrics import Metrics
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.settings.config import ServerConfig
from sparklog_server.transactions.coordinator import Producer, TransactionCoordinator
from tests.support.roots import opened


class Commits:
    """In the place of a publisher: commits at once, after whatever is to come before."""

    def __init__(self, log: SparkLog) -> None:
        self._log = log
        self.before: list[Callable[[], object]] = []
        self.failures: list[Exception] = []
        self.count = 0
        self.asked = asyncio.Event()

    def submit_plan(self, plan: Plan) -> "asyncio.Future[PublishResult]":
        future: asyncio.Future[PublishResult] = asyncio.get_running_loop().create_future()
        self.asked.set()
        while self.before:
            self.before.pop(0)()
        if self.failures:
            future.set_exception(self.failures.pop(0))
            return future
        try:
            result = self._log.metadata.publish(plan)
        except Exception as error:
            future.set_exception(error)
        else:
            self.count += bool(result.actions)
            future.set_result(result)
        return future


class Root:
    """A root, the coordinator of one broker, and somebody else who works on it."""

    def __init__(self, log: SparkLog, other: SparkLog, clock: ManualClock) -> None:
        self.log, self.other, self.clock = log, other, clock
        self.metrics = Metrics()
        self.config = ServerConfig.parse({})
        self.live = LiveRoot(log, defaults={}, metrics=self.metrics, storage_threads=1)
        self.commits = Commits(log)
        self._others: list[LiveRoot] = []
        self.coordinator = TransactionCoordinator(
            self.live, self.commits, self.config.transactions, clock=clock, metrics=self.metrics
        )

    def elsewhere(self) -> TransactionCoordinator:
        """Another broker's, which is behind until it looks."""
        root = LiveRoot(self.other, defaults={}, metrics=Metrics(), storage_threads=1)
        self._others.append(root)
        return TransactionCoordinator(
            root, Commits(self.other), self.config.transactions, clock=self.clock, metrics=Metrics()
        )

    def close(self) -> None:
        for one in (self.live, *self._others):
            one.close()

    def transaction(self, name: str = "app") -> Transaction:
        """As of the newest image."""
        return self.log.refresh(force=True).transactions[name]

    def topic_id(self, topic: str = "orders") -> str:
        return self.log.refresh(force=True).topic(topic).topic_id

    def ends(self, topic: str = "orders") -> list[int]:
        """Where its partitions end."""
        return [state.log_end_offset for state in self.log.refresh(force=True).topic(topic).partitions]

    def stage(
        self,
        producer: Producer,
        records: int = 3,
        *,
        partition: int = 0,
        base_sequence: int = 0,
        opens: bool = False,
    ) -> None:
        """As the leader of the partition does it; of a segment that nobody reads here."""
        image = self.log.refresh(force=True)
        draft = DraftExtent(
            topic_id=image.topic("orders").topic_id,
            partition=partition,
            segment=f"segments/{'0' * 32}/00000000.{image.commit}.log",
            position=0,
            size=100,
            record_count=records,
            max_timestamp_ms=self.clock.now_ms(),
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=base_sequence,
        )
        part = Staging(draft=draft, opens_ms=self.clock.now_ms() if opens else -1)
        self.log.metadata.publish(lambda image: [plan_stage(image, [part])])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def root(clock: ManualClock) -> Iterator[Root]:
    store = MemoryStore("transactions", clock=clock)
    with opened(store, clock) as log, opened(store, clock) as other:
        log.create_topic("orders", 2)
        made = Root(log, other, clock)
        yield made
        made.close()
