"""Partitions that are read together cost one request for each object that they share."""

from collections import Counter, defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import SparklogError
from sparklog.format.decode import DecodedRecords
from sparklog.log import partition_reader as module
from sparklog.log.partition_reader import Stretch, read_together
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits
from tests.support.roots import opened

PARTITIONS, PUBLISHES = 4, 30


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("together", traits=StoreTraits(is_remote=True, appends_after_sync=False))


@pytest.fixture
def log(store: MemoryStore) -> Iterator[SparkLog]:
    """Each publish leaves an object with a little of each partition."""
    clock = ManualClock()
    with opened(store, clock) as made:
        made.create_topic("t", PARTITIONS)
        for number in range(PUBLISHES):
            publish(made, number, range(PARTITIONS))
            clock.advance_ms(1000)
        yield made


def publish(log: SparkLog, number: int, partitions: range) -> None:
    values = [b"%d/%d" % (number, one) for one in partitions]
    log.append("t", pa.table({"value": values, "partition": list(partitions)}))


def stretch(log: SparkLog, partition: int, start: int = 0, end: int | None = None) -> Stretch:
    state = log.image.partition("t", partition)
    return Stretch(topic="t", state=state, start=start, end=state.log_end_offset if end is None else end)


class Told:
    """What is told of some stretches."""

    def __init__(self, store: MemoryStore, stretches: list[Stretch]) -> None:
        self.values: dict[int, list[bytes]] = defaultdict(list)
        self.ended: dict[int, str | None] = {}
        self.opened: Counter[str] = Counter()

        def hook(operation: str, name: str) -> None:
            assert operation == "open_read"
            self.opened[name] += 1

        store.hook = hook
        for number, found in read_together(store, stretches):
            assert number not in self.ended, "nothing comes after the last"
            if isinstance(found, DecodedRecords):
                self.values[number] += found.value.to_pylist()
            else:
                self.ended[number] = found.code if isinstance(found, SparklogError) else None
        store.hook = None


def values(partition: int, start: int = 0, end: int = PUBLISHES) -> list[bytes]:
    return [b"%d/%d" % (number, partition) for number in range(start, end)]


def test_each_object_is_asked_for_once(store: MemoryStore, log: SparkLog) -> None:
    told = Told(store, [stretch(log, one) for one in range(PARTITIONS)])
    assert told.values == {one: values(one) for one in range(PARTITIONS)}
    assert told.ended == dict.fromkeys(range(PARTITIONS))
    assert told.opened.total() == len(told.opened) == PUBLISHES


def test_objects_are_asked_for_once_also_where_one_has_much_more(store: MemoryStore, log: SparkLog) -> None:
    """By the time of the records, and not by their number."""
    for number in range(PUBLISHES, 2 * PUBLISHES):
        publish(log, number, range(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WINDOW_RANGES", 8)
        told = Told(store, [stretch(log, one) for one in (0, 3)])
    assert told.values == {0: values(0, end=2 * PUBLISHES), 1: values(3)}
    windows = 3 * PUBLISHES // 8 + 1
    assert 2 * PUBLISHES <= told.opened.total() <= 2 * PUBLISHES + windows


def test_only_the_offsets_that_are_wanted(store: MemoryStore, log: SparkLog) -> None:
    log.append("t", pa.table({"value": [b"a", b"b", b"c"], "partition": [0, 0, 0]}))
    end = PUBLISHES + 3
    told = Told(store, [stretch(log, 0, 3, end - 1), stretch(log, 1, 5, 5), stretch(log, 0, end - 2, end)])
    assert told.values == {0: [*values(0, 3), b"a", b"b"], 2: [b"b", b"c"]}
    assert told.ended == dict.fromkeys(range(3))


def test_what_is_large_is_read_by_itself(
    store: MemoryStore, log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGE_BYTES", 10_000)
    log.append("t", pa.table({"value": [b"x" * 20_000, b"y"], "partition": [1, 0]}))
    publish(log, PUBLISHES, range(2))
    told = Told(store, [stretch(log, one) for one in range(2)])
    assert told.values[0] == [*values(0), b"y", b"%d/0" % PUBLISHES]
    assert told.values[1] == [*values(1), b"x" * 20_000, b"%d/1" % PUBLISHES]


def test_an_error_ends_its_partition_alone_and_for_good(
    store: MemoryStore, log: SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        publish(log, PUBLISHES, range(1))
    publish(log, PUBLISHES, range(1, 3))
    store.delete(log.image.partition("t", 0).extents[PUBLISHES].segment)
    monkeypatch.setattr(module, "WINDOW_RANGES", 2)
    told = Told(store, [stretch(log, one) for one in range(3)])
    assert told.ended == {0: "SEGMENT_MISSING", 1: None, 2: None}
    assert told.values == {
        0: values(0),
        1: values(1, end=PUBLISHES + 1),
        2: values(2, end=PUBLISHES + 1),
    }


def test_where_each_read_is_cheap_the_records_are_the_same() -> None:
    store = MemoryStore("cheap")
    with opened(store, ManualClock()) as local:
        local.create_topic("t", 2)
        for number in range(3):
            publish(local, number, range(2))
        told = Told(store, [stretch(local, one) for one in range(2)])
    assert told.values == {one: values(one, end=3) for one in range(2)}
