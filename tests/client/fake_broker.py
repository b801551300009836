"""A broker that answers Metadata and DescribeLogDirs, or misbehaves, in a thread."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Answer = Callable[[int], bytes]  # API key -> body after the correlation id


def string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    return struct.pack(">h", len(text.encode())) + text.encode()


def metadata(cluster_id: str | None) -> bytes:
    broker = struct.pack(">i", 1) + string("localhost") + struct.pack(">i", 9092) + string(None)
    return struct.pack(">i", 1) + broker + string(cluster_id) + struct.pack(">ii", 1, 0)


def log_dirs(*paths: str, topics: int = 0) -> bytes:
    body = struct.pack(">ii", 0, len(paths))
    for path in paths:
        body += struct.pack(">h", 0) + string(path) + struct.pack(">i", topics)
        for number in range(topics):
            body += string(f"t{number}") + struct.pack(">i", 2) + struct.pack(">iqq?", 0, 1, 0, False) * 2
    return body


def broker_of(root_url: str, cluster_id: str | None) -> Answer:
    return lambda key: metadata(cluster_id) if key == 3 else log_dirs(root_url, topics=1)


@contextmanager
def fake_broker(
    answer: Answer,
    *,
    raw: bytes | None = None,
    silent: bool = False,
    seen: Callable[[bytes], None] = lambda _: None,
) -> Iterator[str]:
    """host:port of a server that gives `answer(key)`, or sends `raw` bytes and closes, or says nothing.

    `seen` is told each request, from its API key on, before it is answered.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def serve() -> None:
            while True:
                connection, _ = server.accept()
                with connection:
                    if stop.is_set():
                        return
                    if silent:
                        stop.wait(60)
                    elif raw is not None:
                        connection.recv(4096)
                        connection.sendall(raw)
                    else:
                        _answer_all(connection, answer, seen)

        thread = threading.Thread(target=serve)
        thread.start()
        host, port = server.getsockname()
        try:
            yield f"{host}:{port}"
        finally:
            stop.set()
            socket.create_connection((host, port)).close()
            thread.join()


def _answer_all(connection: socket.socket, answer: Answer, seen: Callable[[bytes], None]) -> None:
    stream = connection.makefile("rb")
    while head := stream.read(4):
        request = stream.read(struct.unpack(">i", head)[0])
        seen(request)
        key, _version, correlation_id = struct.unpack_from(">hhi", request)
        body = struct.pack(">i", correlation_id) + answer(key)
        connection.sendall(struct.pack(">i", len(body)) + body)
    stream.close()
