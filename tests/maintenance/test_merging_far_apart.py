"""What is more than 2^31 offsets apart goes to segments of its own: indexes have offsets of 32 bits."""

import numpy as np
import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.index import parse_offset_entries
from sparklog.format.schema import RecordColumns
from sparklog.log.config import INT_MAX
from sparklog.log.segment_file import index_name, merged_segment_name
from sparklog.maintenance import MergeLimits, compact, optimize
from sparklog.metadata import AppendExtents, Extent, new_id
from tests.maintenance.conftest import Put, extents

APART = 1_000_000_000
KEYS = (b"a", b"b", b"c", b"d", b"e")
OFFSETS = [number * APART for number in range(len(KEYS))]


@pytest.fixture
def sparse(table: SparkLog) -> SparkLog:
    """As compaction leaves it: a record an extent, each far from the next."""
    topic_id, born = table.refresh().topic("table").topic_id, table.image.commit
    found = []
    for offset, key in zip(OFFSETS, KEYS, strict=True):
        columns = RecordColumns(
            key=pa.array([key], pa.binary()),
            value=pa.array([b"x" * 9_000], pa.binary()),
            timestamp_ms=np.array([5], np.int64),
        )
        made = encode_batches(columns, EncodeOptions(), base_offset=offset)
        name = merged_segment_name("table", 0, offset, born, new_id())
        with table.store.append_file(name) as file:
            file.write(*made.data)
            file.sync()
        found.append(
            Extent(
                topic_id=topic_id,
                partition=0,
                segment=name,
                position=0,
                size=made.size_bytes,
                base_offset=offset,
                record_count=APART,
                max_timestamp_ms=5,
                offset_delta=0,
            )
        )
    table.metadata.publish(lambda _image: [AppendExtents(extents=tuple(found))])
    return table


def check(log: SparkLog, expected: list[int]) -> None:
    for extent in extents(log, "table"):
        assert extent.record_count <= INT_MAX
        index = parse_offset_entries(log.store.read(index_name(extent.segment)), "test")
        assert (index.relative_offset > 0).all()
    for start in (0, 1, APART, 2 * APART + 1, 4 * APART):
        found = log.read("table", 0, start)["offset"].to_pylist()
        assert found == [offset for offset in expected if offset >= start]


def test_merging_parts_them(sparse: SparkLog) -> None:
    optimize(sparse.metadata, sparse.clock, limits=MergeLimits(fan_in=None, shared_bytes=0))
    assert len(extents(sparse, "table")) == 2
    check(sparse, OFFSETS)


def test_and_so_does_compaction(sparse: SparkLog, put: Put) -> None:
    put((b"b", b"newer"))
    compact(sparse.metadata, sparse.clock)
    check(sparse, [OFFSETS[0], *OFFSETS[2:], len(KEYS) * APART])
