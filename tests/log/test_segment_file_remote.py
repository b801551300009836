"""Segments and reading where every file ends with its sync, and every look is a request."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparklog.errors import CorruptLogError, DataLossError, InvalidRequestError
from sparklog.format.encode import EncodedBatches
from sparklog.log import writer as synced_module
from sparklog.log import writer as writer_module
from sparklog.log.config import TopicConfig
from sparklog.log.reader import plan_read, read_ranges
from sparklog.log.segment_file import (
    AHEAD_BYTES,
    AHEAD_CHUNKS,
    CHUNK_BYTES,
    ReadAhead,
    SegmentFiles,
    index_name,
)
from sparklog.log.time_lookup import offset_for_time
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits
from sparklog.storage.memory import MemoryReadFile
from tests.log.conftest import OnePartition, encode

REMOTE = StoreTraits(is_remote=True, appends_after_sync=False)
FREE = {"put_if_absent:done", "acquire_lock", "sync_directory", "write", "abort_puts"}
MIB = 1 << 20


@pytest.fixture
def remote() -> OnePartition:
    return OnePartition(MemoryStore("remote", traits=REMOTE))


@contextmanager
def counted(remote: OnePartition) -> Iterator[Counter[str]]:
    requests: Counter[str] = Counter()

    def hook(operation: str, name: str) -> None:
        if operation not in FREE:
            requests[operation] += 1

    assert isinstance(remote.store, MemoryStore)
    remote.store.hook = hook
    try:
        yield requests
    finally:
        remote.store.hook = None


def read(remote: OnePartition, start: int, end: int) -> list[bytes]:
    ranges = plan_read(remote.store, remote.state, start, end, topic="t")
    parts = list(read_ranges(remote.store, ranges))
    assert [offset for part in parts for offset in part.offset.tolist()] == list(range(start, end))
    return [value for part in parts for value in part.value.to_pylist()]


def test_each_sync_ends_a_segment(remote: OnePartition) -> None:
    drafts = [remote.append([b"a"]), remote.append([b"b"]), remote.append([b"c"])]
    assert len({draft.segment for draft in drafts}) == 3
    assert [draft.position for draft in drafts] == [0, 0, 0]
    assert read(remote, 0, 3) == [b"a", b"b", b"c"]


def test_appending_is_one_put_and_publishing_another(remote: OnePartition) -> None:
    remote.append([b"a"])
    with counted(remote) as requests:
        remote.append([b"b"])
    assert requests == {"sync": 1, "put_if_absent": 1}


def test_nothing_is_there_before_its_sync(remote: OnePartition) -> None:
    remote.draft(encode([b"a"]))
    assert remote.store.list("segments", recursive=True) == []
    remote.writer.close()
    assert len(remote.store.list("segments", recursive=True)) == 1


def test_flush_settings_make_no_small_objects(remote: OnePartition) -> None:
    remote.config = TopicConfig(flush_messages=1, flush_ms=1)
    drafts = [remote.draft(encode([b"a"])) for _ in range(5)]
    assert len({draft.segment for draft in drafts}) == 1


def test_only_large_segments_have_an_index(remote: OnePartition, monkeypatch: pytest.MonkeyPatch) -> None:
    small = remote.append([b"x" * 1000] * 20, batch_bytes=1000)
    assert not remote.store.exists(index_name(small.segment))
    monkeypatch.setattr(writer_module, "INDEXED_BYTES", 10_000)
    large = remote.append([b"x" * 1000] * 20, batch_bytes=1000)
    index = remote.store.read(index_name(large.segment))
    assert index
    assert len(index) % 8 == 0


def test_index_that_cannot_be_put_fails_nothing(
    remote: OnePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparklog.errors import StorageError

    monkeypatch.setattr(writer_module, "INDEXED_BYTES", 10_000)
    assert isinstance(remote.store, MemoryStore)

    def hook(operation: str, name: str) -> None:
        if operation == "put_hint":
            raise StorageError("STORAGE_FULL", "no space", fix="none")

    remote.store.hook = hook
    remote.append([b"x" * 1000] * 20, batch_bytes=1000)
    remote.store.hook = None
    assert len(read(remote, 0, 20)) == 20


def test_what_is_remembered_of_finished_segments_is_bounded(
    remote: OnePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synced_module, "MAX_SYNCED", 3)
    drafts = [remote.append([b"a"]) for _ in range(10)]
    assert [remote.is_remembered(draft) for draft in drafts] == [False] * 7 + [True] * 3


def test_appending_no_batches_is_an_error_of_the_caller(remote: OnePartition) -> None:
    import numpy as np

    none = np.empty(0, np.int64)
    nothing = EncodedBatches(
        data=[],
        size_bytes=0,
        record_count=0,
        max_timestamp_ms=-1,
        position=none,
        size=none,
        base_offset=none,
        batch_record_count=none,
        batch_max_timestamp_ms=none,
    )
    with pytest.raises(InvalidRequestError, match="no batches"):
        remote.draft(nothing)


# --- reading -----------------------------------------------------------------------------------------


def test_reading_whole_extents_is_one_get_each(remote: OnePartition) -> None:
    for number in range(5):
        remote.append([b"%d" % number] * 10)
    with counted(remote) as requests:
        assert len(read(remote, 0, 50)) == 50
    assert requests == {"open_read": 5}


def test_cutting_an_extent_asks_for_its_headers_at_once(remote: OnePartition) -> None:
    remote.append([b"x" * 1000] * 300, batch_bytes=2000)
    with counted(remote) as requests:
        plan_read(remote.store, remote.state, 150, 250, topic="t")
    assert requests == {"open_read": 1}
    assert read(remote, 150, 250) == [b"x" * 1000] * 100


def test_time_lookup(remote: OnePartition) -> None:
    remote.append([b"a", b"b", b"c"], timestamps_ms=[100, 200, 300])
    assert offset_for_time(remote.store, remote.state, 150, topic="t") == (1, 200)


def test_missing_and_truncated_segments_are_told_apart(remote: OnePartition) -> None:
    draft = remote.append([b"a" * 100] * 10)
    data = remote.store.read(draft.segment)
    remote.store.delete(draft.segment)
    with pytest.raises(DataLossError, match="found no such file"):
        read(remote, 0, 10)
    remote.store.put_if_absent(draft.segment, data[:-1])
    with pytest.raises(CorruptLogError) as raised:
        read(remote, 0, 10)
    assert raised.value.code == "SEGMENT_TRUNCATED"


def test_ranges_are_announced_ahead_and_joined(remote: OnePartition, monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[tuple[str, int, int]] = []
    monkeypatch.setattr(
        MemoryReadFile,
        "will_need",
        lambda self, position, size: announced.append((self.name, position, size)),
    )
    drafts = []
    for _ in range(4):  # each segment holds three extents of the partition, one after the other
        parts = [remote.draft(encode([b"v" * 100] * 10)) for _ in range(3)]
        remote.publish(parts)
        drafts.append(parts)
    assert len(read(remote, 0, 120)) == 120
    assert announced == [(parts[0].segment, 0, sum(part.size for part in parts)) for parts in drafts]


def test_read_ahead_keeps_to_its_budget(remote: OnePartition, monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[int] = []
    monkeypatch.setattr(MemoryReadFile, "will_need", lambda self, position, size: announced.append(size))
    for _ in range(AHEAD_CHUNKS + 10):
        remote.append([b"a"])
    ranges = list(plan_read(remote.store, remote.state, 0, AHEAD_CHUNKS + 10, topic="t"))
    with SegmentFiles(remote.store) as files:
        ahead = ReadAhead(files, [one.span for one in ranges])
        ahead.reached(ranges[0].span, 0)
        assert len(announced) == AHEAD_CHUNKS
        ahead.reached(ranges[5].span, 0)
        assert len(announced) == AHEAD_CHUNKS + 5
        ahead.reached(ranges[-1].span, 0)
        assert len(announced) == AHEAD_CHUNKS + 10


def test_large_range_is_announced_in_pieces(remote: OnePartition, monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[tuple[int, int]] = []
    monkeypatch.setattr(
        MemoryReadFile, "will_need", lambda self, position, size: announced.append((position, size))
    )
    value = bytes(MIB - 1000)
    remote.append([value] * 48, batch_bytes=MIB)
    assert read(remote, 0, 48) == [value] * 48
    positions = [position for position, _ in announced]
    assert positions == sorted(positions)
    assert {size for _, size in announced[:-1]} == {CHUNK_BYTES}
    assert sum(size for _, size in announced) == remote.state.extents[0].size
    assert remote.state.extents[0].size > AHEAD_BYTES
