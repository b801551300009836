"""The publish locks spare futile work, and never stop a publisher."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sparklog.clock import ManualClock, SystemClock
from sparklog.metadata import Image, MetadataLog, MetadataSettings, SetConfigs
from sparklog.metadata.documents.properties import DIRECTORY
from sparklog.metadata.log import (
    DISTRUST_MS,
    MAX_WAIT_MS,
    PRIORITY_DISTRUST_MS,
    PRIORITY_WAIT_MS,
    PublishLocks,
)
from sparklog.storage import LocalStore, MemoryStore


class Publisher:
    """A publisher with the locks of a store."""

    def __init__(self, store: MemoryStore, clock: ManualClock) -> None:
        self._locks = PublishLocks(store, clock, random.Random(1))
        self.note_lost_race = self._locks.note_lost_race

    @contextmanager
    def locked(self, has_progress: Callable[[], bool]) -> Iterator[None]:
        try:
            self._locks.acquire(has_progress)
            yield
        finally:
            self._locks.release()


def is_free(store: MemoryStore) -> bool:
    lock = store.advisory_lock(DIRECTORY)
    try:
        return lock.acquire()
    finally:
        lock.release()


def hold(store: MemoryStore) -> None:
    assert store.advisory_lock(DIRECTORY).acquire()


def test_the_lock_is_free_afterwards(memory: MemoryStore, clock: ManualClock) -> None:
    for _ in range(2):
        with Publisher(memory, clock).locked(lambda: False):
            assert not is_free(memory)
        assert is_free(memory)


def test_an_error_inside_releases_the_lock(memory: MemoryStore, clock: ManualClock) -> None:
    with pytest.raises(KeyError), Publisher(memory, clock).locked(lambda: False):
        dict[str, int]()["nothing"]
    assert is_free(memory)


def test_stopped_holder_costs_one_wait(memory: MemoryStore, clock: ManualClock) -> None:
    hold(memory)
    ours = Publisher(memory, clock)
    with ours.locked(lambda: False):
        waited_ms = clock.monotonic_ms()
    assert MAX_WAIT_MS <= waited_ms < MAX_WAIT_MS + 10
    for _ in range(5):
        with ours.locked(lambda: False):
            assert clock.monotonic_ms() == waited_ms
    clock.advance_ms(DISTRUST_MS)
    with ours.locked(lambda: False):
        assert clock.monotonic_ms() >= waited_ms + DISTRUST_MS + MAX_WAIT_MS / 2


def test_who_stays_stopped_costs_two_waits_in_all(memory: MemoryStore, clock: ManualClock) -> None:
    """And not one after each time of distrust."""
    hold(memory)
    ours = Publisher(memory, clock)
    slept_ms = 0
    for _ in range(100):
        start_ms = clock.monotonic_ms()
        with ours.locked(lambda: False):
            slept_ms += clock.monotonic_ms() - start_ms
        clock.advance_ms(DISTRUST_MS)
    assert slept_ms <= 2 * MAX_WAIT_MS + 100


def test_a_lock_that_came_free_is_trusted_again(memory: MemoryStore, clock: ManualClock) -> None:
    stopped = memory.advisory_lock(DIRECTORY)
    assert stopped.acquire()
    ours = Publisher(memory, clock)
    with ours.locked(lambda: False):
        pass
    stopped.release()  # it went on, or was killed
    start_ms = clock.monotonic_ms()
    with ours.locked(lambda: False):
        assert clock.monotonic_ms() == start_ms
        assert not is_free(memory)
    hold(memory)
    with ours.locked(lambda: False):
        assert clock.monotonic_ms() - start_ms >= MAX_WAIT_MS


def test_busy_holders_are_waited_for_again(memory: MemoryStore, clock: ManualClock) -> None:
    hold(memory)
    ours = Publisher(memory, clock)
    for attempt in (1, 2):
        with ours.locked(lambda: True):
            assert clock.monotonic_ms() >= attempt * MAX_WAIT_MS


def test_a_publish_proceeds_without_the_lock(memory: MemoryStore, clock: ManualClock) -> None:
    log = MetadataLog.open(memory, clock, create=True)
    hold(memory)
    assert log.publish(lambda image: [SetConfigs(configs={"a": "1"})]).commit == 0


def test_first_publish_of_a_root_needs_no_directory(local: LocalStore, clock: ManualClock) -> None:
    log = MetadataLog.open(local, clock, create=True)
    assert log.publish(lambda image: [SetConfigs(configs={"a": "1"})]).commit == 0
    assert clock.monotonic_ms() == 0


def test_who_takes_longer_than_others_wait_has_right_of_way(memory: MemoryStore, clock: ManualClock) -> None:
    slow, other = Publisher(memory, clock), Publisher(memory, clock)

    def waited_ms() -> int:
        start_ms = clock.monotonic_ms()
        with other.locked(lambda: False):
            return clock.monotonic_ms() - start_ms

    with slow.locked(lambda: True):
        slow.note_lost_race()
        assert MAX_WAIT_MS <= waited_ms() < MAX_WAIT_MS + 10  # no time has passed: it was just unlucky
        clock.advance_ms(MAX_WAIT_MS)
        slow.note_lost_race()
        assert PRIORITY_WAIT_MS <= waited_ms() < PRIORITY_WAIT_MS + 10  # now no one waits
        clock.advance_ms(DISTRUST_MS)
        slow.note_lost_race()  # it has it already
        assert waited_ms() < MAX_WAIT_MS  # it is stopped, as it seems
        clock.advance_ms(PRIORITY_DISTRUST_MS)
        assert PRIORITY_WAIT_MS / 2 <= waited_ms() < PRIORITY_WAIT_MS / 2 + MAX_WAIT_MS + 10
    assert waited_ms() == 0


@pytest.mark.slow
def test_a_large_plan_is_published_beside_a_busy_publisher(local: LocalStore) -> None:
    settings = MetadataSettings(snapshot_bytes=1 << 40, publish_timeout_ms=60_000)
    large, busy = (MetadataLog.open(local, SystemClock(), create=True, settings=settings) for _ in range(2))
    busy.publish(lambda _: [SetConfigs(configs={"first": "x"})])  # there is something to lock
    done = threading.Event()
    plans = 0

    def publish_on() -> None:
        while not done.is_set():
            busy.publish(lambda _: [SetConfigs(configs={"busy": "x"})])

    def plan(_: Image) -> list[SetConfigs]:
        nonlocal plans
        plans += 1
        time.sleep(2 * MAX_WAIT_MS / 1000)  # as a plan of some 40,000 extents takes
        return [SetConfigs(configs={"large": "x"})]

    publisher = threading.Thread(target=publish_on)
    publisher.start()
    try:
        large.publish(plan)
    finally:
        done.set()
        publisher.join()
    assert plans <= 10  # and not as many as there is time for
