"""Writes responses: what kio's writers write, at a fifth of their price.

Why: an answer about thousands of topics or partitions is made on the event loop, and kio looks at every field
of every entity as if it had never seen one: 26 us for a partition of OffsetFetch, 150 for a topic of
CreateTopics with its settings, four fifths of what such requests cost. Here each entity's class becomes a
short list of steps, once: neighbours of fixed size are one call of struct; and a list that occurs again (the
settings of a thousand topics that are all alike) is neither encoded nor held again: it is sent again.

Invariants: byte for byte what kio writes, in every version that is served (a test compares them); None where
    the schema knows no null, or a number that does not fit, is an error, never other bytes.
Not here: headers, lengths (messages.py); what a broker encodes a thousand times a second
    (produce_response.py, metadata_response.py, fetch/response.py).
Concurrency: pure. An entity must not be changed while it is being written (kio's are frozen).
Sources: Kafka MessageDataGenerator; KIP-482 (tagged fields), KIP-893 (nullable structs).
"""

import dataclasses
import functools
import struct
import typing
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias

from kio.static.constants import uuid_zero

from sparklog_server.protocol.entities import Recurring, make
from sparklog_server.protocol.varints import compact_length, uvarint

_SHARED_ITEMS = 8  # a list of fewer is not worth looking up
_OWN_CHUNK_BYTES = 512  # shorter pieces are copied into what comes before them
_FORMATS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "error_code": "h",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float64": "d",
}


class _Output:
    """What has been written; `repeated`: what lists became, and entities that recur in several, by the
    identities of what it was and of the writer.
    """

    __slots__ = ("chunks", "data", "repeated")

    def __init__(self, repeated: dict[tuple[int, int], bytes]) -> None:
        self.chunks: list[bytes | bytearray] = []
        self.data = bytearray()
        self.repeated = repeated

    def append(self, piece: bytes) -> None:
        if len(piece) < _OWN_CHUNK_BYTES:
            self.data += piece
            return
        self.chunks += (self.data, piece)
        self.data = bytearray()

    def end(self) -> list[bytes | bytearray]:
        self.chunks.append(self.data)
        return self.chunks


Write: TypeAlias = Callable[[Any, _Output], None]  # an entity's, or a value's
Field: TypeAlias = "dataclasses.Field[Any]"


def response_writer(cls: type) -> Callable[[Any], list[bytes | bytearray]]:
    """What turns a response of this class into its bytes, to be sent one after the other."""
    write = _entity(cls, is_inside=False)

    def write_response(entity: Any) -> list[bytes | bytearray]:
        out = _Output({})
        write(entity, out)
        return out.end()

    return write_response


@functools.cache
def _entity(cls: Any, *, is_inside: bool) -> Write:
    """`is_inside`: it is an element of a list."""
    flexible = bool(cls.__flexible__)
    tagged = sorted((one for one in dataclasses.fields(cls) if "tag" in one.metadata), key=_tag)
    steps: list[Write] = []
    names: list[str] = []
    formats = ""
    for one in dataclasses.fields(cls):
        if "tag" in one.metadata:
            continue
        code = None if _is_array(one) else _FORMATS.get(one.metadata.get("kafka_type", ""))
        if code is not None:
            names.append(one.name)
            formats += code
            continue
        if names:
            steps.append(_fixed(names, formats))
            names, formats = [], ""
        steps.append(_field(one, flexible=flexible, is_inside=is_inside))
    if flexible and not tagged:
        formats += "x"  # a zero: no tagged fields
    if formats:
        steps.append(_fixed(names, formats))
    if tagged:
        steps.append(_tags(cls, tagged))
    if len(steps) == 1:
        return steps[0]
    several = tuple(steps)

    def write(entity: Any, out: _Output) -> None:
        for step in several:
            step(entity, out)

    return write


def _tag(field: Field) -> int:
    return int(field.metadata["tag"])


def _tags(cls: type, fields: list[Field]) -> Write:
    """Tagged fields, but for those that have their defaults: mostly all of them."""
    get_all = attrgetter(*(one.name for one in fields))
    usual: Any = make(cls)
    defaults = get_all(usual)
    several = [
        (
            _tag(one),
            getattr(usual, one.name),
            attrgetter(one.name),
            _value(one, flexible=True, is_inside=True),
        )
        for one in fields
    ]

    def write(entity: Any, out: _Output) -> None:
        if get_all(entity) == defaults:
            out.data += b"\0"
            return
        told = [one for one in several if one[2](entity) != one[1]]
        out.data += uvarint(len(told))
        for tag, _, get, write_value in told:
            inside = _Output(out.repeated)
            write_value(get(entity), inside)
            pieces = inside.end()
            out.data += uvarint(tag) + uvarint(sum(map(len, pieces)))
            out.data += b"".join(pieces)

    return write


def _fixed(names: list[str], formats: str) -> Write:
    pack = struct.Struct(">" + formats).pack
    if not names:

        def write_nothing(_entity: Any, out: _Output) -> None:
            out.data += pack()

        return write_nothing
    get = attrgetter(*names)
    if len(names) == 1:

        def write_one(entity: Any, out: _Output) -> None:
            out.data += pack(get(entity))

        return write_one

    def write_several(entity: Any, out: _Output) -> None:
        out.data += pack(*get(entity))

    return write_several


