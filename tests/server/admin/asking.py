"""Asks a broker over a socket, in any version of any API, with kio's entities."""

import io
from typing import Any

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from sparklog_server.protocol.entities import make
from tests.server.conftest import RawClient


class Asker:
    """One connection; requests one after the other."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._correlation_id = 0

    def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        """The response entity. Nested entities are given as dicts that name them: {"_": "Name", ...}."""
        self._correlation_id += 1
        schema = load_request_schema(key, version)
        types = load_payload_module(key, version, EntityType.request)
        request = make(schema, **{name: entity(types, value) for name, value in fields.items()})
        header = key.to_bytes(2, "big") + version.to_bytes(2, "big") + self._correlation_id.to_bytes(4, "big")
        header += b"\x00\x04test" + (b"\x00" if schema.__header_schema__.__version__ == 2 else b"")
        body = io.BytesIO()
        entity_writer(schema)(body, request)
        self._client.send_frame(header + body.getvalue())
        answer = self._client.receive_frame()
        assert answer is not None, "the broker closed the connection"
        response = load_response_schema(key, version)
        position = 5 if response.__header_schema__.__version__ == 1 else 4
        assert int.from_bytes(answer[:4], "big") == self._correlation_id
        answered, size = entity_reader(response)(memoryview(answer), position)
        assert position + size == len(answer)
        return answered


def entity(types: Any, value: Any) -> Any:
    """kio's entity for nested dicts that name theirs."""
    if isinstance(value, dict):
        fields = {name: entity(types, one) for name, one in value.items() if name != "_"}
        return make(getattr(types, value["_"]), **fields)
    if isinstance(value, list | tuple):
        return tuple(entity(types, one) for one in value)
    return value
