"""The last offset of each key, in a table of fixed size: open addressing over NumPy columns.

Invariants: what `latest` says of a key is the largest offset that `put` was given with it; nothing is ever
    forgotten. A table that is full takes no more, and says from which row on.
Memory: 24 bytes a slot, as Kafka's; the slots are a power of two, of which nine tenths are used.
Not here: hashing (format/key_hashes.py). Two keys of one hash would be one key here.
Concurrency: one thread.
Sources: Kafka SkimpyOffsetMap, log.cleaner.io.buffer.load.factor.
"""

import numpy as np
import numpy.typing as npt

from sparklog.format.byte_views import Int64Array, UInt64Array
from sparklog.format.key_hashes import Hashes

SLOT_BYTES = 24
LOAD_FACTOR = 0.9
MIN_SLOTS = 16
_U = np.uint64


class OffsetMap:
    """See the module's docstring."""

    def __init__(self, buffer_bytes: int, most_keys: int) -> None:
        """`most_keys`: so many keys may come; fewer than the buffer has room for spare memory."""
        wanted = min(buffer_bytes // SLOT_BYTES, 2 * most_keys)
        slots = max(MIN_SLOTS, 1 << max(0, wanted.bit_length() - 1))
        if slots < wanted and 2 * slots * SLOT_BYTES <= buffer_bytes:
            slots *= 2
        self._mask = _U(slots - 1)
        self._room = int(slots * LOAD_FACTOR)
        self._count = 0
        self._high = np.zeros(slots, np.uint64)
        self._low = np.zeros(slots, np.uint64)
        self._next = np.zeros(slots, np.int64)  # the offset after the key's; 0: the slot is free

    def __len__(self) -> int:
        return self._count

    def put(self, keys: Hashes, offset: Int64Array) -> int:
        """Take the keys of these offsets, which ascend, and are above all before them.

        Returns: how many rows were taken; fewer than there are when the table is full.
        """
        rows = len(offset)
        if self._count + rows > self._room:
            rows = self._fitting(keys)
            keys, offset = keys.select(slice(0, rows)), offset[:rows]
        following = offset + 1
        slot, step = self._start(keys)
        pending = np.arange(rows)
        while len(pending):
            at = slot[pending]
            is_free = self._next[at] == 0
            if is_free.any():
                self._claim(keys, following, pending[is_free], at[is_free])
            same = (self._high[at] == keys.high[pending]) & (self._low[at] == keys.low[pending])
            self._raise(following, pending[same], at[same])
            pending = pending[~same]
            slot[pending] = (slot[pending] + step[pending]) & self._mask
        return rows

    def latest(self, keys: Hashes) -> Int64Array:
        """The last offset of each key; -1: not known."""
        found = np.zeros(len(keys.high), np.int64)
        if not self._count:
            return found - 1
        slot, step = self._start(keys)
        pending = np.arange(len(found))
        while len(pending):
            at = slot[pending]
            following = self._next[at]
            same = (self._high[at] == keys.high[pending]) & (self._low[at] == keys.low[pending])
            same &= following > 0
            found[pending[same]] = following[same]
            pending = pending[~same & (following > 0)]
            slot[pending] = (slot[pending] + step[pending]) & self._mask
        return found - 1

    def _start(self, keys: Hashes) -> tuple[UInt64Array, UInt64Array]:
        """Where to look first, and how far to go from there: odd, so that every slot is reached."""
        return keys.high & self._mask, keys.low | _U(1)

    def _fitting(self, keys: Hashes) -> int:
        """How many rows there is room for."""
        is_new = np.flatnonzero(self.latest(keys) < 0)
        pairs = np.stack([keys.high[is_new], keys.low[is_new]], axis=1)
        _, first = np.unique(pairs, axis=0, return_index=True)
        room = self._room - self._count
        if len(first) <= room:
            return len(keys.high)
        return int(is_new[np.sort(first)[room]])

    def _claim(
        self, keys: Hashes, following: Int64Array, rows: npt.NDArray[np.intp], at: UInt64Array
    ) -> None:
        """Of the rows that want a free slot, whichever has written last gets it."""
        self._next[at] = following[rows]
        won = self._next[at] == following[rows]
        rows, at = rows[won], at[won]
        self._high[at], self._low[at] = keys.high[rows], keys.low[rows]
        self._count += len(rows)

    def _raise(self, following: Int64Array, rows: npt.NDArray[np.intp], at: UInt64Array) -> None:
        """Several rows may be of one key, and NumPy does not say which of them is written last."""
        while len(rows):
            lower = self._next[at] < following[rows]
            rows, at = rows[lower], at[lower]
            self._next[at] = following[rows]
