"""The time index of a merged segment: where a search begins, and never a reason for a wrong answer."""

import os
import random

import numpy as np
import pytest

from sparklog.client import SparkLog
from sparklog.format.index import encode_time_entries
from sparklog.log.read_plan import extent_span
from sparklog.log.segment_file import SegmentFile, time_index_name
from sparklog.maintenance import MergeLimits, optimize
from tests.maintenance.conftest import Append, extents

COUNT = 300


@pytest.fixture
def times(log: SparkLog, append: Append) -> list[int]:
    """Of records in batches of 9 KB in one merged segment; mostly ascending."""
    chance = random.Random(5)
    found = [1_000_000 + 10 * number - chance.randrange(40) for number in range(COUNT)]
    for number in range(0, COUNT, 3):
        append([b"x" * 3_000] * 3, times_ms=found[number : number + 3])
    log.alter_topic("t", {"index.interval.bytes": "20000"})
    optimize(log.metadata, log.clock, limits=MergeLimits(fan_in=None, shared_bytes=0))
    assert len(extents(log)) == 1
    return found


def check(log: SparkLog, times: list[int]) -> None:
    for time_ms in [0, *times, *(time + 1 for time in times), 1 << 50]:
        expected = next((offset for offset, one in enumerate(times) if one >= time_ms), None)
        assert log.offset_for_time("t", 0, time_ms) == expected, time_ms


def test_agrees_with_a_scan(log: SparkLog, times: list[int]) -> None:
    check(log, times)


def test_reads_little(log: SparkLog, times: list[int]) -> None:
    (extent,) = extents(log)
    span = extent_span("t", extent)
    with SegmentFile.open(log.store, span) as segment:
        older = segment.older_than(span, times[-1] - 100)
        assert older is not None
        assert COUNT - 40 < older < COUNT
        assert all(time < times[-1] - 100 for time in times[: older + 1])
        assert segment.bytes_read < extent.size / 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-5],
        lambda data: os.urandom(len(data)),
        lambda data: bytes(len(data)),
        lambda data: shifted(data, times=-700),
        lambda data: shifted(data, offsets=3),
        lambda data: encode_time_entries(np.array([5]), np.array([(1 << 31) - 1])),
    ],
    ids=["empty", "torn", "random", "zeros", "older", "further", "beyond"],
)
def test_a_damaged_one_gives_no_wrong_answer(log: SparkLog, times: list[int], damage: object) -> None:
    assert callable(damage)
    name = time_index_name(extents(log)[0].segment)
    log.store.put_hint(name, damage(log.store.read(name)))
    check(log, times)


def test_without_one_the_headers_are_walked(log: SparkLog, times: list[int]) -> None:
    log.store.delete(time_index_name(extents(log)[0].segment))
    check(log, times)


def shifted(data: bytes, *, times: int = 0, offsets: int = 0) -> bytes:
    entries = np.frombuffer(data, [("time", ">i8"), ("offset", ">i4")])
    return encode_time_entries(entries["time"] + times, entries["offset"] + offsets)
