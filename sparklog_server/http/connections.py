"""Connections of the HTTP endpoint: those that do nothing give way, so that a probe always gets in.

uvicorn answers 503 when there are too many connections, idle ones included: forty of them made /health say
that the broker is ill. Here a connection that has sent no whole request for IDLE_SECONDS is closed, and
beyond MAX_CONNECTIONS the address with most of them loses the first that came of those that are idle. An
answer may be taken slowly, but within ANSWER_SECONDS.

Invariants: at most MAX_CONNECTIONS, but for those that are being answered (scrapes.py bounds these).
Concurrency: event loop only.
"""

import asyncio
import collections
import itertools
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from sparklog_server.settings.addresses import plain_host

MAX_CONNECTIONS: Final = 64
IDLE_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0
_turns = itertools.count()


class HttpConnection(H11Protocol):
    """One connection; see the module's docstring."""

    _deadline: asyncio.TimerHandle | None = None
    _answered_by = 0.0  # seconds of the loop's clock
    turn = 0  # who came first: many come in one moment of the clock

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.turn = next(_turns)
        self._await_request()
        connections: set[Any] = self.connections
        # Not this one, though the others may all be busy; nor those that have just given way.
        others = [one for one in connections if one is not self and not one.transport.is_closing()]
        if len(others) >= MAX_CONNECTIONS:
            _make_room(others)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._await_request()  # and that the end of this answer is taken

    @property
    def is_idle(self) -> bool:
        """Is it not being answered?"""
        return self.cycle is None or self.cycle.response_complete

    @property
    def host(self) -> str:
        """Where it comes from."""
        return plain_host(self.client[0]) if self.client else ""

    def end(self) -> None:
        """Close it."""
        self.transport.abort()

    def _await_request(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._answered_by = self.loop.time() + IDLE_SECONDS + ANSWER_SECONDS
        self._deadline = self.loop.call_later(IDLE_SECONDS, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if self.is_idle or self.loop.time() >= self._answered_by:
            self.end()
        else:
            self._deadline = self.loop.call_later(IDLE_SECONDS, self._end_if_idle)


def _make_room(connections: list[HttpConnection]) -> None:
    by_host = collections.Counter(one.host for one in connections)
    idle = [one for one in connections if one.is_idle]
    if idle:
        min(idle, key=lambda one: (-by_host[one.host], one.turn)).end()
