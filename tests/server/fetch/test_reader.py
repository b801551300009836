"""Stored bytes as consumers get them, and what happens when they are not as they should be."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sparklog.errors import CorruptLogError, DataLossError, SparklogError, UnsupportedVersionError
from sparklog.format.codec import Codec
from sparklog.format.decode import scan_batches
from sparklog.metadata import PartitionState
from sparklog.storage import LocalStore
from sparklog_server.cluster.leadership import Leader, Leadership
from sparklog_server.fetch import reader as reader_module
from sparklog_server.fetch.cache import FetchedBatches
from sparklog_server.fetch.reader import StoredReader
from sparklog_server.protocol.wire import FileRegion
from tests.server.fetch.stored import TOPIC, StoredLog, bytes_of, offsets_of, stored_log


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredLog]:
    with stored_log(tmp_path / "log") as made:
        yield made


def read(
    stored: StoredLog, offset: int, max_bytes: int = 1 << 20, *, at_least_one: bool = True
) -> FetchedBatches:
    reader = StoredReader(stored.log.store, Leadership(1, stored.log))
    try:
        found, _ = reader.read(TOPIC, stored.state, offset, max_bytes=max_bytes, at_least_one=at_least_one)
        return found
    finally:
        reader.close()


def data_of(found: FetchedBatches) -> bytes:
    data = bytes_of(found.chunks)
    assert len(data) == found.size
    return data


def test_small_extents_follow_each_other_in_one_answer(stored: StoredLog) -> None:
    for count in (3, 1, 40, 2):
        stored.append(count)
    found = read(stored, 0)
    assert offsets_of(data_of(found)) == list(range(46))
    assert found.next_offset == 46
    assert len(found.chunks) == 1


def test_reading_begins_with_the_batch_that_holds_the_offset(stored: StoredLog) -> None:
    stored.append(50)
    stored.append(50)
    for offset in (0, 17, 49, 50, 77, 99):
        offsets = offsets_of(data_of(read(stored, offset)))
        assert offsets[0] <= offset
        assert offset - offsets[0] < 30
        assert offsets[-1] == 99


def test_at_the_end_there_is_nothing(stored: StoredLog) -> None:
    stored.append(5)
    found = read(stored, 5)
    assert (found.size, found.next_offset) == (0, 5)


def test_only_whole_batches_up_to_the_limit(stored: StoredLog) -> None:
    stored.append(30)
    stored.append(30)
    everything = scan_batches(data_of(read(stored, 0)), where="all")
    ends = (everything.position + everything.size).tolist()
    for limit in (1, 61, ends[0] - 1, ends[0], ends[0] + 1, ends[2], ends[-1] - 1, ends[-1], 10**9):
        fitting = [end for end in ends if end <= limit]
        assert read(stored, 0, limit).size == max([ends[0], *fitting])
        assert read(stored, 0, limit, at_least_one=False).size == max([0, *fitting])


def test_other_partitions_bytes_lie_between(tmp_path: Path) -> None:
    with stored_log(tmp_path / "log", partitions=2) as stored:
        for count in (5, 7, 9):
            stored.append(count)
            stored.append(count, partition=1)
        assert offsets_of(data_of(read(stored, 0))) == list(range(21))


def test_compressed_batches_stay_compressed(stored: StoredLog) -> None:
    stored.append(50, codec=Codec.ZSTD, value_bytes=300, batch_bytes=4000)
    stored.append(50, codec=Codec.LZ4, value_bytes=300, batch_bytes=4000)
    data = data_of(read(stored, 0))
    assert offsets_of(data) == list(range(100))
    assert set(scan_batches(data, where="read").codec.tolist()) == {Codec.ZSTD, Codec.LZ4}


def test_more_extents_than_are_looked_at_together(stored: StoredLog) -> None:
    for _ in range(150):
        stored.append(1)
    assert offsets_of(data_of(read(stored, 0))) == list(range(150))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "MAX_PIECES", 70)
        found = read(stored, 3)
        assert offsets_of(data_of(found)) == list(range(3, 73))
        assert found.next_offset == 73


def test_what_takes_too_long_is_left_for_the_next_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each extent is a read of its own, and an object store takes its time for each."""
    times = itertools.count(step=0.3)
    monkeypatch.setattr(reader_module, "monotonic", lambda: next(times))
    with stored_log(tmp_path / "log", partitions=2) as stored:
        for _ in range(10):
            stored.append(2)
            stored.append(1, partition=1)
        found = read(stored, 0)
        assert offsets_of(data_of(found)) == list(range(8))
        assert found.next_offset == 8
        assert offsets_of(data_of(read(stored, found.next_offset))) == list(range(8, 16))
        monkeypatch.setattr(reader_module, "READ_SECONDS", 0)
        assert offsets_of(data_of(read(stored, 3))) == [2, 3], "one read there always is"


