"""Connections of the HTTP endpoint: those that do nothing give way, so that a probe always gets in.

uvicorn answers 503 when there are too many connections, idle ones included: forty of them made /health say
that the broker is ill. Here a connection that has sent no whole request for IDLE_SECONDS is closed, and
beyond MAX_CONNECTIONS the address with most of them loses the one that has been idle for longest.

Invariants: at most MAX_CONNECTIONS, but for those that are being answered (endpoint.py bounds these).
Concurrency: event loop only.
"""

import asyncio
import collections
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS: Final = 64
IDLE_SECONDS: Final = 10.0


class HttpConnection(H11Protocol):
    """One connection; see the module's docstring."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(IDLE_SECONDS, self._end_if_idle)
        connections: set[Any] = self.connections
        if len(connections) > MAX_CONNECTIONS:
            _make_room([one for one in connections if isinstance(one, HttpConnection)])

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Is it not being answered?"""
        return self.cycle is None or self.cycle.response_complete

    @property
    def host(self) -> str:
        """Where it comes from."""
        return self.client[0] if self.client else ""

    def end(self) -> None:
        """Close it."""
        self.transport.abort()

    def _end_if_idle(self) -> None:
        if self.is_idle:
            self.end()
        else:
            self._deadline = self.loop.call_later(IDLE_SECONDS, self._end_if_idle)


def _make_room(connections: list[HttpConnection]) -> None:
    by_host = collections.Counter(one.host for one in connections)
    # A set has no order; the deadlines say who came first.
    idle = [one for one in connections if one.is_idle and not one.transport.is_closing()]
    if idle:
        min(idle, key=lambda one: (-by_host[one.host], _due(one))).end()


def _due(one: HttpConnection) -> float:
    return 0.0 if one._deadline is None else one._deadline.when()
