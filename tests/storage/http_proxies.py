"""Proxies that a client is told of (HTTP_PROXY, HTTPS_PROXY), on its way to an S3 server.

    forward   the client sends whole URLs, which the proxy reads and carries out: FaultyProxy is one itself
    tunnel    the client sends CONNECT, and speaks TLS with the store through what it is given; the store is a
              FaultyProxy with a certificate of its own

`route.faulty` decides what goes wrong; `die` ends the proxy, so that it cannot be connected to, and `revive`
brings it back at the same address.
Concurrency: a tunnel is two threads; they end with either of its connections.
"""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.seaweed import KEY, SECRET, SeaweedServer
from tests.storage.s3_proxy import FaultyProxy

KINDS = ("forward", "tunnel")


class ConnectTunnel:
    """A proxy that knows CONNECT, and nothing else."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listen(0)

    def _listen(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept, self._listener)

    def die(self) -> None:
        """Close all tunnels, and refuse new ones."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in list(self._sockets):
            _hang_up(one)

    def revive(self) -> None:
        """Listen again, at the same port."""
        self._listen(self.port)

    def close(self) -> None:
        """End everything."""
        self.die()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _start(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._sockets.add(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client.makefile("rb") as head:
            asked = head.readline().decode().split(" ")
            if asked[0] != "CONNECT":
                self._forget(client)
                return
            target = asked[1]
            while head.readline().strip():
                pass
            self.asked.append(target)
            host, _, port = target.rpartition(":")
            store = socket.create_connection((host, int(port)), timeout=10)
            store.settimeout(None)
            self._sockets.add(store)
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self._start(self._carry, store, client)
            self._carry(client, store)  # nothing was read ahead: TLS begins when the client has its answer
            return
        self._forget(client)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        self._forget(source)
        self._forget(target)

    def _forget(self, one: socket.socket) -> None:
        _hang_up(one)
        self._sockets.discard(one)


def _hang_up(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@dataclass
class Route:
    """A store behind a proxy."""

    kind: str
    faulty: FaultyProxy
    proxy: FaultyProxy | ConnectTunnel
    options: dict[str, Any]

    @contextmanager
    def told(self) -> Iterator[None]:
        """Clients that are made meanwhile know of the proxy, by the environment, as users tell them."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("no_proxy", "NO_PROXY", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
                patch.delenv(name, raising=False)
            name = "HTTP_PROXY" if self.kind == "forward" else "HTTPS_PROXY"
            patch.setenv(name, f"http://127.0.0.1:{self.proxy.port}")
            yield


@contextmanager
def proxied(kind: str, server: SeaweedServer, directory: Path) -> Iterator[Route]:
    """A proxy of this kind before the S3 server."""
    given = {"key": KEY, "secret": SECRET}
    if kind == "forward":
        with FaultyProxy(server.endpoint_url) as proxy:
            yield Route(kind, proxy, proxy, given | {"endpoint_url": server.endpoint_url})
        return
    import trustme

    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    certificates = directory / "authority.pem"
    authority.cert_pem.write_to_path(str(certificates))
    with FaultyProxy(server.endpoint_url, context) as store, contextlib.closing(ConnectTunnel()) as tunnel:
        options = given | {"endpoint_url": store.endpoint_url, "verify": str(certificates)}
        yield Route(kind, store, tunnel, options)