def _field(field: Field, *, flexible: bool, is_inside: bool) -> Write:
    """A field that varies in size, or is no number."""
    get = attrgetter(field.name)
    write_value = _value(field, flexible=flexible, is_inside=is_inside)

    def write(entity: Any, out: _Output) -> None:
        write_value(get(entity), out)

    return write


def _is_array(field: Field) -> bool:
    return any(typing.get_origin(one) is tuple for one in (field.type, *typing.get_args(field.type)))


def _value(field: Field, *, flexible: bool, is_inside: bool) -> Write:
    kind = field.metadata.get("kafka_type")
    alternatives = (field.type, *typing.get_args(field.type))
    # A tagged field is left out instead of being null.
    nullable = type(None) in typing.get_args(field.type) and "tag" not in field.metadata
    if _is_array(field):
        inner = next(typing.get_args(one)[0] for one in alternatives if typing.get_origin(one) is tuple)
        if kind is None:
            item = _entity(inner, is_inside=True)
        elif kind in _FORMATS:
            return _numbers(_FORMATS[kind], flexible=flexible)
        else:
            item = _primitive(kind, flexible=flexible, nullable=False)
        return _array(item, flexible=flexible, is_shared=is_inside)
    if kind is not None:
        return _primitive(kind, flexible=flexible, nullable=nullable)
    cls: Any = next(one for one in alternatives if dataclasses.is_dataclass(one))
    inside = _entity(cls, is_inside=is_inside)
    return _nullable(inside) if nullable else inside


def _nullable(inside: Write) -> Write:
    def write(value: Any, out: _Output) -> None:
        if value is None:
            out.data += b"\xff"
            return
        out.data += b"\x01"
        inside(value, out)

    return write


# --- lists -----------------------------------------------------------------------------------------------


def _array(item: Write, *, flexible: bool, is_shared: bool) -> Write:
    def write(value: Any, out: _Output) -> None:
        if not _count(value, out, flexible=flexible):
            return
        for one in value:
            item(one, out)

    def write_shared(value: Any, out: _Output) -> None:
        if value is None or len(value) < _SHARED_ITEMS:
            write(value, out)
            return
        key = id(value), id(item)
        piece = out.repeated.get(key)
        if piece is None:
            inside = _Output(out.repeated)
            (write_recurring if isinstance(value, Recurring) else write)(value, inside)
            piece = out.repeated[key] = b"".join(inside.end())
        out.append(piece)

    def write_recurring(value: Any, out: _Output) -> None:
        _count(value, out, flexible=flexible)
        for one in value:
            key = id(one), id(item)
            encoded = out.repeated.get(key)
            if encoded is None:
                inside = _Output(out.repeated)
                item(one, inside)
                encoded = out.repeated[key] = b"".join(inside.end())
            out.data += encoded

    return write_shared if is_shared else write


def _numbers(code: str, *, flexible: bool) -> Write:
    def write(value: Any, out: _Output) -> None:
        if count := _count(value, out, flexible=flexible):
            out.data += struct.pack(f">{count}{code}", *value)

    return write


def _count(value: Any, out: _Output, *, flexible: bool) -> int:
    count = -1 if value is None else len(value)
    out.data += compact_length(count) if flexible else struct.pack(">i", count)
    return max(0, count)


# --- single values ---------------------------------------------------------------------------------------


def _primitive(kind: str, *, flexible: bool, nullable: bool) -> Write:
    if kind in _FORMATS:
        return _number(_FORMATS[kind])
    match kind:
        case "string" | "bytes" | "records":
            return _text(kind, flexible=flexible, nullable=nullable)
        case "uuid":
            return _uuid
        case "timedelta_i32" | "timedelta_i64":
            pack = struct.Struct(">i" if kind.endswith("32") else ">q").pack

            def write_duration(value: Any, out: _Output) -> None:
                out.data += pack(round(value.total_seconds() * 1000))

            return write_duration
        case "datetime_i64":
            return _datetime
        case _:
            raise TypeError(f"found the type {kind} in kio's schema, expected one that is known here")


def _number(code: str) -> Write:
    pack = struct.Struct(">" + code).pack

    def write(value: Any, out: _Output) -> None:
        out.data += pack(value)

    return write


def _uuid(value: Any, out: _Output) -> None:
    out.data += (uuid_zero if value is None else value).bytes


def _datetime(value: Any, out: _Output) -> None:
    out.data += struct.pack(">q", -1 if value is None else round(value.timestamp() * 1000))


def _text(kind: str, *, flexible: bool, nullable: bool) -> Write:
    pack_length = compact_length if flexible else struct.Struct(">h" if kind == "string" else ">i").pack

    def write(value: Any, out: _Output) -> None:
        if value is None:
            if not nullable:
                raise TypeError(f"found no {kind}, expected one")
            out.data += pack_length(-1)
            return
        encoded = value.encode() if isinstance(value, str) else value
        out.data += pack_length(len(encoded))
        out.data += encoded

    return write
