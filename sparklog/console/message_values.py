"""From the bytes of a key, value or header to a text that is safe to show, and JSON paths.

Invariants: a shown text has no control characters and no invalid UTF-8: both become escapes. Templates add
    the escapes of HTML.
Bounds: MAX_JSON_BYTES is parsed, MAX_NESTING levels are searched, HEX_BYTES are dumped. Indented JSON is
    at most about 10 times its bytes. Hostile bytes cannot exhaust the stack or the memory
    of a decoder: see AvroDecoder.
Concurrency: pure.
Sources: Confluent's wire format, https://docs.confluent.io/platform/current/schema-registry/.
"""

import codecs
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, get_args

import msgspec
import numpy as np

from sparklog.errors import InvalidRequestError
from sparklog.wording import plain

MAX_JSON_BYTES: Final = 4 << 20
MAX_NESTING: Final = 200
HEX_BYTES: Final = 4 << 10
_HEX_ROW: Final = 16

# --- JSON paths --------------------------------------------------------------------------------------
#
# A part of JSONPath: `$.user.id`, `items[0].name`, `$['a b']`, `[*]`, `.*`, and `$..name` at any depth.


class Anywhere(NamedTuple):
    """The fields of this name at any depth."""

    name: str


_MAX_STEPS: Final = 64
PathStep = str | int | None | Anywhere  # None: all fields or items
_PATH_STEP: Final = re.compile(
    r"""\.\.(?P<any>[^.\[\]]+)|\.\*|\[\*\]|\[(?P<index>\d{1,9})\]|\[(?P<quoted>'[^']*'|"[^"]*")\]|\.(?P<name>[^.\[\]]+)"""
)


def parse_json_path(text: str) -> tuple[PathStep, ...]:
    """Return the steps of a path.

    Raises:
        InvalidRequestError: INVALID_OPTION.
    """
    rest = text.strip().removeprefix("$")
    if rest and rest[0] not in ".[":
        rest = f".{rest}"
    steps: list[PathStep] = []
    at = 0
    while at < len(rest):
        found = _PATH_STEP.match(rest, at)
        if found is None:
            break
        at = found.end()
        if (name := found["any"]) is not None:
            steps.append(Anywhere(name))
        elif (index := found["index"]) is not None:
            steps.append(int(index))
        elif (quoted := found["quoted"]) is not None:
            steps.append(quoted[1:-1])
        else:
            steps.append(found["name"])
    # `$..a..a..a` has as many ways through a nested document as it has levels, to the power of 3.
    has_one_anywhere = sum(isinstance(step, Anywhere) for step in steps) <= 1
    if not steps or at < len(rest) or len(steps) > _MAX_STEPS or not has_one_anywhere:
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"a JSON path: found {text[:200]!r}, expected steps as in $.user.id, items[0].name, $['a b'], "
            f"$..name (once), at most {_MAX_STEPS}",
            fix="correct the path",
        )
    return tuple(steps)


NODES_PER_CHECK: Final = 4096


def no_check() -> None:
    """Nothing ends the work."""


def values_at(
    document: object, path: tuple[PathStep, ...], check: Callable[[], None] = no_check
) -> Iterator[object]:
    """Yield the values at a path, in any order; `check` is called every NODES_PER_CHECK nodes."""
    return (container[key] for container, key in _places(document, path, check))


def replace_at(
    document: Any, path: tuple[PathStep, ...], new: object, check: Callable[[], None] = no_check
) -> Any:
    """Return the document, changed in place, with `new` at the path; `check` as in values_at."""
    for container, key in _places(document, path, check):
        container[key] = new
    return document


def _places(
    document: object, path: tuple[PathStep, ...], check: Callable[[], None]
) -> Iterator[tuple[Any, str | int]]:
    """Yield (object or list, key or index) of each value at the path.

    No recursion, and each node is visited once for each step of the path at most.
    """
    last, visited = len(path) - 1, 0
    stack = [(document, 0)]
    while stack:
        container, at = stack.pop()
        step = path[at]
        anywhere = step.name if isinstance(step, Anywhere) else None
        for key, child in _items(container, step):
            visited += 1
            if visited % NODES_PER_CHECK == 0:
                check()
            is_container = isinstance(child, (dict, list))
            if anywhere is None or key == anywhere:
                if at == last:
                    yield container, key
                elif is_container:
                    stack.append((child, at + 1))
            if anywhere is not None and is_container:
                stack.append((child, at))


