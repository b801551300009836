"""Answers that are out of proportion to what was asked: counted before they are made, made piece by piece.

A request of 900 bytes may name a group whose members hold megabytes, or a thousand groups. So what an answer
takes is estimated from what is in memory already; beyond MAX_ANSWER_BYTES the rest is refused, and what is
large waits until the answers to others have been sent (`sparklog.queued.max.response.bytes`).

Whatever is not counted by its handler counts when it is encoded, until it is sent (dispatch/dispatcher.py):
it is there while it waits, one for each connection. What was counted as less than it is counts as it is then.
Invariant: who waits for room holds nothing that has no share for each address, as slots (dispatch/slots.py),
and nothing that they need to end who have room; those have all else already.
Not here: fetched records, which have limits of their own (fetch/service.py); what is said beside them counts.
Concurrency: event loop only.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from sparklog_server.protocol.held_room import Budget, HeldRoom
from sparklog_server.protocol.wire import Chunk, FileRegion

T = TypeVar("T")
A = TypeVar("A")
MAX_ANSWER_BYTES = 32 << 20
SMALL_BYTES = 64 << 10  # answers below are not counted
SLICE = 256  # some milliseconds of making entities


class HeldAnswer(HeldRoom):
    """What one request's answer takes, from before it is made until it is sent."""

    __slots__ = ("_left",)

    def __init__(
        self, budget: Budget, owner: str = "", before_waiting: Callable[[], None] | None = None
    ) -> None:
        super().__init__(budget, owner, before_waiting)
        self._left = MAX_ANSWER_BYTES

    def fits(self, size: int) -> bool:
        """Count a piece in; False: the answer would become too large with it, and it must be refused."""
        if size > self._left:
            return False
        self._left -= size
        return True

    async def reserve(self) -> None:
        """Wait until there is room for what was counted in."""
        await self.hold(MAX_ANSWER_BYTES - self._left)

    async def hold(self, size: int) -> None:
        """Wait until there is room for so much, which is never refused: it is what the request named."""
        if size > SMALL_BYTES and not self.is_held:
            await self.take(size)

    async def hold_made(self, size: int) -> None:
        """It is made, and takes so much: wait as `hold` does, or make good what was counted as less."""
        if self.is_held:
            self.raise_to(size)
        else:
            await self.hold(size)


def held_bytes(chunks: Iterable[Chunk]) -> int:
    """What they take in memory: what is sent again and again is there once."""
    own = {id(one): one for one in chunks if not isinstance(one, FileRegion)}
    return sum(map(len, own.values()))


def text_bytes(text: str) -> int:
    """What it takes when it is encoded: up to four bytes for a character."""
    return len(text) if text.isascii() else len(text.encode())


async def in_slices(pieces: Iterable[T]) -> list[T]:
    """All of them, with a turn for others every few milliseconds."""
    made: list[T] = []
    for piece in pieces:
        made.append(piece)
        if len(made) % SLICE == 0:
            await asyncio.sleep(0)
    return made


class Pace:
    """Whose turn it is: for pieces that are not made one after the other by `in_slices`."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made = 0

    async def made(self, count: int) -> None:
        """So many more; others have a turn every few milliseconds."""
        self._made += count
        if self._made >= SLICE:
            self._made = 0
            await asyncio.sleep(0)


def by_topic(told: Mapping[tuple[str, int], T], made: Callable[[int, T], A]) -> dict[str, list[A]]:
    """What is said of partitions, made of their number and of what is known, in a list for each topic."""
    topics: dict[str, list[A]] = {}
    for (topic, number), one in told.items():
        topics.setdefault(topic, []).append(made(number, one))
    return topics
