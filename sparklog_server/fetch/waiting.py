"""How much a fetch could be answered with, from the metadata alone, and the wait until that is enough.

Invariants: the sum over an operation's partitions is kept up to date by looking only at the partition that
    changed; an error, a deleted topic or another leader ends the wait at once.
Not here: reading (service.py), waking up (runtime/purgatory.py).
Concurrency: event loop only.
Sources: Kafka DelayedFetch.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from sparklog.metadata import Image, PartitionState
from sparklog_server.fetch.sessions import PartitionFetch
from sparklog_server.runtime.purgatory import DelayedOperation, WatchKey


def countable_bytes(state: PartitionState, fetch: PartitionFetch, min_bytes: int) -> int:
    """What a partition adds to the bytes that a fetch waits for. Counting ends when it alone is enough."""
    return state.extents.bytes_from(fetch.offset, max(1, min(fetch.max_bytes, min_bytes)))


class DelayedFetch(DelayedOperation):
    """A fetch that waits until its partitions have `min_bytes`."""

    __slots__ = ("_bytes", "_fetches", "_get_image", "_leaderships", "_min_bytes", "_total", "done")

    def __init__(
        self,
        fetches: Sequence[tuple[PartitionFetch, PartitionState, int]],
        min_bytes: int,
        get_image: Callable[[], Image],
        done: asyncio.Future[None],
    ) -> None:
        """The integers are the bytes that each partition has now."""
        super().__init__()
        self.done = done
        self._get_image = get_image
        self._min_bytes = min_bytes
        self._fetches: Mapping[WatchKey, PartitionFetch] = {
            (state.topic_id, state.partition): fetch for fetch, state, _ in fetches
        }
        self._leaderships = {(state.topic_id, state.partition): state.leadership for _, state, _ in fetches}
        self._bytes: dict[WatchKey, int] = {}
        self._total = sum(size for _, _, size in fetches)
        for _, state, size in fetches:
            if size:
                self._bytes[state.topic_id, state.partition] = size

    @property
    def keys(self) -> list[WatchKey]:
        """What to watch."""
        return list(self._fetches)

    def try_complete(self, key: WatchKey) -> bool:
        topic = self._get_image().topic_by_id.get(key[0])
        if topic is None or key[1] >= len(topic.partitions):
            return True
        state, fetch = topic.partitions[key[1]], self._fetches[key]
        if fetch.offset < state.log_start_offset or state.leadership != self._leaderships[key]:
            return True
        size = countable_bytes(state, fetch, self._min_bytes)
        self._total += size - self._bytes.get(key, 0)
        self._bytes[key] = size
        return self._total >= self._min_bytes

    def on_complete(self, *, expired: bool) -> None:
        del expired  # answered alike: with what there is
        if not self.done.done():
            self.done.set_result(None)
