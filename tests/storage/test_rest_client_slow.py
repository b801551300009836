"""REST stores over a network that takes longer for a body than one timeout, and makes progress."""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator

import pytest

from sparklog.storage import object_probe
from sparklog.storage.gcs import GcsStore, parse_gcs_options

SIZE = 16 << 20  # more than the buffers of a connection hold


class SlowServer:
    """Takes one request, a piece at a time, and then answers it."""

    def __init__(self) -> None:
        self.body = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)  # its connections inherit it
        self.port: int = self._listener.getsockname()[1]
        self._pace = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection, contextlib.suppress(OSError):
            found = b""
            while b"\r\n\r\n" not in found:
                found += connection.recv(1000)
            head, _, rest = found.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            assert length is not None
            content = bytearray(rest)
            while len(content) < int(length[1]):
                piece = connection.recv(1 << 19)
                if not piece:
                    return
                content += piece
                self._pace.wait(0.015)
            self.body = bytes(content)
            answer = json.dumps({"generation": "1"}).encode()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))

    def close(self) -> None:
        self._pace.set()
        self._listener.close()
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture
def server() -> Iterator[SlowServer]:
    with contextlib.closing(SlowServer()) as running:
        yield running


@pytest.mark.slow
def test_a_body_may_take_longer_than_one_timeout(server: SlowServer) -> None:
    endpoint = f"http://127.0.0.1:{server.port}"
    options = {"endpoint_url": endpoint, "connect_timeout": 1, "read_timeout": 10, "retry_timeout": 0.01}
    store = GcsStore("gs://b/root", parse_gcs_options(options))
    object_probe.passed.add(store.client.identity)
    store.put_if_absent("a", b"x" * SIZE)
    assert b"x" * SIZE in server.body
