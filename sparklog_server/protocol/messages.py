"""Requests and responses as bytes: headers, bodies, and the four bytes of length before a response.

Invariants: kio reads a body only after the walk in this module; any bytes of a client result in an entity,
    MalformedRequestError or UnsupportedRequestError.
Not here: sockets, frames of requests (network/frames.py), which APIs there are (api/registry.py).
Sources: Kafka RequestHeader, RequestContext.parseRequest, ResponseHeader; KIP-482, KIP-511.
"""

import dataclasses
import functools
import struct
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import msgspec
from kio.index import load_request_schema, load_response_schema
from kio.schema.request_header.v2.header import RequestHeader as KioHeader
from kio.serial import entity_reader
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32

from sparklog_server.protocol.apis import ApiEntry, ApiKey
from sparklog_server.protocol.responses import FieldLayout, layout_of, response_writer
from sparklog_server.protocol.wire import Chunk, FileRegion, Response, uvarint

# --- guard -------------------------------------------------------------------------------------------
#
# A walk over a request's bytes before kio reads them: checks that all lengths and counts fit into the frame.
#
# Why: kio allocates room for all elements that an array claims to have; a frame of five bytes that claims
# 2**31 aborts the process (kio 0.6.5, an allocation of 34 GB in native code). It also refuses tagged fields
# that it does not know, where the protocol says to skip them, and reads a null array as None where the
# schema knows no null.
# Invariants: after the walk every count is at most the bytes that follow, all elements and tagged fields of a
#     request together are at most MAX_ELEMENTS, tags ascend, and tagged fields that are unknown are cut out.
#     For any bytes, the outcome is a buffer that kio may read, or MalformedRequestError.
# Not here: values (kio checks UTF-8, booleans, nulls; handlers the rest); bytes after the last field: they
#     are ignored, as in Kafka.
# Cost: proportional to the number of fields, not of bytes: 10 us for a produce request of one partition.
# Sources: Kafka MessageDataGenerator, CVE-2022-34917 (KAFKA-14063); KIP-482, KIP-893.


MAX_ELEMENTS = 100_000  # kio takes 0.9 us for each, on the event loop

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_FIXED_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


class MalformedRequestError(Exception):
    """The bytes are not a request; the connection is closed, as in Kafka."""


class Guarded(typing.NamedTuple):
    """Bytes that kio may read from a position on, and their number of list elements."""

    data: memoryview
    position: int
    elements: int


@dataclasses.dataclass(slots=True)
class Walk:
    """The state of a walk: its end, the largest count, counts, and byte ranges to cut out."""

    data: memoryview
    end: int
    most: int
    elements: int = 0
    cuts: list[tuple[int, int, bytes]] = dataclasses.field(default_factory=list)


