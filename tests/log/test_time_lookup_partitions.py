"""Offsets by time of many partitions: as each by itself, with less work."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sparklog.format.codec import Codec
from sparklog.log.time_lookup import (
    MOST_DECOMPRESSED_BYTES,
    WINDOW_BYTES,
    Wanted,
    offset_for_time,
    offsets_for_times,
)
from sparklog.metadata import plan_advance_log_start
from sparklog.metadata.model.image import Cleaned
from sparklog.storage import MemoryStore


def at(partition: Any, *times: int) -> dict[int, tuple[int, int] | None]:
    return offsets_for_times(partition.store, [Wanted("t", partition.state, time) for time in times])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_looking_at_each(local: Any, seed: int, codec: Codec) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(10):
        part = rng.integers(0, 1000, rng.integers(1, 8)).tolist()
        local.append([b"x" * 20] * len(part), timestamps_ms=part, batch_bytes=200, codec=codec)
    times = rng.integers(0, 1010, 80).tolist()
    found = at(local, *times)
    assert found == {
        number: offset_for_time(local.store, local.state, time) for number, time in enumerate(times)
    }


def test_an_extent_of_one_record_is_not_opened(memory: Any, memory_store: MemoryStore) -> None:
    memory.append([b"a"], timestamps_ms=[100])
    memory.append([b"b"], timestamps_ms=[200])
    opened: list[str] = []
    memory_store.hook = lambda called, name: opened.append(name) if called == "open_read" else None
    assert at(memory, 0, 100, 101, 200, 201) == {0: (0, 100), 1: (0, 100), 2: (1, 200), 3: (1, 200), 4: None}
    assert opened == []


def test_the_image_does_not_say_what_a_compaction_has_left(memory: Any, memory_store: MemoryStore) -> None:
    if memory_store.traits.is_remote:
        pytest.skip("each is looked up by itself")
    memory.append([b"a"], timestamps_ms=[100])
    state = msgspec.structs.replace(memory.state, cleaned=Cleaned(1, -1))
    opened: list[str] = []
    memory_store.hook = lambda called, name: opened.append(name) if called == "open_read" else None
    assert offsets_for_times(memory.store, [Wanted("t", state, 0)]) == {0: (0, 100)}
    assert opened == [state.extents[0].segment]


def test_a_segment_is_opened_once_for_all(memory: Any, memory_store: MemoryStore) -> None:
    if memory_store.traits.is_remote:
        pytest.skip("each is looked up by itself")
    for number in range(20):
        memory.append([b"a", b"b"], timestamps_ms=[number * 10, number * 10 + 5])
    opened: list[str] = []
    memory_store.hook = lambda called, name: opened.append(name) if called == "open_read" else None
    assert at(memory, *range(0, 200, 10)) == {number: (2 * number, 10 * number) for number in range(20)}
    assert opened == [memory.state.extents[-1].segment]


def test_what_is_cut_by_the_log_start_is_left_to_others(local: Any) -> None:
    local.append([b"a", b"b", b"c"], timestamps_ms=[500, 300, 200])
    action = plan_advance_log_start(local.metadata.image, local.topic_id, 0, 1)
    assert action is not None
    local.metadata.publish(lambda _: [action])
    assert at(local, 100, 501) == {1: None}


def test_large_batches_are_left_to_others(local: Any) -> None:
    local.append([b"a", b"x" * WINDOW_BYTES], timestamps_ms=[1, 2])
    local.append([b"b", b"c"], timestamps_ms=[3, 4])
    assert at(local, 0, 3) == {1: (2, 3)}


def test_bytes_that_become_many_are_left_to_others(local: Any) -> None:
    local.append([b"a", b"x" * 2 * MOST_DECOMPRESSED_BYTES], timestamps_ms=[1, 2], codec=Codec.ZSTD)
    local.append([b"b", b"c"], timestamps_ms=[3, 4])
    assert local.state.extents[0].size < WINDOW_BYTES
    assert at(local, 0, 3) == {1: (2, 3)}


@pytest.mark.parametrize("byte", [0, 8, 16, 17, 20, 30, 57, 61, 70])
def test_damaged_ones_are_left_to_others(local: Any, tmp_path: Path, byte: int) -> None:
    local.append([b"a", b"b"], timestamps_ms=[1, 2])
    extent = local.state.extents[0]
    path = tmp_path / "root" / extent.segment
    data = bytearray(path.read_bytes())
    data[extent.position + byte] ^= 0x80
    path.write_bytes(data)
    assert at(local, 1) == {}


def test_a_missing_segment_is_left_to_others(local: Any, tmp_path: Path) -> None:
    local.append([b"a", b"b"], timestamps_ms=[1, 2])
    (tmp_path / "root" / local.state.extents[0].segment).unlink()
    assert at(local, 1, 3) == {1: None}


def test_a_lookup_more_is_a_few_calls(local: Any, counted: Callable[[Callable[[], Any]], int]) -> None:
    for number in range(100):
        local.append([b"a", b"b"], timestamps_ms=[number * 10, number * 10 + 5])
    at(local, 0)
    few, many = (counted(functools.partial(at, local, *range(0, count * 10, 10))) for count in (20, 100))
    assert (many - few) / 80 <= 100  # and 500 for one by itself


@pytest.fixture
def counted() -> Callable[[Callable[[], Any]], int]:
    """How many functions written in Python something calls."""

    def count(work: Callable[[], Any]) -> int:
        calls = 0

        def counting(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(counting)
        try:
            work()
        finally:
            sys.setprofile(None)
        return calls

    return count
