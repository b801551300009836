"""The list of extents against a plain Python list, across the borders of blocks and tail."""

import gc
import random
import tracemalloc

import msgspec
import numpy as np
import pytest

from sparklog.log.read_plan import bytes_between
from sparklog.metadata import Extent, ExtentList, PartitionState, appended_offset
from sparklog.metadata.model.extent_list import (
    NUMBER_COLUMNS,
    SEQUENCES,
    ExtentColumns,
    columns_of,
    concat_columns,
    lists_of,
    why_disordered,
)

TOPIC = "AAAAAAAAAAAAAAAAAAAAAA"


def extent(base_offset: int, record_count: int = 10) -> Extent:
    return Extent(
        topic_id=TOPIC,
        partition=3,
        segment=f"segments/w/{base_offset // 1000}.log",
        position=base_offset * 7,
        size=100,
        base_offset=base_offset,
        record_count=record_count,
        max_timestamp_ms=base_offset,
        offset_delta=base_offset,
        producer_id=5,
        producer_epoch=1,
        base_sequence=base_offset,
    )


def grown(count: int, step: int = 100) -> tuple[ExtentList, list[Extent]]:
    """With gaps after each extent, as compaction leaves them."""
    model = [extent(number * 12) for number in range(count)]
    extents = ExtentList(TOPIC, 3)
    for start in range(0, count, step):
        extents = extents.appended(model[start : start + step])
    return extents, model


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 511, 2000])
def test_behaves_like_a_list(count: int) -> None:
    extents, model = grown(count)
    assert len(extents) == count
    assert list(extents) == model
    assert extents[:] == model
    assert extents[3:700] == model[3:700]
    assert extents[-3:] == model[-3:]
    assert extents[::7] == model[::7]
    for index in {0, 1, count // 2, count - 1, -1, -count} & set(range(-count, count)):
        assert extents[index] == model[index]
    for index in (count, -count - 1):
        with pytest.raises(IndexError):
            extents[index]


def test_old_lists_stay_as_they_were() -> None:
    first, model = grown(600)
    second = first.appended([extent(600 * 12)])
    third = first.appended([extent(600 * 12, 5)])
    assert list(first) == model
    assert second[-1] != third[-1]
    assert second != third


@pytest.mark.parametrize(("partitions", "count"), [(800, 15), (40, 300)])
def test_an_extent_takes_little_memory_in_whatever_commit_it_came(partitions: int, count: int) -> None:
    """Also in partitions of a few hundred, and of a few: a broker of 10,000 keeps millions of extents."""
    data = msgspec.json.encode(extent(0))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        lists = [ExtentList(TOPIC, partition) for partition in range(partitions)]
        for number in range(count):
            for partition in range(partitions):
                read = msgspec.json.decode(data, type=Extent)  # with strings of its own, as from a commit
                read = msgspec.structs.replace(read, base_offset=number * 12)
                lists[partition] = lists[partition].appended([read])
        gc.collect()  # which also gives up the tuples that the interpreter keeps for later
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / (partitions * count) < 120


@pytest.mark.parametrize("seed", range(5))
def test_search_like_a_scan(seed: int) -> None:
    extents, model = grown(1500, step=37)
    rng = random.Random(seed)
    for _ in range(200):
        start = rng.randrange(-5, 1500 * 12 + 10)
        end = start + rng.choice([0, 1, 2, 11, 12, 13, 5000, -3])
        expected = [e for e in model if e.base_offset < end and e.end_offset > start] if start < end else []
        assert extents.between(start, end) == expected
        assert extents.index_after(start) == sum(e.end_offset <= start for e in model)
        assert extents.index_from(start) == sum(e.base_offset < start for e in model)


@pytest.mark.parametrize("seed", range(20))
def test_changes_like_a_list(seed: int) -> None:
    rng = random.Random(seed)
    extents = ExtentList(TOPIC, 3)
    model: list[Extent] = []
    end = 0
    for _ in range(60):
        match rng.randrange(4):
            case 0 | 1:
                new = [extent(end + 12 * number) for number in range(rng.choice([1, 5, 300, 600]))]
                end = new[-1].end_offset + 2
                extents, model = extents.appended(new), model + new
            case 2 if model:
                offset = model[rng.randrange(len(model))].base_offset + rng.choice([0, 5, 10, 11])
                extents = extents.dropped_before(offset)
                model = [e for e in model if e.end_offset > offset]
            case 3 if model:
                start = rng.randrange(len(model))
                stop = rng.randrange(start, min(len(model), start + 700)) + 1
                added = [extent(e.base_offset, 3) for e in model[start:stop]][: rng.choice([0, 1, 2000])]
                extents = extents.replaced(start, stop, added)
                model = [*model[:start], *added, *model[stop:]]
        assert len(extents) == len(model)
    assert list(extents) == model
    assert extents == ExtentList(TOPIC, 3).appended(model)
    columns = extents.columns()
    assert columns.base_offset.tolist() == [e.base_offset for e in model]
    assert columns.end_offset.tolist() == [e.end_offset for e in model]
    assert list(columns.extents(TOPIC, 3)) == model


@pytest.mark.slow
def test_whoever_goes_through_many_holds_few() -> None:
    """A compaction goes through all extents of a partition: as objects a million would take 400 MB."""
    count = 50_000
    numbers = np.ones((len(NUMBER_COLUMNS), count), np.int64)
    numbers[NUMBER_COLUMNS.index("base_offset")] = 1 << 40
    numbers[NUMBER_COLUMNS.index("base_offset")] += np.arange(count)
    columns = ExtentColumns(np.full(count, "segments/w/00000000.log", object), numbers)
    tracemalloc.start()
    try:
        offsets = sum(extent.base_offset - (1 << 40) for extent in columns.extents("T" * 22, 0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert offsets == count * (count - 1) // 2
    assert peak < 8 * count


def test_few_blocks_however_it_grew() -> None:
    extents, _ = grown(20_000, step=1)
    assert len(list(extents.column_blocks())) <= 12


def test_columns_of_nothing() -> None:
    assert len(concat_columns([])) == len(columns_of([])) == 0


def produced(base_offset: int, sequence: int, count: int, producer_id: int = 7, epoch: int = 0) -> Extent:
    return msgspec.structs.replace(
        extent(base_offset, count), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


def test_sequences_are_found_again_across_blocks_and_the_wrap() -> None:
    extents = ExtentList(TOPIC, 3)
    offset, sequence = 0, SEQUENCES - 7000
    model: list[tuple[int, Extent]] = []
    chance = random.Random(5)
    while len(model) < 1500:
        count, producer = chance.randint(1, 20), chance.randint(7, 8)
        one = produced(offset, sequence, count, producer)
        extents = extents.appended([one])
        model.append((sequence, one))
        offset, sequence = offset + count, (sequence + count) % SEQUENCES
    for first, one in chance.sample(model, 300):
        skipped = chance.randrange(one.record_count)
        wanted = (first + skipped) % SEQUENCES
        assert extents.with_sequence(one.producer_id, 0, wanted) == one
        assert extents.with_sequence(15 - one.producer_id, 0, wanted) is None
        assert extents.with_sequence(one.producer_id, 1, wanted) is None
    assert extents.with_sequence(7, 0, sequence) is None


def test_of_equal_sequences_the_newest_counts() -> None:
    old, new = produced(0, 5, 10), produced(50, 5, 10)
    for size in (1, 600):  # in the tail, and in a block
        filler = [produced(100 + n, n, 1, producer_id=9) for n in range(size)]
        assert ExtentList(TOPIC, 3).appended([old, new, *filler]).with_sequence(7, 0, 14) == new


def test_offset_of_a_batch_that_was_appended() -> None:
    extents = ExtentList(TOPIC, 3).appended([produced(100, SEQUENCES - 4, 10)])
    state = PartitionState(
        topic_id=TOPIC, partition=3, log_start_offset=0, log_end_offset=110, extents=extents
    )
    assert appended_offset(state, 7, 0, SEQUENCES - 4, 10) == 100
    assert appended_offset(state, 7, 0, 0, 6) == 104
    assert appended_offset(state, 7, 0, 0, 7) is None  # longer than what was appended
    assert appended_offset(state, 7, 0, 6, 1) is None
    assert appended_offset(state, 7, 1, 0, 6) is None


@pytest.mark.parametrize("count", [1, 15, 16, 17, 600])
def test_bytes_are_added_up_as_by_looking_at_each_extent(count: int) -> None:
    """Also where extents are cut, and in the gaps between them."""
    model = [msgspec.structs.replace(extent(number * 12), size=100 + number * 7) for number in range(count)]
    extents = ExtentList(TOPIC, 3)
    for first in range(0, count, 100):
        extents = extents.appended(model[first : first + 100])
    state = PartitionState(
        topic_id=TOPIC, partition=3, extents=extents, log_start_offset=0, log_end_offset=count * 12
    )
    random.seed(count)
    for _ in range(300):
        start, end = sorted(random.randint(0, count * 12) for _ in range(2))
        inside = [(one, min(end, one.end_offset) - max(start, one.base_offset)) for one in model]
        expected = sum(one.size * held / one.record_count for one, held in inside if held > 0)
        assert bytes_between(state, start, end) == pytest.approx(expected, abs=0.51)
        low, high = sorted(random.randint(0, count) for _ in range(2))
        assert extents.bytes_of(low, high) == sum(one.size for one in model[low:high])


def test_bytes_are_added_up_without_making_every_extent(monkeypatch: pytest.MonkeyPatch) -> None:
    extents, _ = grown(2000)
    made: list[int] = []
    original = ExtentList.range_of

    def counted(self: ExtentList, start: int, stop: int) -> list[Extent]:
        made.append(stop - start)
        return original(self, start, stop)

    monkeypatch.setattr(ExtentList, "range_of", counted)
    state = PartitionState(
        topic_id=TOPIC, partition=3, extents=extents, log_start_offset=0, log_end_offset=24_000
    )
    assert bytes_between(state, 0, 24_000) == 200_000
    assert made == [1, 1]  # the first and the last, which may be cut


def rows_of(lists: list[list[Extent]]) -> ExtentColumns:
    """One list after the other, as a snapshot has them."""
    return columns_of([one for extents in lists for one in extents])


@pytest.mark.parametrize("seed", range(5))
def test_lists_of_many_partitions_are_as_they_were(seed: int) -> None:
    dice = random.Random(seed)
    lists = [[extent(10 * one) for one in range(dice.choice([0, 1, 3, 15, 16, 40]))] for _ in range(600)]
    rows = rows_of(lists)
    places = [(("A" * 22, number), len(extents)) for number, extents in enumerate(lists)]
    found = list(lists_of(rows, places))
    assert [place for place, _ in found] == [place for place, _ in places]
    assert [[one.base_offset for one in made] for _, made in found] == [
        [one.base_offset for one in extents] for extents in lists
    ]
    assert all((made.topic_id, made.partition) == place for place, made in found)
    assert why_disordered(rows, [len(extents) for extents in lists]) is None


@pytest.mark.parametrize(
    ("lists", "wrong"),
    [
        ([[], [(0, 10), (9, 1)]], 1),
        ([[(0, 10)], [], [(0, 10), (0, 10)], [(5, 1)]], 2),
        ([[(-1, 10)]], 0),
        ([[(0, 10)], [(3, 0)], []], 1),
        ([[(0, 10)], [(0, 10)], [(0, 10), (10, 1), (20, 5)]], None),
        ([[], []], None),
    ],
)
def test_which_list_is_out_of_order(lists: list[list[tuple[int, int]]], wrong: int | None) -> None:
    rows = rows_of([[extent(*one) for one in extents] for extents in lists])
    found = why_disordered(rows, [len(extents) for extents in lists])
    assert (None if found is None else found[0]) == wrong
