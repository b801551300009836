"""What a request takes while it is worked on, counted before it is made.

64 KB may name 15,000 partitions. What becomes of them (entities, plans, outcomes, the entities of the answer)
is objects of Python: some 600 bytes for each name, a hundred times as many bytes as were sent. So elements
are counted by the walk over the bytes (protocol/guard.py), and a request of more than a few waits, as bytes,
until those before it have been answered.

The walk itself takes a microsecond for each element. A hundred such requests that come together would all be
walked over before anybody else has a turn; so from the first of them on it is one a turn of the event loop.

Invariants: what was taken is given back, once. Requests that wait for something to happen (Fetch, JoinGroup,
    SyncGroup) take nothing here: they might wait for each other, and count what they keep themselves. One
    that waits for a moment, and for none of them, does (ApiEntry, `counts`): FindCoordinator.
Concurrency: event loop only.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from sparklog_server.protocol.held_room import HeldRoom
from sparklog_server.protocol.messages import Examined

WORK_BYTES: Final = 32 << 20  # of all requests that are worked on
ELEMENT_BYTES: Final = 600  # measured: 590 for a part of Produce, 320 for a topic of CreateTopics
FEW_ELEMENTS = 64  # are not counted: queued.max.requests times as many are 20 MB
MANY_ELEMENTS = 500  # whose walk others notice
SMALL_FRAME_BYTES = 4096  # a request that is no larger is never put off


class Turns:
    """Who walks over a large request, and when."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._is_crowded = False

    async def examine(self, frame_bytes: int, walk: Callable[[], Examined]) -> Examined:
        """What `walk` returns; after one that took long, the next in another turn of the event loop."""
        if frame_bytes <= SMALL_FRAME_BYTES or not (self._is_crowded or self._lock.locked()):
            return self._walk(walk)
        async with self._lock:
            if self._is_crowded:
                await asyncio.sleep(0)
            return self._walk(walk)

    def _walk(self, walk: Callable[[], Examined]) -> Examined:
        examined = walk()
        if examined.elements > MANY_ELEMENTS and not self._is_crowded:
            self._is_crowded = True
            asyncio.get_running_loop().call_soon(self._end_turn)
        return examined

    def _end_turn(self) -> None:
        self._is_crowded = False


class HeldWork(HeldRoom):
    """What one request takes, from before it is decoded until its answer is sent."""

    __slots__ = ()

    async def reserve(self, elements: int) -> None:
        """Wait until there is room for a request of so many."""
        if elements > FEW_ELEMENTS:
            await self.take(elements * ELEMENT_BYTES)
