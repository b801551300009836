"""Random requests: right ones made from kio's schemas, and wrong ones made from those."""

import dataclasses
import datetime as dt
import io
import random
import struct
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from sparklog_server.api.registry import declared_apis
from sparklog_server.protocol.messages import request_schema

_EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def served_versions() -> list[tuple[int, int]]:
    """(API key, version) of all that is served."""
    return [(entry.key, version) for entry in declared_apis().values() for version in entry.versions]


def random_request(key: int, version: int, rng: random.Random) -> bytes:
    """A right request of an API, without the length before it."""
    schema: Any = request_schema(key, version)
    out = io.BytesIO()
    client_id = rng.choice([None, b"", b"fuzz", "h\u00fclle".encode()])
    out.write(struct.pack(">hhi", key, version, rng.randrange(1 << 31)))
    out.write(struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id)
    if schema.__header_schema__.__version__ == 2:
        out.write(b"\x00")
    entity_writer(schema)(out, random_entity(schema, rng))
    return out.getvalue()


def random_entity(cls: Any, rng: random.Random) -> Any:
    """An entity with a random value in every field."""
    return cls(**{field.name: _random_value(field, rng) for field in dataclasses.fields(cls)})


def _random_value(field: "dataclasses.Field[Any]", rng: random.Random) -> Any:
    alternatives = (field.type, *typing.get_args(field.type))
    is_tag = "tag" in field.metadata
    if type(None) in typing.get_args(field.type) and not is_tag and rng.random() < 0.2:
        return None
    kind = field.metadata.get("kafka_type")
    arrays = [one for one in alternatives if typing.get_origin(one) is tuple]
    if arrays:
        inner = typing.get_args(arrays[0])[0]
        count = rng.choice([0, 1, 1, 2, 5])
        return tuple(
            random_entity(inner, rng) if kind is None else _PRIMITIVES[kind](rng) for _ in range(count)
        )
    if kind is not None:
        return _PRIMITIVES[kind](rng)
    return random_entity(next(one for one in alternatives if dataclasses.is_dataclass(one)), rng)


def _text(rng: random.Random) -> str:
    return rng.choice(["", "a", "topic", "orders.eu-1", "\u20ac" * 3, "x" * 249, "../x", "nul\0"])


def _integer(bits: int) -> Callable[[random.Random], int]:
    high = (1 << (bits - 1)) - 1
    return lambda rng: rng.choice([0, 1, -1, high, -high - 1, rng.randint(-high, high)])


_PRIMITIVES: dict[str, Callable[[random.Random], Any]] = {
    "bool": lambda rng: rng.random() < 0.5,
    "int8": _integer(8),
    "int16": _integer(16),
    "int32": _integer(32),
    "int64": _integer(64),
    "uint16": lambda rng: rng.randrange(1 << 16),
    "error_code": lambda rng: rng.choice(list(ErrorCode)),
    "float64": lambda rng: rng.random(),
    "string": _text,
    "bytes": lambda rng: rng.randbytes(rng.choice([0, 1, 20, 300])),
    "records": lambda rng: rng.randbytes(rng.choice([0, 61, 300])),
    "uuid": lambda rng: uuid.UUID(bytes=rng.randbytes(16)),
    "timedelta_i32": lambda rng: dt.timedelta(milliseconds=rng.randrange(1 << 31)),
    "timedelta_i64": lambda rng: dt.timedelta(milliseconds=rng.randrange(1 << 40)),
    "datetime_i64": lambda rng: _EPOCH + dt.timedelta(milliseconds=rng.randrange(1 << 30)),
}

_EVIL_INTEGERS = [
    struct.pack(">i", value) for value in (-1, -2, 0, 1, 1 << 16, (1 << 31) - 1, -(1 << 31), 0x7FFFFFF0)
]
_EVIL_VARINTS = [
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 12,
    b"\x80\x80\x80\x80\x00",
    b"\x80",
]


def mutated(request: bytes, rng: random.Random) -> bytes:
    """A request that something was done to."""
    data = bytearray(request)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(8):
            case 0:
                del data[at:]
            case 1 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 2 if at < len(data):
                data[at] = rng.choice([0, 0x7F, 0x80, 0xFF])
            case 3:
                data[at : at + 4] = rng.choice(_EVIL_INTEGERS)
            case 4:
                data[at : at + 1] = rng.choice(_EVIL_VARINTS)
            case 5:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 6:
                del data[at : at + rng.randrange(1, 9)]
            case 7:
                data[at:] = rng.randbytes(rng.randrange(64))
        if not data:
            break
    return bytes(data)


def fuzzed_frames(count: int, seed: int) -> Iterator[bytes]:
    """Frames, most of them wrong, without the length before them."""
    rng = random.Random(seed)
    versions = served_versions()
    right: list[bytes] = []
    for number in range(count):
        if number < 2000 or rng.random() < 0.02:
            right.append(random_request(*rng.choice(versions), rng))
        if rng.random() < 0.02:
            yield rng.randbytes(rng.randrange(200))
        else:
            yield mutated(rng.choice(right), rng)
