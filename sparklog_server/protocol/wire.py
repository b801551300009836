"""Response bodies that are already encoded, and the error by which a handler closes the connection.

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
    """Encode a number that is not negative."""
    if value < 0x80:
        return _SHORT[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def compact_length(length: int) -> bytes:
    """Encode a length of flexible versions: plus one, so that null (-1) is 0."""
    return _SHORT[length + 1] if length < 0x7F else uvarint(length + 1)


def encode_count(count: int, *, flexible: bool) -> bytes:
    """Encode the number of elements before an array; -1: null."""
    return compact_length(count) if flexible else _INT32.pack(count)


def encode_text(text: str | None, *, flexible: bool) -> bytes:
    """Encode a string with its length; None: null."""
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

# The throttle time of a client that need not wait, for responses written by hand; the default of entities.
NOT_THROTTLED = bytes(4)


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """An encoded body; the chunks are sent in order, never joined.

    `release` is called once, when the chunks were sent or the connection is gone: their buffers and files
    may be reused from then on.
    """

    chunks: Sequence[Chunk]
    release: Callable[[], None] | None = None


class CloseConnectionError(Exception):
    """Raised by a handler to close the connection; not a bug, so without a traceback."""


# --- answers -----------------------------------------------------------------------------------------
#
# Answers that are much larger than their requests: counted before they are built, built piece by piece.
#
# A request of 900 bytes may name a group whose members hold megabytes, or a thousand groups. So the size
# of an answer is estimated from the data in memory; beyond MAX_ANSWER_BYTES the rest is refused, and large
# answers wait until other answers have been sent (`sparklog.queued.max.response.bytes`).
#
# An answer that its handler does not count is counted after encoding, until it is sent
# (dispatch/dispatcher.py): it is in memory while it waits, one per connection. A larger answer than counted
# is counted again then.
# Invariant: a request that waits for room holds no resource without shares per address, such as slots
# (dispatch/dispatcher.py), and no resource that requests with room still need; those hold all others already.
# Not here: fetched records, which have their own limits (fetch/service.py); the rest of a Fetch answer
#     counts.
# Concurrency: event loop only.


T = TypeVar("T")
A = TypeVar("A")
MAX_ANSWER_BYTES = 32 << 20
SMALL_BYTES = 64 << 10  # answers below are not counted
SLICE = 256  # building so many entities takes some milliseconds


class HeldAnswer(Held):
    """The memory of one request's answer, from before it is built until it is sent."""

    __slots__ = ("_left", "throttle_ms")

    def __init__(
        self, budget: Budget, owner: str = "", before_waiting: Callable[[], None] | None = None
    ) -> None:
        super().__init__(budget, owner, before_waiting)
        self._left = MAX_ANSWER_BYTES
        self.throttle_ms = 0.0  # how long the client has to wait; set by handlers

    def fits(self, size: int) -> bool:
        """Count a piece; return False if the answer would be too large, and the piece must be refused."""
        if size > self._left:
            return False
        self._left -= size
        return True

    async def reserve(self) -> None:
        """Wait until there is room for the counted pieces."""
        await self.hold(MAX_ANSWER_BYTES - self._left)

    async def hold(self, size: int) -> None:
        """Wait until there is room for `size` bytes, which are never refused: the request named them."""
        if size > SMALL_BYTES and not self.is_held:
            await self.take(size)

    async def hold_made(self, size: int) -> None:
        """Count the size of the built answer: wait as `hold` does, or add what was counted too low."""
        if self.is_held:
            self.raise_to(size)
        else:
            await self.hold(size)


def held_bytes(chunks: Iterable[Chunk]) -> int:
    """Return the memory of the chunks; a chunk that is sent several times counts once."""
    own = {id(one): one for one in chunks if not isinstance(one, FileRegion)}
    return sum(map(len, own.values()))


def text_bytes(text: str) -> int:
    """Return the largest encoded size: up to four bytes per character."""
    return len(text) if text.isascii() else len(text.encode())


async def in_slices(pieces: Iterable[T]) -> list[T]:
    """Return all pieces; yield to the event loop every few milliseconds."""
    made: list[T] = []
    for piece in pieces:
        made.append(piece)
        if len(made) % SLICE == 0:
            await asyncio.sleep(0)
    return made


class Pace:
    """Yields to the event loop, for pieces that are not built by `in_slices`."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made = 0

    async def made(self, count: int) -> None:
        """Count built pieces; yield to the event loop every few milliseconds."""
        self._made += count
        if self._made >= SLICE:
            self._made = 0
            await asyncio.sleep(0)


def by_topic(values: Mapping[tuple[str, int], T], made: Callable[[int, T], A]) -> dict[str, list[A]]:
    """Return `made(number, value)` of each partition, in a list for each topic."""
    topics: dict[str, list[A]] = {}
    for (topic, number), one in values.items():
        topics.setdefault(topic, []).append(made(number, one))
    return topics
