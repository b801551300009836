"""How much has room in a merged segment: as Kafka's, whose indexes have offsets of 32 bits, and a size."""

import numpy as np
import pyarrow as pa
import pytest

from sparklog.format.encode import EncodedBatches, EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog.log.config import INT_MAX, TopicConfig
from sparklog.maintenance.choose import Piece
from sparklog.maintenance.merging import MergedSegment
from sparklog.metadata import ExtentList
from sparklog.storage import MemoryStore


def batch(base_offset: int) -> EncodedBatches:
    """Of one record."""
    columns = RecordColumns(key=None, value=pa.array([b"x"]), timestamp_ms=np.array([5], np.int64))
    return encode_batches(columns, EncodeOptions(), base_offset=base_offset)


def begun(config: TopicConfig, base_offset: int = 7) -> MergedSegment:
    piece = Piece(
        born=0,
        topic="t",
        topic_id="T" * 22,
        partition=0,
        config=config,
        extents=ExtentList("T" * 22, 0).columns(),
        is_shared=False,
    )
    segment = MergedSegment(MemoryStore("room"), piece, base_offset)
    segment.write(batch(base_offset))
    return segment


@pytest.mark.parametrize(("offset", "fits"), [(7 + INT_MAX - 1, True), (7 + INT_MAX, False)])
def test_offsets_lie_within_32_bits_of_the_first(offset: int, fits: bool) -> None:
    assert begun(TopicConfig()).has_room(batch(offset)) is fits


@pytest.mark.parametrize(("index_bytes", "fits"), [(24, True), (23, False)])
def test_each_entry_of_its_indexes_has_room(index_bytes: int, fits: bool) -> None:
    """Of twelve bytes, one for each batch at most."""
    config = TopicConfig(segment_index_bytes=index_bytes, index_interval_bytes=1)
    assert begun(config).has_room(batch(8)) is fits


@pytest.mark.parametrize("less", [0, 1])
def test_it_may_be_as_large_as_segment_bytes(less: int) -> None:
    config = TopicConfig(segment_bytes=2 * batch(8).size_bytes - less)
    assert begun(config).has_room(batch(8)) is not bool(less)