def test_a_log_without_files() -> None:
    with stored_log(None) as stored:
        stored.append(20)
        stored.append(10)
        assert offsets_of(data_of(read(stored, 4)))[-1] == 29


def test_what_is_read_is_a_block_for_the_cache(stored: StoredLog) -> None:
    stored.append(30)
    stored.append(30)
    reader = StoredReader(stored.log.store, Leadership(1, stored.log))
    found, block = reader.read(TOPIC, stored.state, 35, max_bytes=10_000)
    reader.close()
    assert block is not None
    table = scan_batches(block.data.toreadonly(), where="block")
    assert table.position.tolist() == block.position.tolist()
    assert table.base_offset.tolist() == block.base_offset.tolist()
    assert block.end_offset == found.next_offset == 60


class Term(Leadership):
    """Of so many leaders before."""

    def __init__(self, stored: StoredLog, epoch: int) -> None:
        super().__init__(1, stored.log)
        self._epoch = epoch

    def leader_of(self, _partition: PartitionState) -> Leader:
        return Leader(1, self._epoch)


@pytest.mark.parametrize(("is_merged", "epoch", "fetched"), [(False, 7, 7), (True, 7, 0), (True, -1, -1)])
def test_batches_carry_their_leaders_epoch(
    stored: StoredLog, is_merged: bool, epoch: int, fetched: int
) -> None:
    """But for those that are sent from the file, if it has an older one: never one that is to come."""
    for _ in range(4):
        stored.append(500 if is_merged else 50, value_bytes=200)
    if is_merged:
        stored.merge()
    reader = StoredReader(stored.log.store, Term(stored, epoch))
    found, _ = reader.read(TOPIC, stored.state, 0, max_bytes=1 << 20)
    data = bytes_of(found.chunks)
    assert isinstance(found.chunks[0], FileRegion) is (fetched == 0)
    if found.release is not None:
        found.release()
    reader.close()
    table = scan_batches(data, where="fetched")
    assert len(table.partition_leader_epoch) > 2
    assert set(table.partition_leader_epoch.tolist()) == {fetched}


# --- merged segments ---------------------------------------------------------------------------------


def test_merged_segments_are_sent_from_the_file(stored: StoredLog) -> None:
    for _ in range(4):
        stored.append(500, value_bytes=200)
    stored.merge()
    reader = StoredReader(stored.log.store, Leadership(1, stored.log))
    found, block = reader.read(TOPIC, stored.state, 700, max_bytes=100_000)
    assert block is None
    region = found.chunks[0]
    assert isinstance(region, FileRegion)
    offsets = offsets_of(bytes_of(found.chunks))
    assert offsets[0] <= 700
    assert 90_000 < found.size <= 100_000
    assert found.next_offset == offsets[-1] + 1
    reader.close()
    os.fstat(region.descriptor)  # still open: it is being sent
    assert found.release is not None
    found.release()
    found.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(region.descriptor)


