"""/metrics, /health, /ready, /console, on a port of their own (sparklog.http.listener; off unless it is set).

With sparklog.http.security.protocol=SSL over TLS; with SASL_SSL for users who log in, too (login.py).

/health: 200 if the process is alive, its event loop answers, and the broker has not failed; else restart it.
/ready: 200 if the broker serves: registered and not fenced, with a fresh image, its groups loaded, the root
    visible, accepting connections; else send it no clients. A broker without leaderships is ready too.
/console: the web console of the root (sparklog/console), with the image that the broker follows; it samples
    the lag of groups while the broker runs. Only by names of this broker (DNS rebinding); probes use any.
Invariants: a probe waits for no other request. Only the path, the query and headers are read from clients,
    and with sparklog.console.write the bodies of the console's forms.
Concurrency: uvicorn in the broker's event loop.
"""

import asyncio
import collections
import contextlib
import itertools
import logging
import socket
import ssl
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from sparklog.client.security import PLAINTEXT, ClientSecurity, read_client_security
from sparklog.console.app import create_app
from sparklog.console.message_masks import MessageRules, load_rules
from sparklog_server.http.login import Login
from sparklog_server.network.tls import Certificates
from sparklog_server.observe.collector import Scraper
from sparklog_server.observe.observation import Parts, Utilization, is_root_visible, reason_not_in_charge
from sparklog_server.runtime.crypto_threads import CryptoThreads
from sparklog_server.runtime.lifecycle import BrokerState
from sparklog_server.security.access import Access
from sparklog_server.security.audit import AUDIT_TOPIC
from sparklog_server.security.tokens import Tokens
from sparklog_server.settings.config import HTTP, ServerConfig
from sparklog_server.settings.network import bind_host, new_socket, plain_host
from sparklog_server.settings.security import OAUTHBEARER, SecuredListener

# --- connections -------------------------------------------------------------------------------------
#
# Connections of the HTTP endpoint: idle ones are closed, so that a probe can always connect.
#
# uvicorn answers 503 if there are too many connections, idle ones included: with forty of them /health
# reported a failed broker. Here a connection without a complete request for IDLE_SECONDS is closed. Beyond
# MAX_CONNECTIONS the oldest idle connection of the address with most connections is closed; those that have
# begun a form and do not end it count as idle. A client may receive an answer slowly, but within
# ANSWER_SECONDS.
#
# Invariants: at most MAX_CONNECTIONS, except those that are being answered (MAX_SCRAPES limits these).
# Concurrency: event loop only.


MAX_CONNECTIONS: Final = 64
IDLE_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0
_numbers = itertools.count()


class HttpConnection(H11Protocol):
    """A connection that is closed when it is idle for too long."""

    _deadline: asyncio.TimerHandle | None = None
    _answered_by = 0.0  # seconds of the loop's clock
    number = 0  # in the order of connecting: timestamps may be equal

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.number = next(_numbers)
        self._await_request()
        connections: set[Any] = self.connections
        # Not this one, even if all others are busy; nor those that are being closed.
        others = [other for other in connections if other is not self and not other.transport.is_closing()]
        if len(others) >= MAX_CONNECTIONS:
            _close_an_idle(others)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._await_request()  # and the client's receipt of this answer

    @property
    def is_idle(self) -> bool:
        """True if no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_incomplete(self) -> bool:
        """True if it is idle, or its request's body is still to come."""
        return self.is_idle or bool(self.cycle.more_body)

    @property
    def host(self) -> str:
        """The client's address."""
        return plain_host(self.client[0]) if self.client else ""

    def end(self) -> None:
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


def _close_an_idle(connections: list[HttpConnection]) -> None:
    by_host = collections.Counter(connection.host for connection in connections)
    idle = [connection for connection in connections if connection.is_incomplete]
    if idle:
        min(idle, key=lambda connection: (-by_host[connection.host], connection.number)).end()


# asyncio makes a connection with TLS known when its handshake is over, within a minute, and keeps 300 KB for
# it until then. So those in a handshake are counted where they are accepted. Beyond MAX_HANDSHAKES the oldest
# of the address with most is ended.


MAX_HANDSHAKES: Final = 64


