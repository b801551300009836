"""Extents with gaps, as compaction will leave them: they keep them, in segments of their own."""

import msgspec
import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.format.batch_table import scan_batches
from sparklog.format.record_batch import set_base_offsets
from sparklog.log.segment_file import is_merged
from sparklog.maintenance import MergeLimits, optimize
from tests.maintenance.conftest import Append, extents, records
from tests.replacing import plan_replacing


@pytest.fixture
def sparse(log: SparkLog, append: Append) -> list[tuple[int, bytes, int]]:
    """Offsets 0 to 2, 10 to 12, ...: three extents whose neighbours are gone, and a dense one after them."""
    for number in range(6):
        append([b"%d-%d" % (number, row) for row in range(3)], times_ms=[number] * 3)
    found = extents(log)
    kept = found[::2]
    log.metadata.publish(lambda image: [plan_replacing(image, found, kept)])
    append([b"dense"], times_ms=[9])
    return records(log)


def test_a_gap_between_extents_stays(log: SparkLog, sparse: list[tuple[int, bytes, int]]) -> None:
    optimize(log.metadata, log.clock, limits=MergeLimits(fan_in=None, shared_bytes=1 << 20))
    assert [offset for offset, _, _ in sparse] == [0, 1, 2, 6, 7, 8, 12, 13, 14, 18]
    assert records(log) == sparse
    (extent,) = extents(log)
    assert is_merged(extent.segment)
    assert (extent.base_offset, extent.end_offset) == (0, 19)
    for start in range(19):
        found = log.read("t", 0, start)["offset"].to_pylist()
        assert found == [offset for offset, _, _ in sparse if offset >= start]


def test_what_has_gaps_inside_is_merged_again(log: SparkLog, sparse: list[tuple[int, bytes, int]]) -> None:
    limits = MergeLimits(fan_in=None, shared_bytes=1 << 20)
    optimize(log.metadata, log.clock, limits=limits)
    log.append("t", pa.table({"value": [b"more"], "timestamp": pa.array([9])}), partition=0)
    before = records(log)
    assert optimize(log.metadata, log.clock, limits=limits).topics["t"].left_out == 0
    assert records(log) == before
    assert len(extents(log)) == 1


def test_gaps_between_batches_of_one_segment(log: SparkLog, append: Append) -> None:
    """A merged segment whose middle batch was cleaned away, and one more extent."""
    for number in range(3):
        append([b"%d" % number * 9_000], times_ms=[number])
    optimize(log.metadata, log.clock, limits=MergeLimits(fan_in=None, shared_bytes=0))
    (extent,) = extents(log)
    data = bytearray(log.store.read(extent.segment))
    table = scan_batches(data, where="test")
    del data[int(table.position[1]) : int(table.position[2])]
    name = extent.segment.replace(".log", "x.log")
    with log.store.append_file(name) as file:
        file.write(data)
        file.sync()
    cleaned = msgspec.structs.replace(extent, segment=name, size=len(data))
    log.metadata.publish(lambda image: [plan_replacing(image, [extent], [cleaned])])
    append([b"more"], times_ms=[5])
    before = records(log)
    assert [offset for offset, _, _ in before] == [0, 2, 3]
    optimize(log.metadata, log.clock)
    assert records(log) == before
    assert len(extents(log)) == 1


def test_setting_offsets_may_leave_the_leaders_epoch_alone() -> None:
    import numpy as np

    data = bytearray(range(61))
    set_base_offsets(memoryview(data), np.array([0]), np.array([7]), leader_epoch=None)
    assert bytes(data) == (7).to_bytes(8, "big") + bytes(range(8, 61))
    set_base_offsets(memoryview(data), np.array([0]), np.array([7]), leader_epoch=3)
    assert data[12:16] == (3).to_bytes(4, "big")
