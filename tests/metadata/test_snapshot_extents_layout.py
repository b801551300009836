"""A snapshot's Arrow file that asks for more memory than it is large is refused before Arrow reads it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import CorruptLogError
from sparklog.metadata.documents.snapshot_extents import decode_extents, encode_extents, why_not_plain
from sparklog.metadata.model.extent_list import Extent, columns_of

ROWS = 1_000_000


def arrow_file(columns: dict[str, Any], *, batches: int = 1, **options: Any) -> memoryview:
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    return memoryview(sink.getvalue().to_pybytes())


def extents(rows: int) -> memoryview:
    extent = Extent(
        topic_id="T" * 22,
        partition=0,
        segment="segments/a/00000000.0.log",
        position=0,
        size=100,
        base_offset=0,
        record_count=1,
        max_timestamp_ms=0,
        offset_delta=0,
    )
    return memoryview(encode_extents([columns_of([extent] * rows)]))


def recompressed(codec: str) -> memoryview:
    """The same extents, a million, compressed."""
    batch = pa.ipc.open_file(pa.py_buffer(extents(1))).get_batch(0)
    names = ["segment", *batch.schema.names[1:]]
    columns = [pa.DictionaryArray.from_arrays(pa.array(np.zeros(ROWS, np.int32)), pa.array(["a"]))]
    columns += [pa.array(np.zeros(ROWS, np.int64)) for _ in names[1:]]
    table = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(table)
    return memoryview(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_bomb_is_refused_before_it_is_unpacked(codec: str) -> None:
    data = recompressed(codec)
    assert len(data) < ROWS
    with pytest.raises(CorruptLogError, match="here: found a compressed dictionary") as raised:
        decode_extents(data, "here")
    assert raised.value.code == "CORRUPT_METADATA_SNAPSHOT"


def dictionary() -> pa.Array:
    return pa.array(["a", "b", "a"]).dictionary_encode()


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: arrow_file({"n": pa.array([0] * 1000)}, compression="zstd"), "a compressed batch"),
        (lambda: arrow_file({"n": pa.array([1])}, batches=2), "2 batches and 0 dictionaries"),
        (lambda: arrow_file({"n": pa.array([1])}, batches=0), "0 batches"),
        (lambda: arrow_file({"a": dictionary(), "b": dictionary()}), "1 batches and 2 dictionaries"),
    ],
    ids=["compressed", "two batches", "no batch", "two dictionaries"],
)
def test_what_else_a_part_never_is(make: Callable[[], memoryview], found: str) -> None:
    refusal = why_not_plain(make())
    assert refusal is not None
    assert refusal.startswith(found)


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_what_is_written_is_plain(rows: int) -> None:
    assert why_not_plain(extents(rows)) is None
    assert len(decode_extents(extents(rows), "here")) == rows


@pytest.mark.parametrize("size", [0, 9, 10, 100])
def test_what_is_cut_off_is_none(size: int) -> None:
    with pytest.raises(ValueError, match=r"not an Arrow file|a number at byte"):
        why_not_plain(extents(1)[:size])
