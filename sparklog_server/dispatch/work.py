"""What a request takes while it is worked on, counted before it is made.

64 KB may name 15,000 partitions. What becomes of them (entities, plans, outcomes, the entities of the answer)
is objects of Python: some 600 bytes for each name, a hundred times as many bytes as were sent. So elements
are counted by the walk over the bytes (protocol/guard.py), and a request of more than a few waits, as bytes,
until those before it have been answered.

Invariants: what was taken is given back, once. Requests that wait for something to happen (Fetch, JoinGroup,
    SyncGroup) take nothing here: they might wait for each other, and count what they keep themselves.
Concurrency: event loop only.
"""

from typing import Final

from sparklog_server.network.limits import ByteBudget

WORK_BYTES: Final = 32 << 20  # of all requests that are worked on
ELEMENT_BYTES: Final = 600  # measured: 590 for a part of Produce, 320 for a topic of CreateTopics
_FEW_ELEMENTS = 64  # are not counted: queued.max.requests times as many are 20 MB


class HeldWork:
    """What one request takes, from before it is decoded until its answer is sent."""

    __slots__ = ("_budget", "_owner", "_taken")

    def __init__(self, budget: ByteBudget, owner: str) -> None:
        self._budget = budget
        self._owner = owner
        self._taken = 0

    @property
    def is_held(self) -> bool:
        """May others wait for it?"""
        return self._taken > 0

    async def reserve(self, elements: int) -> None:
        """Wait until there is room for a request of so many."""
        if elements > _FEW_ELEMENTS:
            size = elements * ELEMENT_BYTES
            await self._budget.take(self, size, self._owner)
            self._taken = size

    def release(self) -> None:
        """It is answered, or never will be; may be called again."""
        taken, self._taken = self._taken, 0
        if taken:
            self._budget.give_back(self, taken, self._owner)
