"""One of the queued.max.requests slots, as one request holds it.

Slots have no shares, other than the room for requests, work and answers: a few hundred connections of one
address can have all of them. So nobody may hold one who waits for what a client decides, such as the reading
of an answer; whoever begins to wait so gives it back, and goes on without it.
Invariants: taken once, given back once.
Concurrency: event loop only.
"""

import asyncio


class HeldSlot:
    """See the module's docstring."""

    __slots__ = ("_is_held", "_slots")

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._is_held = False

    async def take(self) -> None:
        """Wait until there is one."""
        await self._slots.acquire()
        self._is_held = True

    def give_back(self) -> None:
        """Somebody else may begin; may be called again, or without having taken one."""
        if self._is_held:
            self._is_held = False
            self._slots.release()
