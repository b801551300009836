"""A proxy in front of an S3 server that goes wrong on demand.

`proxy.fault` is asked with every request and names what is to happen to it; None: it goes through. The
store signs its requests for this address; the Host header is passed on, so the signature stays right. It is
also a forward proxy, for clients that were told of it (HTTP_PROXY), and speaks TLS if it is given a
certificate.
Concurrency: one thread a connection. `requests` and `faults` are lists, in order of arrival.
"""

import contextlib
import http.client
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.seaweed import KEY, SECRET

ERROR_BODY = (
    '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{}</Code><Message>from the proxy</Message></Error>'
)


@dataclass(frozen=True)
class Request:
    """What is known of a request when its fate is decided."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes = field(repr=False)

    @property
    def key(self) -> str:
        return urlsplit(self.path).path

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    @property
    def is_commit(self) -> bool:
        return self.method == "PUT" and "/__cluster_metadata/" in self.path


@dataclass(frozen=True)
class Fault:
    """What goes wrong.

    Fields:
        forward: how often the server sees the request; at 2 the second answer counts.
        answer: (status, error code) instead of the server's answer.
        reset: the connection is reset instead of an answer.
        close: the connection is closed instead of an answer.
        header: (name, value) that is added to the server's answer.
        then: called when the server has answered, before the answer goes on.
        hold: the answer waits for `release`.
        truncate: the body ends half-way, under the right Content-Length.
        strip: a request header that gets lost.
        later: the server sees the request when `land` is called.
    """

    forward: int = 1
    answer: tuple[int, str] | None = None
    reset: bool = False
    close: bool = False
    header: tuple[str, str] | None = None
    then: Callable[[], object] | None = None
    hold: bool = False
    truncate: bool = False
    strip: str | None = None
    later: bool = False


SLOW_DOWN = Fault(forward=0, answer=(503, "SlowDown"))
ERROR_BEFORE = Fault(forward=0, answer=(500, "InternalError"))
ERROR_AFTER = Fault(answer=(500, "InternalError"))
RESET_BEFORE = Fault(forward=0, reset=True)
RESET_AFTER = Fault(reset=True)
CLOSE_AFTER = Fault(close=True)
LATE_ANSWER = Fault(hold=True)
LATE_EFFECT = Fault(forward=0, reset=True, later=True)
TWICE = Fault(forward=2)
CONFLICT = Fault(forward=0, answer=(409, "ConditionalRequestConflict"))
TRUNCATED = Fault(truncate=True)
ERROR_IN_200 = Fault(forward=0, answer=(200, "InternalError"))
ERROR_IN_200_AFTER = Fault(answer=(200, "InternalError"))
DENIED = Fault(forward=0, answer=(403, "AccessDenied"))
UNCONDITIONAL = Fault(strip="if-none-match")


class FaultyProxy:
    """See the module's docstring. A context manager."""

    def __init__(self, endpoint_url: str, tls: ssl.SSLContext | None = None) -> None:
        self.target = urlsplit(endpoint_url).netloc
        self.fault: Callable[[Request], Fault | None] = lambda _: None
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.release = threading.Event()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._forwarded: list[Request] = []
        self._later: list[Request] = []
        self._tls = tls
        self._connections: set[socket.socket] = set()
        self._listen(0)

    def _listen(self, port: int) -> None:
        proxy = self

        class Handler(_Handler):
            def __init__(self, *arguments: Any) -> None:
                self.proxy, self.tls, self.connections = proxy, proxy._tls, proxy._connections
                super().__init__(*arguments)

        self._server = _Server(("127.0.0.1", port), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def endpoint_url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    def die(self) -> None:
        """Close all connections, and refuse new ones."""
        self._close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def revive(self) -> None:
        """Listen again, at the same port."""
        self._listen(self.port)

    def _close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def note_forwarded(self, request: Request) -> None:
        """The server has seen it, as often as its fault says."""
        with self._changed:
            self._forwarded.append(request)
            self._changed.notify_all()

    def until_forwarded(self, count: int) -> None:
        """Wait for so many of `requests`: whoever gave up waiting for an answer may be ahead of them."""

        def are_forwarded() -> bool:
            return sum(any(one is done for done in self._forwarded) for one in self.requests) >= count

        with self._changed:
            assert self._changed.wait_for(are_forwarded, 20)

    def land(self) -> list[int]:
        """Let the server see the requests that were kept back; the statuses it answered."""
        with self._lock:
            later, self._later = self._later, []
        return [self.forward(request)[0] for request in later]

    def once(self, fault: Fault, when: Callable[[Request], bool]) -> None:
        """`fault` for the first request that fits, and none after it."""
        self.times(1, fault, when)

    def times(self, count: int, fault: Fault, when: Callable[[Request], bool] = lambda _: True) -> None:
        """`fault` for the first `count` requests that fit."""
        left = [fault] * count
        self.fault = lambda request: left.pop() if left and when(request) else None

    def decide(self, request: Request) -> Fault:
        with self._lock:
            self.requests.append(request)
            fault = self.fault(request)
            if fault is not None:
                self.faults.append(fault)
                if fault.later:
                    self._later.append(request)
        return fault or Fault()

    def forward(self, request: Request, strip: str | None = None) -> tuple[int, list[tuple[str, str]], bytes]:
        headers = {n: v for n, v in request.headers.items() if n not in {"expect", "connection", strip}}
        if strip is not None:
            headers = self._signed_anew(request, headers)
        connection = http.client.HTTPConnection(self.target, timeout=30)
        with contextlib.closing(connection):
            connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(request.body or None)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()

    def _signed_anew(self, request: Request, headers: dict[str, str]) -> dict[str, str]:
        kept = {n: v for n, v in headers.items() if n not in {"authorization", "x-amz-date", "host"}}
        signed = AWSRequest(request.method, f"http://{self.target}{request.path}", kept, request.body)
        S3SigV4Auth(Credentials(KEY, SECRET), "s3", "us-east-1").add_auth(signed)
        return {"host": self.target, **dict(signed.headers.items())}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):  # a client that has given up
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultyProxy
    tls: ssl.SSLContext | None
    connections: set[socket.socket]

    def setup(self) -> None:
        if self.tls is not None:
            self.request = self.tls.wrap_socket(self.request, server_side=True)
        self.connections.add(self.request)
        super().setup()

    def finish(self) -> None:
        self.connections.discard(self.connection)
        super().finish()
        self.connection.close()

    def _handle(self) -> None:
        proxy = self.proxy
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        # Who was told of a proxy writes the whole URL, the others the path alone.
        path = urlsplit(self.path)._replace(scheme="", netloc="").geturl()
        request = Request(len(proxy.requests), self.command, path, headers, body)
        fault = proxy.decide(request)
        status, answered, data = 0, list[tuple[str, str]](), b""
        for _ in range(fault.forward):
            status, answered, data = proxy.forward(request, fault.strip)
        proxy.note_forwarded(request)
        if fault.then is not None:
            fault.then()
        if fault.hold:
            proxy.release.wait(30)
        if fault.reset or fault.hold:
            self._reset()
            return
        if fault.close:
            self.close_connection = True
            return
        if fault.answer is not None:
            status, code = fault.answer
            data, answered = ERROR_BODY.format(code).encode(), [("Content-Type", "application/xml")]
        if fault.header is not None:
            answered = [*answered, fault.header]
        self.send_response(status)
        for name, value in answered:
            if name.lower() not in {"content-length", "transfer-encoding", "connection", "server", "date"}:
                self.send_header(name, value)
        head = self.command == "HEAD"
        length = next((v for n, v in answered if n.lower() == "content-length"), "0") if head else len(data)
        if status != 204:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if not head:
            self.wfile.write(data[: len(data) // 2] if fault.truncate else data)
        if fault.truncate:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Quiet."""
