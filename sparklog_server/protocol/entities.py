"""Making and reading kio's entities without knowing their version.

Invariants: a field that no version of the entity has is an error, never dropped: only what this
    version lacks is.
Durations and times are integer milliseconds on our side (kio: timedelta, datetime; its field names have
    lost Kafka's suffix: ThrottleTimeMs is throttle_time). Topic ids are text on our side, UUIDs in kio.
Sources: kio.schema; Kafka's message generator (implicit defaults), Uuid.toString.
"""

import base64
import dataclasses
import datetime as dt
import functools
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from kio.index import load_entity_module
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

T = TypeVar("T")
Convert = Callable[[Any], Any]
MILLISECOND = dt.timedelta(milliseconds=1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Recurring(tuple[T, ...]):
    """Entities that occur in other lists of the same response, too: each of them is encoded once."""

    __slots__ = ()


def make(cls: type[T], /, **fields: Any) -> T:
    """An instance of a kio entity: what this version lacks is dropped, what is not given is Kafka's default.

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
    """What makes instances that differ in these fields alone: thousands of them, at a quarter of the price.

    What varies is given in this order, as kio has it: tuples, no lists.
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
    """A field of a request, or `default` where its version has none; durations and times in int ms."""
    value = getattr(entity, name, default)
    if isinstance(value, dt.timedelta):
        return value // MILLISECOND
    if isinstance(value, dt.datetime):
        return (value - _EPOCH) // MILLISECOND
    return value


def topic_uuid(topic_id: str) -> uuid.UUID:
    """A topic id as Kafka's UUID."""
    return uuid.UUID(bytes=topic_id_bytes(topic_id))


def topic_id_bytes(topic_id: str) -> bytes:
    """A topic id as it stands in messages."""
    return base64.urlsafe_b64decode(topic_id + "==")


def topic_id_text(value: uuid.UUID) -> str:
    """A topic id as sparklog's text (metadata/model/ids.py)."""
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
    for one in dataclasses.fields(cls):
        kind = one.metadata.get("kafka_type", "entity")
        optional = type(None) in typing.get_args(one.type)
        is_array = any(typing.get_origin(part) is tuple for part in (one.type, *typing.get_args(one.type)))
        converters[one.name] = _optional_tuple if is_array else _CONVERTERS.get(kind)
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
            if optional:
                defaults[one.name] = None
            elif is_array:
                defaults[one.name] = ()
            else:
                defaults[one.name] = (
                    make(cast("Any", one.type)) if kind == "entity" else _implicit_default(kind)
                )
    return _Plan(types.MappingProxyType(converters), types.MappingProxyType(defaults))


@functools.cache
def _validate_dropped(cls: Any, name: str) -> None:
    """Some version of this entity must have the field; the others are loaded only to find out."""
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
    "error_code": ErrorCode,
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
