"""The served APIs: one declaration per key, by the modules of this package; their reference.

Invariants: ApiVersions lists exactly the declared APIs (and Produce from 0, see cluster.py); a key is
    declared once. The docstring of a handler, or of a module with one handler, describes what the API does
    and does not do, and its versions: docs/apis.md is generated from it, and a test compares the versions.
Not here: reading and writing of bytes (protocol/messages.py), sockets (network/).
Sources: Kafka ApiKeys, KafkaApis.
"""

import functools
import importlib
import inspect
import pkgutil
import re
import sys
import types
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiEntry, ApiKey, RequestContext
from sparklog_server.security.checks import guarded
from sparklog_server.security.rules import RULES

Handler = Callable[[Any, RequestContext, Services], Awaitable[Any]]
_PART = re.compile(r"^(Does not|Does|Versions|Sources):(?= )", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredApi:
    """The declaration of a handler; see ApiEntry for the fields."""

    key: ApiKey
    name: str
    versions: range
    handler: Handler
    pipelined: bool
    waits: bool
    counts: bool

    @property
    def header(self) -> str:
        """Return the description of the API: the docstring of the handler, or of its module."""
        own = inspect.getdoc(self.handler) or ""
        return own if own.startswith(self.name) else sys.modules[self.handler.__module__].__doc__ or ""

    def bind(self, services: Services) -> ApiEntry:
        """Return the API, bound to these services, behind its rule of permissions.

        Raises KeyError if it has none: then it must not be served.
        """
        rule, handler, access = RULES[self.key], self.handler, services.access

        def handle(body: Any, context: RequestContext) -> Awaitable[Any]:
            if rule.check is None or not access.is_on:
                return handler(body, context, services)
            return guarded(
                rule, access.caller(context), body, lambda request: handler(request, context, services)
            )

        return ApiEntry(
            key=self.key,
            name=self.name,
            versions=self.versions,
            handle=handle,
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
        known = _declared.get(key)
        if known is not None and _place(known.handler) != _place(handler):
            raise RuntimeError(f"API {key}: registered by {'.'.join(_place(known.handler))} already")
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
    """Return all APIs, by key: imports all modules of this package."""
    package = importlib.import_module("sparklog_server.api")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"sparklog_server.api.{module.name}")
    return types.MappingProxyType(dict(sorted(_declared.items())))


def bind_apis(services: Services) -> dict[int, ApiEntry]:
    """Return all APIs, by key, bound to these services."""
    return {key: one.bind(services) for key, one in declared_apis().items()}


def _place(handler: Handler) -> tuple[str, str]:
    return handler.__module__, handler.__name__


# --- reference ---------------------------------------------------------------------------------------


class ApiText(NamedTuple):
    """The text about an API in docs/apis.md."""

    name: str
    key: int
    versions: str
    does: str
    does_not: str


def describe_apis() -> list[ApiText]:
    """Return the reference of every API, by key."""
    described = []
    for declared in declared_apis().values():
        parts = _parts(declared.header)
        first, last = declared.versions.start, declared.versions.stop - 1
        versions = str(first) if first == last else f"{first}-{last}"
        described.append(
            ApiText(
                declared.name,
                int(declared.key),
                versions,
                parts.get("Does", ""),
                parts.get("Does not", ""),
            )
        )
    return described


def _parts(header: str) -> dict[str, str]:
    """Return each part as one line: up to the next part, or to a line without indentation."""
    found = list(_PART.finditer(header))
    ends = [part.start() for part in found[1:]] + [len(header)]
    return {
        part[1]: _one_line(header[part.end() : end].strip()) for part, end in zip(found, ends, strict=True)
    }


def _one_line(text: str) -> str:
    own = re.split(r"\n(?! )", text)[0]
    return " ".join(own.split())