Step = Callable[[Walk, int], int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """The size of a value: `fixed` bytes, or computed by `step`, at least `least` bytes."""

    least: int
    fixed: int | None
    step: Step


def guarded(data: memoryview, position: int, request_type: type, most: int = MAX_ELEMENTS) -> Guarded:
    """Return `data` in a form that kio may read.

    Raises:
        MalformedRequestError: a length or count does not fit into the frame, or is larger than `most`.
    """
    walk = Walk(data, len(data), most)
    _entity(request_type).step(walk, position)
    return Guarded(_cut(walk) if walk.cuts else data, position, walk.elements)


def read_uvarint(data: memoryview, position: int) -> tuple[int, int]:
    """Return an unsigned varint of at most 5 bytes, below 2**31, and the position after it."""
    if position < len(data) and data[position] < 0x80:  # the usual case
        return data[position], position + 1
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(data):
            raise MalformedRequestError("it ends within a varint")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 31:
                break
            return value, position
    raise MalformedRequestError("a varint of more than 31 bits")


# --- steps ------------------------------------------------------------------------------------------


@functools.cache
def _entity(cls: typing.Any) -> _Part:
    flexible = bool(cls.__flexible__)
    plain, tagged = [], {}
    for field in layout_of(cls):
        if field.tag is not None:
            tagged[field.tag] = _value(field, flexible=flexible)
        else:
            plain.append(_value(field, flexible=flexible))
    if flexible:
        plain.append(_Part(1, None, _tags(tagged)))
    return _sequence(plain)


def _value(field: FieldLayout, *, flexible: bool) -> _Part:
    part = _entity(field.entity) if field.entity else _primitive(field.kind, flexible=flexible)
    if field.is_array:
        return _array(part, flexible=flexible, nullable=field.is_nullable)
    if field.entity is not None and field.is_nullable and field.tag is None:
        return _Part(1, None, _nullable(part.step))
    return part


def _primitive(kind: str, *, flexible: bool) -> _Part:
    size = _FIXED_BYTES.get(kind)
    if size is not None:
        return _Part(size, size, _skip(size))
    if kind not in {"string", "bytes", "records"}:
        raise TypeError(f"found the type {kind} in kio's schema, expected one that is known here")
    if flexible:
        return _Part(1, None, _compact_bytes)
    return _Part(2, None, _string) if kind == "string" else _Part(4, None, _bytes)


def _sequence(parts: Sequence[_Part]) -> _Part:
    """Join consecutive parts; neighbours of fixed size become one."""
    merged: list[_Part] = []
    for part in parts:
        if merged and part.fixed is not None and merged[-1].fixed is not None:
            size = merged.pop().fixed or 0
            size += part.fixed
            merged.append(_Part(size, size, _skip(size)))
        else:
            merged.append(part)
    if len(merged) == 1:
        return merged[0]
    steps = tuple(part.step for part in merged)

    def step(walk: Walk, position: int) -> int:
        for one in steps:
            position = one(walk, position)
        return position

    return _Part(sum(part.least for part in merged), None if merged else 0, step)


def _skip(size: int) -> Step:
    def step(walk: Walk, position: int) -> int:
        return _within(walk, position + size)

    return step


def _within(walk: Walk, position: int) -> int:
    if position > walk.end:
        raise MalformedRequestError(f"a field ends at byte {position} of {walk.end}")
    return position


def _string(walk: Walk, position: int) -> int:
    start = _within(walk, position + 2)
    (size,) = _INT16.unpack_from(walk.data, position)
    return _sized(walk, start, size)


def _bytes(walk: Walk, position: int) -> int:
    start = _within(walk, position + 4)
    (size,) = _INT32.unpack_from(walk.data, position)
    return _sized(walk, start, size)


def _compact_bytes(walk: Walk, position: int) -> int:
    size, start = read_uvarint(walk.data, position)
    return _sized(walk, start, size - 1)


def _sized(walk: Walk, start: int, size: int) -> int:
    if size < -1:
        raise MalformedRequestError(f"a field of {size} bytes")
    return start if size == -1 else _within(walk, start + size)


def _array(item: _Part, *, flexible: bool, nullable: bool) -> _Part:
    least = max(1, item.least)
    fixed, step_item = item.fixed, item.step

    def step(walk: Walk, position: int) -> int:
        if flexible:
            count, start = read_uvarint(walk.data, position)
            count -= 1
        else:
            start = _within(walk, position + 4)
            (count,) = _INT32.unpack_from(walk.data, position)
        if count < 0:
            if count < -1 or not nullable:
                raise MalformedRequestError(f"an array of {count} elements")
            return start
        walk.elements += count
        if count * least > walk.end - start or walk.elements > walk.most:
            raise MalformedRequestError(f"an array of {count} elements, {walk.end - start} bytes follow")
        if fixed is not None:
            return start + count * fixed
        for _ in range(count):
            start = step_item(walk, start)
        return start

    return _Part(1 if flexible else 4, None, step)


def _nullable(step_inside: Step) -> Step:
    def step(walk: Walk, position: int) -> int:
        start = _within(walk, position + 1)
        (marker,) = _INT8.unpack_from(walk.data, position)
        if marker not in {-1, 1}:
            raise MalformedRequestError(f"a struct marked {marker}, neither null nor there")
        return start if marker == -1 else step_inside(walk, start)

    return step


def _tags(known: dict[int, _Part]) -> Step:
    def step(walk: Walk, position: int) -> int:
        count, start = read_uvarint(walk.data, position)
        if not count:
            return start
        return _walk_tags(walk, known, count, position, start)

    return step


def _walk_tags(walk: Walk, known: dict[int, _Part], count: int, position: int, start: int) -> int:
    walk.elements += count
    if 2 * count > walk.end - start or walk.elements > walk.most:
        raise MalformedRequestError(f"{count} tagged fields, {walk.end - start} bytes follow")
    cuts: list[tuple[int, int, bytes]] = []
    last = -1
    at = start
    for _ in range(count):
        tag, after_tag = read_uvarint(walk.data, at)
        size, content = read_uvarint(walk.data, after_tag)
        end = _within(walk, content + size)
        if tag <= last:
            raise MalformedRequestError(f"tag {tag} after tag {last}")
        last = tag
        part = known.get(tag)
        if part is None:
            cuts.append((at, end, b""))
        else:
            cuts_before = len(walk.cuts)
            if part.step(walk, content) != end or len(walk.cuts) != cuts_before:
                raise MalformedRequestError(f"tagged field {tag} is not {size} bytes long")
        at = end
    if cuts:
        walk.cuts.append((position, start, uvarint(count - len(cuts))))
        walk.cuts.extend(cuts)
    return at


def _cut(walk: Walk) -> memoryview:
    pieces: list[bytes | memoryview] = []
    position = 0
    for start, end, replacement in sorted(walk.cuts):
        pieces += (walk.data[position:start], replacement)
        position = end
    pieces.append(walk.data[position:])
    return memoryview(b"".join(pieces))


# --- messages ----------------------------------------------------------------------------------------


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
    "request_schema",
    "response_schema",
]
_CLIENT_ID = struct.Struct(">h")
MAX_HEADER_TAGS = 100  # Kafka has defined none so far
_LENGTH_AND_CORRELATION = struct.Struct(">ii")
MIN_REQUEST_BYTES = _HEADER.size + _CLIENT_ID.size


