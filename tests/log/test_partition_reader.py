"""How often a reader looks again, and at what. Whole readers: tests/client/test_consumer_removed_files.py."""

import logging
from collections.abc import Callable, Iterator

import msgspec
import pytest

from sparklog.errors import DataLossError, RetriableError
from sparklog.log.partition_reader import MAX_MISSES, PartitionReader
from sparklog.log.read_plan import extent_span
from sparklog.log.segment_file import SegmentFile, index_name
from sparklog.metadata import PartitionState
from sparklog.metadata.model.extent_list import ExtentList
from tests.log.conftest import OnePartition
from tests.support.told import Told


@pytest.fixture
def partition(memory: OnePartition) -> OnePartition:
    memory.append([b"a", b"b", b"c"])
    return memory


def in_segment(state: PartitionState, name: str) -> PartitionState:
    """The same, but that all its bytes are said to be in another segment."""
    extents = [msgspec.structs.replace(extent, segment=name) for extent in state.extents]
    return msgspec.structs.replace(
        state, extents=ExtentList(state.topic_id, state.partition).appended(extents)
    )


def elsewhere(state: PartitionState, misses: int) -> Iterator[PartitionState]:
    """States whose segments are gone again and again, and then as it is."""
    for number in range(misses):
        yield in_segment(state, f"segments/w/{number:08d}.0.log")
    yield state


def reader(partition: OnePartition, states: Iterator[PartitionState]) -> PartitionReader:
    first = next(states)
    return PartitionReader(partition.store, lambda: next(states), topic="t", partition=0, state=first)


def test_merges_may_overtake_a_reader_a_few_times(
    partition: OnePartition, caplog: pytest.LogCaptureFixture, told: Told
) -> None:
    caplog.set_level(logging.INFO, "sparklog.log")
    found = reader(partition, elsewhere(partition.state, MAX_MISSES)).read(0, 3)
    assert [value for part in found for value in part.value.to_pylist()] == [b"a", b"b", b"c"]
    passed = told("sparklog.log")
    assert len(passed) == MAX_MISSES
    assert (
        passed[0] == "t-0: segments/w/00000000.0.log is removed; continuing from offset 0 in another segment"
    )


@pytest.mark.parametrize("work", ["read", "plan", "time"])
def test_but_not_for_ever(partition: OnePartition, work: str) -> None:
    one = reader(partition, elsewhere(partition.state, MAX_MISSES + 1))
    works: dict[str, Callable[[], object]] = {
        "read": lambda: list(one.read(0, 3)),
        "plan": lambda: one.plan(1, 2),
        "time": lambda: one.offset_for_time(1),
    }
    with pytest.raises(RetriableError, match="removed 17 times in a row before offset") as raised:
        works[work]()
    assert raised.value.code == "READ_OVERTAKEN"


def test_misses_are_counted_anew_with_each_record(memory: OnePartition) -> None:
    for value in (b"a", b"b", b"c"):
        memory.append([value])
        memory.writer.close()
    state = memory.state

    def states() -> Iterator[PartitionState]:
        """Only the extent that was asked for last is there."""
        for shown in range(3):
            for number in range(MAX_MISSES - 1):
                yield in_segment(state, f"segments/w/{shown:04d}{number:04d}.0.log")
            extents = [
                extent
                if extent.base_offset <= shown
                else msgspec.structs.replace(extent, segment=f"segments/v/{shown:08d}.0.log")
                for extent in state.extents
            ]
            yield msgspec.structs.replace(
                state, extents=ExtentList(state.topic_id, state.partition).appended(extents)
            )

    found = reader(memory, states()).read(0, 3, step_bytes=1)
    assert [value for part in found for value in part.value.to_pylist()] == [b"a", b"b", b"c"]


def test_a_segment_of_other_offsets_is_of_no_concern(memory: OnePartition) -> None:
    """Lost is only what is still to be read."""
    memory.append([b"a"])
    lost = memory.state.extents[0].segment
    memory.writer.close()
    memory.append([b"b"])
    moved = memory.state
    first, second = moved.extents
    before = msgspec.structs.replace(
        moved,
        extents=ExtentList(moved.topic_id, 0).appended(
            [first, msgspec.structs.replace(second, segment=lost)]
        ),
    )
    memory.store.delete(lost)
    one = reader(memory, iter([before, moved]))
    assert [value for part in one.read(1, 2) for value in part.value.to_pylist()] == [b"b"]
    with pytest.raises(DataLossError, match="SEGMENT_MISSING"):
        list(reader(memory, iter([moved, moved])).read(0, 2))


def test_an_index_is_not_left_beside_a_segment_that_was_removed(local: OnePartition) -> None:
    """Who has the file open may find its index missing, and make it anew: for nobody."""
    local.append([b"%0100d" % number for number in range(3000)], batch_bytes=500)
    local.writer.close()
    (extent,) = local.state.extents
    span = extent_span("t", extent)
    with SegmentFile.open(local.store, span) as segment:
        local.store.delete(index_name(extent.segment))
        local.store.delete(extent.segment)
        position, header = segment.locate(span, 2500)
        assert header is not None
        assert header.last_offset >= 2500 > 0 < position
    assert not local.store.exists(index_name(extent.segment))
