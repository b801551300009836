"""A topic can be deleted although __consumer_offsets cannot be read, or not all of it; what stays is told."""

from collections.abc import Callable

import pytest

from sparklog.client import OFFSETS_TOPIC, SparkLog
from sparklog.client.groups import partition_for_group
from sparklog.errors import CorruptLogError, StorageError
from sparklog.storage import MemoryStore
from tests.support.told import Told

BOTH = ("g", "k")  # whose offsets are in different partitions


@pytest.fixture
def damaged(log: SparkLog, store: MemoryStore) -> SparkLog:
    """Offsets of two groups, and in the partition of the first one a batch that a disk has changed."""
    log.create_topic("t")
    for group in BOTH:
        log.commit_offsets(group, {("t", 0): 5, ("u", 0): 6})
    partitions = len(log.image.topics[OFFSETS_TOPIC].partitions)
    first, second = (partition_for_group(group, partitions) for group in BOTH)
    assert first != second
    (extent,) = log.image.partition(OFFSETS_TOPIC, first).extents
    data = bytearray(store.read(extent.segment))
    data[extent.position + extent.size - 1] ^= 1
    store.put_hint(extent.segment, data)
    return log


def test_the_topic_goes_with_what_can_be_read(damaged: SparkLog, other: SparkLog, told: Told) -> None:
    damaged.delete_topic("t")
    assert "t" not in other.topics()
    assert other.committed_offsets("k") == {("u", 0): 6}
    with pytest.raises(CorruptLogError):
        other.committed_offsets("g")
    (line,) = told("sparklog.client")
    assert line.startswith("topic 't' is deleted, but not all that groups have committed for it")
    assert "CORRUPT_BATCH" in line
    assert "--delete-offsets" in line


def test_nothing_is_told_where_there_is_nothing_to_tell(log: SparkLog, told: Told) -> None:
    log.create_topic("t")
    log.commit_offsets("g", {("t", 0): 5})
    log.delete_topic("t")
    assert told("sparklog.client") == []


def refuse(store: MemoryStore, code: str) -> Callable[[], None]:
    def hook(operation: str, name: str) -> None:
        if operation == "open_read" and name.endswith(".log"):
            raise StorageError(code, f"{name}: cannot read", fix="look at the disk")

    store.hook = hook
    return lambda: setattr(store, "hook", None)


def test_so_it_is_on_a_bad_disk(log: SparkLog, other: SparkLog, store: MemoryStore, told: Told) -> None:
    log.create_topic("t")
    log.commit_offsets("g", {("t", 0): 5})
    mend = refuse(store, "STORAGE_FAILED")
    log.delete_topic("t")
    mend()
    assert "t" not in other.topics()
    assert len(told("sparklog.client")) == 1
    assert other.committed_offsets("g") == {("t", 0): 5}  # which nobody could know of


def test_a_store_that_is_away_for_now_is_waited_for(log: SparkLog, store: MemoryStore) -> None:
    log.create_topic("t")
    log.commit_offsets("g", {("t", 0): 5})
    mend = refuse(store, "STORE_UNAVAILABLE")
    with pytest.raises(StorageError, match="STORE_UNAVAILABLE"):
        log.delete_topic("t")
    mend()
    assert "t" in log.topics()
    log.delete_topic("t")
    assert log.committed_offsets("g") == {}