class UnsupportedRequestError(Exception):
    """The API or version is not served; the connection is closed, as in Kafka."""


class RequestHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a request that all APIs share."""

    api_key: int
    api_version: int
    correlation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCodec:
    """Reads and writes one version of an API."""

    version: int
    types: ModuleType
    request_type: type
    read: Callable[[memoryview, int], tuple[Any, int]]
    write: Callable[[Any], list[bytes | bytearray]]
    flexible_request: bool
    flexible_response: bool


def parse_header(frame: memoryview) -> RequestHeader:
    """Parse the fixed part of a request's header."""
    if len(frame) < MIN_REQUEST_BYTES:
        raise MalformedRequestError(f"{len(frame)} bytes, a request has at least {MIN_REQUEST_BYTES}")
    api_key, api_version, correlation_id = _HEADER.unpack_from(frame)
    return RequestHeader(api_key=api_key, api_version=api_version, correlation_id=correlation_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    """Version 5 (KIP-1242), which kio 0.6.5 lacks; its response is that of version 4.

    Fields:
        cluster_id, node_id: where the client believes to be; both or none (None, -1).
    """

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(5)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(18)
    __header_schema__: ClassVar[type[KioHeader]] = KioHeader
    client_software_name: str = dataclasses.field(metadata={"kafka_type": "string"})
    client_software_version: str = dataclasses.field(metadata={"kafka_type": "string"})
    cluster_id: str | None = dataclasses.field(metadata={"kafka_type": "string"}, default=None)
    node_id: i32 = dataclasses.field(metadata={"kafka_type": "int32"}, default=i32(-1))


def request_schema(api_key: int, version: int) -> Any:
    """Return the class of a request."""
    if (api_key, version) == (ApiKey.API_VERSIONS, 5):
        return ApiVersionsRequest
    return load_request_schema(api_key, version)


def response_schema(api_key: int, version: int) -> Any:
    """Return the class of a response."""
    if (api_key, version) == (ApiKey.API_VERSIONS, 5):
        return load_response_schema(api_key, 4)
    return load_response_schema(api_key, version)


@functools.cache
def message_codec(api_key: int, version: int) -> MessageCodec:
    """Return the codec of a version; loaded on first use."""
    request, response = request_schema(api_key, version), response_schema(api_key, version)
    return MessageCodec(
        version=version,
        types=sys.modules[response.__module__],
        request_type=request,
        read=entity_reader(request),
        write=response_writer(response),
        flexible_request=request.__header_schema__.__version__ == 2,
        flexible_response=response.__header_schema__.__version__ == 1,
    )


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may be decoded to this number of list `elements`."""

    client_id: str = ""
    body: Guarded | None = None
    codec: MessageCodec

    @property
    def elements(self) -> int:
        return 0 if self.body is None else self.body.elements

    def read(self) -> Any:
        """Return the body; None for an ApiVersions request of an unknown version."""
        if self.body is None:
            return None
        try:
            entity, _ = self.codec.read(self.body.data, self.body.position)
        except Exception as error:  # kio raises its own, ValueError, KeyError, OverflowError
            raise MalformedRequestError(f"{type(error).__name__}: {error}") from error
        return entity


def examine_request(
    frame: memoryview, header: RequestHeader, codec: MessageCodec, most: int = MAX_ELEMENTS
) -> Examined:
    """Check a request without decoding it; `most`: of its elements and tagged fields."""
    if codec.version != header.api_version:
        return Examined(codec=codec)
    client_id, position = _client_id(frame)
    if codec.flexible_request:
        position = _skip_tags(frame, position)
    return Examined(client_id=client_id, body=guarded(frame, position, codec.request_type, most), codec=codec)


def encode_response(codec: MessageCodec, correlation_id: int, body: Any) -> list[Chunk]:
    """Return length, header and body, to be sent in order."""
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
    """Return the codec for a request; that of version 0 for unknown versions of ApiVersions."""
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
    """Skip the tagged fields of a header: none is known."""
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
