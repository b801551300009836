"""The tests' client of Kafka's protocol: one connection, any version of any API, and any bytes instead.

Requests are made, and answers read, by kio: what the broker writes by hand is compared with what it is not.
"""

import io
import socket
import ssl
import struct
import sys
from typing import Any

from kio.serial import entity_reader, entity_writer

from sparklog.closing import Closing
from sparklog_server.protocol.messages import request_schema, response_schema
from sparklog_server.protocol.responses import make

TIMEOUT_SECONDS = 60


class WireClient(Closing):
    """See the module's docstring."""

    def __init__(
        self, host: str, port: int, client_id: str | None = "test", *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT_SECONDS)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self._client_id = client_id
        self._correlation_id = 0

    def close(self) -> None:
        self.socket.close()

    # --- requests ---------------------------------------------------------------------------------------

    def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        """The response. Nested entities may be given as dicts that name them: {"_": "Name", ...}."""
        asked = self.send(key, version, **fields)
        answered, response = self.receive(key, version)
        assert answered == asked
        return response

    def send(self, key: int, version: int, /, **fields: Any) -> int:
        """Ask without waiting; the correlation id."""
        self._correlation_id += 1
        schema: Any = request_schema(key, version)
        types = request_types(key, version)
        header = make(
            schema.__header_schema__,
            request_api_key=key,
            request_api_version=version,
            correlation_id=self._correlation_id,
            client_id=self._client_id,
        )
        buffer = io.BytesIO()
        entity_writer(schema.__header_schema__)(buffer, header)
        body = make(schema, **{name: entity(types, value) for name, value in fields.items()})
        entity_writer(schema)(buffer, body)
        self.send_frame(buffer.getvalue())
        return self._correlation_id

    def receive(self, key: int, version: int) -> tuple[int, Any]:
        """Correlation id and entity of the next response."""
        frame = self.receive_frame()
        assert frame is not None, "the broker closed the connection"
        schema: Any = response_schema(key, version)
        header, position = entity_reader(schema.__header_schema__)(memoryview(frame), 0)
        response, size = entity_reader(schema)(memoryview(frame), position)
        assert position + size == len(frame)
        return header.correlation_id, response

    # --- bytes ------------------------------------------------------------------------------------------

    def send_frame(self, payload: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(payload)) + payload)

    def receive_frame(self) -> bytes | None:
        """The next response's bytes; None when the broker has closed the connection."""
        head = self.receive_bytes(4)
        return self.receive_bytes(struct.unpack(">i", head)[0]) if len(head) == 4 else None

    def receive_bytes(self, size: int) -> bytes:
        """Exactly `size` bytes, or fewer at the end of the stream."""
        data = bytearray()
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionResetError:
                break
            if not part:
                break
            data += part
        return bytes(data)

    def is_closed(self) -> bool:
        """Wait until the broker says something: is it the end?"""
        return self.receive_bytes(1) == b""


def request_types(key: int, version: int) -> Any:
    """The entities of a request."""
    return sys.modules[request_schema(key, version).__module__]


def entity(types: Any, value: Any) -> Any:
    """kio's entity for nested dicts that name theirs."""
    if isinstance(value, dict):
        fields = {name: entity(types, one) for name, one in value.items() if name != "_"}
        return make(getattr(types, value["_"]), **fields)
    if isinstance(value, list | tuple):
        return tuple(entity(types, one) for one in value)
    return value
