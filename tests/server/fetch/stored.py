"""Builders: a log with extents of given sizes, and what a consumer makes of fetched bytes."""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import sparklog
from sparklog.client import SparkLog
from sparklog.format.codec import Codec
from sparklog.format.decode import decode_records, scan_batches
from sparklog.format.encode import EncodedBatches, EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog.log.config import TopicConfig
from sparklog.metadata import Extent, PartitionState, ReplaceExtents, plan_append
from sparklog.metadata.model.extent_list import checksum_of
from sparklog_server.protocol.wire import FileRegion

TOPIC = "events"


def value_of(offset: int, size: int = 0) -> bytes:
    return f"value {offset} ".encode().ljust(size, b".")


def encoded(
    first: int,
    count: int,
    *,
    value_bytes: int = 0,
    batch_bytes: int = 400,
    base_offset: int = 0,
    first_time: int | None = None,
    time_step: int = 1,
    **options: Any,
) -> EncodedBatches:
    """Records whose values say their offset, in several small batches."""
    values = [value_of(first + number, value_bytes) for number in range(count)]
    times = np.arange(count, dtype=np.int64) * time_step
    times += 1_000_000 + first if first_time is None else first_time
    columns = RecordColumns(key=None, value=pa.array(values, pa.binary()), timestamp_ms=times)
    return encode_batches(
        columns, EncodeOptions(max_batch_bytes=batch_bytes, **options), base_offset=base_offset
    )


class StoredLog:
    """A log with one topic, written extent by extent as tasks do."""

    def __init__(self, log: SparkLog, partitions: int = 1) -> None:
        self.log = log
        self._value_bytes = 0
        self.after_append: Callable[[], None] = lambda: None
        log.create_topic(TOPIC, partitions)

    @property
    def state(self) -> PartitionState:
        return self.log.refresh().topics[TOPIC].partitions[0]

    def append(self, count: int, *, partition: int = 0, **options: Any) -> None:
        """One extent."""
        topic = self.log.refresh().topics[TOPIC]
        first = topic.partitions[partition].log_end_offset
        options.setdefault("codec", Codec.NONE)
        self._value_bytes = options.get("value_bytes", 0)
        data = encoded(first, count, **options)
        draft = self.log.writer.append(topic.topic_id, partition, data, TopicConfig.parse({}, {}))
        assert draft is not None
        self.log.writer.sync()
        self.log.metadata.publish(lambda image: [plan_append(image, [draft])])
        self.after_append()

    def merge(self, *, keep: Any = None) -> None:
        """All extents into one segment with absolute offsets; `keep` chooses batches, as compaction may."""
        state = self.state
        data = encoded(0, state.log_end_offset, batch_bytes=2000, value_bytes=self._value_bytes)
        size = np.append(data.position, data.size_bytes)
        whole = data.to_bytes()
        chosen = [n for n in range(data.batch_count) if keep is None or keep(n)]
        name = f"{TOPIC}-0/{0:020d}-merged.log"
        with self.log.store.append_file(name) as file:
            file.write(b"".join(whole[size[n] : size[n + 1]] for n in chosen))
            file.sync()
            total = file.position
        added = Extent(
            topic_id=state.topic_id,
            partition=0,
            segment=name,
            position=0,
            size=total,
            record_count=state.log_end_offset,
            max_timestamp_ms=data.max_timestamp_ms,
            base_offset=0,
            offset_delta=0,
        )
        action = ReplaceExtents(
            topic_id=state.topic_id,
            partition=0,
            start_offset=0,
            end_offset=state.log_end_offset,
            removed_count=len(state.extents),
            removed_crc32c=checksum_of(state.extents.columns()),
            added=(added,),
        )
        self.log.metadata.publish(lambda _: [action])


_numbers = itertools.count()


@contextmanager
def stored_log(root: Path | None, partitions: int = 1) -> Iterator[StoredLog]:
    """In a directory, or in memory."""
    url = f"memory://fetch-{next(_numbers)}" if root is None else str(root)
    with sparklog.open(url, create=True) as log:
        yield StoredLog(log, partitions)


def bytes_of(chunks: Sequence[Any]) -> bytes:
    """What arrives at the consumer."""
    return b"".join(
        os.pread(chunk.descriptor, chunk.size, chunk.position)
        if isinstance(chunk, FileRegion)
        else bytes(chunk)
        for chunk in chunks
    )


def offsets_of(data: bytes, *, leader_epoch: int = 0) -> list[int]:
    """Offsets of the records, CRCs verified, leader epochs and values checked."""
    table = scan_batches(data, where="fetched")
    assert (table.partition_leader_epoch == leader_epoch).all()
    assert (table.base_offset[1:] > table.last_offset[:-1]).all()
    records = decode_records(data, table, where="fetched")
    offsets: list[int] = records.offset.tolist()
    values = records.value.to_pylist()
    assert [value.rstrip(b".") for value in values] == [value_of(offset) for offset in offsets]
    return offsets