class HandshakesSocket(socket.socket):
    """A listening socket that bounds the connections whose TLS handshake is not over."""

    def __init__(self, bound: socket.socket, connected: Callable[[], Iterable[int]]) -> None:
        """Take over `bound`. `connected`: the descriptors of connections after their handshake."""
        super().__init__(fileno=bound.detach())
        self._connected = connected
        self._accepted: list[tuple[str, weakref.ref[socket.socket]]] = []  # the oldest first

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and end another one if there are too many."""
        accepted, address = super().accept()
        over = set(self._connected())
        self._accepted = [one for one in self._accepted if _descriptor(one[1]()) not in over | {-1}]
        if len(self._accepted) >= MAX_HANDSHAKES:
            by_host = collections.Counter(host for host, _ in self._accepted)
            oldest = max(self._accepted, key=lambda one: by_host[one[0]])  # the first of equal ones
            self._accepted.remove(oldest)
            ended = oldest[1]()
            if ended is not None:
                with contextlib.suppress(OSError):
                    ended.shutdown(socket.SHUT_RDWR)
        self._accepted.append((plain_host(address[0]), weakref.ref(accepted)))
        return accepted, address


def _descriptor(sock: socket.socket | None) -> int:
    return -1 if sock is None else sock.fileno()


# --- scrapes -----------------------------------------------------------------------------------------
#
# /metrics: texts of some megabytes, for a limited number of concurrent scrapes.
#
# uvicorn buffers data that a client has not received, and counts it as sent; it only waits for the client if
# more data follows. So the end of an answer is sent separately.
# Invariants: at most MAX_SCRAPES wait for their text or are being sent; more are refused (503), so that few
#     connections wait for a text.
# Not here: the metrics, and building one text at a time (observe/collector.py).
# Concurrency: event loop only; a storage thread builds texts.


MAX_SCRAPES: Final = 8


class Scrapes:
    """An ASGI application for /metrics."""

    def __init__(self, scraper: Scraper) -> None:
        self._scraper = scraper
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if self._count >= MAX_SCRAPES:
            await PlainTextResponse("too many concurrent scrapes", 503)(scope, receive, send)
            return
        self._count += 1
        try:
            text, content_type = await self._scraper.scrape(Headers(scope=scope).get("accept", ""))
            await _send(text, content_type, send)
        finally:
            self._count -= 1


async def _send(text: bytes, content_type: str, send: Send) -> None:
    head = Response(headers={"content-type": content_type, "content-length": str(len(text))})
    await send({"type": "http.response.start", "status": 200, "headers": head.raw_headers})
    await send({"type": "http.response.body", "body": text, "more_body": True})
    await send({"type": "http.response.body"})  # once the text is on its way


# --- endpoint ----------------------------------------------------------------------------------------


_SAMPLE_SECONDS = 1.0
NAME_SECONDS = 2.0  # for the resolver, which may not answer
_log = logging.getLogger("sparklog_server.http")


def _nothing() -> None:
    """No stream has begun."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the broker handles signals (running.py)."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpEndpoint:
    """A component of the broker; inactive unless the listener is set."""

    def __init__(
        self,
        config: ServerConfig,
        parts: Parts,
        *,
        storage_threads: Callable[[], int],
        access: Access,
        crypto: CryptoThreads,
    ) -> None:
        self._config = config
        self._settings = config.http
        self._access = access
        self._crypto = crypto
        self._parts = parts
        self._utilization = Utilization(storage_threads)
        self._scrapes = Scrapes(Scraper(parts, self._utilization))
        self._server: _Server | None = None
        self._listening: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._end_streams: Callable[[], None] = _nothing
        self._sampling = contextlib.AsyncExitStack()
        self.address: tuple[str, int] | None = None  # bound

    async def start(self) -> None:
        """Listen; /ready answers 503 until the broker runs."""
        wanted = self._settings.parsed_http_listener()
        if wanted is None:
            return
        listening = self._listening = _bind(bind_host(wanted.host), wanted.port)
        self.address = listening.getsockname()[:2]
        secured = self._config.secured_http()
        try:
            certificates = Certificates(HTTP, secured) if secured.protocol.has_tls else None
            console = await self._make_console(wanted.host)
        except BaseException:  # a file that it is given was refused
            listening.close()
            raise
        self._end_streams = console.state.end_streams
        await self._sampling.enter_async_context(console.router.lifespan_context(console))
        app = Starlette(
            routes=[
                Route("/metrics", self._scrapes, methods=["GET"]),
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/", lambda _request: RedirectResponse("/console/")),
                Route("/console", lambda _request: RedirectResponse("/console/")),
                Mount("/console", console),
            ]
        )
        config = uvicorn.Config(
            self._with_login(app, secured) if secured.protocol.has_sasl else app,
            ssl_context_factory=None if certificates is None else partial(_ssl_context, certificates),
            http=HttpConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # from this machine, any client could name another address in them
            timeout_keep_alive=15,
            timeout_graceful_shutdown=2,
        )
        server = self._server = _Server(config)
        if certificates is not None:

            def connected() -> list[int]:
                connections: set[Any] = server.server_state.connections
                found = (one.transport.get_extra_info("socket") for one in connections)
                return [one.fileno() for one in found if one is not None]  # None: it is being closed

            listening = self._listening = HandshakesSocket(listening, connected)
        self._tasks = [
            asyncio.create_task(self._server.serve(sockets=[listening])),
            asyncio.create_task(self._sample()),
        ]
        scheme = "http" if certificates is None else "https"
        _log.info("metrics at %s://%s:%d/metrics, the console at /console", scheme, *self.address)

    def _with_login(self, app: ASGIApp, secured: SecuredListener) -> Login:
        root, clock = self._parts.root, self._parts.clock
        has_tokens = OAUTHBEARER in secured.mechanisms
        allowed = self._config.security.allowed_urls()
        return Login(
            app,
            lambda: root.image.scram,
            tokens=Tokens(secured.settings, allowed, clock) if has_tokens else None,
            access=self._access,
            run=self._crypto.run,
            run_token=self._crypto.run_token,
            clock=clock,
            open_paths=self._settings.open_paths(),
        )

    async def _make_console(self, host: str) -> Starlette:
        root, settings = self._parts.root, self._settings
        return await asyncio.to_thread(  # it counts the rows of a history file
            create_app,
            root.log,
            image=lambda: root.image,
            allowed_hosts=await self._console_hosts(host),
            messages=self._message_rules(),
            history_file=Path(settings.console_history) if settings.console_history else None,
            write=settings.console_write,
            may_delete_topics=self._config.topics.delete_topic_enable,
            closed_topics=[AUDIT_TOPIC] if self._access.audit.is_own_topic(AUDIT_TOPIC) else (),
            security=self._console_security(),
        )

    def _console_security(self) -> ClientSecurity:
        file = self._settings.console_command_config
        return read_client_security(file) if file else PLAINTEXT

    async def _console_hosts(self, host: str) -> list[str]:
        """Return the names by which browsers may open the console; at least this machine's."""
        names = [
            socket.gethostname(),
            host,
            *self._config.network.advertised_hosts(),
            *self._settings.parsed_console_hosts(),
        ]
        with contextlib.suppress(TimeoutError, OSError, UnicodeError):  # the broker serves without it too
            names.append(await asyncio.wait_for(asyncio.to_thread(socket.getfqdn), NAME_SECONDS))
        return [name for name in names if name.strip("*")]

    def _message_rules(self) -> MessageRules | None:
        """Return the rules for records in the console; None: it shows none."""
        settings = self._settings
        if not settings.console_messages:
            return None
        files = (settings.console_masks, settings.console_schemas)
        return load_rules(*(Path(name) if name else None for name in files))

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return 0 if self._server is None else len(self._server.server_state.connections)

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is None or self._listening is None:
            return
        self._end_streams()
        self._server.should_exit = True
        serving, sampling = self._tasks
        sampling.cancel()
        await asyncio.gather(serving, sampling, return_exceptions=True)
        await self._sampling.aclose()
        self._listening.close()  # uvicorn leaves it open when it is stopped before it has begun

    async def _sample(self) -> None:
        while True:
            metrics = self._parts.metrics
            metrics.tick(self._parts.clock.monotonic_ms())
            self._utilization.sample(metrics.storage_busy_ms)
            await asyncio.sleep(_SAMPLE_SECONDS)

    async def _health(self, _request: Request) -> Response:
        lifecycle = self._parts.lifecycle
        failed = lifecycle.has_failed
        answer = {"status": "failed" if failed else "ok", "state": lifecycle.state.name}
        if failed:
            answer["problem"] = str(lifecycle.failure)
        return JSONResponse(answer, 503 if failed else 200)

    async def _ready(self, _request: Request) -> Response:
        problems = await self._problems()
        answer = {"status": "not ready" if problems else "ready", "state": self._parts.lifecycle.state.name}
        return JSONResponse({**answer, "problems": problems}, 503 if problems else 200)

    async def _problems(self) -> list[str]:
        parts = self._parts
        state = parts.lifecycle.state
        refused = reason_not_in_charge(parts)
        found = {
            f"the broker is {state.value}": state is BrokerState.RUNNING,
            f"{refused}": refused is None,
            "the offsets of groups are being loaded": refused is not None or parts.groups.are_loaded,
            "the root is not visible": await is_root_visible(parts),
        }
        return [problem for problem, is_fine in found.items() if not is_fine]


def _ssl_context(certificates: Certificates, *_: Any) -> ssl.SSLContext:
    """Return a context that takes the newest certificates for each handshake."""

    def take_newest(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        certificates.reload()
        connection.context = certificates.context

    context = certificates.context
    context.sni_callback = take_newest
    return context


def _bind(host: str, port: int) -> socket.socket:
    sock = new_socket(host)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen()
    except OSError as error:
        sock.close()
        error.add_note(f"cannot listen on sparklog.http.listener={host}:{port}")
        raise
    return sock
