"""Batches that were read: their offsets, and what of them a member needs."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog_server.protocol.wire import FileRegion
from sparklog_server.share.batches import BatchSpan, joined, merged, needed, spans_of
from sparklog_server.share.partition import Acquired


def batch(base_offset: int, count: int) -> bytes:
    columns = RecordColumns(
        key=None, value=pa.array([b"v"] * count, pa.binary()), timestamp_ms=np.zeros(count, np.int64)
    )
    encoded = encode_batches(columns, EncodeOptions(), base_offset=base_offset)
    return b"".join(bytes(one) for one in encoded.data)


def test_spans_have_no_gaps() -> None:
    first, second = batch(10, 5), batch(20, 2)
    data = first + second
    end = len(first)
    assert spans_of(data, 12) == [BatchSpan(12, 14, 0, end), BatchSpan(15, 21, end, len(data))]
    assert spans_of(data, 8)[0] == BatchSpan(8, 14, 0, end)
    assert spans_of(data, 15) == [BatchSpan(15, 21, end, len(data))]
    assert spans_of(data[:-1], 10) == [BatchSpan(10, 14, 0, end)]
    assert spans_of(b"", 0) == []


def test_only_needed_batches_are_sent() -> None:
    parts = [batch(0, 5), batch(5, 5), batch(10, 5)]
    data = b"".join(parts)
    spans = spans_of(data, 0)
    assert needed(data, spans, [Acquired(6, 7, 1)]) == parts[1]
    assert needed(data, spans, [Acquired(4, 4, 1), Acquired(9, 9, 1)]) == parts[0] + parts[1]
    assert len(needed(data, spans, [])) == 0


def test_equal_neighbours_are_one() -> None:
    found = [Acquired(0, 4, 1), Acquired(5, 9, 1), Acquired(10, 11, 2), Acquired(13, 14, 2)]
    assert merged(found) == [Acquired(0, 9, 1), Acquired(10, 11, 2), Acquired(13, 14, 2)]


def test_parts_of_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"0123456789")
    with path.open("rb") as file:
        region = FileRegion(file.fileno(), 3, 4)
        assert joined([b"ab", memoryview(b"c"), region]) == b"abc3456"
        assert os.fstat(file.fileno()).st_size == 10
