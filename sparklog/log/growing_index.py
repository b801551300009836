"""The sparse index of a segment that is being written: entries gather, and go out with each sync.

An entry (offset of a batch within its extent, position of the batch) for the first batch that starts in each
    stretch of index.interval.bytes.
Invariants: entries refer to synced bytes only. They are hints: that one could not be written fails nothing,
    and readers do without. The file never gets shorter, since readers map it.
Not here: reading an index (segment_file.py), its format (format/index.py), when to sync (writer.py).
Concurrency: the writer's lock.
After a crash: the last entry may be torn; readers check the batch that an entry names.
Sources: FORMAT.md#offset-index; Kafka LogSegment.append.
"""

import contextlib

import numpy as np

from sparklog.errors import StorageError
from sparklog.format.encoded_batches import EncodedBatches
from sparklog.format.index import encode_offset_entries
from sparklog.storage import AppendFile, Store

ENTRY_BYTES = 8


class GrowingIndex:
    """See the module's docstring."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._file: AppendFile | None = None
        self._offsets: list[int] = []
        self._positions: list[int] = []
        self._since_entry_bytes = 0
        self._is_broken = False
        self.size_bytes = 0  # with what is still to be written

    def add(self, encoded: EncodedBatches, position: int, *, interval_bytes: int, limit_bytes: int) -> None:
        """Choose entries for batches that were appended at `position`, as far as the limit leaves room.

        A loop over batches: there are few in an append, and NumPy's price is per call. One batch takes 1 us
        where NumPy took 18, 64 take 10 (a broker appends eight times for each bundle that it publishes).
        """
        if self._is_broken:
            return
        interval = max(1, interval_bytes)
        before, stretch = self._since_entry_bytes, 0
        columns = (encoded.size.tolist(), encoded.base_offset.tolist(), encoded.position.tolist())
        for size, offset, start in zip(*columns, strict=True):
            if before // interval > stretch:
                stretch = before // interval
                if self.size_bytes + ENTRY_BYTES <= limit_bytes:
                    self._offsets.append(offset)
                    self._positions.append(position + start)
                    self.size_bytes += ENTRY_BYTES
            before += size
        self._since_entry_bytes = before - stretch * interval

    def write(self) -> None:
        """Append what has gathered to the index's file."""
        if not self._offsets:
            return
        try:
            if self._file is None:
                self._file = self._store.append_file(self._name, mapped=True)
            self._file.write(self._taken())
        except StorageError:
            self._is_broken = True  # a torn entry may be its last: nothing may follow it
            self._taken()

    def put(self) -> None:
        """Write everything as one object, where files do not grow."""
        if self._offsets:
            with contextlib.suppress(StorageError):
                self._store.put_hint(self._name, self._taken())

    def close(self) -> None:
        """Close the file; what has gathered since the last `write` is forgotten."""
        if self._file is not None:
            with contextlib.suppress(StorageError, OSError):
                self._file.close()

    def _taken(self) -> bytes:
        entries = encode_offset_entries(
            np.array(self._offsets, np.int64), np.array(self._positions, np.int64)
        )
        self._offsets, self._positions = [], []
        return entries
