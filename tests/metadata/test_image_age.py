"""How long ago an image is known to have been the newest; brokers stop answering by it."""

from collections.abc import Iterator

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.metadata import MetadataLog, SetConfigs
from sparklog.storage import MemoryStore, StoreTraits


class Clocks(ManualClock):
    """The wall clock moves by itself, too: `set_ms` sets it."""

    set_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.set_ms


@pytest.fixture
def clock() -> Clocks:
    return Clocks()


@pytest.fixture
def log(memory: MemoryStore, clock: Clocks) -> Iterator[MetadataLog]:
    log = MetadataLog.open(memory, clock, create=True)
    yield log
    memory.hook = None


def test_a_look_makes_it_new_whether_there_is_news_or_not(log: MetadataLog, clock: Clocks) -> None:
    assert log.image_age_ms == 0
    clock.advance_ms(700)
    assert log.image_age_ms == 700
    log.refresh()
    assert log.image_age_ms == 0


def test_so_does_a_publish(log: MetadataLog, clock: Clocks) -> None:
    clock.advance_ms(700)
    log.publish(lambda _: [])
    assert log.image_age_ms == 0
    clock.advance_ms(700)
    log.publish(lambda _: [SetConfigs(configs={"retention.ms": "1"})])
    assert log.image_age_ms == 0


def test_a_suspend_counts_although_the_monotonic_clock_stands_still(log: MetadataLog, clock: Clocks) -> None:
    clock.set_ms = 3_600_000
    assert log.image_age_ms == 3_600_000
    log.refresh()
    assert log.image_age_ms == 0


def test_a_wall_clock_that_is_set_back_makes_nothing_younger(log: MetadataLog, clock: Clocks) -> None:
    clock.advance_ms(700)
    clock.set_ms = -3_600_000
    assert log.image_age_ms == 700


def test_the_time_that_a_look_takes_counts(log: MetadataLog, memory: MemoryStore, clock: Clocks) -> None:
    def slow(operation: str, _name: str) -> None:
        clock.advance_ms(50)

    memory.hook = slow
    log.refresh()
    memory.hook = None
    assert log.image_age_ms >= 50


def test_looking_in_vain_makes_nothing_younger(log: MetadataLog, memory: MemoryStore, clock: Clocks) -> None:
    def away(operation: str, name: str) -> None:
        raise StorageError("STORE_UNAVAILABLE", f"{name}: found no storage", fix="wait for it")

    clock.advance_ms(700)
    memory.hook = away
    with pytest.raises(StorageError):
        log.refresh()
    with pytest.raises(StorageError):
        log.publish(lambda _: [SetConfigs(configs={"retention.ms": "1"})])
    assert log.image_age_ms == 700


def test_a_refresh_that_does_not_look_makes_nothing_younger(clock: Clocks) -> None:
    store = MemoryStore(traits=StoreTraits(refresh_interval_ms=1_000))
    log = MetadataLog.open(store, clock, create=True)
    log.refresh()
    clock.advance_ms(10)
    clock.set_ms = 3_600_000
    log.refresh()
    assert log.image_age_ms == 3_600_010
