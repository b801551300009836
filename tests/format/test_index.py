"""Offset and time index: entries, searches, damage."""

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparklog.errors import CorruptLogError
from sparklog.format.index import (
    choose_entries,
    encode_offset_entries,
    encode_time_entries,
    parse_offset_entries,
    parse_time_entries,
)


def test_offset_floor() -> None:
    index = parse_offset_entries(encode_offset_entries(np.array([0, 10, 25]), np.array([0, 500, 900])), "i")
    assert len(index) == 3
    assert [index.floor(offset) for offset in (-1, 0, 9, 10, 24, 25, 10**12)] == [
        None,
        (0, 0),
        (0, 0),
        (10, 500),
        (10, 500),
        (25, 900),
        (25, 900),
    ]


def test_entries_of_one_extent_are_found_by_position() -> None:
    # Three extents: offsets start again from 0 with each.
    index = parse_offset_entries(
        encode_offset_entries(np.array([0, 10, 0, 7, 0]), np.array([0, 400, 1000, 1500, 2000])), "i"
    )
    extent = index.entries_between(1000, 2000)
    assert (extent.relative_offset.tolist(), extent.position.tolist()) == ([0, 7], [1000, 1500])
    assert extent.floor(6) == (0, 1000)
    assert len(index.entries_between(1501, 1999)) == 0
    assert len(index.entries_between(0, 10**9)) == 5


def test_time_floor_is_strictly_older() -> None:
    index = parse_time_entries(encode_time_entries(np.array([-5, 100, 2**62]), np.array([3, 7, 9])), "i")
    assert len(index) == 3
    assert [index.floor(time) for time in (-5, -4, 100, 101, 2**63 - 1)] == [
        None,
        (-5, 3),
        (-5, 3),
        (100, 7),
        (2**62, 9),
    ]


def test_empty_index_finds_nothing() -> None:
    assert parse_offset_entries(b"", "i").floor(5) is None
    assert parse_time_entries(b"", "i").floor(5) is None


def test_mapped_file_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    path.write_bytes(encode_offset_entries(np.arange(1000) * 3, np.arange(1000) * 4096))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        index = parse_offset_entries(memoryview(mapped), "i")
        assert index.floor(301) == (300, 409600)
        assert not index.position.flags.owndata
        del index


@pytest.mark.parametrize(("parse", "size"), [(parse_offset_entries, 8), (parse_time_entries, 12)])
def test_size_that_is_not_whole_entries_is_refused(parse: Callable[..., Any], size: int) -> None:
    for extra in range(1, size):
        with pytest.raises(CorruptLogError, match=f"CORRUPT_INDEX.*x.index: found {size + extra} bytes"):
            parse(bytes(size + extra), "x.index")


def test_chosen_entries_are_an_interval_apart() -> None:
    sizes = np.array([100] * 100)
    positions = np.cumsum(sizes) - sizes + 5000
    chosen = choose_entries(positions, sizes, 1000)
    assert chosen[0] == 0
    gaps = np.diff(positions[chosen])
    assert gaps.min() > 900
    assert gaps.max() <= 1100
    assert choose_entries(positions, sizes, 99).tolist() == list(range(100))
    assert choose_entries(positions[:0], sizes[:0], 1000).tolist() == []
