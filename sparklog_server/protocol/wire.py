"""Bodies of responses that are bytes already, and how a handler says that there is nothing more to say.

Not here: headers and lengths (messages.py), sending (network/frames.py).
Concurrency: values; a Response is sent once.
"""

from collections.abc import Callable, Sequence

import msgspec


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
