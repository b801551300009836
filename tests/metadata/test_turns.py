"""Taking turns spares futile work, and never stops anybody."""

import random

import pytest

from sparklog.clock import ManualClock
from sparklog.metadata import MetadataLog, SetConfigs
from sparklog.metadata.documents.paths import DIRECTORY
from sparklog.metadata.turns import DISTRUST_MS, MAX_WAIT_MS, Turns
from sparklog.storage import LocalStore, MemoryStore


def turns(memory: MemoryStore, clock: ManualClock) -> Turns:
    return Turns(memory, DIRECTORY, clock, random.Random(1))


def test_turn_is_free_afterwards(memory: MemoryStore, clock: ManualClock) -> None:
    for _ in range(2):
        with turns(memory, clock).turn(lambda: False):
            assert memory.take_turn(DIRECTORY) is None
        release = memory.take_turn(DIRECTORY)
        assert release is not None
        release()


def test_error_inside_gives_the_turn_back(memory: MemoryStore, clock: ManualClock) -> None:
    with pytest.raises(KeyError), turns(memory, clock).turn(lambda: False):
        dict[str, int]()["nothing"]
    assert memory.take_turn(DIRECTORY) is not None


def test_stopped_holder_costs_one_wait(memory: MemoryStore, clock: ManualClock) -> None:
    assert memory.take_turn(DIRECTORY) is not None  # and never released
    ours = turns(memory, clock)
    with ours.turn(lambda: False):
        waited_ms = clock.monotonic_ms()
    assert MAX_WAIT_MS <= waited_ms < MAX_WAIT_MS + 10
    for _ in range(5):
        with ours.turn(lambda: False):
            assert clock.monotonic_ms() == waited_ms
    clock.advance_ms(DISTRUST_MS)
    with ours.turn(lambda: False):
        assert clock.monotonic_ms() >= waited_ms + DISTRUST_MS + MAX_WAIT_MS


def test_busy_holders_are_waited_for_again(memory: MemoryStore, clock: ManualClock) -> None:
    assert memory.take_turn(DIRECTORY) is not None
    ours = turns(memory, clock)
    for attempt in (1, 2):
        with ours.turn(lambda: True):
            assert clock.monotonic_ms() >= attempt * MAX_WAIT_MS


def test_publish_goes_ahead_without_its_turn(memory: MemoryStore, clock: ManualClock) -> None:
    log = MetadataLog.open(memory, clock, create=True)
    assert memory.take_turn(DIRECTORY) is not None
    assert log.publish(lambda image: [SetConfigs(configs={"a": "1"})]).commit == 0


def test_first_publish_of_a_root_needs_no_directory(local: LocalStore, clock: ManualClock) -> None:
    log = MetadataLog.open(local, clock, create=True)
    assert log.publish(lambda image: [SetConfigs(configs={"a": "1"})]).commit == 0
    assert clock.monotonic_ms() == 0
