"""When the next assignment of a group is computed, and where: of consumer groups and of share groups.

The first one is computed immediately; the others at least an interval after the last one, by a timer if no
member asks. Large ones are computed in a thread. Beyond Kafka: a group's assignments take at most a tenth of
the time.

Concurrency: pure; a group owns its pace.
Sources: KIP-1263; Kafka GroupMetadataManager.canComputeNextTargetAssignment.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

MAX_INLINE_WEIGHT: Final = 20_000  # members, partitions and subscribed topics: some 40 ms
BUSY_SHARE: Final = 10  # computing assignments takes at most a tenth of the time
T = TypeVar("T")


class AssignmentPace:
    """The pace of one group. `next_ms`: monotonic; the next assignment is not computed before."""

    __slots__ = ("next_ms",)

    def __init__(self) -> None:
        self.next_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """True if the next assignment may be computed now."""
        return self.next_ms <= now_ms

    def end(self, now_ms: int, *, interval_ms: int, took_ms: int) -> None:
        """Count the pause until the next assignment from now on. `took_ms`: in a thread."""
        self.next_ms = now_ms + max(interval_ms, BUSY_SHARE * took_ms)


async def measured(run: Callable[[Callable[[], T]], Awaitable[T]], compute: Callable[[], T]) -> tuple[T, int]:
    """Return what `compute` returns in a thread of `run`, and the milliseconds that it took."""
    began = time.monotonic()
    result = await run(compute)
    return result, int(1000 * (time.monotonic() - began))
