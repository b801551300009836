"""Requests over a socket, encoded and decoded by kio, for tests of the fetch APIs."""

import io
import socket
import struct
from typing import Any

from kio.index import load_entity_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from sparklog_server.protocol.entities import make

_NAMES = {
    1: ("fetch", "FetchRequest", "FetchResponse"),
    2: ("list_offsets", "ListOffsetsRequest", "ListOffsetsResponse"),
    21: ("delete_records", "DeleteRecordsRequest", "DeleteRecordsResponse"),
    23: ("offset_for_leader_epoch", "OffsetForLeaderEpochRequest", "OffsetForLeaderEpochResponse"),
}


class Conversation:
    """A connection that asks and waits for the answer."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=30)
        self._number = 0

    def ask(self, key: int, version: int, **fields: Any) -> Any:
        self.send(key, version, **fields)
        return self.receive(key, version)

    def send(self, key: int, version: int, **fields: Any) -> None:
        types = request_types(key, version)
        cls: Any = getattr(types, _NAMES[key][1])
        request = make(cls, **fields)
        self._number += 1
        header = cls.__header_schema__
        buffer = io.BytesIO()
        entity_writer(header)(
            buffer,
            make(
                header,
                request_api_key=key,
                request_api_version=version,
                correlation_id=self._number,
                client_id="test",
            ),
        )
        entity_writer(cls)(buffer, request)
        payload = buffer.getvalue()
        self.socket.sendall(struct.pack(">i", len(payload)) + payload)

    def receive(self, key: int, version: int) -> Any:
        (size,) = struct.unpack(">i", self._exactly(4))
        data = memoryview(self._exactly(size)).toreadonly()
        types: Any = load_entity_module(_NAMES[key][0], version, EntityType.response)
        cls = getattr(types, _NAMES[key][2])
        header, at = entity_reader(cls.__header_schema__)(data, 0)
        assert header.correlation_id == self._number
        response, used = entity_reader(cls)(data, at)
        assert at + used == size
        return response

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, "the broker closed the connection"
            data += part
        return bytes(data)


def request_types(key: int, version: int) -> Any:
    return load_entity_module(_NAMES[key][0], version, EntityType.request)
