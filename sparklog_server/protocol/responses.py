"""Writes responses: the same bytes as kio's writers, at a fifth of their cost.

Why: an answer about thousands of topics or partitions is encoded on the event loop, and kio inspects every
field of every entity each time: 26 us for a partition of OffsetFetch, 150 for a topic of
CreateTopics with its settings, four fifths of what such requests cost. Here each entity's class becomes a
short list of steps, once: neighbours of fixed size are one call of struct; and a repeated list
(the same settings of a thousand topics) is encoded and held once, and sent several times.

Invariants: byte for byte what kio writes, in every version that is served (a test compares them); None where
    the schema knows no null, or a number that does not fit, is an error, never other bytes.
Not here: headers, lengths (messages.py).
Concurrency: pure. An entity must not be changed while it is being written (kio's are frozen).
Sources: Kafka MessageDataGenerator; KIP-482 (tagged fields), KIP-893 (nullable structs).
"""

import base64
import dataclasses
import datetime as dt
import functools
import struct
import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt
from kio.index import load_entity_module
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType, uuid_zero

from sparklog_server.protocol.wire import (
    NOT_THROTTLED,
    Response,
    compact_length,
    encode_count,
    encode_text,
    uvarint,
)

# --- entities ----------------------------------------------------------------------------------------
#
# Creates and reads kio's entities independently of their version.
#
# Invariants: a field that no version of the entity has is an error, never dropped: only what this
#     version lacks is.
# Durations and times are integer milliseconds on our side (kio: timedelta, datetime; its field names have
#     lost Kafka's suffix: ThrottleTimeMs is throttle_time). Topic ids are text on our side, UUIDs in kio.
# Sources: kio.schema; Kafka's message generator (implicit defaults), Uuid.toString.


