"""Builders with a default for everything, and logs over a store in memory or on disk."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.clock import ManualClock
from sparklog.metadata import (
    DraftExtent,
    Image,
    MetadataLog,
    MetadataSettings,
    Topic,
    plan_append,
    plan_create_topic,
)
from sparklog.storage import LocalStore, MemoryStore, open_store

# 2100: later than any file these tests make, so that ages come out right whatever the machine's clock says.
FUTURE_MS = 4_102_444_800_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory(clock: ManualClock) -> MemoryStore:
    return MemoryStore("metadata", clock=clock)


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    store = open_store(tmp_path / "root", create=True)
    assert isinstance(store, LocalStore)
    return store


@pytest.fixture
def log(memory: MemoryStore, clock: ManualClock) -> MetadataLog:
    return MetadataLog.open(memory, clock, create=True, settings=MetadataSettings(snapshot_bytes=1 << 40))


@pytest.fixture
def draft() -> Callable[..., DraftExtent]:
    def build(topic: Topic | str, partition: int = 0, **fields: object) -> DraftExtent:
        values: dict[str, object] = {
            "topic_id": topic if isinstance(topic, str) else topic.topic_id,
            "partition": partition,
            "segment": "segments/w/0.log",
            "position": 0,
            "size": 100,
            "record_count": 10,
            "max_timestamp_ms": 1_000,
        }
        return DraftExtent(**{**values, **fields})  # type: ignore[arg-type]

    return build


@pytest.fixture
def topic_id() -> str:
    return "AAAAAAAAAAAAAAAAAAAAAA"


@pytest.fixture
def create(topic_id: str) -> Callable[..., Topic]:
    def run(log: MetadataLog, name: str = "orders", partitions: int = 2, topic_id: str = topic_id) -> Topic:
        log.publish(lambda image: [plan_create_topic(image, name, partitions, topic_id=topic_id)])
        return log.image.topic(name)

    return run


@pytest.fixture
def append(draft: Callable[..., DraftExtent]) -> Callable[..., Image]:
    def run(log: MetadataLog, topic: Topic, count: int = 1, **fields: object) -> Image:
        for _ in range(count):
            log.publish(lambda image: [plan_append(image, [draft(topic, **fields)])])
        return log.image

    return run