def _items(container: object, step: PathStep) -> Iterable[tuple[str | int, object]]:
    """Return the items that a step can lead to: one, or all."""
    if step is None or isinstance(step, Anywhere):
        if isinstance(container, dict):
            return container.items()
        return enumerate(container) if isinstance(container, list) else ()
    if isinstance(container, dict):
        return ((step, container[step]),) if step in container else ()
    if isinstance(container, list) and isinstance(step, int) and step < len(container):
        return ((step, container[step]),)
    return ()


_Value = TypeVar("_Value", bytes, bytes | None)
_ROWS_PER_CHECK: Final = 256
_BYTES_PER_CHECK: Final = 64 << 10


def checked(values: Iterable[_Value], check: Callable[[], None]) -> Iterator[_Value]:
    """Yield the values, with a check before the first, every 256 of them, and every 64 KiB."""
    rows, size = _ROWS_PER_CHECK, 0
    for value in values:
        rows, size = rows + 1, size + len(value or b"")
        if rows > _ROWS_PER_CHECK or size > _BYTES_PER_CHECK:
            check()
            rows, size = 1, 0
        yield value


# --- decoders ----------------------------------------------------------------------------------------


class UndecodableError(ValueError):
    """The bytes do not fit the schema; the message says why."""


class TooDeepError(UndecodableError):
    """The document is JSON, and nested too deeply."""

    def __init__(self) -> None:
        super().__init__(f"more than {MAX_NESTING} levels are not searched")


class Decoder(Protocol):
    """Decodes bytes with a given schema."""

    name: str

    def decode(self, data: bytes) -> bytes:
        """Return the record as JSON. UndecodableError: the bytes do not fit the schema."""


_MAGIC: Final = 0
_PREFIX_BYTES: Final = 5


def confluent_schema_id(data: bytes) -> int | None:
    """Return the schema id of Confluent's wire format (0, four bytes of id, payload); None if it is not."""
    if len(data) <= _PREFIX_BYTES or data[0] != _MAGIC:
        return None
    return int.from_bytes(data[1:_PREFIX_BYTES], "big")


def _not_installed(package: str) -> InvalidRequestError:
    return InvalidRequestError(
        "SCHEMAS_NOT_INSTALLED",
        f"decoding with this schema needs the package {package}, which is not installed",
        fix="Install it: pip install 'sparklog[schemas]'",
    )


def _json_bytes(document: object) -> bytes:
    return json.dumps(document, default=_as_text, ensure_ascii=False).encode(errors="backslashreplace")


def _as_text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


class AvroDecoder:
    """Avro with a schema, with or without Confluent's prefix.

    fastavro bounds neither its recursion nor the items that take no bytes: a record of 10 kB ends the
    process, or takes all memory. So recursive schemas, and arrays of such items, are refused. A decimal of
    500 kB takes a minute, in which no other thread of the process runs: more than MAX_DECIMAL_BYTES are not
    decoded.
    """

    name = "Avro"

    def __init__(self, schema: str) -> None:
        """InvalidRequestError: INVALID_OPTION, SCHEMAS_NOT_INSTALLED."""
        try:
            import fastavro  # noqa: PLC0415 - an optional extra
        except ImportError as error:
            raise _not_installed("fastavro") from error
        self._read = fastavro.schemaless_reader
        try:
            document = json.loads(schema)
            _least_bytes(fastavro.parse_schema(document), {}, ())
            self._schema = fastavro.parse_schema(_with_bounded_decimals(document))
        except (
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
            fastavro.schema.SchemaParseException,
        ) as error:
            raise InvalidRequestError(
                "INVALID_OPTION", f"an Avro schema: found {error}", fix="correct the schema"
            ) from error
        readers = fastavro.read.LOGICAL_READERS
        readers[f"bytes-{_BOUNDED_DECIMAL}"] = partial(_bounded_decimal, readers["bytes-decimal"])

    def decode(self, data: bytes) -> bytes:
        """As Decoder."""
        payload = data if confluent_schema_id(data) is None else data[_PREFIX_BYTES:]
        stream = io.BytesIO(payload)
        try:
            document = self._read(stream, self._schema, None)
        except Exception as error:
            raise UndecodableError(f"{type(error).__name__}: {error}"[:200]) from error
        if left := len(payload) - stream.tell():
            raise UndecodableError(f"{left} bytes are left behind the record")
        return _json_bytes(document)


MAX_DECIMAL_BYTES: Final = 1024  # 2,466 digits
_BOUNDED_DECIMAL: Final = "sparklog-bounded-decimal"


