"""What killed writers left behind goes, once a day, beside what else falls due."""

import asyncio

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.metadata import MetadataLog, MetadataSettings
from sparklog.metadata.documents.properties import manifest_name
from sparklog.storage import MemoryStore
from sparklog.storage.base import UNFINISHED_MS
from sparklog_server.metrics import Metrics
from sparklog_server.root.live_root import DAY_MS, Leftovers, LiveRoot


class Swept(MemoryStore):
    """Notes when it is swept, and of what age."""

    fails = False

    def __init__(self, clock: ManualClock) -> None:
        super().__init__("root", clock=clock)
        self.sweeps: list[int] = []

    def sweep_temporary(
        self, *, older_than_ms: int, unfinished_older_than_ms: int = UNFINISHED_MS, dry_run: bool = False
    ) -> int:
        assert not dry_run
        assert unfinished_older_than_ms == UNFINISHED_MS
        self.sweeps.append(older_than_ms)
        if self.fails:
            raise StorageError("STORE_UNAVAILABLE", "found no storage", fix="wait for it")
        return 3


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Swept:
    return Swept(clock)


def test_a_sweep_a_day(store: Swept, clock: ManualClock) -> None:
    leftovers = Leftovers(store, clock)
    for _ in range(3):
        leftovers.sweep_if_due()
    assert store.sweeps == [DAY_MS]
    clock.advance_ms(DAY_MS - 1)
    leftovers.sweep_if_due()
    assert len(store.sweeps) == 1
    clock.advance_ms(1)
    leftovers.sweep_if_due()
    assert len(store.sweeps) == 2


def test_a_sweep_that_fails_is_told_of_and_waits_its_turn(
    store: Swept, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    store.fails = True
    leftovers = Leftovers(store, clock)
    leftovers.sweep_if_due()
    leftovers.sweep_if_due()
    assert len(store.sweeps) == 1
    assert "found no storage" in caplog.text


def test_a_broker_sweeps_after_the_upkeep_that_falls_due(store: Swept, clock: ManualClock) -> None:
    settings = MetadataSettings(snapshot_bytes=2 * 4096)
    metadata = MetadataLog.open(store, clock, create=True, settings=settings)
    with SparkLog(store, metadata, clock) as log:
        root = LiveRoot(log, defaults={}, metrics=Metrics(), storage_threads=1)
        log.create_topic("a", 1)
        assert not store.sweeps
        log.create_topic("b", 1)
        asyncio.run(root.finish_upkeep())
        root.close()
    assert len(store.sweeps) == 1
    assert store.exists(manifest_name(1))
