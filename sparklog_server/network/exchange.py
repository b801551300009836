"""What a connection needs to know of a request: how it is answered, and what it holds until then.

What a request is, and what is done with it, is decided above (dispatch/); a connection keeps the order.
Concurrency: event loop only.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from sparklog_server.network.frames import Frame
from sparklog_server.protocol.api_entry import ApiEntry
from sparklog_server.protocol.wire import Chunk
from sparklog_server.settings.addresses import AdvertisedListener


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The connection that a request came over."""

    number: int
    peer_host: str
    listener: AdvertisedListener

    def __str__(self) -> str:
        return f"connection {self.number} from {self.peer_host}"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """No chunks: nothing is sent. `failure`: the connection is closed, once earlier requests are answered."""

    chunks: Sequence[Chunk] = ()
    release: Callable[[], None] | None = None
    error: int = 0
    failure: str | None = None


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """When things happened, in seconds of the loop's clock."""

    began: float
    handled: float
    in_turn: float  # every earlier response was in the queue
    sent: float


class Request(Protocol):
    """A request that was read, until its answer is sent."""

    @property
    def entry(self) -> ApiEntry:
        """The API that it asks for."""

    @property
    def is_counted(self) -> bool:
        """May others wait for memory that it, or its answer, holds?"""

    async def handle(self) -> Answer:
        """What is to be sent. Nothing is raised but a cancellation."""

    def release(self) -> None:
        """It is answered, or never will be, handled or not; may be called again."""

    def count(self, answer: Answer, times: Times) -> None:
        """Its answer was sent."""


WaitForTurn = Callable[[ApiEntry], Awaitable[None]]
# From a frame, which is the request's from then on; waits until it is its connection's turn, and then where
# there is no room. Raises what ends the connection: MalformedRequestError, UnsupportedRequestError.
Dispatch = Callable[[Frame, Origin, WaitForTurn], Awaitable[Request]]
