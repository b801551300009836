"""Builders for log tests: a store, a topic's image, and a writer, with defaults for everything."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.clock import ManualClock
from sparklog.errors import FatalStorageError
from sparklog.format.codec import Codec
from sparklog.format.encode import EncodedBatches, EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog.log.config import TopicConfig
from sparklog.log.writer import LogWriter
from sparklog.metadata import (
    DraftExtent,
    MetadataLog,
    PartitionState,
    new_id,
    plan_append,
    plan_create_topic,
)
from sparklog.storage import LocalStore, MemoryStore, Store, open_store


class OnePartition:
    """A topic `t` with one partition in a store, its metadata and a writer."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = ManualClock()
        self.metadata = MetadataLog.open(store, self.clock, create=True)
        self.writer = LogWriter(store, self.clock)
        self.config = TopicConfig()
        self.topic_id = new_id()
        self.metadata.publish(lambda image: [plan_create_topic(image, "t", 1, topic_id=self.topic_id)])

    @property
    def state(self) -> PartitionState:
        return self.metadata.image.partition("t", 0)

    def draft(self, encoded: EncodedBatches) -> DraftExtent:
        draft = self.writer.append(self.topic_id, 0, encoded, self.config)
        assert draft is not None
        return draft

    def publish(self, drafts: Sequence[DraftExtent]) -> None:
        self.writer.sync(drafts)
        self.metadata.publish(lambda image: [plan_append(image, drafts)])

    def append(self, values: Sequence[bytes], **options: Any) -> DraftExtent:
        """One published extent of these values."""
        draft = self.draft(encode(values, **options))
        self.publish([draft])
        return draft

    def is_remembered(self, draft: DraftExtent) -> bool:
        """Does the writer still know that the draft is durable? What it forgot may not be published."""
        try:
            self.writer.sync([draft])
        except FatalStorageError:
            return False
        return True


def encode(
    values: Sequence[bytes],
    *,
    timestamps_ms: Sequence[int] | None = None,
    batch_bytes: int = 1 << 20,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
) -> EncodedBatches:
    times = np.arange(len(values)) + 1_000 if timestamps_ms is None else np.array(timestamps_ms)
    return encode_batches(
        RecordColumns(key=None, value=pa.array(values, pa.binary()), timestamp_ms=times.astype(np.int64)),
        EncodeOptions(max_batch_bytes=batch_bytes, codec=codec),
        base_offset=base_offset,
    )


@pytest.fixture
def encoder() -> Callable[..., EncodedBatches]:
    return encode


@pytest.fixture
def local(tmp_path: Path) -> OnePartition:
    store = open_store(tmp_path / "root", create=True)
    assert isinstance(store, LocalStore)
    return OnePartition(store)


@pytest.fixture
def memory_store(memory_or_s3: MemoryStore) -> MemoryStore:
    return memory_or_s3


@pytest.fixture
def memory(memory_store: MemoryStore) -> OnePartition:
    return OnePartition(memory_store)


@pytest.fixture
def growing_files(memory_store: MemoryStore) -> None:
    """For tests of what is done only where files grow after they were synced."""
    if not memory_store.traits.appends_after_sync:
        pytest.skip("files of this store end with their first sync")
