"""Cutting of ranges, against the promises users know from Kafka's connector."""

from collections.abc import Mapping
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.spark.ranges import (
    LARGE_BYTES,
    MANY_TASKS,
    RECORD_BYTES,
    SMALL_BYTES,
    OffsetRange,
    backlog,
    balance,
    join_neighbours,
    join_small,
    limit_records,
    ranges_between,
    split_ranges,
)
from sparklog.spark.stream_offset import Positions

Numbers = Mapping[int, int]  # by partition

sizes = st.dictionaries(st.integers(0, 5), st.integers(0, 10_000), min_size=1)


def positions(numbers: Numbers) -> Positions:
    return {("t", p): n for p, n in numbers.items()}


def ranges_of(numbers: Numbers) -> list[OffsetRange]:
    return [
        OffsetRange(topic="t", partition=p, start_offset=7, end_offset=7 + n)
        for p, n in sorted(numbers.items())
    ]


@given(sizes, st.integers(1, 20_000))
@settings(deadline=None)
def test_a_rate_limit_is_kept_shared_and_starves_nobody(numbers: Numbers, limit: int) -> None:
    start = positions(dict.fromkeys(numbers, 3))
    end = positions({p: n + 3 for p, n in numbers.items()})
    limited = limit_records(start, end, limit)
    taken = backlog(start, limited)
    waiting = backlog(start, end)
    assert set(taken) == set(waiting)
    assert all(1 <= taken[tp] <= waiting[tp] for tp in taken)
    assert sum(taken.values()) <= max(limit, 0) + len(taken)
    if sum(waiting.values()) <= limit:
        assert limited == end


def test_a_rate_limit_is_prorated_by_backlog() -> None:
    limited = limit_records(positions({0: 0, 1: 0}), positions({0: 900, 1: 100}), 100)
    assert limited == positions({0: 90, 1: 10})


@given(sizes, st.one_of(st.none(), st.integers(1, 40)), st.one_of(st.none(), st.integers(1, 3_000)))
@settings(deadline=None)
def test_split_ranges_cover_exactly_what_they_were_cut_from(
    numbers: Numbers, min_partitions: int | None, max_records: int | None
) -> None:
    whole = ranges_of(numbers)
    pieces = split_ranges(whole, min_partitions=min_partitions, max_records=max_records)
    assert all(piece.size > 0 for piece in pieces)
    if max_records is not None:
        assert all(piece.size <= max_records for piece in pieces)
    for r in whole:
        own = [piece for piece in pieces if piece.partition == r.partition]
        assert sum(piece.size for piece in own) == r.size
        assert all(a.end_offset == b.start_offset for a, b in pairwise(own))


def test_min_partitions_splits_the_large_and_leaves_the_small() -> None:
    pieces = split_ranges(ranges_of({0: 10_000, 1: 10}), min_partitions=5, max_records=None)
    assert [piece.size for piece in pieces if piece.partition == 1] == [10]
    assert [piece.size for piece in pieces if piece.partition == 0] == [2_500] * 4


@pytest.mark.parametrize(
    ("records", "min_partitions", "tasks"),
    [
        ([10, 10, 1], 6, [3, 3, 4, 3, 3, 4, 1]),  # a half is rounded up: each large one gets 2.5 of 5
        ([100], 4, [25, 25, 25, 25]),
        ([100, 100], 3, [50, 50, 50, 50]),
        ([100, 5], 3, [50, 50, 5]),
        ([100, 5], 4, [33, 33, 34, 5]),
        ([3, 3, 3], 3, [3, 3, 3]),
        ([1, 1, 1], 6, [1, 1, 1]),
        ([5, 0, 5], 1, [5, 5]),
    ],
)
def test_min_partitions_gives_as_many_tasks_as_kafkas_connector(
    records: list[int], min_partitions: int, tasks: list[int]
) -> None:
    whole = ranges_of(dict(enumerate(records)))
    pieces = split_ranges(whole, min_partitions=min_partitions, max_records=None)
    assert [piece.size for piece in pieces] == tasks


@pytest.mark.parametrize("size", [1, 3])
def test_there_are_never_more_pieces_than_records(size: int) -> None:
    assert len(split_ranges(ranges_of({0: size}), min_partitions=10, max_records=None)) == size


def test_one_task_per_partition_by_default() -> None:
    assert len(split_ranges(ranges_of({0: 5, 1: 0, 2: 9}), min_partitions=None, max_records=None)) == 2


@given(sizes, st.integers(1, 40), st.one_of(st.none(), st.integers(1, 3_000)))
@settings(deadline=None)
def test_tasks_hold_all_ranges_in_order_and_are_no_more_than_asked_for(
    numbers: Numbers, max_partitions: int, max_records: int | None
) -> None:
    pieces = split_ranges(ranges_of(numbers), min_partitions=None, max_records=max_records)
    tasks = join_neighbours(pieces, max_partitions=max_partitions, max_records=max_records)
    assert [piece for task in tasks for piece in task] == pieces
    assert all(tasks)
    if max_records is None:
        assert len(tasks) == min(max_partitions, len(pieces)) or len(tasks) < max_partitions
    else:
        assert all(sum(piece.size for piece in task) <= max_records for task in tasks)


def test_tasks_of_equal_ranges_are_equal() -> None:
    tasks = join_neighbours(ranges_of(dict.fromkeys(range(8), 50)), max_partitions=4, max_records=None)
    assert [[r.partition for r in task] for task in tasks] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_large_range_has_a_task_of_its_own() -> None:
    tasks = join_neighbours(ranges_of({0: 5, 1: 5, 2: 900, 3: 5, 4: 5}), max_partitions=3, max_records=None)
    assert [[r.partition for r in task] for task in tasks] == [[0, 1], [2], [3, 4]]


