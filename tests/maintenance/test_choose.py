"""What is chosen: runs of about one size, small before large, done when they fill half a segment."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.client import SparkLog
from sparklog.maintenance import MergeLimits
from sparklog.maintenance.choose import MAX_EXTENTS, Piece, choose_merges, runs_to_merge
from tests.maintenance.conftest import Append

MIB = 1 << 20
GIB = 1 << 30


def runs(sizes: list[int], target: int = GIB, fan_in: int | None = 4) -> list[tuple[int, int]]:
    return runs_to_merge(np.array(sizes, np.int64), target, fan_in)


@pytest.mark.parametrize(
    ("sizes", "fan_in", "expected"),
    [
        ([], None, []),
        ([100], None, []),
        ([100, 100], None, [(0, 2)]),
        ([100, 100, 100], 4, []),
        ([100] * 5, 4, [(0, 5)]),
        # A large one among them is left alone, and parts them.
        ([100] * 4 + [600 * MIB] + [100] * 4, 4, [(0, 4), (5, 9)]),
        ([100] * 3 + [600 * MIB] + [100] * 3, 4, []),
        # Larger ones wait for their like; small ones beside them go along when they are due.
        ([90 * MIB, 90 * MIB, 90 * MIB, 100, 100], 4, []),
        ([40 * MIB] * 4 + [100, 100], 4, [(0, 6)]),
        # Enough bytes for half a segment are merged, however few they are.
        ([300 * MIB, 300 * MIB], 4, [(0, 2)]),
    ],
)
def test_runs(sizes: list[int], fan_in: int | None, expected: list[tuple[int, int]]) -> None:
    assert runs(sizes, fan_in=fan_in) == expected


def test_small_ones_are_merged_before_the_large_ones_beside_them_are_looked_at() -> None:
    sizes = [20 * MIB] * 3 + [100] * 4
    assert runs(sizes) == [(3, 7)]


@settings(deadline=None)
@given(
    st.lists(st.integers(61, 3000) | st.sampled_from([20_000, 70_000, 200_000]), max_size=60),
    st.sampled_from([1_000, 100_000, 1_000_000]),
    st.none() | st.integers(2, 8),
)
def test_runs_ascend_apart_and_are_worth_it(sizes: list[int], target: int, fan_in: int | None) -> None:
    found = runs(sizes, target, fan_in)
    end = 0
    for start, stop in found:
        assert end <= start < stop - 1 <= len(sizes) - 1
        assert all(2 * size < target for size in sizes[start:stop])
        assert sum(sizes[start:stop]) <= target
        assert fan_in is None or stop - start >= fan_in or 2 * sum(sizes[start:stop]) >= target
        end = stop


@settings(deadline=None)
@given(st.lists(st.integers(61, 5000), max_size=200), st.sampled_from([2_000, 20_000, 1_000_000]))
def test_once_everything_is_merged_there_is_nothing_to_do(sizes: list[int], target: int) -> None:
    after: list[int] = []
    at = 0
    for start, stop in runs(sizes, target, None):
        after += [*sizes[at:start], sum(sizes[start:stop])]
        at = stop
    after += sizes[at:]
    assert runs(after, target, None) == []


def test_each_byte_of_a_long_life_is_rewritten_about_twice() -> None:
    """A million extents of 14 KB, merged as they come, 256 at a time."""
    log: list[int] = []
    rewritten = most = 0
    appended = 14_000 * 256 * 400
    for _ in range(400):
        log += [14_000] * 256
        found = runs(log, GIB, 256)
        for start, stop in reversed(found):
            size = sum(log[start:stop])
            rewritten += size
            log[start:stop] = [size]
        most = max(most, len(log))
    assert rewritten < 2.05 * appended
    assert most < 2 * 256 + 10


def test_a_work_is_bounded() -> None:
    assert runs([70] * (2 * MAX_EXTENTS + 3), fan_in=None) == [
        (0, MAX_EXTENTS),
        (MAX_EXTENTS, 2 * MAX_EXTENTS),
        (2 * MAX_EXTENTS, 2 * MAX_EXTENTS + 3),
    ]


def test_small_pieces_share_a_work_and_large_ones_do_not(log: SparkLog, append: Append) -> None:
    log.create_topic("u", 1, {"segment.bytes": "1000"})
    for _ in range(4):
        append([b"x" * 100])
        append([b"x" * 100], partition=1)
        append([b"x" * 100], topic="u")
    limits = MergeLimits(fan_in=None, shared_bytes=10_000)
    (work,) = choose_merges(log.refresh(), limits)
    assert [(piece.topic, piece.partition, piece.is_shared) for piece in work.pieces] == [
        ("t", 0, True),
        ("t", 1, True),
        ("u", 0, True),
    ]
    assert work.extent_count == 12
    apart = list(choose_merges(log.image, MergeLimits(fan_in=None, shared_bytes=0), ["t"]))
    assert [[piece.is_shared for piece in work.pieces] for work in apart] == [[False], [False]]
    assert list(choose_merges(log.image, MergeLimits(fan_in=5))) == []


def test_what_it_costs_grows_with_the_pieces_alone(
    log: SparkLog, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("many", 40)
    for partition in range(40):
        append([b"x"], topic="many", partition=partition)
        append([b"x"], topic="many", partition=partition)
    image, asked = log.refresh(), 0

    def counted(piece: Piece) -> int:
        nonlocal asked
        asked += 1
        return int(piece.extents.column("size").sum())

    monkeypatch.setattr(Piece, "size", property(counted))
    (work,) = choose_merges(image, MergeLimits(fan_in=None))
    assert len(work.pieces) == 40
    assert asked <= 2 * 40
