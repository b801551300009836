"""Fixtures of client tests: an embedded log, in memory as a rule, with a clock that stands still."""

from collections.abc import Iterator

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.storage import MemoryStore
from tests.support.roots import opened


@pytest.fixture
def store(memory_or_s3: MemoryStore) -> MemoryStore:
    return memory_or_s3


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(store: MemoryStore, clock: ManualClock) -> Iterator[SparkLog]:
    with opened(store, clock) as log:
        yield log


@pytest.fixture
def other(store: MemoryStore, clock: ManualClock) -> SparkLog:
    """Another process's view of the same root (open it after `log`)."""
    return opened(store, clock)
