"""Plans of many extents: the same ranges as objects would be, without making them, and small when carried."""

import pickle  # noqa: TID251 - Spark carries plans this way
import tracemalloc
from itertools import islice

import numpy as np
import pytest

from sparklog.log.read_plan import ByteRange, end_offset_for_bytes, plan_read
from sparklog.metadata import Extent, ExtentList, PartitionState
from sparklog.metadata.model import extent_list as extent_list_module
from sparklog.storage import MemoryStore

COUNT = 50_000
TOPIC_ID = "T" * 22


def extent(number: int) -> Extent:
    return Extent(
        topic_id=TOPIC_ID,
        partition=3,
        segment=f"segments/{'W' * 22}/{number // 2000:08d}.log",
        position=number % 2000 * 4000 + number * number % 777,
        size=3000 + number * 7919 % 901,
        base_offset=10 * number,
        record_count=10 if number % 5 else 9,
        max_timestamp_ms=number,
        offset_delta=10 * number if number % 3 else 0,
    )


@pytest.fixture(scope="module")
def state() -> PartitionState:
    extents = ExtentList(TOPIC_ID, 3)
    for start in range(0, COUNT - 7, 1000):
        extents = extents.appended([extent(number) for number in range(start, min(start + 1000, COUNT - 7))])
    extents = extents.appended([extent(number) for number in range(COUNT - 7, COUNT)])
    return PartitionState(
        topic_id=TOPIC_ID, partition=3, log_start_offset=0, log_end_offset=10 * COUNT, extents=extents
    )


def naive(start: int, end: int) -> list[ByteRange]:
    return [
        ByteRange(
            topic="t",
            partition=3,
            segment=one.segment,
            position=one.position,
            size=one.size,
            offset_delta=one.offset_delta,
            start_offset=one.base_offset,
            end_offset=one.end_offset,
        )
        for one in map(extent, range(start, end))
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "last"), [(0, COUNT), (17, 18), (17, 19), (17, 20), (9_990, 10_020), (5, 5)]
)
def test_a_plan_has_the_ranges_of_its_extents(state: PartitionState, first: int, last: int) -> None:
    plan = plan_read(MemoryStore(), state, 10 * first, 10 * last, topic="t")
    expected = naive(first, last)
    assert list(plan) == expected
    assert list(plan) == expected  # once more
    assert len(plan) == len(expected)
    assert plan.size_bytes == sum(one.size for one in expected)
    carried = pickle.loads(pickle.dumps(plan))
    assert list(carried) == expected
    assert carried.size_bytes == plan.size_bytes


def test_a_plan_takes_no_memory_for_each_extent(state: PartitionState) -> None:
    """Before the first record of a partition was read, all its extents were made objects of 400 bytes."""
    tracemalloc.start()
    try:
        plan = plan_read(MemoryStore(), state, 0, 10 * COUNT, topic="t")
        first = list(islice(plan, 3))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert first == naive(0, 3)
    assert peak < 1_500_000
    columns = next(block for _, block in state.extents.column_blocks())
    assert any(np.shares_memory(block.numbers[0], columns.numbers[0]) for block in plan.whole)


def test_a_plan_is_small_on_its_way_to_an_executor(state: PartitionState) -> None:
    plan = plan_read(MemoryStore(), state, 0, 10 * COUNT, topic="t")
    assert len(pickle.dumps(plan)) < 10 * COUNT


def test_the_end_of_a_limited_read_is_found_without_looking_at_all_of_it(
    state: PartitionState, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    original = extent_list_module.ExtentList.range_of

    def counted(self: ExtentList, start: int, stop: int) -> list[Extent]:
        made.append(stop - start)
        return original(self, start, stop)

    monkeypatch.setattr(extent_list_module.ExtentList, "range_of", counted)
    assert 0 < end_offset_for_bytes(state, 0, 100_000) < 1000
    assert sum(made) < 5_000
