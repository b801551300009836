"""A served API, and what is known of one request beside its body.

An entry's `handle` is bound to whatever its handler needs: who calls it knows nothing of the parts of a
broker, and whoever reads requests and sends responses needs no more than this.
Not here: which APIs there are (api/), reading and writing of bytes (messages.py).
Sources: Kafka ApiKeys, RequestContext.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import msgspec

from sparklog_server.protocol.answers import HeldAnswer
from sparklog_server.settings.addresses import AdvertisedListener


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler may know of a request beside its body."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    connection_id: int
    peer_host: str
    listener: AdvertisedListener
    types: ModuleType
    answer: HeldAnswer


Handle = Callable[[Any, RequestContext], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiEntry:
    """A served API.

    Fields:
        name: Kafka's, from the handler's: handle_list_offsets is ListOffsets.
        pipelined: the next request of the connection may start before this one is answered.
        waits: the handler waits for something to happen elsewhere (records, other members). It does not
            count as being worked on, since five hundred idle consumers must not use up queued.max.requests,
            and it may be cancelled (asyncio) when the client goes away.
        counts: one that waits, but for a moment, and for no other request: what comes of its elements counts
            as work, as that of those that do not wait.
    """

    key: int
    name: str
    versions: range
    handle: Handle
    pipelined: bool = False
    waits: bool = False
    counts: bool = False
