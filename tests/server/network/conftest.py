"""A network without a broker behind it: handlers are whatever a test wants."""

import asyncio
import itertools
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparklog.clock import Clock, SystemClock
from sparklog_server.api.registry import bind_apis
from sparklog_server.api.services import Services
from sparklog_server.dispatch.dispatcher import Dispatcher
from sparklog_server.metrics import Metrics
from sparklog_server.network.server import Network
from sparklog_server.protocol.apis import ApiEntry, ApiKey, RequestContext
from sparklog_server.root.live_root import Attention
from sparklog_server.security.access import Access
from sparklog_server.settings.config import ServerConfig

METADATA_V0 = struct.pack(">i", 0)


def request(correlation_id: int, body: bytes = METADATA_V0, *, key: int = 3, version: int = 0) -> bytes:
    """A frame of a request with an old header; by default Metadata 0."""
    payload = struct.pack(">hhih", key, version, correlation_id, -1) + body
    return struct.pack(">i", len(payload)) + payload


class Served:
    """A network with one API (key 3), and connections to it."""

    def __init__(self, network: Network, dispatcher: Dispatcher) -> None:
        self.network = network
        self.dispatcher = dispatcher
        self.port = network.advertised()[0].port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(
        self, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)
        self._writers.append(writer)
        return reader, writer

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Correlation id and body of the next response."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    data = await reader.readexactly(size)
    return struct.unpack_from(">i", data)[0], data[4:]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so; the test's timeout is the limit."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - there is no event for what tests look at
            await asyncio.sleep(0.001)


@asynccontextmanager
async def serving(
    handler: Callable[[Any, Any, Any], Awaitable[Any]],
    configs: dict[str, str] | None = None,
    *,
    pipelined: bool = False,
    waits: bool = False,
    counts: bool = False,
    clock: Clock | None = None,
    starts: bool = True,
) -> AsyncIterator[Served]:
    """Serve Metadata requests with a handler."""
    config = ServerConfig.parse({"listeners": "PLAINTEXT://127.0.0.1:0", **(configs or {})})

    async def run_blocking(function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, function, *args)

    async def handle(body: Any, context: RequestContext) -> Any:
        return await handler(body, context, None)

    attention = Attention(itertools.count(step=10).__next__)  # ends with who pays it
    entry = ApiEntry(
        key=ApiKey.METADATA,
        name="Metadata",
        versions=range(13),
        handle=handle,
        pipelined=pipelined,
        waits=waits,
        counts=counts,
    )
    dispatcher = Dispatcher(
        config.network,
        {3: entry, 18: bind_apis(cast("Services", SimpleNamespace(access=Access())))[18]},
        attention,
        metrics=Metrics(),
    )
    network = Network(
        config.network,
        dispatcher.begin,
        clock=clock or SystemClock(),
        metrics=dispatcher.metrics,
        run_blocking=run_blocking,
        on_closed=lambda _: None,
        security=config.security,
        secured=config.secured_listeners(),
    )
    network.bind()
    if starts:
        network.start()
    served = Served(network, dispatcher)
    try:
        yield served
    finally:
        await network.stop(1000)
        served.close()
    await _nothing_is_held(network, dispatcher)


async def _nothing_is_held(network: Network, dispatcher: Dispatcher) -> None:
    for _ in range(1000):  # pipelined requests end after their connection
        if dispatcher.attention.is_active:
            await asyncio.sleep(0)
    shared = network.shared
    assert shared.budget.used_bytes == dispatcher.work.used_bytes == dispatcher.answers.used_bytes == 0
    assert shared.handshakes.used_bytes == 0
    assert not dispatcher.attention.is_active
    for _ in range(shared.settings.queued_max_requests):
        assert not dispatcher.slots.locked()
        await dispatcher.slots.acquire()
    assert dispatcher.slots.locked()  # none was given back twice
    assert shared.quota.count == 0
    assert not network.connections


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Run a coroutine function on both kinds of event loop."""

    def go(main: Callable[[], Any]) -> Any:
        factory = None
        if request.param == "uvloop":
            uvloop = pytest.importorskip("uvloop")
            factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main())

    return go
