"""Ranges of records of a share group, against a dictionary with an entry for each record."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.metadata import DeliveryState, ShareRange, ShareState, clipped, share_after
from sparklog.metadata.model.share_values import (
    MAX_SHARE_GROUP_LENGTH,
    MAX_SHARE_RANGES,
    why_illegal_ranges,
    why_illegal_share,
    why_illegal_share_group,
)

AVAILABLE, ACKNOWLEDGED, ARCHIVED = DeliveryState
LOG_END = 30
Known = dict[int, tuple[DeliveryState, int]]


def of_range(first: int, last: int, state: DeliveryState = ACKNOWLEDGED, deliveries: int = 1) -> ShareRange:
    return ShareRange(first, last, state, deliveries)


def opened(state: ShareState) -> Known:
    """Each record of the ranges."""
    return {
        offset: (one.state, one.deliveries)
        for one in state.ranges
        for offset in range(one.first, one.last + 1)
    }


@st.composite
def changes(draw: st.DrawFn) -> list[ShareRange]:
    ends = sorted(draw(st.sets(st.integers(0, LOG_END - 1), min_size=2, max_size=8)))
    found = []
    for first, last in zip(ends[::2], ends[1::2], strict=False):
        found.append(of_range(first, last, draw(st.sampled_from(DeliveryState)), draw(st.integers(1, 4))))
    return found


@pytest.mark.slow
@settings(max_examples=300)
@given(steps=st.lists(st.tuples(changes(), st.integers(0, LOG_END)), max_size=8))
def test_ranges_say_what_a_dictionary_of_records_says(steps: list[tuple[list[ShareRange], int]]) -> None:
    state, known, start = ShareState(7, 3), dict[int, tuple[DeliveryState, int]](), 3
    for change, log_start in steps:
        after = dict(known)
        is_legal = True
        for one in change:
            for offset in range(max(one.first, start, log_start), one.last + 1):
                before = after.get(offset, (AVAILABLE, 0))
                is_legal &= before[0] is AVAILABLE and (one.has_ended or one.deliveries > before[1])
                after[offset] = (one.state, one.deliveries)
        if not is_legal:
            with pytest.raises(ValueError, match=r"ended|deliveries after"):
                share_after(state, change, log_start_offset=log_start)
            continue
        state = share_after(state, change, log_start_offset=log_start)
        start = max(start, log_start)
        while after.get(start, (AVAILABLE, 0))[0] is not AVAILABLE:
            start += 1
        known = {offset: one for offset, one in after.items() if offset >= start}
        assert (state.state_epoch, state.start_offset, opened(state)) == (7, start, known)
        assert why_illegal_share(state, max(LOG_END, start)) is None
        assert state.ended_count == sum(one is not AVAILABLE for one, _ in known.values())


def test_equal_neighbours_are_one_range() -> None:
    state = share_after(ShareState(1, 0), [of_range(2, 3), of_range(4, 5)])
    assert state.ranges == (of_range(2, 5),)
    state = share_after(state, [of_range(6, 6, deliveries=2)])
    assert state.ranges == (of_range(2, 5), of_range(6, 6, deliveries=2))


def test_the_start_moves_over_what_has_ended() -> None:
    state = share_after(ShareState(1, 0), [of_range(1, 2), of_range(4, 4, AVAILABLE)])
    assert state.start_offset == 0
    state = share_after(state, [of_range(0, 0, ARCHIVED, 5)])
    assert (state.start_offset, state.ranges) == (3, (of_range(4, 4, AVAILABLE),))


def test_a_record_that_has_ended_never_changes() -> None:
    state = share_after(ShareState(1, 0), [of_range(1, 2)])
    with pytest.raises(ValueError, match="1 to 2 have ended: acknowledged"):
        share_after(state, [of_range(2, 3, AVAILABLE, 9)])


def test_deliveries_only_grow() -> None:
    state = share_after(ShareState(1, 0), [of_range(1, 2, AVAILABLE, 2)])
    with pytest.raises(ValueError, match="2 deliveries after 2"):
        share_after(state, [of_range(2, 2, AVAILABLE, 2)])
    assert share_after(state, [of_range(2, 2, ACKNOWLEDGED, 1)]).ended_count == 1


def test_parts_from_an_offset_on() -> None:
    assert clipped([of_range(0, 1), of_range(2, 5)], 2) == [of_range(2, 5)]
    assert clipped([of_range(0, 3)], 2) == [of_range(2, 3)]


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        ([of_range(3, 2)], "from 3 to 2"),
        ([of_range(-1, 2)], "from -1 to 2"),
        ([of_range(0, 2), of_range(2, 3)], "one from 3 on"),
        ([of_range(0, (1 << 63) - 1)], "a range from 0"),
        ([of_range(0, 0, AVAILABLE, -1)], "-1 deliveries"),
        ([of_range(0, 0, AVAILABLE, 1 << 15)], "32768 deliveries"),
        ([of_range(2 * one, 2 * one) for one in range(MAX_SHARE_RANGES + 1)], "20001 ranges"),
    ],
)
def test_illegal_ranges(ranges: list[ShareRange], reason: str) -> None:
    assert reason in (why_illegal_ranges(ranges) or "")


def test_illegal_states() -> None:
    assert "start offset of 9" in (why_illegal_share(ShareState(1, 9), 8) or "")
    assert "within the log" in (why_illegal_share(ShareState(1, 3, (of_range(2, 4),)), 8) or "")
    assert "within the log" in (why_illegal_share(ShareState(1, 3, (of_range(4, 8),)), 8) or "")
    assert why_illegal_share(ShareState(1, 3, (of_range(4, 7),)), 8) is None


@pytest.mark.parametrize("group", ["", "g" * (MAX_SHARE_GROUP_LENGTH + 1), "\ud800"])
def test_illegal_groups(group: str) -> None:
    assert why_illegal_share_group(group) is not None
    assert why_illegal_share_group("workers") is None
