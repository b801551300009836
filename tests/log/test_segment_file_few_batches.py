"""A few batches, checked one by one: exactly what arrays make of them."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import SparklogError
from sparklog.format.record_batch import set_base_offsets
from sparklog.log.reader import MOST, sequence_few
from sparklog.log.segment_file import Span, Stretches, scan_stretches
from tests.log.conftest import encode

DENSE, MERGED = "segments/w/00000000.log", "orders-0/00000000000000000100-x.log"
EPOCH = 7
COUNT = st.integers(1, 3)  # records of a batch
EXTENTS = st.lists(st.lists(COUNT, min_size=1, max_size=3), min_size=1, max_size=6)
DAMAGE = st.none() | st.tuples(st.integers(0, 7), st.integers(0, 60), st.integers(0, 255))


def stored(
    extents: list[list[int]], segment: str, delta: int, **changes: Any
) -> tuple[bytearray, dict[str, Any]]:
    """Extents of batches of so many records, the first one at offset 100 as consumers see it."""
    data, offset = bytearray(), 100
    sizes, starts, ends = [], [], []
    for batches in extents:
        before = len(data)
        starts.append(offset)
        for count in batches:
            data += encode([b"v"] * count, base_offset=offset - delta).to_bytes()
            offset += count
        sizes.append(len(data) - before)
        ends.append(offset)
    fields: dict[str, Any] = {
        "size": sizes,
        "offset_delta": [delta] * len(extents),
        "segment": [segment] * len(extents),
        "start_offset": starts,
        "end_offset": ends,
        "begins_at": 100,
        "reaches_end": True,
        "is_cut": False,
        "place": lambda index: (
            Span(topic="t", partition=0, segment=segment, position=0, size=sizes[index]),
            0,
        ),
    }
    return data, {**fields, **changes}


def by_arrays(data: bytearray, stretches: Stretches) -> tuple[list[int], list[int], int, bytes] | None:
    copy = memoryview(bytearray(data))
    try:
        table, deltas = scan_stretches(copy, stretches, verify_crc=False)
    except SparklogError:
        return None
    base = table.base_offset + deltas
    set_base_offsets(copy, table.position, base, leader_epoch=EPOCH)
    end = int(table.last_offset[-1] + deltas[-1]) + 1
    return table.position.tolist(), base.tolist(), end, bytes(copy)


def one_by_one(data: bytearray, stretches: Stretches) -> tuple[list[int], list[int], int, bytes] | None:
    copy = memoryview(bytearray(data))
    found = sequence_few(copy, stretches, EPOCH)
    if found is None:
        assert copy == data
        return None
    return *found, bytes(copy)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    extents=EXTENTS,
    segment=st.sampled_from([DENSE, MERGED]),
    delta=st.sampled_from([0, 50]),
    begins_at=st.sampled_from([None, 99, 100, 101]),
    reaches_end=st.booleans(),
    damage=DAMAGE,
    cut=st.integers(0, 1),
    moved=st.tuples(st.integers(0, 5), st.sampled_from(["start_offset", "end_offset"]), st.integers(-1, 1)),
)
def test_is_what_arrays_make_of_them(
    extents: list[list[int]], segment: str, damage: tuple[int, int, int] | None, cut: int, **more: Any
) -> None:
    index, field, by = more.pop("moved")
    data, fields = stored(extents, segment, more.pop("delta"), **more)
    if damage is not None:
        batch, byte, value = damage
        starts = np.cumsum([0, *fields["size"]])[:-1].tolist()
        data[starts[batch % len(starts)] + byte] = value
    if index < len(extents):
        fields[field][index] += by
    fields["size"][-1] -= cut
    stretches = Stretches(**fields)
    data = data[: len(data) - cut]
    expected = by_arrays(data, stretches)
    if expected is not None and len(expected[0]) > MOST:
        expected = None
    assert one_by_one(data, stretches) == expected


@pytest.mark.parametrize(("count", "is_few"), [(1, True), (MOST, True), (MOST + 1, False)])
def test_how_many_are_few(count: int, is_few: bool) -> None:
    data, fields = stored([[1] * count], DENSE, 0)
    assert (one_by_one(data, Stretches(**fields)) is not None) is is_few


def test_offsets_that_are_right_are_not_written_again() -> None:
    data, fields = stored([[2, 1]], DENSE, 0)
    for position in (0, data.index(struct.pack(">q", 102))):
        struct.pack_into(">i", data, position + 12, EPOCH)
    found = sequence_few(memoryview(bytes(data)), Stretches(**fields), EPOCH)  # cannot be written to
    assert found is not None
    assert found.base_offset == [100, 102]


def test_parts_of_extents_are_left_to_arrays() -> None:
    data, fields = stored([[1]], DENSE, 0, is_cut=True)
    assert one_by_one(data, Stretches(**fields)) is None
