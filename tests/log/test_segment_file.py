"""The offset index: used, confirmed by headers, rebuilt when damaged or missing, never trusted."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparklog.errors import CorruptLogError, StorageError
from sparklog.format.index import encode_offset_entries, parse_offset_entries
from sparklog.log.read_plan import extent_span, plan_read
from sparklog.log.segment_file import SegmentFile, SegmentFiles, index_base_offset, index_name
from sparklog.storage import LocalStore, MemoryStore

VALUES = [b"%06d" % number + b"." * 94 for number in range(5000)]


@pytest.fixture
def big(local: Any) -> Any:
    local.append([b"some", b"other"])
    local.append(VALUES, batch_bytes=1000)
    return local


def index_path(partition: Any) -> Path:
    return Path(partition.store.root) / index_name(partition.state.extents[-1].segment)


def located(partition: Any, offset: int) -> tuple[int, int, int]:
    """(first, last stored offset of the batch found, bytes read to find it)."""
    span = extent_span("t", partition.state.extents[-1])
    with SegmentFile.open(partition.store, span) as segment:
        _, header = segment.locate(span, offset)
        assert header is not None
        return header.base_offset, header.last_offset, segment.bytes_read


@pytest.mark.parametrize("offset", [0, 1, 2500, 4999])
def test_finding_an_offset_reads_a_few_kilobytes(big: Any, offset: int) -> None:
    first, last, bytes_read = located(big, offset)
    assert first <= offset <= last
    assert bytes_read < 20_000
    assert big.state.extents[-1].size > 500_000


def test_past_the_end_there_is_nothing(big: Any) -> None:
    span = extent_span("t", big.state.extents[-1])
    with SegmentFile.open(big.store, span) as segment:
        assert segment.locate(span, 5000) == (span.end_position, None)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: os.urandom(len(data)),
        lambda data: bytes(len(data)),
        lambda data: encode_offset_entries(*shifted(data, positions=1)),
        lambda data: encode_offset_entries(*shifted(data, offsets=3)),
        lambda data: b"\xff" * len(data),
    ],
)
def test_a_damaged_index_is_rebuilt(big: Any, damage: Callable[[bytes], bytes]) -> None:
    path = index_path(big)
    good = path.read_bytes()
    path.write_bytes(damage(good))
    for offset in (10, 1234, 4990):
        first, last, _ = located(big, offset)
        assert first <= offset <= last
    for offset in (10, 1234, 4990):
        assert located(big, offset)[2] < 20_000


def shifted(data: bytes, *, offsets: int = 0, positions: int = 0) -> tuple[Any, Any]:
    index = parse_offset_entries(data, "index")
    return index.relative_offset.astype(np.int64) + 37 * offsets, index.position.astype(np.int64) + positions


def test_a_missing_index_is_rebuilt(big: Any) -> None:
    index_path(big).unlink()
    assert located(big, 4990)[0] <= 4990
    assert index_path(big).exists()
    assert located(big, 4990)[2] < 20_000


def test_an_index_that_we_may_not_read_is_as_a_missing_one(big: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is only a hint. Root may read everything, so the refusal is not the file system's here."""
    real = LocalStore.open_read

    def refusing(store: LocalStore, name: str) -> Any:
        if name.endswith(".index"):
            raise StorageError("STORAGE_REFUSED", f"{name}: cannot open: Permission denied", fix="ask")
        return real(store, name)

    monkeypatch.setattr(LocalStore, "open_read", refusing)
    first, last, _ = located(big, 4990)
    assert first <= 4990 <= last


def test_a_half_written_entry_is_ignored(big: Any) -> None:
    path = index_path(big)
    path.write_bytes(path.read_bytes() + b"\0\0\0")
    assert located(big, 4990)[2] < 20_000


def test_an_index_with_last_offsets_as_kafka_writes_them_serves_too(big: Any) -> None:
    span = extent_span("t", big.state.extents[-1])
    with SegmentFile.open(big.store, span) as segment:
        batches = list(segment.headers(span, span.position))
    chosen = batches[::5]
    entries = encode_offset_entries(
        np.array([header.last_offset for _, header in chosen]), np.array([position for position, _ in chosen])
    )
    index_path(big).write_bytes(entries)
    for offset in range(0, 5000, 101):
        first, last, _ = located(big, offset)
        assert first <= offset <= last
        (one,) = plan_read(big.store, big.state, 2 + offset, 2 + offset + 1)
        assert one.size < 2_000
    assert index_path(big).read_bytes() == entries


def test_rebuilding_works_on_storage_that_cannot_be_written(memory: Any, memory_store: MemoryStore) -> None:
    def hook(called: str, name: str) -> None:
        if called == "put_hint":
            raise StorageError("STORAGE_REFUSED", f"{name}: read-only", fix="mount it read-write")

    memory.append(VALUES, batch_bytes=1000)
    memory_store.delete(index_name(memory.state.extents[0].segment))
    memory_store.hook = hook
    assert located(memory, 4990)[0] <= 4990


def test_a_batch_that_leaves_its_extent_is_damage(big: Any) -> None:
    span = extent_span("t", big.state.extents[-1])
    path = Path(big.store.root) / span.segment
    with path.open("r+b") as file:
        file.seek(span.position + 8)
        file.write((1 << 30).to_bytes(4, "big"))
    with pytest.raises(
        CorruptLogError, match=rf"t-0 in {span.segment}@{span.position}: found a batch of 107374"
    ):
        located(big, 0)


def test_merged_segments_count_their_index_from_the_name() -> None:
    assert index_base_offset("t-0/00000000000000368769-ab12.log") == 368769
    assert index_base_offset("segments/ab12/00000001.log") == 0


def test_only_a_few_segments_stay_open(local: Any) -> None:
    for _ in range(12):
        local.append([b"x"])
        local.writer.close()
    spans = [extent_span("t", extent) for extent in local.state.extents]
    with SegmentFiles(local.store, limit=3) as files:
        opened = [files.open(span) for span in spans]
        assert files.open(spans[-1]) is opened[-1]
        assert files.open(spans[0]) is not opened[0]


def test_a_segment_that_grew_is_opened_again(local: Any) -> None:
    local.append([b"x"])
    with SegmentFiles(local.store) as files:
        files.open(extent_span("t", local.state.extents[0]))
        local.append([b"y"])
        span = extent_span("t", local.state.extents[1])
        assert len(files.open(span).read_exactly(span, span.position, span.size)) == span.size


def test_a_writer_goes_on_after_a_reader_rebuilt_the_index_under_it(big: Any) -> None:
    index_path(big).unlink()
    assert located(big, 4990)[0] <= 4990
    for _ in range(2):
        big.append(VALUES, batch_bytes=1000)
        for offset in (3, 2500, 4990):
            first, last, _ = located(big, offset)
            assert first <= offset <= last
        assert located(big, 4990)[2] < 20_000
    assert len({extent.segment for extent in big.state.extents}) == 1
