"""A merged segment: one partition, absolute offsets, laid out as Kafka's, with its .index and .timeindex.

    <topic>-<p>/<20 digits of the first offset>-<born>-<id>.log

Invariants: the segment is durable, with its name, before `finish` returns its extent; the indexes are hints,
    and are complete or absent. A batch is never split over two segments.
Limits: segment.bytes and segment.index.bytes of the topic; relative offsets and positions below 2^31.
Not here: what is in it (rewrite.py), when it becomes part of the log (publish.py).
Concurrency: one thread.
After a crash: a file that nothing refers to.
Sources: FORMAT.md#offset-index, FORMAT.md#time-index; Kafka LogSegment.
"""

import contextlib

import numpy as np

from sparklog.errors import StorageError
from sparklog.failpoints import failpoint
from sparklog.format.encode import EncodedBatches
from sparklog.format.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    choose_entries,
    encode_offset_entries,
    encode_time_entries,
)
from sparklog.log.config import INT_MAX, TopicConfig
from sparklog.log.names import index_name, merged_segment_name, time_index_name
from sparklog.metadata import Extent, new_id
from sparklog.storage import AppendFile, Store

_NO_ENTRIES = np.zeros(0, np.int64)


class MergedSegment:
    """One segment that is being written."""

    def __init__(
        self, store: Store, topic: str, partition: int, config: TopicConfig, base_offset: int, born: int
    ) -> None:
        """`born`: the birth, by the image that the work was chosen from."""
        self._store = store
        self._config = config
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.name = merged_segment_name(topic, partition, base_offset, born, new_id())
        self._file: AppendFile = store.append_file(self.name)
        self._max_timestamp_ms = -1
        self._columns: list[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]] = []
        self._entries = 0

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._file.position

    def has_room(self, batches: EncodedBatches) -> bool:
        """Would it keep within its limits with these?"""
        config = self._config
        size = self.size + batches.size_bytes
        entries = self._entries + len(batches.size)
        index_bytes = (1 + size // max(1, config.index_interval_bytes)) * max(
            OFFSET_ENTRY.size, TIME_ENTRY.size
        )
        index_bytes = min(index_bytes, entries * TIME_ENTRY.size)
        last = int(batches.base_offset[-1]) + int(batches.batch_record_count[-1])
        return (
            size <= min(config.segment_bytes, INT_MAX)
            and index_bytes <= config.segment_index_bytes
            and last - self.base_offset <= INT_MAX
        )

    def write(self, batches: EncodedBatches) -> None:
        """Append batches, their offsets absolute."""
        position = self._file.write(*batches.data)
        failpoint("merge.written")
        last = batches.base_offset + batches.batch_record_count - 1
        self._columns.append(
            (batches.position + position, batches.size, last, batches.batch_max_timestamp_ms)
        )
        self._entries += len(batches.size)
        self._max_timestamp_ms = max(self._max_timestamp_ms, batches.max_timestamp_ms)
        self.next_offset = int(last[-1]) + 1

    def finish(self, topic_id: str, partition: int) -> Extent:
        """Make it durable, write its indexes, and close it. Returns the extent of all of it."""
        size = self.size
        self._file.sync()
        failpoint("merge.synced")
        self._file.close()
        self._write_indexes()
        return Extent(
            topic_id=topic_id,
            partition=partition,
            segment=self.name,
            position=0,
            size=size,
            base_offset=self.base_offset,
            record_count=self.next_offset - self.base_offset,
            max_timestamp_ms=self._max_timestamp_ms,
            offset_delta=0,
        )

    def close(self) -> None:
        """Give it up; what was written is left behind."""
        with contextlib.suppress(StorageError, OSError):
            self._file.close()

    def _write_indexes(self) -> None:
        position, size, last_offset, newest = map(np.concatenate, zip(*self._columns, strict=True))
        chosen = choose_entries(position, size, self._config.index_interval_bytes)
        # As Kafka: nothing for the segment's first batch, and the last offset of the others.
        offsets = encode_offset_entries(last_offset[chosen[1:]] - self.base_offset, position[chosen[1:]])
        times = _time_entries(newest, last_offset - self.base_offset, chosen)
        with contextlib.suppress(StorageError):
            self._store.put_hint(index_name(self.name), offsets)
            self._store.put_hint(time_index_name(self.name), times)
        failpoint("merge.indexed")


def _time_entries(newest: np.ndarray, last: np.ndarray, chosen: np.ndarray) -> bytes:
    """Of each index interval, the batch that made the largest timestamp so far, if one of it did.

    Args:
        newest: largest timestamp of each batch.
        last: relative offset of each batch's last record.
        chosen: batches with which intervals begin.

    An entry names a batch that has the timestamp that it says, so that a reader can hold it against the
    batch's header.
    """
    largest = np.maximum.accumulate(newest)
    rises = np.flatnonzero(np.diff(largest, prepend=-1) > 0)
    if not len(rises):
        return b""
    interval = np.searchsorted(chosen, rises, side="right")
    is_last = np.append(interval[1:] != interval[:-1], True)
    at = rises[is_last]
    return encode_time_entries(largest[at], last[at])
