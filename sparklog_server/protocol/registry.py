"""The APIs that are served: one entry per key, filled by the modules of sparklog_server.api.

Invariants: ApiVersions tells exactly what is registered here (and Produce from 0, see
    api/api_versions.py); a key is registered once.
Not here: reading and writing of bytes (messages.py), sockets (network/).
Sources: Kafka ApiKeys, RequestContext, KafkaApis.
"""

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sparklog_server.protocol.answers import HeldAnswer
from sparklog_server.settings.addresses import AdvertisedListener

if TYPE_CHECKING:
    from sparklog_server.broker import Broker

PRODUCE = 0
FETCH = 1
METADATA = 3
JOIN_GROUP = 11
SYNC_GROUP = 14
API_VERSIONS = 18

# Requests that wait for something to happen elsewhere (records, other members). They do not count as
# being worked on: five hundred idle consumers must not use up queued.max.requests.
WAITING_APIS = frozenset({FETCH, JOIN_GROUP, SYNC_GROUP})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """What a handler may know of a request beside its body."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    connection_id: int
    peer_host: str
    listener: AdvertisedListener
    received_ms: int
    types: ModuleType
    answer: HeldAnswer


@dataclass(frozen=True, slots=True)
class FileRegion:
    """Bytes of an open file, sent with sendfile; the descriptor stays open until they are sent."""

    descriptor: int
    position: int
    size: int


Chunk = bytes | bytearray | memoryview | FileRegion


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A body that is encoded already; the chunks are sent one after the other, never joined.

    `release` is called once, when the chunks were sent or the connection is gone: buffers and files
    that they lie in may be reused from then on.
    """

    chunks: Sequence[Chunk]
    release: Callable[[], None] | None = None


class CloseConnectionError(Exception):
    """Raised by a handler to have the connection closed, and nothing more: no bug, no traceback."""


Handler = Callable[[Any, RequestContext, "Broker"], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiEntry:
    """A served API.

    Fields:
        name: Kafka's, from the handler's: handle_list_offsets is ListOffsets.
        pipelined: the next request of the connection may start before this one is answered.
        cancellable: the handler may be cancelled (asyncio) when the client goes away.
    """

    key: int
    name: str
    versions: range
    handler: Handler
    pipelined: bool
    cancellable: bool


_entries: dict[int, ApiEntry] = {}


def api(
    *, key: int, versions: range, pipelined: bool = False, cancellable: bool = False
) -> Callable[[Handler], Handler]:
    """Register the handler of an API; see ApiEntry.

    The handler takes kio's request entity, the context and the broker. It returns kio's response entity of
    the same version, or a Response, or None to send nothing. It maps errors itself (errors.py): an
    exception that leaves it is a bug, is logged, and closes the connection. Everything before its first
    await happens in the order of the connection's requests.
    """

    def register(handler: Handler) -> Handler:
        if key in _entries and _entries[key].handler.__module__ != handler.__module__:
            raise RuntimeError(f"API {key}: registered by {_entries[key].handler.__module__} already")
        _entries[key] = ApiEntry(
            key=key,
            name=handler.__name__.removeprefix("handle_").title().replace("_", ""),
            versions=versions,
            handler=handler,
            pipelined=pipelined,
            cancellable=cancellable,
        )
        return handler

    return register


def load_apis() -> dict[int, ApiEntry]:
    """Every API there is, by key: imports all modules of sparklog_server.api."""
    package = importlib.import_module("sparklog_server.api")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"sparklog_server.api.{module.name}")
    return dict(sorted(_entries.items()))
