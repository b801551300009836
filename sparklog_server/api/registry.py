"""The APIs that are served: one declaration per key, made by the modules of this package.

Invariants: ApiVersions tells exactly what is declared here (and Produce from 0, see api_versions.py); a key
    is declared once.
Not here: reading and writing of bytes (protocol/messages.py), sockets (network/).
Sources: Kafka ApiKeys, KafkaApis.
"""

import functools
import importlib
import pkgutil
import types
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiEntry, ApiKey, RequestContext

Handler = Callable[[Any, RequestContext, Services], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredApi:
    """What a module of this package declares; see ApiEntry for the fields."""

    key: ApiKey
    name: str
    versions: range
    handler: Handler
    pipelined: bool
    waits: bool
    counts: bool

    def bind(self, services: Services) -> ApiEntry:
        """The API, served with these."""
        return ApiEntry(
            key=self.key,
            name=self.name,
            versions=self.versions,
            handle=functools.partial(_call, self.handler, services),
            pipelined=self.pipelined,
            waits=self.waits,
            counts=self.counts,
        )


_declared: dict[int, DeclaredApi] = {}


def api(
    key: ApiKey, *, versions: range, pipelined: bool = False, waits: bool = False, counts: bool = False
) -> Callable[[Handler], Handler]:
    """Declare the handler of an API; see ApiEntry.

    The handler takes kio's request entity, the context and the services. It returns kio's response entity of
    the same version, or a Response, or None to send nothing. It maps errors itself (protocol/apis.py): an
    exception that leaves it is a bug, is logged, and closes the connection. Everything before its first
    await happens in the order of the connection's requests.
    """

    def declare(handler: Handler) -> Handler:
        if key in _declared and _declared[key].handler.__module__ != handler.__module__:
            raise RuntimeError(f"API {key}: registered by {_declared[key].handler.__module__} already")
        _declared[key] = DeclaredApi(
            key=key,
            name=handler.__name__.removeprefix("handle_").title().replace("_", ""),
            versions=versions,
            handler=handler,
            pipelined=pipelined,
            waits=waits,
            counts=counts,
        )
        return handler

    return declare


@functools.cache
def declared_apis() -> Mapping[int, DeclaredApi]:
    """Every API there is, by key: imports all modules of this package."""
    package = importlib.import_module("sparklog_server.api")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"sparklog_server.api.{module.name}")
    return types.MappingProxyType(dict(sorted(_declared.items())))


def bind_apis(services: Services) -> dict[int, ApiEntry]:
    """Every API there is, by key, served with these."""
    return {key: one.bind(services) for key, one in declared_apis().items()}


def _call(handler: Handler, services: Services, body: Any, context: RequestContext) -> Awaitable[Any]:
    return handler(body, context, services)
