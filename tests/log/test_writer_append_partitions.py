"""Appending to many partitions at once leaves what appending to each would: bytes, drafts, index."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.format.encode import EncodeOptions
from sparklog.format.encode_partitions import EncodedPartitions, encode_partitions
from sparklog.format.schema import RecordColumns
from sparklog.log.config import TopicConfig
from sparklog.log.segment_file import index_name
from sparklog.log.writer import LogWriter
from sparklog.metadata import DraftExtent
from sparklog.storage import MemoryStore, Store

TOPIC = "A" * 22


def encode(sizes: Sequence[int], *, batch_bytes: int = 1 << 20) -> EncodedPartitions:
    """Partition n has n + 1 records of sizes[n] bytes each."""
    rows = np.arange(1, len(sizes) + 1)
    values = [b"v" * size for size, count in zip(sizes, rows.tolist(), strict=True) for _ in range(count)]
    found = encode_partitions(
        RecordColumns(
            key=None, value=pa.array(values, pa.binary()), timestamp_ms=np.arange(len(values), dtype=np.int64)
        ),
        rows,
        EncodeOptions(max_batch_bytes=batch_bytes),
    )
    assert found is not None
    return found


class Writing:
    """One writer's steps, and what they leave."""

    def __init__(self, *, together: bool) -> None:
        self.store: Store = MemoryStore()
        self.clock = ManualClock()
        self.writer = LogWriter(self.store, self.clock, writer_id="w" * 32, segment_bytes=20_000)
        self.together = together
        self.drafts: list[DraftExtent] = []

    def append(self, encoded: EncodedPartitions, config: TopicConfig) -> None:
        partitions = list(range(len(encoded)))
        if self.together:
            self.drafts += self.writer.append_partitions(TOPIC, partitions, encoded, config)
            return
        for number, one in zip(partitions, encoded.split(), strict=True):
            draft = self.writer.append(TOPIC, number, one, config)
            assert draft is not None
            self.drafts.append(draft)

    def left(self) -> Any:
        self.writer.sync(self.drafts)
        names = sorted(file.name for file in self.store.list("segments", recursive=True))
        assert any(index_name(draft.segment) in names for draft in self.drafts)
        return self.drafts, {name: self.store.read(name) for name in names}


@pytest.mark.parametrize(
    "config",
    [
        TopicConfig(),
        TopicConfig(index_interval_bytes=1),
        TopicConfig(index_interval_bytes=300, segment_bytes=9_000),
        TopicConfig(index_interval_bytes=1, segment_index_bytes=80),
        TopicConfig(index_interval_bytes=1, segment_bytes=14),
        TopicConfig(index_interval_bytes=500, segment_ms=1_000),
    ],
)
def test_it_is_as_if_each_partition_had_been_appended_to(config: TopicConfig) -> None:
    left = []
    for together in (True, False):
        one = Writing(together=together)
        for step, sizes in enumerate([(10, 20, 30), (100, 1, 500, 7), (900,) * 5, (5,) * 40, (3_000,) * 2]):
            one.append(encode(sizes, batch_bytes=700 if step % 2 else 1 << 20), config)
            one.clock.advance_ms(400)
        left.append(one.left())
    assert left[0] == left[1]


def test_where_they_fit_they_are_one_write() -> None:
    one = Writing(together=True)
    writes: list[str] = []

    def hook(operation: str, name: str) -> None:
        if operation == "write" and name.endswith(".log"):
            writes.append(name)

    assert isinstance(one.store, MemoryStore)
    one.store.hook = hook
    one.append(encode([10] * 30), TopicConfig())
    one.append(encode([10] * 10), TopicConfig())
    assert len(writes) == 2
    assert len({draft.segment for draft in one.drafts}) == 1
    assert [draft.partition for draft in one.drafts] == [*range(30), *range(10)]


def test_what_fits_into_the_active_segment_still_goes_there() -> None:
    one = Writing(together=True)
    one.append(encode([10]), TopicConfig())
    one.append(encode([4_000] * 4), TopicConfig())  # 1 to 4 of them each: together more than 20,000 bytes
    names = [draft.segment[-12:] for draft in one.drafts]
    assert names == ["00000000.log"] * 3 + ["00000001.log"] + ["00000002.log"]


def test_a_failed_write_leaves_no_drafts_and_a_segment_that_nothing_is_added_to() -> None:
    one = Writing(together=True)
    one.append(encode([10] * 3), TopicConfig())
    failed = False

    def hook(operation: str, name: str) -> None:
        nonlocal failed
        if operation == "write" and not failed:
            failed = True
            raise StorageError("STORAGE_FULL", f"{name}: no space", fix="free space")

    assert isinstance(one.store, MemoryStore)
    one.store.hook = hook
    with pytest.raises(StorageError, match="STORAGE_FULL"):
        one.append(encode([10] * 3), TopicConfig())
    assert len(one.drafts) == 3
    one.append(encode([10] * 3), TopicConfig())
    assert [draft.segment[-12:] for draft in one.drafts] == ["00000000.log"] * 3 + ["00000001.log"] * 3


def test_flush_messages_is_followed() -> None:
    one = Writing(together=True)
    synced: list[str] = []

    def hook(operation: str, name: str) -> None:
        if operation == "sync":
            synced.append(name)

    assert isinstance(one.store, MemoryStore)
    one.store.hook = hook
    config = TopicConfig(flush_messages=7)
    one.append(encode([10] * 3), config)  # 6 records
    assert synced == []
    one.append(encode([10]), config)
    assert len(synced) == 1