def test_only_so_many_batches_are_looked_at_at_once(
    stored: StoredLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """55 MB may be 800,000 of them, at 8 us each in the interpreter; the consumer asks for the rest."""
    monkeypatch.setattr("sparklog_server.fetch.reader.MAX_WALKED", 50)
    for _ in range(4):
        stored.append(500, value_bytes=200)
    stored.merge()
    offset, seen = 0, []
    while offset < 2000:
        found = read(stored, offset, 1 << 20)
        offsets = offsets_of_file(stored, found)
        assert found.size <= 50 * 2000
        assert found.next_offset == offsets[-1] + 1
        seen += offsets
        offset = found.next_offset
    assert seen == list(range(2000))


def test_little_of_a_merged_segment_is_read(stored: StoredLog) -> None:
    stored.append(50)
    stored.merge()
    found = read(stored, 0)
    assert not isinstance(found.chunks[0], FileRegion)
    assert offsets_of(data_of(found)) == list(range(50))


def test_a_merged_segment_without_files() -> None:
    with stored_log(None) as stored:
        stored.append(2000, value_bytes=200)
        stored.merge()
        found = read(stored, 100, 200_000)
        assert offsets_of(data_of(found))[0] <= 100


@pytest.mark.parametrize("value_bytes", [0, 400])
def test_gaps_of_compaction_are_stepped_over(stored: StoredLog, value_bytes: int) -> None:
    stored.append(1000, value_bytes=value_bytes)
    stored.merge(keep=lambda number: number % 3 == 1)
    offset, seen = 0, 0
    while offset < 1000:
        found = read(stored, offset, 80_000)
        reader_offsets = [one for one in offsets_of_file(stored, found) if one >= offset]
        seen += len(reader_offsets)
        assert found.next_offset > offset
        offset = found.next_offset
    assert 200 < seen < 500


def offsets_of_file(stored: StoredLog, found: FetchedBatches) -> list[int]:
    """Regions are closed by now: read the file again."""
    if found.chunks and isinstance(found.chunks[0], FileRegion):
        region = found.chunks[0]
        name = stored.state.extents[0].segment
        return offsets_of(stored.log.store.read(name, region.position, region.size))
    return offsets_of(bytes_of(found.chunks))


# --- damage ------------------------------------------------------------------------------------------


def damage(stored: StoredLog, position: int, data: bytes, *, extent: int = 0) -> None:
    store: Any = stored.log.store
    assert isinstance(store, LocalStore)
    one = stored.state.extents[extent]
    with open(f"{store.root}/{one.segment}", "r+b") as file:
        file.seek(one.position + position)
        file.write(data)


@pytest.mark.parametrize(
    ("position", "data"),
    [
        (8, (10).to_bytes(4, "big")),
        (8, (-5).to_bytes(4, "big", signed=True)),
        (8, (1 << 30).to_bytes(4, "big")),
        (8, (2000).to_bytes(4, "big")),
        (16, b"\x01"),
        (0, (7).to_bytes(8, "big")),
        (23, (1000).to_bytes(4, "big")),
    ],
)
@pytest.mark.parametrize("extents", [1, 3])
def test_damaged_headers_are_reported_with_their_place(
    stored: StoredLog, position: int, data: bytes, extents: int
) -> None:
    for _ in range(extents):
        stored.append(30)
    damage(stored, position, data, extent=extents - 1)
    where = stored.state.extents[extents - 1]
    with pytest.raises((CorruptLogError, UnsupportedVersionError)) as caught:
        read(stored, 0)
    assert f"{TOPIC}-0 in {where.segment}@" in str(caught.value)


def test_a_damaged_length_never_shows_bytes_of_others(tmp_path: Path) -> None:
    """The next extent in the segment belongs to another partition."""
    with stored_log(tmp_path / "log", partitions=2) as stored:
        stored.append(1)
        size = stored.state.extents[0].size
        stored.append(1, partition=1)
        damage(stored, 8, (2 * size - 12).to_bytes(4, "big"))
        with pytest.raises(CorruptLogError):
            read(stored, 0)


def test_a_truncated_segment(stored: StoredLog) -> None:
    stored.append(30)
    store: Any = stored.log.store
    os.truncate(f"{store.root}/{stored.state.extents[0].segment}", 100)
    with pytest.raises(CorruptLogError, match="SEGMENT_TRUNCATED"):
        read(stored, 0)


def test_a_segment_that_is_gone(stored: StoredLog) -> None:
    stored.append(30)
    stored.log.store.delete(stored.state.extents[0].segment)
    with pytest.raises(DataLossError, match="SEGMENT_MISSING"):
        read(stored, 0)


def test_merged_segments_are_checked_before_they_are_sent(stored: StoredLog) -> None:
    stored.append(1000, value_bytes=200)
    stored.merge()
    size = scan_batches(stored.log.store.read(stored.state.extents[0].segment), where="merged").size
    damage(stored, int(size[0]) + 8, (1 << 20).to_bytes(4, "big"))
    with pytest.raises(CorruptLogError, match="EXTENT_MISMATCH"):
        read(stored, 0)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_is_an_error_of_ours_or_harmless(data: st.DataObject) -> None:
    """Whatever a flipped byte does: whole batches of this partition, or an error with a place."""
    with stored_log(None, partitions=2) as stored:
        for count in (3, 5):
            stored.append(count)
            stored.append(2, partition=1)
        extents = list(stored.state.extents)
        extent = data.draw(st.sampled_from(extents))
        store = stored.log.store
        content = bytearray(store.read(extent.segment))
        at = extent.position + data.draw(st.integers(0, min(80, extent.size - 1)))
        content[at] ^= data.draw(st.integers(1, 255))
        store.put_hint(extent.segment, content)
        own = b"".join(bytes(content[one.position : one.position + one.size]) for one in extents)
        try:
            found = read(stored, data.draw(st.integers(0, 7)), data.draw(st.integers(1, 2000)))
        except SparklogError as error:
            event(error.code)
            named = extent.segment in str(error)
            assert named
            return
        fetched = bytes_of(found.chunks)
        table = scan_batches(fetched, where="fetched", verify_crc=False)
        for position, size in zip(table.position.tolist(), table.size.tolist(), strict=True):
            assert fetched[position + 16 : position + size] in own


# --- random reads against a model --------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    reads=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 20_000)), min_size=1, max_size=6),
)
def test_any_read_is_a_run_of_batches(counts: list[int], reads: list[tuple[int, int]]) -> None:
    with stored_log(None) as stored:
        for count in counts:
            stored.append(count)
        total = sum(counts)
        for offset, limit in reads:
            found = read(stored, offset % total, limit)
            offsets = offsets_of(data_of(found))
            assert offsets == list(range(offsets[0], found.next_offset))
            assert offsets[0] <= offset % total < found.next_offset
            assert found.size <= limit or len(scan_batches(data_of(found), where="one")) == 1
        stored.log.close()
