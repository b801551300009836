"""A publisher's surroundings, without a network: a log in memory and a clock that stands still."""

from collections.abc import Iterator

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.log.config import TopicConfig
from sparklog.storage import MemoryStore
from sparklog_server.cluster.membership import Registration
from sparklog_server.publish.group_commit import GroupCommitter
from tests.support.roots import opened
from tests.support.several_brokers import take_over


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore("publish", clock=clock)


@pytest.fixture
def log(store: MemoryStore, clock: ManualClock) -> Iterator[SparkLog]:
    with opened(store, clock) as log:
        log.create_topic("orders", 3)
        log.create_topic("clicks", 2)
        yield log


@pytest.fixture
def registration(log: SparkLog) -> Registration:
    """Of a broker that leads everything."""
    return take_over(log)


@pytest.fixture
def committer(log: SparkLog, registration: Registration) -> GroupCommitter:
    return GroupCommitter(
        log, lambda: registration, lambda topic: TopicConfig.parse(topic.configs, log.image.configs)
    )
