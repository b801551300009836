"""What fails, what was given up, and how a publisher ends."""

import asyncio
import threading
from typing import Any

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import FatalStorageError, FencedError, RetriableError, StorageError
from sparklog.maintenance import restore
from sparklog.metadata import plan_create_topic
from sparklog.storage import MemoryStore
from sparklog_server.publish.produced_batches import SMALL_BYTES
from tests.server.publish.batches import FakePart
from tests.server.publish.surroundings import Surroundings
from tests.server.publish.test_publisher import Gate, orders, run
from tests.support.roots import opened


def test_failed_fsync_stops_the_broker(log: SparkLog, store: MemoryStore) -> None:
    gate = Gate()
    fatal = FatalStorageError("DURABILITY_UNKNOWN", "fsync failed", fix="stop")

    def hook(operation: str, name: str) -> None:
        if operation == "sync":
            gate.wait()
            raise fatal

    async def scenario(broker: Surroundings) -> None:
        store.hook = hook
        first = broker.publisher.submit([orders(log)])
        await gate.until_reached()
        behind = broker.publisher.submit([orders(log, 1)])
        plan = broker.publisher.submit_plan(lambda image: [])
        gate.open.set()
        for future in (first, behind, plan):
            with pytest.raises(FatalStorageError):
                await future
        store.hook = None
        with pytest.raises(FatalStorageError):
            await broker.publisher.submit([orders(log)])
        with pytest.raises(FatalStorageError):
            await broker.publisher.submit_plan(lambda image: [])
        assert broker.failures == [fatal]
        assert broker.publisher.pending_submissions == 0

    run(log, scenario)
    assert [state.log_end_offset for state in log.refresh().topic("orders").partitions] == [0, 0, 0]


@pytest.mark.parametrize("by_plan", [False, True])
def test_a_broker_that_was_not_stopped_for_a_restore_stops(
    log: SparkLog, store: MemoryStore, clock: ManualClock, by_plan: bool
) -> None:
    async def scenario(broker: Surroundings) -> None:
        await broker.publisher.submit([orders(log)])
        restored = opened(store, clock)
        restore(restored.metadata, clock)
        before = restored.image.commit
        future: asyncio.Future[Any] = (
            broker.publisher.submit_plan(
                lambda image: [plan_create_topic(image, "new", 1, topic_id="N" * 22)]
            )
            if by_plan
            else broker.publisher.submit([orders(log)])
        )
        with pytest.raises(FencedError, match="ROOT_RESTORED"):
            await future
        assert restored.refresh().commit == before
        assert len(broker.failures) == 1

    run(log, scenario)


def test_storage_errors_fail_the_commit_and_no_more(log: SparkLog, store: MemoryStore) -> None:
    def hook(operation: str, name: str) -> None:
        if operation == "write":
            raise StorageError("STORAGE_FULL", "no space", fix="make some")

    async def scenario(broker: Surroundings) -> None:
        store.hook = hook
        (outcome,) = await broker.publisher.submit([orders(log)])
        assert isinstance(outcome.error, StorageError)
        store.hook = None
        (outcome,) = await broker.publisher.submit([orders(log)])
        assert outcome.base_offset == 0
        assert broker.failures == []

    run(log, scenario)


def test_a_bug_fails_the_commit_and_not_the_publisher(log: SparkLog, store: MemoryStore) -> None:
    def hook(operation: str, name: str) -> None:
        if operation == "write":
            raise ZeroDivisionError

    async def scenario(broker: Surroundings) -> None:
        store.hook = hook
        with pytest.raises(ZeroDivisionError):
            await broker.publisher.submit([orders(log)])
        store.hook = None
        assert (await broker.publisher.submit([orders(log)]))[0].error is None

    assert run(log, scenario).failures == []


def test_stopping_publishes_what_was_submitted(log: SparkLog, store: MemoryStore) -> None:
    gate = Gate()
    surroundings = Surroundings(log)

    async def main() -> None:
        publisher = surroundings.publisher
        await surroundings.membership.start()
        await publisher.start()
        store.hook = gate.hook
        first = publisher.submit([orders(log)])
        await gate.until_reached()
        later = [publisher.submit([FakePart.like(orders(log), size=size)]) for size in (1, SMALL_BYTES + 1)]
        stopping = asyncio.create_task(publisher.stop())
        await asyncio.sleep(0)
        with pytest.raises(RetriableError, match="stopping"):
            await publisher.submit([orders(log)])
        with pytest.raises(RetriableError, match="stopping"):
            await publisher.submit_plan(lambda image: [])
        gate.open.set()
        await stopping
        assert [(await one)[0].base_offset for one in (first, *later)] == [0, 2, 4]
        await surroundings.membership.stop()

    asyncio.run(main())
    assert not [one for one in threading.enumerate() if one.name.startswith(("publisher", "checker"))]


def test_a_caller_that_went_away_is_no_problem(log: SparkLog, store: MemoryStore) -> None:
    gate = Gate()

    async def scenario(broker: Surroundings) -> None:
        store.hook = gate.hook
        first = broker.publisher.submit([orders(log)])
        await gate.until_reached()
        first.cancel()
        second = broker.publisher.submit([orders(log)])
        gate.open.set()
        assert (await second)[0].base_offset == 2

    run(log, scenario)