T = TypeVar("T")
Convert = Callable[[Any], Any]
MILLISECOND = dt.timedelta(milliseconds=1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class FieldLayout(NamedTuple):
    """A field of an entity, for the guard, the writer and `make`.

    Fields:
        kind: kio's name of the type; "entity" for a struct, whose class `entity` is.
        tag: None: it is not tagged. A tagged field is left out instead of being null.
        default: `dataclasses.MISSING` where kio declares none.
    """

    name: str
    kind: str
    entity: Any
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any


@functools.cache
def layout_of(cls: Any) -> tuple[FieldLayout, ...]:
    """Return the fields of an entity's class, in order: the only reader of kio's annotations."""
    return tuple(map(_layout, dataclasses.fields(cls)))


def _layout(one: "dataclasses.Field[Any]") -> FieldLayout:
    alternatives = (one.type, *typing.get_args(one.type))
    array = next((part for part in alternatives if typing.get_origin(part) is tuple), None)
    classes = alternatives if array is None else typing.get_args(array)
    return FieldLayout(
        name=one.name,
        kind=one.metadata.get("kafka_type", "entity"),
        entity=next(filter(dataclasses.is_dataclass, classes), None),
        is_array=array is not None,
        is_nullable=type(None) in alternatives,
        tag=one.metadata.get("tag"),
        default=one.default,
    )


class Recurring(tuple[T, ...]):
    """Entities that recur in other lists of the same response: each is encoded once."""

    __slots__ = ()


def make(cls: type[T], /, **fields: Any) -> T:
    """Create a kio entity: drop fields that this version lacks; use Kafka's defaults for missing ones.

    Lists become tuples; int ms become timedelta or datetime (-1: none); int error codes become ErrorCode;
    topic ids as text become UUIDs.
    """
    plan = _plan(cls)  # type: ignore[arg-type]  # a class is hashable; cast would be a call
    values = dict(plan.defaults)
    for name, value in fields.items():
        convert = plan.converters.get(name, _unknown)
        if convert is _unknown:
            _validate_dropped(cast("Any", cls), name)
        else:
            values[name] = value if convert is None else convert(value)
    return cls(**values)


def maker(cls: type[T], /, *varying: str, **fields: Any) -> Callable[..., T]:
    """Return a constructor of instances that only differ in the `varying` fields, at a quarter of the cost.

    Its arguments are the varying fields in this order, with kio's types: tuples, no lists.
    """
    first = make(cls, **fields)
    same = {one.name: getattr(first, one.name) for one in dataclasses.fields(cast("Any", cls))}
    for name in varying:
        del same[name]
    if len(varying) == 1:
        (only,) = varying
        return lambda value: cls(**{only: value}, **same)
    return lambda *values: cls(**dict(zip(varying, values, strict=True)), **same)


def field(entity: Any, name: str, default: Any = None) -> Any:
    """Return a field of a request, or `default` if its version has none; durations and times in int ms."""
    value = getattr(entity, name, default)
    if isinstance(value, dt.timedelta):
        return value // MILLISECOND
    if isinstance(value, dt.datetime):
        return (value - _EPOCH) // MILLISECOND
    return value


def topic_uuid(topic_id: str) -> uuid.UUID:
    """Return a topic id as Kafka's UUID."""
    return uuid.UUID(bytes=topic_id_bytes(topic_id))


def topic_id_bytes(topic_id: str) -> bytes:
    """Return a topic id as its bytes in messages."""
    return base64.urlsafe_b64decode(topic_id + "==")


def topic_id_text(value: uuid.UUID) -> str:
    """Return a topic id as sparklog's text (metadata/model/action.py)."""
    return base64.urlsafe_b64encode(value.bytes).decode()[:22]


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    converters: Mapping[str, Convert | None]
    defaults: Mapping[str, Any]


def _unknown(value: Any) -> Any:
    raise AssertionError(value)


@functools.cache
def _plan(cls: Any) -> _Plan:
    converters: dict[str, Convert | None] = {}
    defaults: dict[str, Any] = {}
    for one in layout_of(cls):
        converters[one.name] = _optional_tuple if one.is_array else _CONVERTERS.get(one.kind)
        if one.default is not dataclasses.MISSING:
            continue
        if one.is_nullable:
            defaults[one.name] = None
        elif one.is_array:
            defaults[one.name] = ()
        else:
            defaults[one.name] = make(one.entity) if one.entity else _implicit_default(one.kind)
    return _Plan(types.MappingProxyType(converters), types.MappingProxyType(defaults))


@functools.cache
def _validate_dropped(cls: Any, name: str) -> None:
    """Raise TypeError if no version of the entity has the field; loads the other versions to check."""
    schema = api_key_map[cls.__api_key__]
    kinds = (EntityType.request, EntityType.response)
    for version in schema_name_map[schema]:
        for kind in kinds:
            other = getattr(load_entity_module(schema, version, cast("Any", kind)), cls.__name__, None)
            if other is not None and name in _plan(other).converters:
                return
    raise TypeError(f"{cls.__name__}: no version has a field {name!r}")


def _optional_tuple(value: Any) -> Any:
    return value if value is None or isinstance(value, tuple) else tuple(value)


def _to_timedelta(value: Any) -> Any:
    return dt.timedelta(milliseconds=value) if isinstance(value, int) else value


def _to_datetime(value: Any) -> Any:
    if not isinstance(value, int):
        return value
    return None if value < 0 else _EPOCH + dt.timedelta(milliseconds=value)


def _to_uuid(value: Any) -> Any:
    return topic_uuid(value) if isinstance(value, str) else value


_CONVERTERS: Mapping[str, Convert] = {
    "timedelta_i32": _to_timedelta,
    "timedelta_i64": _to_timedelta,
    "datetime_i64": _to_datetime,
    "error_code": {
        code.value: code for code in ErrorCode
    }.__getitem__,  # calling the class takes five times as long
    "uuid": _to_uuid,
}


def _implicit_default(kind: str) -> Any:
    match kind:
        case "string":
            return ""
        case "bytes" | "records":
            return b""
        case "bool":
            return False
        case "float64":
            return 0.0
        case "uuid":
            return uuid.UUID(int=0)
        case "error_code":
            return ErrorCode.none
        case "timedelta_i32" | "timedelta_i64":
            return dt.timedelta()
        case "datetime_i64":
            return _EPOCH
        case _:
            return 0


# --- log dirs response -------------------------------------------------------------------------------
#
# The response to DescribeLogDirs, without kio.
#
# A request of 20 bytes gets an answer about all partitions. With kio's entities an answer about 100,000 of
# them took 700 ms, and blocked the event loop for a third of it; as bytes it takes a few, and nothing if
# nothing has changed (api/listings.py).
#
# Invariants: the same bytes as kio's, in every version (a test compares them).
# Sources: Kafka DescribeLogDirsResponse.json.


FLEXIBLE_FROM = 2
PARTITION_BYTES = 22
_ERROR_FROM = 3
_SPACE_FROM = 4
_MOST_BYTES = (1 << 63) - 1
_ROW, _FLEXIBLE_ROW = struct.Struct(">iqqx"), struct.Struct(">iqqxx")
_FEW_ROWS = 16  # below that NumPy takes longer
_FIELDS = [("partition", ">i4"), ("size", ">i8"), ("lag", ">i8"), ("is_future", "u1")]
_ROWS, _FLEXIBLE_ROWS = np.dtype(_FIELDS), np.dtype([*_FIELDS, ("tags", "u1")])
_INT16, _INT32, _SPACE = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">qq")


