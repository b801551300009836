"""A way to the store that can be cut: what was sent meanwhile arrives afterwards, or is refused."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.brokers.route import Route


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


@pytest.fixture
def route(server: socket.socket) -> Iterator[Route]:
    with Route(server.getsockname()[:2]) as route:
        yield route


def connected(route: Route, server: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(("127.0.0.1", route.port), timeout=10)
    accepted, _ = server.accept()
    accepted.settimeout(10)
    return client, accepted


def test_what_is_sent_on_a_silent_way_arrives_when_it_is_open_again(
    route: Route, server: socket.socket
) -> None:
    client, accepted = connected(route, server)
    with client, accepted:
        client.sendall(b"before")
        assert accepted.recv(100) == b"before"
        route.cut(silent=True)
        client.sendall(b"meanwhile")
        accepted.settimeout(0.05)
        with pytest.raises(TimeoutError):
            accepted.recv(100)
        accepted.settimeout(10)
        route.heal()
        assert accepted.recv(100) == b"meanwhile"
        accepted.sendall(b"answer")
        assert client.recv(100) == b"answer"


def test_a_way_that_refuses_breaks_connections_and_lets_none_in(route: Route, server: socket.socket) -> None:
    client, accepted = connected(route, server)
    with client, accepted:
        route.cut(silent=False)
        assert client.recv(100) == b""
        with socket.create_connection(("127.0.0.1", route.port), timeout=10) as other:
            assert other.recv(100) == b""
    route.heal()
    client, accepted = connected(route, server)
    with client, accepted:
        client.sendall(b"again")
        assert accepted.recv(100) == b"again"


def test_nothing_runs_on_when_it_is_left(server: socket.socket) -> None:
    before = set(threading.enumerate())
    with Route(server.getsockname()[:2]) as route:
        client, accepted = connected(route, server)
        route.cut(silent=True)
        client.sendall(b"x")
    client.close()
    accepted.close()
    assert not set(threading.enumerate()) - before
