"""What stops a broker whose controller meets it, and what does not."""

import asyncio
import contextlib

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import FatalStorageError, InvalidRequestError, StorageError
from sparklog.metadata import Action, Image, MetadataLog
from sparklog.metadata.documents.properties import commit_of
from sparklog.storage import MemoryStore
from tests.server.publish.surroundings import Surroundings
from tests.support.told import Told

FATAL = FatalStorageError("DURABILITY_UNKNOWN", "fsync failed", fix="stop")
FULL = StorageError("STORAGE_FULL", "no space left", fix="free space")


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("error", [FATAL, FULL], ids=["fsync", "full"])
def test_a_failed_fsync_of_the_controllers_stops_the_broker(
    error: StorageError, store: MemoryStore, clock: ManualClock
) -> None:
    """Anything else is tried again."""
    log = SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
    surroundings, failed = Surroundings(log), 0

    def hook(operation: str, name: str) -> None:
        nonlocal failed
        if operation == "put_if_absent" and commit_of(name) is not None and failed < 2:
            failed += 1
            raise error

    async def main() -> None:
        await surroundings.membership.start()
        log.create_topic("orders", 1)  # as by another process: it is for the controller to assign
        store.hook = hook
        await surroundings.controller.start()
        while True:
            (orders,) = surroundings.root.image.topics["orders"].partitions
            if surroundings.failures or orders.leadership.leader > 0:
                break
            await asyncio.sleep(0)
        store.hook = None
        await surroundings.controller.stop()
        await surroundings.membership.stop()

    asyncio.run(main())
    assert surroundings.failures == ([FATAL] if error is FATAL else [])
    assert failed == (1 if error is FATAL else 2)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_part_that_is_refused_is_told_once_and_tried_again(
    store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    log = SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
    surroundings, planned = Surroundings(log), 0

    async def main() -> None:
        loop, is_done = asyncio.get_running_loop(), asyncio.Event()

        def refuse_twice(_image: Image, *, controller_epoch: int) -> list[Action]:
            nonlocal planned
            planned += controller_epoch
            if planned <= 2:
                raise InvalidRequestError("INVALID_ACTIONS", "no such thing", fix="fix it")
            loop.call_soon_threadsafe(is_done.set)
            return []

        await surroundings.membership.start()
        monkeypatch.setattr("sparklog_server.cluster.elections.plan_completions", refuse_twice)
        log.create_topic("orders", 1)
        await surroundings.controller.start()
        (orders,) = surroundings.root.image.topics["orders"].partitions
        assert orders.leadership.leader > 0, "the other parts are committed"
        await is_done.wait()
        await surroundings.controller.stop()
        await surroundings.membership.stop()

    asyncio.run(main())
    assert surroundings.failures == []
    (line,) = [one for one in told("sparklog_server.controller") if "a part of what is due" in one]
    assert "no such thing" in line


@pytest.mark.timeout(60)
@pytest.mark.parametrize("broken", ["Duties", "log_changes"])
def test_a_fault_of_the_controllers_own_stops_the_broker_unless_it_is_in_telling(
    broken: str,
    store: MemoryStore,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Heartbeats go on: nobody would take the place of a controller that decides nothing."""
    log = SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
    surroundings = Surroundings(log)

    def fail(*_words: object, **_options: object) -> None:
        raise KeyError(broken)

    async def main() -> None:
        await surroundings.membership.start()
        await surroundings.controller.start()
        monkeypatch.setattr(f"sparklog_server.cluster.controller.{broken}", fail)
        log.create_topic("orders", 1)
        surroundings.root.show()
        while True:
            if surroundings.failures or "could not be reported" in caplog.text:
                break
            await asyncio.sleep(0)
        if not surroundings.failures:
            (orders,) = surroundings.root.image.topics["orders"].partitions
            assert orders.leadership.leader > 0
        with contextlib.suppress(KeyError):
            await surroundings.controller.stop()
        await surroundings.membership.stop()

    asyncio.run(main())
    assert [str(one) for one in surroundings.failures] == (["'Duties'"] if broken == "Duties" else [])