def encode_log_dir(
    version: int, log_dir: str, topics: int, partitions: bytes, space: tuple[int, int]
) -> list[bytes]:
    """Return the body, with one directory.

    Args:
        topics: the number of topics.
        partitions: the encoded topics, in order, from `encode_log_dir_topic`.
        space: total and free bytes of the storage.
    """
    flexible = version >= FLEXIBLE_FROM
    before = [NOT_THROTTLED]
    if version >= _ERROR_FROM:
        before.append(_INT16.pack(0))
    before += [
        encode_count(1, flexible=flexible),
        _INT16.pack(0),
        encode_text(log_dir, flexible=flexible),
    ]
    before.append(encode_count(topics, flexible=flexible))
    after = _SPACE.pack(*space) if version >= _SPACE_FROM else b""
    return [b"".join(before), partitions, after + (b"\0\0" if flexible else b"")]


def encode_log_dir_topic(name: str, numbers: Sequence[int], sizes: Sequence[int], *, flexible: bool) -> bytes:
    """Return one topic: partitions, and their stored bytes."""
    if max(sizes, default=0) > _MOST_BYTES:
        sizes = [min(size, _MOST_BYTES) for size in sizes]
    if len(sizes) < _FEW_ROWS:
        pack = (_FLEXIBLE_ROW if flexible else _ROW).pack
        rows = b"".join(pack(number, size, 0) for number, size in zip(numbers, sizes, strict=True))
    else:
        made = np.zeros(len(sizes), _FLEXIBLE_ROWS if flexible else _ROWS)
        made["partition"], made["size"] = numbers, sizes
        rows = made.tobytes()
    head = encode_text(name, flexible=flexible) + encode_count(len(sizes), flexible=flexible)
    return b"".join((head, rows, b"\0" if flexible else b""))


# --- produce response --------------------------------------------------------------------------------
#
# The response to a Produce request without kio's entities.
#
# A broker encodes this response a thousand times a second. With kio's writer and its entities it took 100 of
# the 410 us of event loop that a small request cost, and takes 6 here (librdkafka, 4 clients, 1,000
# requests/s). And thousands of broken batches in one request are answered in 1.5 us each instead of 20.
# Answers with record errors, or with the new leader, are written from entities instead. A test compares the
# bytes in every version.
# Sources: Kafka ProduceResponse.json.


PRODUCE_FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13
_OLD_PARTITION = struct.Struct(">ihqq")
_PARTITION = struct.Struct(">ihqqq")
MESSAGE_FROM = 8
_NO_RECORDS = b"\0\0\0\0"  # no record errors
_NO_ERRORS = _NO_RECORDS + b"\xff\xff"  # and no message
_NO_ERRORS_FLEXIBLE = b"\x01\0\0"  # and no tags


class ProducedPartition(msgspec.Struct, frozen=True):
    """The outcome of one partition's batches."""

    partition: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    error_code: int = 0
    message: str | None = None


