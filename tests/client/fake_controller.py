"""A controller that answers what only a controller can, as a test says; its bytes are kio's."""

import io
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from sparklog.client.brokers import VERSIONS
from sparklog_server.protocol.responses import make
from tests.client.fake_broker import fake_broker, log_dirs, string

METADATA, API_VERSIONS, DESCRIBE_LOG_DIRS = 3, 18, 35


@dataclass
class FakeController:
    """What it says, and what it was asked.

    Fields:
        controller_id: who is controller, by Metadata; its own node id is 1.
        answers: by API key, the fields of the response; nested entities name themselves: {"_": "Name", ...}.
        asked: (API key, kio's request) of each request that only a controller can do.
        before: called with each API key, before it is answered.
    """

    cluster_id: str
    controller_id: int = 1
    answers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    served: Mapping[int, tuple[int, int]] = field(
        default_factory=lambda: {key: (0, version) for key, version in VERSIONS.items()}
    )
    asked: list[tuple[int, Any]] = field(default_factory=list)
    before: Callable[[int], None] = lambda _: None
    address: str = ""
    root: str = "file:///nowhere"
    others: dict[int, str] = field(default_factory=dict)

    def answer(self, key: int) -> bytes:
        self.before(key)
        if key == METADATA:
            return metadata(self.cluster_id, {1: self.address, **self.others}, self.controller_id)
        if key == DESCRIBE_LOG_DIRS:
            return log_dirs(self.root)
        if key == API_VERSIONS:
            entries = b"".join(struct.pack(">hhh", one, *versions) for one, versions in self.served.items())
            return struct.pack(">hi", 0, len(self.served)) + entries
        return b"\0" + response(key, VERSIONS[key], self.answers[key])

    def see(self, data: bytes) -> None:
        key, version, _, length = struct.unpack_from(">hhih", data)
        if key not in {METADATA, API_VERSIONS, DESCRIBE_LOG_DIRS}:
            assert data[10 + length] == 0  # no tagged fields in the header
            self.asked.append((key, request(key, version, data[11 + length :])))

    @contextmanager
    def serving(self) -> Iterator[str]:
        """host:port."""
        with fake_broker(self.answer, seen=self.see) as self.address:
            yield self.address


def metadata(cluster_id: str, addresses: Mapping[int, str], controller_id: int) -> bytes:
    """MetadataResponse v2."""
    body = struct.pack(">i", len(addresses))
    for node_id, address in addresses.items():
        host, _, port = address.rpartition(":")
        body += struct.pack(">i", node_id) + string(host) + struct.pack(">i", int(port)) + string(None)
    return body + string(cluster_id) + struct.pack(">ii", controller_id, 0)


def request(key: int, version: int, body: bytes) -> Any:
    """What kio reads of a request's body: all of it."""
    found, size = entity_reader(load_request_schema(key, version))(memoryview(body), 0)
    assert size == len(body)
    return found


def response(key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """What kio writes."""
    schema: Any = load_response_schema(key, version)
    types = load_payload_module(key, version, EntityType.response)

    def entity(value: Any) -> Any:
        if isinstance(value, dict):
            kind = getattr(types, value["_"])
            return make(kind, **{name: entity(one) for name, one in value.items() if name != "_"})
        return tuple(map(entity, value)) if isinstance(value, list | tuple) else value

    stream = io.BytesIO()
    entity_writer(schema)(stream, make(schema, **{name: entity(one) for name, one in fields.items()}))
    return stream.getvalue()


def elected(*partitions: tuple[str, int, int], error_code: int = 0) -> dict[str, Any]:
    """ElectLeadersResponse: (topic, partition, error code) of each, in one topic."""
    results = [
        {"_": "PartitionResult", "partition_id": number, "error_code": code, "error_message": None}
        for _, number, code in partitions
    ]
    topics = [
        {"_": "ReplicaElectionResult", "topic": name, "partition_result": results}
        for name, *_ in partitions[:1]
    ]
    return {"error_code": error_code, "replica_election_results": topics}


def reassigned(
    *partitions: tuple[str, int, int, str | None], error_code: int = 0, error_message: str | None = None
) -> dict[str, Any]:
    """AlterPartitionReassignmentsResponse: (topic, partition, error code, message) of each, in one topic."""
    results = [
        {
            "_": "ReassignablePartitionResponse",
            "partition_index": number,
            "error_code": code,
            "error_message": message,
        }
        for _, number, code, message in partitions
    ]
    topics = [
        {"_": "ReassignableTopicResponse", "name": name, "partitions": results} for name, *_ in partitions[:1]
    ]
    return {"error_code": error_code, "error_message": error_message, "responses": topics}
