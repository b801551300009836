"""Works that read the same objects have them fetched once, and kept on the local disk."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import DataLossError
from sparklog.log.segment_file import Span
from sparklog.maintenance import Budget, CompactionLimits, MergeLimits, compact, optimize, rewrite
from sparklog.maintenance.budget import Meter
from sparklog.maintenance.choose import CompactionWork, MergeWork, choose_compactions, choose_merges
from sparklog.maintenance.rewrite import Spool, groups, in_turns, with_spool
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits
from sparklog.storage.s3 import S3Store
from tests.support.roots import opened

PARTITIONS, PUBLISHES = 4, 80  # more than a reader keeps open
APART = MergeLimits(fan_in=None, shared_bytes=1)  # each piece to a segment of its own


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("spool", traits=StoreTraits(is_remote=True, appends_after_sync=False))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(store: MemoryStore, clock: ManualClock) -> Iterator[SparkLog]:
    """A root in which each publish leaves an object with a little of each partition."""
    with opened(store, clock) as made:
        yield made


def fill(log: SparkLog, topic: str, publishes: int = PUBLISHES, partitions: int = PARTITIONS) -> None:
    if topic not in log.image.topics:
        log.create_topic(topic, partitions, {"cleanup.policy": "compact"} if topic == "table" else {})
    for number in range(publishes):
        append(log, topic, number, partitions)


def append(log: SparkLog, topic: str, number: int, partitions: int = PARTITIONS) -> None:
    rows = {
        "key": [b"%d" % (number % 7)] * partitions,
        "value": [b"%d/%d" % (number, one) for one in range(partitions)],
        "partition": list(range(partitions)),
    }
    log.append(topic, pa.table(rows))


def values(log: SparkLog, topic: str, partitions: int = PARTITIONS) -> list[list[bytes]]:
    return [log.read(topic, one, 0)["value"].to_pylist() for one in range(partitions)]


def count_opened(store: MemoryStore) -> Counter[str]:
    """How often each object that a publish left is opened from now on."""
    found: Counter[str] = Counter()

    def hook(operation: str, name: str) -> None:
        if operation == "open_read" and name.startswith("segments/") and name.endswith(".log"):
            found[name] += 1

    store.hook = hook
    return found


def works(log: SparkLog, limits: MergeLimits = APART) -> list[MergeWork]:
    return list(choose_merges(log.refresh(force=True), limits))


def compactions(log: SparkLog) -> list[CompactionWork]:
    """They read small extents twice."""
    return choose_compactions(log.refresh(force=True), log.clock.now_ms(), CompactionLimits())


# --- what it is for ------------------------------------------------------------------------------------


def test_large_pieces_are_merged_with_a_look_at_each_object(log: SparkLog, store: MemoryStore) -> None:
    fill(log, "t")
    before = values(log, "t")
    opened_at = count_opened(store)
    report = optimize(log.metadata, log.clock, limits=APART).topics["t"]
    assert (report.merged_extents, report.extents_after) == (PUBLISHES * PARTITIONS, PARTITIONS)
    assert len(opened_at) == PUBLISHES
    assert set(opened_at.values()) == {1}
    assert values(log, "t") == before


def test_partitions_are_compacted_with_a_look_at_each_object(log: SparkLog, store: MemoryStore) -> None:
    fill(log, "table")
    opened_at = count_opened(store)
    assert compact(log.metadata, log.clock).topics["table"].superseded == PARTITIONS * (PUBLISHES - 7)
    assert len(opened_at) == PUBLISHES
    assert set(opened_at.values()) == {1}
    assert values(log, "table") == [
        [b"%d/%d" % (number, one) for number in range(PUBLISHES - 7, PUBLISHES)] for one in range(PARTITIONS)
    ]


def test_one_partition_is_compacted_with_a_look_at_each_object(log: SparkLog, store: MemoryStore) -> None:
    fill(log, "table", partitions=1)  # each extent is an object, and is read twice
    opened_at = count_opened(store)
    assert compact(log.metadata, log.clock).topics["table"].superseded == PUBLISHES - 7
    assert set(opened_at.values()) == {1}


def test_on_s3_too(s3_root: str) -> None:
    with sparklog.open(s3_root) as log:
        fill(log, "t", 5)
        fill(log, "table", 5)
        before = values(log, "t"), values(log, "table")
    with sparklog.open(s3_root, create=False) as log:
        assert isinstance(log.store, S3Store)
        log.refresh(force=True)
        asked = log.store.requests["get_object"]
        assert optimize(log.metadata, log.clock, ["t"], APART).topics["t"].merged_extents == 5 * PARTITIONS
        # The objects, and looks at the log; each extent by itself would be 20.
        assert log.store.requests["get_object"] - asked <= 5 + 8
        asked = log.store.requests["get_object"]
        assert compact(log.metadata, log.clock).topics["table"].records_read == 5 * PARTITIONS
        assert log.store.requests["get_object"] - asked <= 5 + 8  # else 40
        assert (values(log, "t"), values(log, "table")) == before


# --- bounds --------------------------------------------------------------------------------------------


def test_what_there_is_no_room_for_is_asked_for_by_itself(log: SparkLog, store: MemoryStore) -> None:
    fill(log, "t")
    all_works = works(log)
    size = all_works[0].size
    found = []
    opened_at = count_opened(store)
    for work, held in with_spool(store, all_works, limit_bytes=2 * size):
        assert held is not None
        found.append(sum(held.has(one) for one in spans(work)))
    assert found == [PUBLISHES] * PARTITIONS  # two by two
    assert set(opened_at.values()) == {2}
    for _, held in with_spool(store, all_works, limit_bytes=size - 1):
        assert held is not None
        assert not any(held.has(one) for one in spans(all_works[0]))  # a group of one: not worth it


def test_works_are_parted_by_all_that_they_read(log: SparkLog, store: MemoryStore) -> None:
    fill(log, "t", 20)
    all_works = works(log)
    size = sum(work.size for work in all_works)
    assert [len(group) for group in groups(store, all_works, size)] == [PARTITIONS]
    assert [len(group) for group in groups(store, all_works, size, size // 2)] == [2, 2]
    assert [len(group) for group in groups(store, all_works, size // 2)] == [2, 2]
    directory = MemoryStore("directory")
    assert [len(group) for group in groups(directory, all_works, size)] == [1] * PARTITIONS


def test_a_round_is_given_as_much_as_there_is_room_for(log: SparkLog, store: MemoryStore) -> None:
    fill(log, "table")
    work = compactions(log)[0]
    size = sum(piece.size for piece in work.pieces)
    for _, held in with_spool(store, [work], limit_bytes=size // 2):
        assert held is not None
        here = [held.has(one) for one in spans(work)]
        assert here == sorted(here, reverse=True)
        assert PUBLISHES // 3 < sum(here) <= PUBLISHES // 2


def test_no_more_spans_than_memory_is_meant_for(
    log: SparkLog, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "MAX_SPANS", 10)
    fill(log, "table", 20)
    for work, held in with_spool(store, compactions(log)):
        assert held is not None
        assert sum(held.has(one) for one in spans(work)) == 10


def test_large_extents_are_left_to_those_who_read_them(
    log: SparkLog, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, "t", 20)
    monkeypatch.setattr(rewrite, "SMALL_BYTES", 10)
    for work, held in with_spool(store, works(log)):
        assert held is not None
        assert not any(held.has(one) for one in spans(work))


def test_works_of_different_objects_are_no_group(log: SparkLog, store: MemoryStore) -> None:
    fill(log, "t", 20)
    fill(log, "u", 20)
    for work, held in with_spool(store, works(log)):
        assert held is not None
        assert all(held.has(one) for one in spans(work))
        other = next(one for one in works(log) if one.pieces[0].topic != work.pieces[0].topic)
        assert not any(held.has(one) for one in spans(other))


def test_a_quarter_of_the_free_space_is_the_most(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=4000))
    assert Spool(store).room == 1000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 50))
    assert Spool(store).room == rewrite.SPOOL_BYTES

    def gone(_path: str) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(shutil, "disk_usage", gone)
    assert Spool(store).room == 0


def test_a_disk_that_is_full_stops_nothing(
    log: SparkLog, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, "t", 20)
    before = values(log, "t")

    def full(**_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert optimize(log.metadata, log.clock, limits=APART).topics["t"].extents_after == PARTITIONS
    assert values(log, "t") == before


def test_what_is_missing_is_told_by_whoever_reads_it(log: SparkLog, store: MemoryStore) -> None:
    fill(log, "t", 20)
    fill(log, "u", 2)
    store.delete(spans(works(log)[0])[3].segment)
    with pytest.raises(DataLossError, match="SEGMENT_MISSING"):
        optimize(log.metadata, log.clock, limits=APART)
    assert len(log.refresh(force=True).partition("u", 0).extents) == 1


def test_it_rests_as_the_round_asks_for(log: SparkLog, store: MemoryStore, clock: ManualClock) -> None:
    fill(log, "t", 20)
    all_works = works(log)
    size = sum(work.size for work in all_works)
    meter = Meter(Budget(bytes_per_second=100), clock)
    began = clock.monotonic_ms()
    next(with_spool(store, all_works, on_read_ahead=meter.rest))
    assert clock.monotonic_ms() - began >= size * 10 - 1000  # a second is lent
    assert meter.spent_bytes == 0  # nothing of it is rewritten yet


@pytest.mark.parametrize("name", ["t", "table"])
def test_a_round_that_is_ended_fetches_no_more(log: SparkLog, store: MemoryStore, name: str) -> None:
    fill(log, name)
    opened_at = count_opened(store)
    meter = Meter(Budget(), log.clock, is_stopped=lambda: len(opened_at) >= PUBLISHES // 2)
    report = (
        optimize(log.metadata, log.clock, ["t"], APART, meter=meter)
        if name == "t"
        else compact(log.metadata, log.clock, meter=meter)
    )
    assert report.is_cut
    assert len(opened_at) == PUBLISHES // 2


def test_the_first_of_all_partitions_come_first(log: SparkLog) -> None:
    fill(log, "t", 20)
    target = works(log)[0].size // 2
    cut = works(log, MergeLimits(fan_in=None, shared_bytes=1, target_bytes=target))
    assert len(cut) > PARTITIONS
    turned = in_turns(cut)
    assert [work.pieces[0].partition for work in turned[:PARTITIONS]] == list(range(PARTITIONS))
    assert sorted(map(id, turned)) == sorted(map(id, cut))
    of_one = [work.pieces[0].start_offset for work in turned if work.pieces[0].partition == 0]
    assert of_one == sorted(of_one)


def test_nothing_is_left_behind(log: SparkLog, store: MemoryStore) -> None:
    fill(log, "t", 20)
    given = with_spool(store, works(log))
    work, held = next(given)
    assert held is not None
    assert held.has(spans(work)[0])
    given.close()
    assert not held.has(spans(work)[0])
    assert not held.read_into(spans(work)[0], memoryview(bytearray(spans(work)[0].size)))


def spans(work: MergeWork | CompactionWork) -> list[Span]:
    return [
        Span(
            topic=piece.topic,
            partition=piece.partition,
            segment=extent.segment,
            position=extent.position,
            size=extent.size,
        )
        for piece in work.pieces
        for extent in piece.extents.extents(piece.topic_id, piece.partition)
    ]