def encode_produce(version: int, topics: Mapping[str | bytes, Sequence[ProducedPartition]]) -> bytes:
    """Return the body, without a header; versions 3 to 13.

    Args:
        topics: by name; from version 13 on, by topic id as bytes.
    """
    flexible = version >= PRODUCE_FLEXIBLE_FROM
    after = b"" if version < MESSAGE_FROM else _NO_ERRORS_FLEXIBLE if flexible else _NO_ERRORS
    parts = [encode_count(len(topics), flexible=flexible)]
    for topic, partitions in topics.items():
        if isinstance(topic, bytes):
            parts.append(topic)
        else:
            parts.append(encode_text(topic, flexible=flexible))
        parts.append(encode_count(len(partitions), flexible=flexible))
        for one in partitions:
            said = one.partition, one.error_code, one.base_offset, one.log_append_time_ms
            if version < 5:
                parts.append(_OLD_PARTITION.pack(*said))
            else:
                parts.append(_PARTITION.pack(*said, one.log_start_offset))
            parts.append(after if one.message is None or not after else _told(one.message, flexible=flexible))
        if flexible:
            parts.append(b"\0")
    parts += [NOT_THROTTLED, b"\0" if flexible else b""]
    return b"".join(parts)


def _told(message: str, *, flexible: bool) -> bytes:
    """Return the last fields of a partition that has an error message."""
    if flexible:
        return b"\x01" + encode_text(message, flexible=True) + b"\0"
    return _NO_RECORDS + encode_text(message, flexible=False)


# --- throttle time -----------------------------------------------------------------------------------
#
# The throttle time of answers that are made already: it depends on how long they took, and on their size.


_THROTTLE_TIME = struct.Struct(">i")
MAX_THROTTLE_MS = (1 << 31) - 1
_METADATA_THROTTLED_FROM = 3


def with_throttle(api_key: int, version: int, body: Any, throttle_ms: int) -> Any:
    """Return the answer with this throttle time, if its version has one."""
    if not isinstance(body, Response):
        if "throttle_time" not in _plan(cast("Any", type(body))).converters:
            return body
        return dataclasses.replace(body, throttle_time=dt.timedelta(milliseconds=throttle_ms))
    if api_key == _METADATA and version < _METADATA_THROTTLED_FROM:
        return body
    first = 0
    chunks = list(body.chunks)
    data = bytearray(cast("bytes", chunks[0]))
    if api_key == _PRODUCE:  # it is the last field; what is written by hand has no tagged fields
        first = len(data) - _THROTTLE_TIME.size - (version >= PRODUCE_FLEXIBLE_FROM)
    _THROTTLE_TIME.pack_into(data, first, min(throttle_ms, MAX_THROTTLE_MS))
    return Response(chunks=[data, *chunks[1:]], release=body.release)


_PRODUCE, _METADATA = 0, 3


# --- producers response ------------------------------------------------------------------------------
#
# The response to DescribeProducers without kio's entities.
#
# A partition remembers a thousand producers, and a request of 300 bytes names sixty partitions: with entities
# each producer took 11 us, and takes 0.5 us as a row of an array.
# Invariants: the same bytes as kio's (a test compares them).
# Sources: Kafka DescribeProducersResponse.json.


_NONE = -1
_HEAD = struct.Struct(">ihB")  # partition, error, no message
_NO_TAGS = b"\0"
_NOBODY = compact_length(0)
_PRODUCERS_RESPONSE_ROW = np.dtype(
    [
        ("producer_id", ">i8"),
        ("producer_epoch", ">i4"),
        ("last_sequence", ">i4"),
        ("last_timestamp", ">i8"),
        ("coordinator_epoch", ">i4"),
        ("current_txn_start_offset", ">i8"),
        ("tags", "u1"),
    ]
)


class Producers(NamedTuple):
    """The producers of a partition, as columns."""

    producer_id: npt.NDArray[np.int64]
    producer_epoch: npt.NDArray[np.int64]
    last_sequence: npt.NDArray[np.int64]
    last_timestamp_ms: npt.NDArray[np.int64]