def _with_bounded_decimals(schema: Any) -> Any:
    """Return a schema whose decimals of any size are read by _bounded_decimal."""
    if isinstance(schema, list):
        return [_with_bounded_decimals(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _with_bounded_decimals(one) for name, one in schema.items()}
    if found.get("type") == "bytes" and found.get("logicalType") == "decimal":
        found["logicalType"] = _BOUNDED_DECIMAL
    return found


def _bounded_decimal(read: Callable[..., object], data: bytes, *schemas: Any) -> object:
    if len(data) > MAX_DECIMAL_BYTES:
        raise ValueError(f"a decimal of {len(data):,} bytes")
    return read(data, *schemas)


_AVRO_LEAST: Final = {"null": 0, "float": 4, "double": 8}


def _least_bytes(schema: Any, known: dict[str, int], inside: tuple[str, ...]) -> int:
    """Return the fewest bytes of a value; ValueError: see AvroDecoder.

    Args:
        known: the named types so far.
        inside: the names of the enclosing records.
    """
    if isinstance(schema, list):
        return 1 + min((_least_bytes(branch, known, inside) for branch in schema), default=0)
    if isinstance(schema, str):
        if schema in inside:
            raise ValueError(f"the recursive type {schema}, which is not decoded")
        return known.get(schema, _AVRO_LEAST.get(schema, 1))
    kind, name = schema["type"], schema.get("name", "")
    if kind in {"record", "error"}:
        least = sum(_least_bytes(field["type"], known, (*inside, name)) for field in schema["fields"])
        known[name] = least
        return least
    if kind == "fixed":
        known[name] = int(schema["size"])
        return known[name]
    if kind == "array" and not _least_bytes(schema["items"], known, inside):
        raise ValueError("an array of items without bytes, which is not decoded")
    if kind == "map":
        _least_bytes(schema["values"], known, inside)
    if kind == "enum":
        known[name] = 1
    return 1 if kind in {"array", "map", "enum"} else _least_bytes(kind, known, inside)


class ProtobufDecoder:
    """Protobuf with a descriptor set, as `protoc --include_imports --descriptor_set_out` writes it."""

    name = "Protobuf"

    def __init__(self, descriptor_set: bytes, message: str = "") -> None:
        """Read the set.

        Args:
            message: its full name; empty: the first message of the last file.

        Raises:
            InvalidRequestError: INVALID_OPTION, SCHEMAS_NOT_INSTALLED.
        """
        try:
            from google.protobuf import (  # noqa: PLC0415 - an optional extra
                descriptor_pb2,
                descriptor_pool,
                json_format,
                message_factory,
            )
            from google.protobuf.message import DecodeError  # noqa: PLC0415
        except ImportError as error:
            raise _not_installed("protobuf") from error
        self._to_dict = json_format.MessageToDict
        self._errors = (DecodeError, ValueError, TypeError, RecursionError, json_format.Error)
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file
            pool = descriptor_pool.DescriptorPool()
            for file in files:
                pool.Add(file)
            last = pool.FindFileByName(files[-1].name)
            found = (
                pool.FindMessageTypeByName(message)
                if message
                else next(iter(last.message_types_by_name.values()))
            )
            self._class = message_factory.GetMessageClass(found)
        except (DecodeError, KeyError, IndexError, StopIteration, TypeError) as error:
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"a Protobuf descriptor set: found no message {message or '(the first)'} ({error})",
                fix="write the set with protoc --include_imports --descriptor_set_out=FILE",
            ) from error

    def decode(self, data: bytes) -> bytes:
        """As Decoder."""
        payload = data if confluent_schema_id(data) is None else _without_indexes(data[_PREFIX_BYTES:])
        try:
            message = self._class.FromString(payload)
            return _json_bytes(self._to_dict(message, preserving_proto_field_name=True))
        except self._errors as error:
            raise UndecodableError(f"{type(error).__name__}: {error}"[:200]) from error


