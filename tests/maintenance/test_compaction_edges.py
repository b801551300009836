"""Compaction at its bounds: offsets and times that barely fit, partitions that never come to rest."""

import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import DataLossError, SparklogError
from sparklog.format.batch_table import scan_batches
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.key_hashes import SEED_BYTES, KeyHasher
from sparklog.format.record_batch import MAX_INT32
from sparklog.format.schema import RecordColumns
from sparklog.log.setting import LONG_MAX
from sparklog.maintenance import MergeLimits, compact, optimize
from sparklog.maintenance.choose import CompactionWork
from sparklog.maintenance.compacted_batches import OffsetMap, Round, compacted
from sparklog.maintenance.compaction import CompactionResult
from sparklog.maintenance.rewrite import OnBytes
from sparklog.storage import MemoryStore
from tests.maintenance.compacted import cleaned, left
from tests.maintenance.conftest import Put, extents


def batch(key: bytes, base_offset: int) -> bytes:
    """Of one record."""
    columns = RecordColumns(
        key=pa.array([key], pa.binary()), value=pa.array([b"1"]), timestamp_ms=np.array([5], np.int64)
    )
    return encode_batches(columns, EncodeOptions(), base_offset=base_offset).to_bytes()


def test_offsets_that_are_too_far_apart_for_one_batch_get_two() -> None:
    far = MAX_INT32 + 10
    offsets = [0, 1, MAX_INT32 - 1, MAX_INT32, far, far + 1]
    data = bytearray(b"".join(batch(b"%d" % offset, offset) for offset in offsets))
    round_ = Round(
        hasher=KeyHasher(os.urandom(SEED_BYTES)),
        keys=OffsetMap(400, 10),
        end_offset=far + 100,
        now_ms=0,
        marked_ms=0,
        delete_retention_ms=0,
    )
    table = scan_batches(data, where="test")
    made = compacted(round_, memoryview(data), table, None, 1 << 20, "test")
    found = scan_batches(b"".join(part.to_bytes() for part in made.parts), where="test")
    assert found.base_offset.tolist() == [0, MAX_INT32]
    assert found.last_offset.tolist() == [MAX_INT32 - 1, far + 1]
    assert found.record_count.tolist() == [3, 3]


def test_what_went_between_two_that_are_kept_is_not_kept_with_them(table: SparkLog, put: Put) -> None:
    """Large batches are written as they are, those next to each other at once."""
    for key in (b"a", b"b", b"c", b"d", b"e"):
        put((key, b"x" * 9_000))
    put((b"b", b"1"), (b"d", b"1"))
    compact(table.metadata, table.clock)
    assert [(offset, key) for offset, key, _ in left(table)] == [
        (0, b"a"),
        (2, b"c"),
        (4, b"e"),
        (5, b"b"),
        (6, b"d"),
    ]
    assert sum(extent.size for extent in extents(table, "table")) < 4 * 9_000


def test_tombstones_may_be_kept_for_ever(table: SparkLog, put: Put, clock: ManualClock) -> None:
    table.alter_topic("table", {"delete.retention.ms": str(LONG_MAX)})
    put((b"a", b"1"))
    put((b"a", None))
    for _ in range(2):
        compact(table.metadata, clock)
        assert left(table) == [(1, b"a", None)]
        clock.advance_ms(10**12)
    assert cleaned(table).delete_horizon_ms == LONG_MAX
    assert table.read("table", 0, 0)["timestamp"].cast(pa.int64()).to_pylist() == [
        clock.now_ms() - 2 * 10**12
    ]


def test_segments_keep_within_their_size(table: SparkLog, put: Put) -> None:
    """Also those that come of an extent that was made when segment.bytes was larger."""
    for number in range(12):
        put((b"%d" % number, b"x" * 9_000))
    optimize(table.metadata, table.clock, ["table"], MergeLimits(fan_in=None, shared_bytes=0))
    assert len(extents(table, "table")) == 1
    put((b"5", b"1"))
    table.alter_topic("table", {"segment.bytes": "20000"})
    compact(table.metadata, table.clock)
    assert [int(key or b"") for _, key, _ in left(table)] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 5]
    sizes = [extent.size for extent in extents(table, "table")]
    assert max(sizes) <= 20_000
    assert len(sizes) < 12


def test_what_no_reader_would_decompress_again_stays_uncompressed(
    table: SparkLog, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 10_000
    for module in ("format.encode", "log.reader"):
        monkeypatch.setattr(f"sparklog.{module}.DEFAULT_MAX_DECOMPRESSED_BYTES", limit)
    put((b"a", b"1"), (b"b", b"x" * limit))
    put((b"a", b"2"))
    table.alter_topic("table", {"compression.type": "zstd"})
    compact(table.metadata, table.clock)
    assert [(offset, key) for offset, key, _ in left(table)] == [(1, b"b"), (2, b"a")]


# --- partitions that do not come to rest -------------------------------------------------------------------


def test_what_is_written_meanwhile_waits_for_the_next_time(
    table: SparkLog, put: Put, memory_or_s3: MemoryStore
) -> None:
    """Or beside a writer it would never end."""
    put((b"a", b"1"), (b"a", b"2"))
    writes = iter(range(20))
    writing = False

    def write(called: str, name: str) -> None:
        nonlocal writing
        if called == "append_file" and name.startswith("table-0/") and not writing and next(writes, None):
            writing = True
            put((b"a", b"3"), (b"a", b"4"))
            writing = False

    next(writes)
    memory_or_s3.hook = write
    report = compact(table.metadata, table.clock)
    memory_or_s3.hook = None
    assert report.topics["table"].rounds == 1
    assert [offset for offset, _, _ in left(table)] == [1, 2, 3]
    assert compact(table.metadata, table.clock).topics["table"].rounds == 1


def lost(
    change: Callable[[], object],
) -> Callable[[Sequence[CompactionWork], OnBytes], Iterator[CompactionResult | SparklogError]]:
    """Rounds whose files are gone, each after something has happened to the partition."""

    def run(
        works: Sequence[CompactionWork], _on_bytes: OnBytes
    ) -> Iterator[CompactionResult | SparklogError]:
        for _ in works:
            change()
            yield DataLossError("SEGMENT_MISSING", "x: found no such file, expected one", fix="")

    return run


def test_files_that_went_with_their_extents_are_no_error(table: SparkLog, put: Put) -> None:
    """And nobody tries forever beside somebody who is always faster."""
    put((b"a", b"1"), (b"a", b"2"))

    def somebody_else() -> None:
        compact(table.metadata, table.clock)
        put((b"a", b"1"), (b"a", b"2"))

    report = compact(table.metadata, table.clock, run=lost(somebody_else))
    assert (report.topics["table"].rounds, report.topics["table"].left_out) == (0, 1)
    assert len(left(table)) == 3


def test_files_that_went_without_are_one(table: SparkLog, put: Put) -> None:
    put((b"a", b"1"), (b"a", b"2"))
    calls: list[None] = []
    with pytest.raises(DataLossError, match="SEGMENT_MISSING"):
        compact(table.metadata, table.clock, run=lost(lambda: calls.append(None)))
    assert len(calls) == 1
