"""One connection to a broker: requests of Kafka's protocol, one at a time, each with its answer.

Invariants: every wait is bounded by the connection's deadline, and every answer's size before it is read.
Not here: what requests and answers say (broker_answers.py, controller_requests.py); TLS and SASL.
Concurrency: one thread.
Sources: Kafka's request headers v1 and v2, response headers v0 and v1.
"""

import socket
import struct
import time
from typing import Self

from sparklog.client.broker_answers import AnswerReader, NotKafkaError
from sparklog.errors import InvalidRequestError
from sparklog.redaction import shown

MAX_RESPONSE_BYTES = 1 << 20
_CLIENT_ID = b"sparklog"
Address = tuple[str, int]


def parse_servers(text: str) -> list[tuple[str, Address]]:
    """Each server of `host:port,host:port`, as it was written and as an address.

    Raises:
        InvalidRequestError: INVALID_OPTION.
    """
    servers = []
    for part in text.split(","):
        server = part.strip()
        if "://" in server:  # Kafka takes PLAINTEXT://host:port
            server = server.partition("://")[2]
        host, colon, port = server.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not server and not part.strip():
            continue
        if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65_536):
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"bootstrap servers {shown('servers', text)}: found {shown('server', part.strip())}, "
                "expected host:port",
                fix="write host:port, several separated by commas",
            )
        servers.append((server, (host, int(port))))
    if not servers:
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"bootstrap servers {shown('servers', text)}: none is named",
            fix="write host:port",
        )
    return servers


class BrokerConnection:
    """Raises OSError where the network does, TimeoutError among them, and NotKafkaError for wrong answers."""

    def __init__(
        self, address: Address, deadline: float, *, max_response_bytes: int = MAX_RESPONSE_BYTES
    ) -> None:
        """`deadline`: by time.monotonic(), of connecting and of all that is asked."""
        self._deadline = deadline
        self._max_response_bytes = max_response_bytes
        self._correlation_id = 0
        self._socket = socket.create_connection(address, timeout=_remaining(deadline))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, key: int, version: int, body: bytes, *, is_flexible: bool = False) -> AnswerReader:
        """Send a request, and give its answer after the header.

        Args:
            is_flexible: whether this version has tagged fields, and so the newer headers.
        """
        self._correlation_id += 1
        head = struct.pack(">hhih", key, version, self._correlation_id, len(_CLIENT_ID)) + _CLIENT_ID
        request = head + (b"\0" if is_flexible else b"") + body
        self._socket.settimeout(_remaining(self._deadline))
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._receive(4))
        if not 4 <= size <= self._max_response_bytes:
            raise NotKafkaError(
                f"found a response of {size} bytes; it does not speak Kafka's protocol in the clear"
            )
        reader = AnswerReader(self._receive(size))
        if (found := reader.int32()) != self._correlation_id:
            raise NotKafkaError(f"found correlation id {found}, expected {self._correlation_id}")
        if is_flexible:
            reader.skip_tags()
        return reader

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            self._socket.settimeout(_remaining(self._deadline))
            data = self._socket.recv(min(size - len(received), 1 << 20))
            if not data:
                raise NotKafkaError(
                    "it closed the connection instead of answering (does it expect TLS or SASL?)"
                )
            received += data
        return bytes(received)


def _remaining(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds
