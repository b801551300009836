"""Bodies of responses that are bytes already, and how a handler says that there is nothing more to say.

Not here: headers and lengths (messages.py), sending (network/frames.py).
Concurrency: values; a Response is sent once.
"""

import asyncio
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from sparklog_server.runtime.budget import Budget, Held

# --- lengths -----------------------------------------------------------------------------------------
#
# Kafka's unsigned varints (seven bits a byte, the low ones first), and the lengths of arrays and strings.
#
# Concurrency: pure.
# Sources: KIP-482.


_SHORT = [bytes([value]) for value in range(0x80)]
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


def uvarint(value: int) -> bytes:
    """A number that is not negative."""
    if value < 0x80:
        return _SHORT[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def compact_length(length: int) -> bytes:
    """The length of what follows in flexible versions: one more than it is, so that null (-1) is 0."""
    return _SHORT[length + 1] if length < 0x7F else uvarint(length + 1)


def encode_count(count: int, *, flexible: bool) -> bytes:
    """The number of elements before an array; -1: null."""
    return compact_length(count) if flexible else _INT32.pack(count)


def encode_text(text: str | None, *, flexible: bool) -> bytes:
    """A string with its length; None: null."""
    if text is None:
        return compact_length(-1) if flexible else _INT16.pack(-1)
    data = text.encode()
    return (compact_length(len(data)) if flexible else _INT16.pack(len(data))) + data


# --- wire --------------------------------------------------------------------------------------------


class FileRegion(msgspec.Struct, frozen=True):
    """Bytes of an open file, sent with sendfile; the descriptor stays open until they are sent."""

    descriptor: int
    position: int
    size: int


Chunk = bytes | bytearray | memoryview | FileRegion

# The throttle time of a client that need not wait, where it is written by hand; entities have it by default.
NOT_THROTTLED = bytes(4)


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A body that is encoded already; the chunks are sent one after the other, never joined.

    `release` is called once, when the chunks were sent or the connection is gone: buffers and files
    that they lie in may be reused from then on.
    """

    chunks: Sequence[Chunk]
    release: Callable[[], None] | None = None


class CloseConnectionError(Exception):
    """Raised by a handler to have the connection closed, and nothing more: no bug, no traceback."""


# --- answers -----------------------------------------------------------------------------------------
#
# Answers that are out of proportion to what was asked: counted before they are made, made piece by piece.
#
# A request of 900 bytes may name a group whose members hold megabytes, or a thousand groups. So what an
# answer takes is estimated from what is in memory already; beyond MAX_ANSWER_BYTES the rest is refused, and
# what is large waits until the answers to others have been sent (`sparklog.queued.max.response.bytes`).
#
# Whatever is not counted by its handler counts when it is encoded, until it is sent (dispatch/dispatcher.py):
# it is there while it waits, one for each connection. What was counted as less than it is counts as it is
# then.
# Invariant: who waits for room holds nothing that has no share for each address, as slots
# (dispatch/dispatcher.py), and nothing that they need to end who have room; those have all else already.
# Not here: fetched records, which have limits of their own (fetch/service.py); what is said beside them
# counts.
# Concurrency: event loop only.


T = TypeVar("T")
A = TypeVar("A")
MAX_ANSWER_BYTES = 32 << 20
SMALL_BYTES = 64 << 10  # answers below are not counted
SLICE = 256  # some milliseconds of making entities


class HeldAnswer(Held):
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
