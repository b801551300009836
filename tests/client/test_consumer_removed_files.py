"""Readers whose files are merged, or expire, and are removed meanwhile: each record once, or a reason."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.client.consumer import partition_reader, read_batches
from sparklog.client.groups import OffsetTable
from sparklog.clock import ManualClock
from sparklog.errors import DataLossError, OffsetOutOfRangeError, UnknownTopicError
from sparklog.storage import MemoryStore, Store, open_store
from sparklog.storage.base import StoreTraits
from tests.support.removing import dead_segments, expire_below, merge, remove, remove_dead
from tests.support.roots import opened

pytestmark = pytest.mark.slow

APPENDS, RECORDS = 80, 30
END = APPENDS * RECORDS
BATCH_BYTES = 10 << 10  # of an append: too large to be put together with others
Opener = Callable[[], SparkLog]


@pytest.fixture(params=["directory", "memory", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "directory":
        return open_store(tmp_path / "root", create=True)
    traits = StoreTraits(is_remote=True, appends_after_sync=False)
    return MemoryStore("going", traits=traits if request.param == "remote" else None)


@pytest.fixture
def log(store: Store) -> Iterator[SparkLog]:
    """80 segments, more than a reader has open, each with a batch of 30 records."""
    with opened(store, ManualClock()) as log:
        log.create_topic("t", 1)
        fill(log)
        yield log


@pytest.fixture
def other(store: Store, log: SparkLog) -> SparkLog:
    """Another process, which maintains the root."""
    return opened(store, ManualClock())


def fill(log: SparkLog, first: int = 0) -> None:
    for number in range(APPENDS):
        start = first + number * RECORDS
        values = [value_of(offset) for offset in range(start, start + RECORDS)]
        times = pa.array(range(start, start + RECORDS), pa.int64())
        log.append("t", pa.table({"value": pa.array(values, pa.binary()), "timestamp": times}))
        log.close()  # the next append begins another segment


def value_of(offset: int) -> bytes:
    return b"%d" % offset + b"." * 310


def small_steps(log: SparkLog, start: int = 0, *, skip_expired: bool = False) -> Iterator[list[int]]:
    """Offsets, some at a time; the values are checked."""
    for batch in read_batches(
        log.metadata, log.image, "t", 0, start_offset=start, skip_expired=skip_expired, step_bytes=BATCH_BYTES
    ):
        offsets: list[int] = batch.column("offset").to_pylist()
        assert batch.column("value").to_pylist() == [value_of(offset) for offset in offsets]
        yield offsets


@pytest.mark.parametrize("read_before", [0, 1, 7])
@pytest.mark.parametrize("shared_bytes", [0, 4 << 20])
def test_a_reader_goes_on_when_its_files_are_merged_and_removed(
    log: SparkLog, other: SparkLog, read_before: int, shared_bytes: int
) -> None:
    steps = small_steps(log, start=17)
    found = [offset for _ in range(read_before) for offset in next(steps)]
    merge(other, shared_bytes=shared_bytes)
    assert len(remove_dead(other)) == APPENDS
    found += [offset for step in steps for offset in step]
    assert found == list(range(17, END))


def test_what_comes_after_is_still_not_read(log: SparkLog, other: SparkLog) -> None:
    """The newest image has more records than the one that the reader began with."""
    steps = small_steps(log)
    found = next(steps)
    fill(other, first=END)
    merge(other)
    remove_dead(other)
    assert found + [offset for step in steps for offset in step] == list(range(END))


def test_a_reader_goes_on_after_each_of_several_merges(log: SparkLog, other: SparkLog) -> None:
    steps = small_steps(log)
    found = list(next(steps))
    for turn in range(5):
        merge(other, shared_bytes=0, target_bytes=2 * BATCH_BYTES << turn)
        assert remove_dead(other)
        found += next(steps)
    assert found + [offset for step in steps for offset in step] == list(range(END))


def test_a_plan_that_needs_a_removed_file_is_made_again(log: SparkLog, other: SparkLog) -> None:
    """It looks into the extents that it cuts."""
    merge(other)
    remove_dead(other)
    image = log.image
    found = read_batches(log.metadata, image, "t", 0, start_offset=17, end_offset=500)
    assert [offset for batch in found for offset in batch.column("offset").to_pylist()] == [*range(17, 500)]


def test_a_table_with_limits(log: SparkLog, other: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = log.image
    merge(other)
    remove_dead(other)
    monkeypatch.setattr(log, "refresh", lambda **_: stale)
    assert log.read("t", 0, 5, max_records=300).column("offset").to_pylist() == [*range(5, 305)]
    few = log.read("t", 0, 5, max_bytes=9_000).column("offset").to_pylist()
    assert few == [*range(5, 5 + len(few))]
    assert 20 <= len(few) <= 30


def test_a_time_is_looked_up_again(log: SparkLog, other: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = log.image
    merge(other)
    remove_dead(other)
    monkeypatch.setattr(log, "refresh", lambda **_: stale)
    assert log.offset_for_time("t", 0, 777) == 777


def test_committed_offsets_are_found_again(log: SparkLog, other: SparkLog) -> None:
    for offset in range(5):
        log.commit_offsets("g", {("t", 0): offset})
        log.close()
    stale = log.image
    merge(other)
    remove_dead(other)
    table = OffsetTable(log.metadata)
    assert table.committed(stale, "g")["t", 0].offset == 4


def test_a_lost_segment_is_data_loss(log: SparkLog, other: SparkLog) -> None:
    """The newest image refers to it; merging does not help who has lost a file."""
    lost = log.image.partition("t", 0).extents[70].segment
    steps = small_steps(log)
    next(steps)
    remove(other, [lost])
    with pytest.raises(DataLossError, match="SEGMENT_MISSING") as raised:
        list(steps)
    assert lost in raised.value.message


def test_a_merged_segment_that_is_lost_is_data_loss(log: SparkLog, other: SparkLog) -> None:
    steps = small_steps(log)
    next(steps)
    merge(other)
    remove(other, [*dead_segments(other), other.image.partition("t", 0).extents[0].segment])
    with pytest.raises(DataLossError, match="SEGMENT_MISSING"):
        list(steps)


def test_what_has_expired_is_out_of_range(log: SparkLog, other: SparkLog) -> None:
    steps = small_steps(log)
    next(steps)
    expire_below(other, 2200)
    remove_dead(other)
    with pytest.raises(OffsetOutOfRangeError, match="expected 2200 to 2400"):
        list(steps)


def test_what_has_expired_can_be_passed_over(log: SparkLog, other: SparkLog) -> None:
    steps = small_steps(log, skip_expired=True)
    found = next(steps)
    expire_below(other, 2200)
    remove_dead(other)
    later = [offset for step in steps for offset in step]
    assert later[-200:] == [*range(2200, 2400)]
    # Files that were open may still be read.
    assert [*found, *later[:-200]] == [*range(len(found) + len(later) - 200)]


def test_all_may_have_expired(log: SparkLog, other: SparkLog) -> None:
    image = log.image
    expire_below(other, END)
    remove_dead(other)
    found = read_batches(log.metadata, image, "t", 0, start_offset=3, end_offset=700, skip_expired=True)
    assert list(found) == []


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_topic_is_missing(log: SparkLog, other: SparkLog, again: bool) -> None:
    """Also if another topic has its name now."""
    steps = small_steps(log)
    next(steps)
    other.refresh()
    other.delete_topic("t")
    remove_dead(other)
    if again:
        other.create_topic("t", 1)
        fill(other)
    with pytest.raises(UnknownTopicError, match="t-0: found its files removed, and the topic deleted"):
        list(steps)


def test_a_reader_of_what_is_there_looks_for_nothing(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(**_: object) -> None:
        raise AssertionError("nothing was missing")

    image = log.image
    monkeypatch.setattr(log.metadata, "refresh", looked)
    reader = partition_reader(log.metadata, image, "t", 0)
    assert sum(part.num_rows for part in reader.read(0, END)) == END
