"""Which partitions have consumers, so that only their appends are copied into memory.

Copying every append took 7 % of the time under the interpreter's lock while Kafka's perf test produced and
nobody consumed. Who comes first reads from storage, and has then made the partition a followed one.

Invariants: bounded by the partitions read within FOLLOWED_MS and as long again.
Concurrency: `note` in the event loop, `is_followed` in any thread.
"""

from collections.abc import Callable

FOLLOWED_MS = 300_000  # after the last read


class FollowedPartitions:
    """See the module's docstring.

    Args:
        now_ms: a clock that does not go back.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._read_ms: dict[tuple[str, int], int] = {}
        self._sweep_ms = now_ms() + FOLLOWED_MS

    def __len__(self) -> int:
        """How many partitions are remembered."""
        return len(self._read_ms)

    def note(self, topic_id: str, partition: int) -> None:
        """Somebody reads it."""
        now_ms = self._now_ms()
        self._read_ms[topic_id, partition] = now_ms
        if now_ms >= self._sweep_ms:
            self._sweep_ms = now_ms + FOLLOWED_MS
            since_ms = now_ms - FOLLOWED_MS
            self._read_ms = {key: ms for key, ms in self._read_ms.items() if ms >= since_ms}

    def is_followed(self, topic_id: str, partition: int) -> bool:
        """Has it been read lately?"""
        read_ms = self._read_ms.get((topic_id, partition))
        return read_ms is not None and self._now_ms() - read_ms <= FOLLOWED_MS
