"""An HTTP server in this process that answers as it is told, and keeps what it was asked."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Asked:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes = field(repr=False)

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return {n: v[0] for n, v in parse_qs(urlsplit(self.target).query, keep_blank_values=True).items()}


@dataclass(frozen=True)
class Canned:
    status: int = 200
    data: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class CannedServer:
    """`answer` is asked for each request. A context manager."""

    def __init__(self) -> None:
        self.answer: Callable[[Asked], Canned] = lambda _: Canned()
        self.asked: list[Asked] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(int(headers.get("content-length", 0)))
                asked = Asked(self.command, self.path, headers, body)
                server.asked.append(asked)
                canned = server.answer(asked)
                self.send_response(canned.status)
                for name, value in {"Content-Length": str(len(canned.data)), **canned.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(canned.data)

            do_GET = do_PUT = do_POST = do_DELETE = handle_any

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
