"""/metrics, /health and /ready, on a port of their own (sparklog.http.listener; off unless it is set).

/health: the process is alive, its event loop answers, and nothing has gone wrong for good. Restart it if not.
/ready: it serves: registered and not fenced, on an image that is new enough, the groups that it coordinates
    loaded, root visible, accepting. Send it no clients if not. Who leads nothing is ready to.
Invariants: a probe waits for nobody; nothing is read from clients but the path and headers.
Not here: /metrics (scrapes.py). Logins: this port must not be public.
Concurrency: uvicorn in the broker's event loop.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sparklog_server.http.connections import HttpConnection
from sparklog_server.http.scrapes import Scrapes
from sparklog_server.observe.collector import Scraper
from sparklog_server.observe.observation import Parts, is_root_visible, why_not_in_charge
from sparklog_server.observe.utilization import Utilization
from sparklog_server.runtime.lifecycle import BrokerState
from sparklog_server.settings.addresses import bind_host, new_socket
from sparklog_server.settings.http import HttpSettings

_SAMPLE_SECONDS = 1.0
_log = logging.getLogger("sparklog_server.http")


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals are the broker's (main.py)."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpEndpoint:
    """A component of the broker; does nothing unless the listener is set."""

    def __init__(self, settings: HttpSettings, parts: Parts, *, storage_threads: Callable[[], int]) -> None:
        self._settings = settings
        self._parts = parts
        self._utilization = Utilization(storage_threads)
        self._scrapes = Scrapes(Scraper(parts, self._utilization))
        self._server: _Server | None = None
        self._listening: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.address: tuple[str, int] | None = None  # bound

    async def start(self) -> None:
        """Listen; /ready says no until the broker runs."""
        wanted = self._settings.parsed_http_listener()
        if wanted is None:
            return
        listening = self._listening = _bind(bind_host(wanted.host), wanted.port)
        self.address = listening.getsockname()[:2]
        app = Starlette(
            routes=[
                Route("/metrics", self._scrapes, methods=["GET"]),
                Route("/health", self._health),
                Route("/ready", self._ready),
            ]
        )
        config = uvicorn.Config(
            app,
            http=HttpConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=2,
        )
        self._server = _Server(config)
        self._tasks = [
            asyncio.create_task(self._server.serve(sockets=[listening])),
            asyncio.create_task(self._sample()),
        ]
        _log.info("metrics at http://%s:%d/metrics", *self.address)

    @property
    def connection_count(self) -> int:
        """How many are open."""
        return 0 if self._server is None else len(self._server.server_state.connections)

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is None or self._listening is None:
            return
        self._server.should_exit = True
        serving, sampling = self._tasks
        sampling.cancel()
        await asyncio.gather(serving, sampling, return_exceptions=True)
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
        told = {"status": "failed" if failed else "ok", "state": lifecycle.state.name}
        if failed:
            told["problem"] = str(lifecycle.failure)
        return JSONResponse(told, 503 if failed else 200)

    async def _ready(self, _request: Request) -> Response:
        problems = await self._problems()
        told = {"status": "not ready" if problems else "ready", "state": self._parts.lifecycle.state.name}
        return JSONResponse({**told, "problems": problems}, 503 if problems else 200)

    async def _problems(self) -> list[str]:
        parts = self._parts
        state = parts.lifecycle.state
        refused = why_not_in_charge(parts)
        found = {
            f"the broker is {state.value}": state is BrokerState.RUNNING,
            f"{refused}": refused is None,
            "the offsets of groups are being loaded": refused is not None or parts.groups.are_loaded,
            "the root is not visible": await is_root_visible(parts),
        }
        return [problem for problem, is_fine in found.items() if not is_fine]


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
