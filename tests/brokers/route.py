"""A way to the store that can be cut: a proxy for plain TCP, one for each broker.

Silent: what is sent is neither delivered nor refused, and arrives when the way is open again, late PUTs
included. Refused: connections break, and new ones do too.
Concurrency: two threads a connection; all else belongs to the test.
"""

import contextlib
import socket
import threading
from typing import Self


class Route:
    """See the module's docstring. A context manager."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self._refuses = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self, *, silent: bool) -> None:
        """Nothing gets through from here on."""
        if silent:
            self._open.clear()
            return
        self._break()

    def _break(self) -> None:
        """Those that there are, and those that are being made."""
        with self._lock:
            self._refuses = True
            sockets = list(self._sockets)
        for one in sockets:
            _hang_up(one)

    def _is_cut(self) -> bool:
        return self._refuses

    def heal(self) -> None:
        """Everything does again."""
        self._refuses = False
        self._open.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.set()
        self._break()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(20)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut():
                client.close()
                continue
            try:
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, server}
            if self._is_cut():  # meanwhile
                _hang_up(client)
                _hang_up(server)
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pump, args=(source, sink), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._open.wait()
                sink.sendall(data)
        for one in (source, sink):
            _hang_up(one)
            with self._lock:
                self._sockets.discard(one)


def _hang_up(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
