"""Requests and responses as bytes: headers, bodies, and the four bytes of length before a response.

Invariants: a body is given to kio only after guard.py has walked it; whatever a client sends ends in an
    entity or in MalformedRequestError or UnsupportedRequestError.
Not here: sockets, frames of requests (network/frames.py), which APIs there are (api/registry.py).
Sources: Kafka RequestHeader, RequestContext.parseRequest, ResponseHeader; KIP-482, KIP-511.
"""

import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import msgspec
from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader
from kio.static.constants import EntityType

from sparklog_server.protocol.api_entry import ApiEntry
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.guard import Guarded, MalformedRequestError, guarded, read_uvarint
from sparklog_server.protocol.response_writer import response_writer
from sparklog_server.protocol.wire import Chunk, FileRegion, Response

_HEADER = struct.Struct(">hhi")
__all__ = [
    "Examined",
    "MalformedRequestError",
    "MessageCodec",
    "RequestHeader",
    "UnsupportedRequestError",
    "codec_for",
    "encode_response",
    "examine_request",
    "message_codec",
    "parse_header",
]
_CLIENT_ID = struct.Struct(">h")
MAX_HEADER_TAGS = 100  # Kafka has defined none so far
_LENGTH_AND_CORRELATION = struct.Struct(">ii")
MIN_REQUEST_BYTES = _HEADER.size + _CLIENT_ID.size


class UnsupportedRequestError(Exception):
    """An API or a version that is not served; the connection is closed, as Kafka does."""


class RequestHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a request that all APIs share."""

    api_key: int
    api_version: int
    correlation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCodec:
    """How one version of an API is read and written."""

    version: int
    types: ModuleType
    request_type: type
    read: Callable[[memoryview, int], tuple[Any, int]]
    write: Callable[[Any], list[bytes | bytearray]]
    flexible_request: bool
    flexible_response: bool


def parse_header(frame: memoryview) -> RequestHeader:
    """The fixed part of a request's header."""
    if len(frame) < MIN_REQUEST_BYTES:
        raise MalformedRequestError(f"{len(frame)} bytes, a request has at least {MIN_REQUEST_BYTES}")
    api_key, api_version, correlation_id = _HEADER.unpack_from(frame)
    return RequestHeader(api_key=api_key, api_version=api_version, correlation_id=correlation_id)


@functools.cache
def message_codec(api_key: int, version: int) -> MessageCodec:
    """The codec of a version that kio knows; loaded when it is first used."""
    request = load_request_schema(api_key, version)
    response = load_response_schema(api_key, version)
    return MessageCodec(
        version=version,
        types=load_payload_module(api_key, version, EntityType.response),
        request_type=request,
        read=cast("Any", entity_reader(request)),
        write=response_writer(response),
        flexible_request=request.__header_schema__.__version__ == 2,
        flexible_response=response.__header_schema__.__version__ == 1,
    )


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may be decoded: `elements` of lists will come of it."""

    client_id: str = ""
    body: Guarded | None = None
    codec: MessageCodec

    @property
    def elements(self) -> int:
        return 0 if self.body is None else self.body.elements

    def read(self) -> Any:
        """The body; None for an ApiVersions of a version that we do not know."""
        if self.body is None:
            return None
        try:
            entity, _ = self.codec.read(self.body.data, self.body.position)
        except Exception as error:  # kio raises its own, ValueError, KeyError, OverflowError
            raise MalformedRequestError(f"{type(error).__name__}: {error}") from error
        return entity


def examine_request(frame: memoryview, header: RequestHeader, codec: MessageCodec) -> Examined:
    """The first step, which makes nothing of the request's bytes yet."""
    if codec.version != header.api_version:
        return Examined(codec=codec)
    client_id, position = _client_id(frame)
    if codec.flexible_request:
        position = _skip_tags(frame, position)
    return Examined(client_id=client_id, body=guarded(frame, position, codec.request_type), codec=codec)


def encode_response(codec: MessageCodec, correlation_id: int, body: Any) -> list[Chunk]:
    """Length, header and body, to be sent one after the other."""
    header_size = 9 if codec.flexible_response else 8
    if isinstance(body, Response):
        size = header_size - 4 + _total(body.chunks)
        head = _LENGTH_AND_CORRELATION.pack(size, correlation_id) + bytes(header_size - 8)
        return [head, *body.chunks]
    pieces = codec.write(body)
    size = header_size - 4 + sum(map(len, pieces))
    head = _LENGTH_AND_CORRELATION.pack(size, correlation_id) + bytes(header_size - 8)
    return [head + pieces[0], *pieces[1:]]


def codec_for(entry: ApiEntry | None, header: RequestHeader) -> MessageCodec:
    """The codec for a request; of another ApiVersions than ours, version 0's."""
    if entry is None:
        raise UnsupportedRequestError(f"API key {header.api_key} is not served")
    if header.api_version in entry.versions:
        return message_codec(header.api_key, header.api_version)
    if header.api_key == ApiKey.API_VERSIONS:
        return message_codec(ApiKey.API_VERSIONS, 0)
    raise UnsupportedRequestError(
        f"{entry.name} version {header.api_version} is not served, only "
        f"{entry.versions.start} to {entry.versions.stop - 1}"
    )


def _total(chunks: Sequence[Chunk]) -> int:
    return sum(one.size if isinstance(one, FileRegion) else memoryview(one).nbytes for one in chunks)


def _client_id(frame: memoryview) -> tuple[str, int]:
    (size,) = _CLIENT_ID.unpack_from(frame, _HEADER.size)
    start = MIN_REQUEST_BYTES
    if size == -1:
        return "", start
    if size < 0 or start + size > len(frame):
        raise MalformedRequestError(f"client id of {size} bytes in a request of {len(frame)}")
    try:
        return str(frame[start : start + size], "utf-8"), start + size
    except UnicodeDecodeError as error:
        raise MalformedRequestError(f"client id: {error}") from error


def _skip_tags(frame: memoryview, position: int) -> int:
    """The tagged fields of a header: none is known, all are skipped."""
    count, position = read_uvarint(frame, position)
    if count > MAX_HEADER_TAGS:
        raise MalformedRequestError(f"{count} tagged fields in a header, expected at most {MAX_HEADER_TAGS}")
    for _ in range(count):
        _, position = read_uvarint(frame, position)
        size, position = read_uvarint(frame, position)
        position += size
    if position > len(frame):
        raise MalformedRequestError("the header's tagged fields are longer than the request")
    return position
