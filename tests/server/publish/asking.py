"""Produce and InitProducerId over a socket, encoded and decoded by kio."""

import io
import socket
import struct
from types import TracebackType
from typing import Any, Self

from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from sparklog_server.protocol.entities import make

PRODUCE, INIT_PRODUCER_ID = 0, 22
_NAMES = {PRODUCE: "Produce", INIT_PRODUCER_ID: "InitProducerId"}
Part = tuple[str, int, bytes | None]


class Client:
    """One connection."""

    def __init__(self, host: str, port: int, client_id: str | None = "test") -> None:
        self.socket = socket.create_connection((host, port), timeout=30)
        self._client_id = client_id
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, key: int, version: int, **fields: Any) -> int:
        """Returns the correlation id."""
        types: Any = load_payload_module(key, version, EntityType.request)
        cls = getattr(types, f"{_NAMES[key]}Request")
        self._number += 1
        header = make(
            cls.__header_schema__,
            request_api_key=key,
            request_api_version=version,
            correlation_id=self._number,
            client_id=self._client_id,
        )
        buffer = io.BytesIO()
        entity_writer(cls.__header_schema__)(buffer, header)
        entity_writer(cls)(buffer, make(cls, **fields))
        payload = buffer.getvalue()
        self.socket.sendall(struct.pack(">i", len(payload)) + payload)
        return self._number

    def receive(self, key: int, version: int) -> tuple[int, Any]:
        """Correlation id and response."""
        (size,) = struct.unpack(">i", self._exactly(4))
        data = memoryview(self._exactly(size)).toreadonly()
        types: Any = load_payload_module(key, version, EntityType.response)
        cls = getattr(types, f"{_NAMES[key]}Response")
        header, at = entity_reader(cls.__header_schema__)(data, 0)
        body, read = entity_reader(cls)(data, at)
        assert at + read == size
        return header.correlation_id, body

    def is_closed(self) -> bool:
        """Has the broker closed the connection?"""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def send_produce(self, *parts: Part, version: int = 9, acks: int = -1, **fields: Any) -> int:
        types: Any = load_payload_module(PRODUCE, version, EntityType.request)
        by_topic: dict[str, list[Any]] = {}
        for topic, partition, records in parts:
            data = make(types.PartitionProduceData, index=partition, records=records)
            by_topic.setdefault(topic, []).append(data)
        topics = [
            make(types.TopicProduceData, name=name, partition_data=data) for name, data in by_topic.items()
        ]
        values = {"timeout": 30_000, "transactional_id": None, **fields}
        return self.send(PRODUCE, version, acks=acks, topic_data=topics, **values)

    def produce(self, *parts: Part, version: int = 9, **fields: Any) -> list[Any]:
        """The partitions' responses, in the order of the request."""
        number = self.send_produce(*parts, version=version, **fields)
        found, response = self.receive(PRODUCE, version)
        assert found == number
        return [one for topic in response.responses for one in topic.partition_responses]

    def init_producer_id(self, version: int = 4, transactional_id: str | None = None, **fields: Any) -> Any:
        values = {"transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1, **fields}
        self.send(INIT_PRODUCER_ID, version, transactional_id=transactional_id, **values)
        return self.receive(INIT_PRODUCER_ID, version)[1]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, "the broker closed the connection"
            data += part
        return data
