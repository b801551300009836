"""Small extents on an object store are fetched by object, not each by itself."""

import pytest

from sparklog.errors import CorruptLogError, DataLossError
from sparklog.log.reader import Fetched, joined_ranges
from sparklog.log.segment_file import AHEAD_CHUNKS, SegmentFiles, Span
from sparklog.storage import MemoryStore


def span(position: int, size: int, segment: str = "a.log", partition: int = 0) -> Span:
    return Span(topic="t", partition=partition, segment=segment, position=position, size=size)


def ranges(*spans: Span) -> list[tuple[str, int, int]]:
    return [(one.segment, one.position, one.end_position) for one in joined_ranges(spans)]


def test_what_lies_together_is_asked_for_at_once() -> None:
    assert ranges() == []
    assert ranges(span(40, 20), span(0, 40, partition=1)) == [("a.log", 0, 60)]
    assert ranges(span(0, 40), span(40, 20, "b.log")) == [("a.log", 0, 40), ("b.log", 40, 60)]


def test_a_gap_is_fetched_if_it_is_small_beside_what_is_wanted() -> None:
    assert ranges(span(0, 40), span(50, 10)) == [("a.log", 0, 60)]
    assert ranges(span(0, 40), span(51, 10)) == [("a.log", 0, 40), ("a.log", 51, 61)]
    # All gaps together.
    assert ranges(span(0, 40), span(50, 10), span(65, 10)) == [("a.log", 0, 60), ("a.log", 65, 75)]


def test_a_request_is_of_a_bounded_size() -> None:
    part = 1 << 20
    found = ranges(*(span(number * part, part) for number in range(9)))
    assert found == [
        ("a.log", 0, 4 * part),
        ("a.log", 4 * part, 8 * part),
        ("a.log", 8 * part, 9 * part),
    ]
    assert ranges(span(0, 9 * part)) == [("a.log", 0, 9 * part)]


def test_segments_come_in_the_order_in_which_they_are_needed() -> None:
    wanted = [span(0, 10, "c.log"), span(50, 10, "a.log"), span(90, 10, "c.log"), span(0, 10, "a.log")]
    assert ranges(*wanted) == [("c.log", 0, 10), ("c.log", 90, 100), ("a.log", 0, 10), ("a.log", 50, 60)]


def test_nothing_more_is_fetched_when_the_time_is_over() -> None:
    store = MemoryStore("fetched")
    wanted = [span(0, 10, f"{number:03}.log") for number in range(3 * AHEAD_CHUNKS)]
    for one in wanted:
        store.put_if_absent(one.segment, bytes(10))
    left = iter([False, False, True])
    fetched = Fetched(store, wanted, is_time_over=lambda: next(left))
    assert [fetched.has(one) for one in wanted] == [True] * 3 + [False] * (3 * AHEAD_CHUNKS - 3)


def test_what_cannot_be_fetched_is_left_to_whoever_reads_it() -> None:
    store = MemoryStore("fetched")
    store.put_if_absent("a.log", bytes(range(100)))
    wanted = [span(0, 10), span(10, 10, partition=1), span(0, 10, "gone.log"), span(90, 20)]
    with SegmentFiles(store) as files:
        fetched = Fetched(store, wanted)
        buffer = memoryview(bytearray(10))
        assert fetched.read_into(wanted[1], buffer)
        assert bytes(buffer) == bytes(range(10, 20))
        for one in (wanted[2], wanted[3], span(15, 10), span(30, 10)):
            assert not fetched.read_into(one, memoryview(bytearray(one.size)))
        with pytest.raises(DataLossError, match="gone"):
            files.open(wanted[2])
        with pytest.raises(CorruptLogError, match="SEGMENT_TRUNCATED"):
            files.open(wanted[3]).read_exactly(wanted[3], 90, 20)