def _without_indexes(data: bytes) -> bytes:
    """Drop Confluent's path to the message: a count and as many indexes, as zigzag varints; [0] is one 0."""
    count, at = _varint(data, 0)
    for _ in range(count):
        _, at = _varint(data, at)
    return data[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise UndecodableError("the message indexes of Confluent's wire format are cut")


# --- shown -------------------------------------------------------------------------------------------

Format = Literal["auto", "text", "json", "hex", "schema"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A text to show.

    Args:
        format: what it is: null, text, json, hex, or the decoder's name.
        notes: what the reader has to know: cut, not UTF-8, Confluent's wire format, why it is not decoded.
    """

    format: str
    text: str
    notes: tuple[str, ...] = ()


def show(
    data: bytes | None,
    size: int,
    wanted: Format = "auto",
    decoder: Decoder | None = None,
    *,
    is_indented: bool = True,
) -> Shown:
    """Show the bytes in a format, or, where they do not fit it, in one that they fit.

    Args:
        data: the first bytes of the field; None: null.
        size: of the whole field.
        is_indented: JSON on several lines, unless it would be much larger than its bytes.
    """
    if data is None:
        return Shown(format="null", text="null")
    is_cut = len(data) < size
    notes = [f"the first {len(data):,} of {size:,} bytes"] if is_cut else []
    schema_id = confluent_schema_id(data)
    if schema_id is not None:
        notes.append(f"Confluent wire format, schema id {schema_id}")
    if decoder is not None and wanted in {"auto", "schema"}:
        if is_cut:
            notes.append(f"too large to decode as {decoder.name}")
        else:
            try:
                return _shown(decoder.name, _formatted(decoder.decode(data), is_indented=is_indented), notes)
            except UndecodableError as error:
                notes.append(f"not {decoder.name} of the given schema: {plain(str(error))}")
    elif wanted == "schema":
        notes.append("no schema is given for this topic")
    if wanted == "hex":
        return _shown("hex", hex_dump(data), _with_hex_cut(notes, data))
    text = _text(data, is_cut=is_cut)
    if text is None:
        notes.append("not UTF-8")
        if wanted == "text":
            return _shown("text", data.decode(errors="backslashreplace"), notes)
        return _shown("hex", hex_dump(data), _with_hex_cut(notes, data))
    if wanted == "text":
        return _shown("text", text, notes)
    try:
        is_document = not is_cut and (wanted == "json" or data.lstrip()[:1] in {b"{", b"["})
        name, text = ("json", _formatted(data, is_indented=is_indented)) if is_document else ("text", text)
        return _shown(name, text, notes)
    except UndecodableError as error:
        if wanted == "json":
            notes.append(str(error))
        return _shown("text", text, notes)


def _shown(name: str, text: str, notes: list[str]) -> Shown:
    return Shown(format=name, text=plain(text, keep="\n\t"), notes=tuple(notes))


def _with_hex_cut(notes: list[str], data: bytes) -> list[str]:
    return [*notes, f"the first {HEX_BYTES:,} bytes in hex"] if len(data) > HEX_BYTES else notes


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """Return the text; None if it is not UTF-8. A character that the cut divides is dropped."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=not is_cut)
    except UnicodeDecodeError:
        return None


_MAX_INDENTED_NESTING: Final = 64
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+', re.DOTALL)


def _formatted(data: bytes, *, is_indented: bool) -> str:
    """Format JSON, on one line if indents would make it too large; numbers and escapes stay as they are."""
    if len(data) > MAX_JSON_BYTES:
        raise UndecodableError(f"more than {MAX_JSON_BYTES:,} bytes are not parsed")
    try:
        text = msgspec.json.format(data, indent=0)
        if is_indented:
            nesting, levels = _nesting(text)
            if nesting <= _MAX_INDENTED_NESTING and levels <= 4 * len(data) + (64 << 10):
                text = msgspec.json.format(text, indent=2)
        return text.decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UndecodableError(f"not JSON: {error}"[:200]) from error


def _nesting(data: bytes) -> tuple[int, int]:
    """Return the nesting of a JSON document, and the sum of the levels of its separators."""
    signs = np.frombuffer(_STRING.sub(b"", data), np.uint8)
    opens = (signs == ord("[")) | (signs == ord("{"))
    closes = (signs == ord("]")) | (signs == ord("}"))
    levels = np.cumsum(opens.view(np.int8) - closes.view(np.int8), dtype=np.int32)
    separators = levels[opens | closes | (signs == ord(","))]
    return int(separators.max(initial=0)), int(separators.sum(dtype=np.int64))


def hex_dump(data: bytes) -> str:
    """Return the first HEX_BYTES as `xxd` prints them."""
    lines = []
    for at in range(0, min(len(data), HEX_BYTES), _HEX_ROW):
        row = data[at : at + _HEX_ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}: {row.hex(' ', -2):<39}  {text}")
    return "\n".join(lines)


def parse_json(data: bytes) -> object:
    """Return the document.

    Raises:
        TooDeepError: it is nested more than MAX_NESTING levels deep.
        UndecodableError: not JSON, or too large.
    """
    if len(data) > MAX_JSON_BYTES:
        raise UndecodableError(f"more than {MAX_JSON_BYTES:,} bytes are not parsed")
    try:
        document: object = msgspec.json.decode(data)
    except RecursionError as error:
        raise TooDeepError from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UndecodableError(f"not JSON: {error}"[:200]) from error
    if data.count(b"[") + data.count(b"{") > MAX_NESTING and _nesting(data)[0] > MAX_NESTING:
        raise TooDeepError
    return document
