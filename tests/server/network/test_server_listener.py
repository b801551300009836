"""A port is taken when the broker starts, and listened to when it can answer."""

import asyncio
import contextlib
import errno
import gc
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from sparklog.clock import SystemClock
from sparklog_server.metrics import Metrics
from sparklog_server.network.server import Listener, Network
from sparklog_server.settings.config import ServerConfig
from tests.server.network.conftest import until
from tests.server.network.test_connection import Run
from tests.support.ports import is_taken, lasting_port

Make = Callable[[], Listener]
ANY_PORT = "any port"


@pytest.fixture
def port(request: pytest.FixtureRequest) -> int:
    return 0 if getattr(request, "param", "") == ANY_PORT else lasting_port()


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


# --- refusing, for a while --------------------------------------------------------------------------


@pytest.fixture
def serving(make: Make, accepted: list[socket.socket], run: Run) -> "Serving":
    return Serving(make(), accepted, run)


class Serving:
    """A listener that accepts, in a loop of its own."""

    def __init__(self, listener: Listener, accepted: list[socket.socket], run: Run) -> None:
        self.listener = listener
        self.accepted = accepted
        self._run = run

    async def connects(self) -> None:
        """Connect, and be accepted."""
        count, port = len(self.accepted), self.listener.address.port
        client = await asyncio.to_thread(connect, port)
        try:
            await until(lambda: len(self.accepted) > count)
        finally:
            client.close()

    def run(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def accept() -> None:
            self.listener.bind()
            self.listener.listen()
            accepting = asyncio.create_task(self.listener.accept())
            try:
                await act()
            finally:
                accepting.cancel()

        self._run(accept)


@pytest.mark.parametrize("port", [ANY_PORT, "a port"], indirect=True)
def test_it_refuses_for_as_long_as_it_is_told_to(serving: Serving) -> None:
    listener = serving.listener

    async def act() -> None:
        for _ in range(3):
            await serving.connects()
            listener.refuse()
            for _ in range(3):
                with pytest.raises(ConnectionRefusedError):
                    await serving.connects()
            listener.listen()
        await serving.connects()

    serving.run(act)


@pytest.mark.parametrize("port", [ANY_PORT, "a port"], indirect=True)
def test_nobody_else_has_the_port_while_it_refuses(serving: Serving) -> None:
    async def act() -> None:
        await serving.connects()
        serving.listener.refuse()
        port = serving.listener.address.port
        assert is_taken(port)
        assert is_taken(port, reuses=True)

    serving.run(act)


def test_who_waits_to_be_accepted_is_refused_too(make: Make, port: int) -> None:
    listener = make()
    listener.bind()
    listener.listen()
    with connect(port) as client:
        listener.refuse()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_telling_it_twice_changes_nothing(serving: Serving) -> None:
    async def act() -> None:
        serving.listener.listen()
        serving.listener.refuse()
        serving.listener.refuse()
        serving.listener.listen()
        await serving.connects()

    serving.run(act)


def test_what_connects_while_it_is_stopped_is_not_left_open(
    make: Make, port: int, accepted: list[socket.socket]
) -> None:
    """Whichever turn of the loop it is: asyncio's sock_accept drops one that it has just accepted."""
    for turns in range(1, 7):
        listener = make()
        listener.bind()
        listener.listen()

        async def stop(listener: Listener = listener, turns: int = turns) -> None:
            accepting = asyncio.create_task(listener.accept())
            for _ in range(3):
                await asyncio.sleep(0)
            with connect(port) as client:
                for _ in range(turns):
                    await asyncio.sleep(0)
                accepting.cancel()
                await asyncio.wait([accepting])
                listener.close()
                while accepted:
                    accepted.pop().close()
                gc.collect()
                client.settimeout(10)
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1) == b""

        asyncio.run(stop())