def test_ranges_stay_apart_unless_asked() -> None:
    ranges = ranges_of({0: 1, 1: 1})
    for most in (None, 2, 9):
        assert join_neighbours(ranges, max_partitions=most, max_records=None) == [[ranges[0]], [ranges[1]]]


def test_ranges_between_leaves_out_what_has_nothing_new() -> None:
    assert [r.partition for r in ranges_between(positions({0: 5, 1: 5}), positions({0: 5, 1: 6}))] == [1]


@pytest.mark.slow
@given(st.integers(0, 1500), st.randoms(use_true_random=False), st.integers(50, 200))
@settings(deadline=None)
def test_very_many_small_ranges_share_tasks_but_never_too_few(
    partitions: int, random: Random, max_records: int
) -> None:
    ranges = ranges_of({p: random.randint(1, 50) for p in range(partitions)})
    size_of = {r: random.randint(0, random.choice([10_000, 6 << 20])) for r in ranges}
    tasks = join_small(list(size_of.items()), max_records=max_records)
    assert [r for task in tasks for r in task] == ranges
    assert len(tasks) >= min(MANY_TASKS, len(ranges))
    for task in tasks:
        assert len(task) == 1 or sum(size_of[r] for r in task) <= SMALL_BYTES
        assert len(task) == 1 or sum(r.size for r in task) <= max_records


@pytest.mark.parametrize(("partitions", "tasks"), [(399, 399), (400, 200), (2000, 200), (2100, 210)])
def test_many_small_ranges_share_tasks(partitions: int, tasks: int) -> None:
    ranges = ranges_of(dict.fromkeys(range(partitions), 5))
    assert len(join_small([(r, 5_000) for r in ranges], max_records=None)) == tasks
    assert len(join_small([(r, SMALL_BYTES) for r in ranges], max_records=None)) == partitions


weights = st.lists(st.integers(0, 3 * LARGE_BYTES // 2) | st.integers(0, 5_000), max_size=60)


@given(weights, st.integers(1, 12), st.one_of(st.none(), st.integers(1, 300)))
@settings(deadline=None)
def test_balanced_tasks_hold_every_range_once_and_no_more_than_they_may(
    bytes_of: list[int], slots: int, max_records: int | None
) -> None:
    ranges = ranges_of({p: 1 + size % 97 for p, size in enumerate(bytes_of)})
    pieces = list(zip(ranges, bytes_of, strict=True))
    weight_of = {r: size + RECORD_BYTES * r.size for r, size in pieces}
    tasks = balance(pieces, slots=slots, max_records=max_records)
    assert sorted((r for task in tasks for r in task), key=lambda r: r.partition) == ranges
    assert len(tasks) >= min(slots, len(ranges)), "no slot is left without work"
    for task in tasks:
        assert [r.partition for r in task] == sorted(r.partition for r in task)
        assert len(task) == 1 or sum(weight_of[r] for r in task) <= LARGE_BYTES
        assert len(task) == 1 or max_records is None or sum(r.size for r in task) <= max_records
    assert [task[0].partition for task in tasks] == sorted(task[0].partition for task in tasks)


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=60), st.integers(1, 12))
@settings(deadline=None)
def test_balanced_tasks_are_as_many_as_slots_and_about_alike(bytes_of: list[int], slots: int) -> None:
    ranges = ranges_of(dict.fromkeys(range(len(bytes_of)), 3))
    pieces = list(zip(ranges, bytes_of, strict=True))
    weight_of = {r: size + RECORD_BYTES * r.size for r, size in pieces}
    tasks = balance(pieces, slots=slots, max_records=None)
    assert len(tasks) == min(slots, len(ranges))
    heaviest = max(sum(weight_of[r] for r in task) for task in tasks)
    assert heaviest <= sum(weight_of.values()) / len(tasks) + max(weight_of.values())


def sizes_of(tasks: list[list[OffsetRange]]) -> list[list[int]]:
    return [[r.partition for r in task] for task in tasks]


def test_ranges_are_balanced_by_bytes_and_not_by_records() -> None:
    ranges = ranges_of(dict.fromkeys(range(5), 10))
    pieces = list(zip(ranges, [90_000_000, 10, 30_000_000, 30_000_000, 30_000_000], strict=True))
    assert sizes_of(balance(pieces, slots=2, max_records=None)) == [[0, 1], [2, 3, 4]]


def test_records_count_beside_their_bytes() -> None:
    """Many small records take as long as few large ones, however well they are compressed."""
    pieces = list(zip(ranges_of({0: 1_000_000, 1: 10, 2: 10}), [1_000, 90_000_000, 90_000_000], strict=True))
    assert sizes_of(balance(pieces, slots=2, max_records=None)) == [[0], [1, 2]]


@pytest.mark.parametrize(
    ("partitions", "gigabytes", "tasks"),
    [
        (200, 1, 200),
        (200, 0.001, 8),
        (8, 1, 8),
        (9, 0.001, 8),
        (200, 0.04, 40),
        (200, 0.05, 50),
        (7, 0.001, 7),
    ],
)
def test_much_to_read_stays_in_tasks_that_can_be_repeated(
    partitions: int, gigabytes: float, tasks: int
) -> None:
    ranges = ranges_of(dict.fromkeys(range(partitions), 1000))
    pieces = [(r, int(gigabytes * (1 << 30))) for r in ranges]
    assert len(balance(pieces, slots=8, max_records=None)) == tasks