def encode_producers(producers: Producers) -> bytes:
    """Return the array of a partition's producers. The start offset of their transactions is unknown."""
    rows = np.zeros(len(producers.producer_id), _PRODUCERS_RESPONSE_ROW)
    rows["producer_id"] = producers.producer_id
    rows["producer_epoch"] = producers.producer_epoch
    rows["last_sequence"] = producers.last_sequence
    rows["last_timestamp"] = producers.last_timestamp_ms
    rows["coordinator_epoch"] = rows["current_txn_start_offset"] = _NONE
    return compact_length(len(rows)) + rows.tobytes()


def encode_partition(number: int, error_code: int, producers: bytes = _NOBODY) -> bytes:
    """Return a partition with its encoded producers."""
    return _HEAD.pack(number, error_code, 0) + producers + _NO_TAGS


def encode_topics(topics: Mapping[str, Sequence[bytes]]) -> list[bytes]:
    """Return the body, in pieces; `topics`: encoded partitions by topic."""
    pieces = [NOT_THROTTLED, compact_length(len(topics))]
    for topic, partitions in topics.items():
        pieces += (encode_text(topic, flexible=True), compact_length(len(partitions)), *partitions, _NO_TAGS)
    return [b"".join([*pieces, _NO_TAGS])]


# --- response writer ---------------------------------------------------------------------------------


_SHARED_ITEMS = 8  # shorter lists are not worth a lookup
_OWN_CHUNK_BYTES = 512  # shorter pieces are copied into the chunk before them
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
    """The written bytes; `repeated`: the bytes of lists and recurring entities, by the identities of the
    object and of the writer.
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


Write: TypeAlias = Callable[[Any, _Output], None]  # of an entity or a value


def response_writer(cls: type) -> Callable[[Any], list[bytes | bytearray]]:
    """Return the encoder for responses of this class; its chunks are sent in order."""
    write = _entity(cls, is_inside=False)

    def write_response(entity: Any) -> list[bytes | bytearray]:
        out = _Output({})
        write(entity, out)
        return out.end()

    return write_response


@functools.cache
def _entity(cls: Any, *, is_inside: bool) -> Write:
    """`is_inside`: the entity is an element of a list."""
    flexible = bool(cls.__flexible__)
    tagged = {field.tag: field for field in layout_of(cls) if field.tag is not None}
    steps: list[Write] = []
    names: list[str] = []
    formats = ""
    for one in layout_of(cls):
        if one.tag is not None:
            continue
        code = None if one.is_array else _FORMATS.get(one.kind)
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


def _tags(cls: type, tagged: Mapping[int, FieldLayout]) -> Write:
    """Write tagged fields without those at their defaults (usually all)."""
    get_all = attrgetter(*(one.name for one in tagged.values()))
    usual: Any = make(cls)
    defaults = get_all(usual)
    several = [
        (
            tag,
            getattr(usual, one.name),
            attrgetter(one.name),
            _value(one, flexible=True, is_inside=True),
        )
        for tag, one in sorted(tagged.items())
    ]

    def write(entity: Any, out: _Output) -> None:
        if get_all(entity) == defaults:
            out.data += b"\0"
            return
        present = [one for one in several if one[2](entity) != one[1]]
        out.data += uvarint(len(present))
        for tag, _, get, write_value in present:
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


def _field(field: FieldLayout, *, flexible: bool, is_inside: bool) -> Write:
    """Write a field of variable size, or of a type other than a number."""
    get = attrgetter(field.name)
    write_value = _value(field, flexible=flexible, is_inside=is_inside)

    def write(entity: Any, out: _Output) -> None:
        write_value(get(entity), out)

    return write


def _value(field: FieldLayout, *, flexible: bool, is_inside: bool) -> Write:
    # A tagged field is left out instead of being null.
    nullable = field.is_nullable and field.tag is None
    if field.is_array:
        if field.entity is not None:
            item = _entity(field.entity, is_inside=True)
        elif field.kind in _FORMATS:
            return _numbers(_FORMATS[field.kind], flexible=flexible)
        else:
            item = _primitive(field.kind, flexible=flexible, nullable=False)
        return _array(item, flexible=flexible, is_shared=is_inside)
    if field.entity is None:
        return _primitive(field.kind, flexible=flexible, nullable=nullable)
    inside = _entity(field.entity, is_inside=is_inside)
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
