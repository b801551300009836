"""What a fetch could be answered with, and when a wait is over."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.metadata import Extent, ExtentList, PartitionLeadership, PartitionState
from sparklog_server.fetch.service import DelayedFetch, countable_bytes
from sparklog_server.fetch.sessions import PartitionFetch


def state(*extents: tuple[int, int, int], log_start: int = 0, log_end: int | None = None) -> PartitionState:
    """(base offset, records, bytes) of each extent."""
    made = [
        Extent(
            topic_id="id",
            partition=0,
            segment="segments/w/0.log",
            position=0,
            size=size,
            record_count=count,
            max_timestamp_ms=0,
            base_offset=base,
            offset_delta=base,
        )
        for base, count, size in extents
    ]
    listed = ExtentList("id", 0)
    for first in range(0, len(made), 7):  # so that there are several blocks, and a tail
        listed = listed.appended(made[first : first + 7])
    end = log_end if log_end is not None else (made[-1].end_offset if made else 0)
    return PartitionState(
        topic_id="id",
        partition=0,
        log_start_offset=log_start,
        log_end_offset=end,
        extents=listed,
    )


def test_extents_that_are_cut_count_by_share() -> None:
    one = state((0, 10, 1000), (10, 10, 500))
    assert one.extents.bytes_from(0, 10_000) == 1500
    assert one.extents.bytes_from(5, 10_000) == 1000
    assert one.extents.bytes_from(19, 10_000) == 50
    assert one.extents.bytes_from(20, 10_000) == 0
    assert one.extents.bytes_from(0, 700) == 700


def test_a_gap_holds_nothing() -> None:
    assert state((0, 10, 100), log_end=50).extents.bytes_from(10, 1000) == 0
    assert state((0, 10, 100), (40, 10, 100)).extents.bytes_from(20, 1000) == 100


def test_what_is_there_counts_for_at_least_a_byte() -> None:
    assert state((0, 1000, 61)).extents.bytes_from(999, 1000) == 1


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 50), st.integers(61, 500)), max_size=200),
    offset=st.integers(0, 3000),
    limit=st.integers(1, 80_000),
)
def test_any_log(sizes: list[tuple[int, int]], offset: int, limit: int) -> None:
    extents, base = [], 0
    for count, size in sizes:
        extents.append((base, count, size))
        base += count
    expected = 0
    for first, count, size in extents:
        left = min(count, first + count - offset)
        if left > 0:
            expected += max(1, size * left // count)
    assert state(*extents).extents.bytes_from(offset, limit) == min(expected, limit)


def test_counting_ends_with_what_is_waited_for_and_with_the_partitions_limit() -> None:
    one = state((0, 10, 1000))
    fetch = PartitionFetch(topic="t", partition=0, offset=0, max_bytes=300)
    assert countable_bytes(one, fetch, 100) == 100
    assert countable_bytes(one, fetch, 1000) == 300
    assert countable_bytes(one, fetch, 0) == 1


class Topics:
    """As much of an image as a wait looks at."""

    def __init__(self) -> None:
        self.topic_by_id: dict[str, Any] = {}

    def show(self, *states: PartitionState) -> None:
        class Topic:
            partitions = states

        self.topic_by_id = {"id": Topic}


@pytest.fixture
def topics() -> Topics:
    return Topics()


def delayed(topics: Any, min_bytes: int, *, offset: int = 10) -> DelayedFetch:
    fetch = PartitionFetch(topic="t", partition=0, offset=offset, max_bytes=1000)
    done: asyncio.Future[None] = asyncio.new_event_loop().create_future()
    done.get_loop().close()
    return DelayedFetch([(fetch, state((0, 10, 100)), 0)], min_bytes, lambda: topics, done)


def test_a_wait_sums_up_what_arrives(topics: Topics) -> None:
    operation = delayed(topics, 150)
    assert operation.keys == [("id", 0)]
    topics.show(state((0, 10, 100), (10, 1, 100)))
    assert not operation.try_complete(("id", 0))
    assert not operation.try_complete(("id", 0))  # asked again: counted once
    topics.show(state((0, 10, 100), (10, 1, 100), (11, 1, 70)))
    assert operation.try_complete(("id", 0))


def test_a_wait_ends_with_its_partition(topics: Topics) -> None:
    operation = delayed(topics, 150)
    assert operation.try_complete(("id", 0))  # deleted
    topics.show()
    assert operation.try_complete(("id", 0))
    topics.show(state((20, 10, 100), log_start=20))
    assert operation.try_complete(("id", 0))  # out of range: to be told


@pytest.mark.parametrize("leadership", [PartitionLeadership((1, 2), 2, 5), PartitionLeadership((1, 2), 1, 6)])
def test_a_wait_ends_with_the_leadership(topics: Topics, leadership: PartitionLeadership) -> None:
    """Nothing has arrived; but the client shall look for the leader now, or learn of the epoch."""
    before = msgspec.structs.replace(state((0, 10, 100)), leadership=PartitionLeadership((1, 2), 1, 5))
    fetch = PartitionFetch(topic="t", partition=0, offset=10, max_bytes=1000)
    loop = asyncio.new_event_loop()
    operation = DelayedFetch([(fetch, before, 0)], 1, lambda: topics, loop.create_future())  # type: ignore[arg-type, return-value]
    loop.close()
    topics.show(msgspec.structs.replace(before))
    assert not operation.try_complete(("id", 0))
    topics.show(msgspec.structs.replace(before, leadership=leadership))
    assert operation.try_complete(("id", 0))


def test_the_future_is_set_once(topics: Topics) -> None:
    loop = asyncio.new_event_loop()
    done: asyncio.Future[None] = loop.create_future()
    operation = DelayedFetch([], 1, lambda: topics, done)  # type: ignore[arg-type, return-value]
    operation.on_complete(expired=True)
    operation.on_complete(expired=False)
    assert done.done()
    loop.close()
