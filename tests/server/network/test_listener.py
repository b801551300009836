"""A port is taken when the broker starts, and listened to when it can answer."""

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparklog.clock import SystemClock
from sparklog_server.metrics import Metrics
from sparklog_server.network.listener import Listener
from sparklog_server.network.server import Network
from sparklog_server.settings.config import ServerConfig
from tests.server.network.conftest import until
from tests.support.ports import lasting_port

Make = Callable[[], Listener]


@pytest.fixture
def port() -> int:
    return lasting_port()


@pytest.fixture
def accepted() -> Iterator[list[socket.socket]]:
    """Our ends of connections."""
    sockets: list[socket.socket] = []
    yield sockets
    for one in sockets:
        one.close()


@pytest.fixture
def make(port: int, accepted: list[socket.socket]) -> Iterator[Make]:
    """Listeners on one port."""
    settings = ServerConfig.parse({"listeners": f"PLAINTEXT://127.0.0.1:{port}"}).network
    made: list[Listener] = []

    def no_use(*_: Any) -> Any:
        raise AssertionError("a listener needs none")

    network = Network(
        settings, no_use, clock=SystemClock(), metrics=Metrics(), run_blocking=no_use, on_closed=no_use
    )

    def listener() -> Listener:
        (address,) = settings.parsed_listeners()
        made.append(Listener(network.shared, address, lambda sock, *_: accepted.append(sock)))
        return made[-1]

    yield listener
    for one in made:
        one.close()


@pytest.fixture
def left(make: Make, port: int, accepted: list[socket.socket]) -> Iterator[None]:
    """A connection of a listener that is gone, as a process leaves that stops while it answers."""
    listener = make()
    listener.bind()
    listener.listen()

    async def accept() -> None:
        accepting = asyncio.create_task(listener.accept())
        await until(lambda: bool(accepted))
        accepting.cancel()

    with connect(port):
        asyncio.run(accept())
        listener.close()
        yield


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def test_clients_are_refused_until_it_listens(make: Make, port: int) -> None:
    listener = make()
    listener.bind()
    with pytest.raises(ConnectionRefusedError):
        connect(port)
    listener.listen()
    connect(port).close()


def test_a_port_that_another_one_has_taken_is_refused_whether_it_listens_or_not(make: Make) -> None:
    first, second = make(), make()
    first.bind()
    for _ in range(2):
        with pytest.raises(OSError, match="in use") as refused:
            second.bind()
        assert refused.value.errno == errno.EADDRINUSE
        assert any("a free port" in note for note in refused.value.__notes__)
        first.listen()


@pytest.mark.usefixtures("left")
def test_connections_that_are_left_keep_no_next_one_from_the_port(make: Make, port: int) -> None:
    listener = make()
    listener.bind()
    listener.listen()
    connect(port).close()


@pytest.mark.usefixtures("left")
def test_a_port_is_one_listeners_also_where_connections_of_another_are_left(make: Make) -> None:
    """Two that start after one was killed: the second is told before it has registered for the root."""
    first = make()
    first.bind()
    with pytest.raises(OSError, match="in use"):
        make().bind()
    first.listen()
