"""Formats: what is shown is text, whatever the bytes are; schemas; JSON paths."""

import contextlib
import io
import json
import struct
from decimal import Decimal, localcontext
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from sparklog.console.message_values import (
    FORMATS,
    HEX_BYTES,
    MAX_DECIMAL_BYTES,
    NODES_PER_CHECK,
    Anywhere,
    AvroDecoder,
    Format,
    ProtobufDecoder,
    Shown,
    UndecodableError,
    hex_dump,
    parse_json_path,
    replace_at,
    show,
    values_at,
)
from sparklog.errors import InvalidRequestError
from tests.console.made_records import HOSTILE


def shown(data: bytes | None, wanted: Format = "auto", size: int | None = None) -> Shown:
    return show(data, len(data or b"") if size is None else size, wanted)


# --- shown


@pytest.mark.parametrize("wanted", FORMATS)
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_bytes_are_shown_without_control_characters(wanted: Format, number: int) -> None:
    text = shown(HOSTILE[number], wanted).text
    assert all(char.isprintable() or char in "\n\t" for char in text)


@given(st.binary(max_size=300), st.sampled_from(FORMATS), st.integers(0, 10))
def test_any_bytes_are_shown_in_any_format(data: bytes, wanted: Format, cut: int) -> None:
    found = show(data, len(data) + cut, wanted)
    assert all(char.isprintable() or char in "\n\t" for char in found.text)
    assert all(note.isprintable() for note in found.notes)


@pytest.mark.parametrize(
    ("data", "wanted", "expected"),
    [
        (None, "auto", Shown(format="null", text="null")),
        (b"", "auto", Shown(format="text", text="")),
        (b"plain", "auto", Shown(format="text", text="plain")),
        (b"5", "auto", Shown(format="text", text="5")),
        (b"5", "json", Shown(format="json", text="5")),
        (b'{"a":1e5,"a":[]}', "auto", Shown(format="json", text='{\n  "a": 1e5,\n  "a": []\n}')),
        (b"{no", "auto", Shown(format="text", text="{no")),
        (b"\x1b[31m\x00", "auto", Shown(format="text", text="\\u001b[31m\\u0000")),
        ("\u202eexe\U000e0001".encode(), "text", Shown(format="text", text="\\u202eexe\\udb40\\udc01")),
        (b"a\xffb", "text", Shown(format="text", text="a\\xffb", notes=("not UTF-8",))),
        (b"a\xffb", "auto", Shown(format="hex", text=hex_dump(b"a\xffb"), notes=("not UTF-8",))),
        (b"ab", "hex", Shown(format="hex", text=hex_dump(b"ab"))),
        (b"ab", "schema", Shown(format="text", text="ab", notes=("no schema is given for this topic",))),
        (
            b"\x00\x00\x00\x00\x07ab",
            "auto",
            Shown(
                format="text",
                text="\\u0000" * 4 + "\\u0007ab",
                notes=("Confluent wire format, schema id 7",),
            ),
        ),
    ],
)
def test_formats(data: bytes | None, wanted: Format, expected: Shown) -> None:
    assert shown(data, wanted) == expected


def test_what_is_not_json_says_so_if_json_was_asked_for() -> None:
    found = shown(b"{no", "json")
    assert (found.format, found.text) == ("text", "{no")
    assert found.notes[0].startswith("not JSON: ")


def test_a_cut_text_ends_before_the_divided_character() -> None:
    assert shown("aé".encode()[:2], size=3) == Shown(
        format="text", text="a", notes=("the first 2 of 3 bytes",)
    )


def test_deeply_nested_json_is_text() -> None:
    assert shown(b"[" * 50_000 + b"]" * 50_000).format == "text"


@pytest.mark.parametrize("nesting", [60, 900])
def test_json_that_indents_would_make_much_larger_stays_on_its_lines(nesting: int) -> None:
    data = b"[" * nesting + b",".join([b"0"] * 31_600) + b"]" * nesting
    found = shown(data)
    assert found.format == "json"
    assert len(found.text) <= 2 * len(data)
    assert json.loads(found.text) == json.loads(data)


def test_brackets_in_texts_are_no_nesting() -> None:
    data = json.dumps({'"[': "[{,\\" * 10_000, "b": ['\\"[' * 1000]}).encode()
    assert len(shown(data).text.splitlines()) == 6


def test_json_in_a_list_is_one_line() -> None:
    data = b'{"a":1e5,\n"a":[]}'
    assert show(data, len(data), is_indented=False).text == '{"a": 1e5, "a": []}'


def test_a_long_hex_dump_is_cut() -> None:
    found = shown(b"\xff" * (HEX_BYTES + 1))
    assert len(found.text.splitlines()) == HEX_BYTES // 16
    assert found.notes == ("not UTF-8", "the first 4,096 bytes in hex")


def test_hex_is_that_of_xxd() -> None:
    assert hex_dump(b"0123456789abcdef\x00\xff~") == (
        "00000000: 3031 3233 3435 3637 3839 6162 6364 6566  0123456789abcdef\n"
        "00000010: 00ff 7e                                  ..~"
    )


# --- Avro

USER = {
    "type": "record",
    "name": "User",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "photo", "type": ["null", "bytes"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "born", "type": {"type": "int", "logicalType": "date"}},
    ],
}


def avro(schema: Any, document: object) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), document)
    written: bytes = stream.getvalue()
    return written


@pytest.mark.parametrize("prefix", [b"", b"\x00" + struct.pack(">i", 9)])
def test_avro_with_and_without_confluents_prefix(prefix: bytes) -> None:
    data = prefix + avro(USER, {"name": "Ann <b>", "photo": b"\xff\x00", "tags": ["é"], "born": 3})
    found = show(data, len(data), "auto", AvroDecoder(json.dumps(USER)))
    assert found.format == "Avro"
    assert json.loads(found.text) == {
        "name": "Ann <b>",
        "photo": "\xff\x00",
        "tags": ["é"],
        "born": "1970-01-04",
    }
    assert found.notes == (("Confluent wire format, schema id 9",) if prefix else ())


@pytest.mark.parametrize(
    ("data", "why"), [(b"", "EOFError"), (b"\x02", "EOFError"), (b"\x02a\x07", ""), (b"not avro", "")]
)
def test_what_is_not_avro_is_shown_otherwise_with_the_reason(data: bytes, why: str) -> None:
    found = show(data, len(data), "auto", AvroDecoder(json.dumps(USER)))
    assert found.format == "text"
    assert found.notes[0].startswith(f"not Avro of the given schema: {why}")


def test_bytes_behind_an_avro_record_are_refused() -> None:
    with pytest.raises(UndecodableError, match="1 bytes are left behind the record"):
        AvroDecoder('"string"').decode(avro("string", "ab") + b"x")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]},
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        {"type": "map", "values": {"type": "array", "items": "null"}},
        ["null", {"type": "array", "items": {"type": "null"}}],
        {"type": "nothing"},
        {"no": "type"},
    ],
)
def test_schemas_that_would_exhaust_the_process_are_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequestError, match="an Avro schema: found "):
        AvroDecoder(json.dumps(schema))


@pytest.mark.parametrize("where", ["", "items", "values"])
def test_avro_decimals_are_bounded(where: str) -> None:
    """One of 500 kB took a minute, in which no other thread ran: in a broker, its event loop."""
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4_000_000, "scale": 2}
    field: Any = {"type": "array" if where == "items" else "map", where: decimal} if where else decimal
    schema = {"type": "record", "name": "r", "fields": [{"name": "d", "type": ["null", field]}]}
    decoder = AvroDecoder(json.dumps(schema))

    def of(size: int) -> bytes:
        number = Decimal(int("7f" * size, 16)).scaleb(-2)
        return avro(schema, {"d": [number] if where == "items" else {"k": number} if where else number})

    with localcontext(prec=10_000):
        assert str(int("7f" * 8, 16))[:-2].encode() in decoder.decode(of(8))
        assert decoder.decode(of(MAX_DECIMAL_BYTES))
        with pytest.raises(UndecodableError, match=r"a decimal of 1,025 bytes"):
            decoder.decode(of(MAX_DECIMAL_BYTES + 1))


@given(st.binary(max_size=60))
def test_any_bytes_are_avro_or_undecodable(data: bytes) -> None:
    decoder = AvroDecoder(json.dumps(USER))
    with contextlib.suppress(UndecodableError):
        json.loads(decoder.decode(data))


# --- Protobuf


def descriptor_set() -> bytes:
    """message First { string name = 1; First next = 2; } message Second { bytes data = 1; }"""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="p", syntax="proto3")
    first = file.message_type.add(name="First")
    first.field.add(name="name", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    first.field.add(
        name="next", number=2, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL, type_name=".p.First"
    )
    second = file.message_type.add(name="Second")
    second.field.add(name="data", number=1, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    data: bytes = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return data


def protobuf(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()


@pytest.mark.parametrize(
    "prefix", [b"", b"\x00" + struct.pack(">i", 9) + b"\x00", b"\x00\x00\x00\x00\x09\x04\x02\x04"]
)
def test_protobuf_with_and_without_confluents_prefix(prefix: bytes) -> None:
    message = protobuf("p.First")
    message.name = "ann"
    message.next.name = "bob"
    data = prefix + message.SerializeToString()
    found = show(data, len(data), "auto", ProtobufDecoder(descriptor_set()))
    assert (found.format, json.loads(found.text)) == ("Protobuf", {"name": "ann", "next": {"name": "bob"}})


def test_another_message_of_the_set() -> None:
    message = protobuf("p.Second")
    message.data = b"\xff"
    decoder = ProtobufDecoder(descriptor_set(), "p.Second")
    assert json.loads(decoder.decode(message.SerializeToString())) == {"data": "/w=="}
    with pytest.raises(InvalidRequestError, match=r"found no message p\.Third"):
        ProtobufDecoder(descriptor_set(), "p.Third")
    with pytest.raises(InvalidRequestError, match="found no message"):
        ProtobufDecoder(b"no set")


def test_deeply_nested_protobuf_is_undecodable() -> None:
    data = b""
    for _ in range(3000):
        size, length = len(data), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        data = b"\x12" + length + bytes([size]) + data
    with pytest.raises(UndecodableError):
        ProtobufDecoder(descriptor_set()).decode(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_protobuf_or_undecodable(data: bytes) -> None:
    with contextlib.suppress(UndecodableError):
        json.loads(ProtobufDecoder(descriptor_set()).decode(data))


# --- JSON paths


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("$.a.b", ("a", "b")),
        ("a.b", ("a", "b")),
        ("$['a b'][\"c.d\"]", ("a b", "c.d")),
        ("[3].x[*].*", (3, "x", None, None)),
        ("$..card", (Anywhere("card"),)),
        ("a..b.c", ("a", Anywhere("b"), "c")),
    ],
)
def test_json_paths(text: str, steps: tuple[object, ...]) -> None:
    assert parse_json_path(text) == steps


@pytest.mark.parametrize(
    "text",
    ["", "$", "a.", "a[", "a[x]", "a[-1]", "a['b]", "..", "a b..", "$.a[1", "$..a..b", "a" + ".a" * 64],
)
def test_other_paths_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="a JSON path: found "):
        parse_json_path(text)


def test_values_and_replacements() -> None:
    document = {"a": [{"card": 1, "x": {"card": [2]}}, 3], "card": 4}
    assert sorted(values_at(document, parse_json_path("$..card")), key=str) == [1, 4, [2]]
    assert list(values_at(document, parse_json_path("a[1]"))) == [3]
    assert list(values_at(document, parse_json_path("a[5]"))) == []
    assert replace_at(document, parse_json_path("$..card"), "*") == {
        "a": [{"card": "*", "x": {"card": "*"}}, 3],
        "card": "*",
    }
    assert replace_at([1, [2]], parse_json_path("[*][0]"), "*") == [1, ["*"]]


@pytest.mark.parametrize("is_replacing", [False, True])
def test_each_node_is_visited_once_and_checked_now_and_then(is_replacing: bool) -> None:
    hits, nesting = 100_000, 190
    document: object = [{"a": 0} for _ in range(hits)]
    for _ in range(nesting):
        document = [document]
    path, checks = parse_json_path("$..a"), []

    def check() -> None:
        checks.append(1)

    if is_replacing:
        assert json.dumps(replace_at(document, path, "*", check)).count("*") == hits
    else:
        assert sum(1 for _ in values_at(document, path, check)) == hits
    assert len(checks) == (2 * hits + nesting) // NODES_PER_CHECK


def test_a_walk_needs_no_stack() -> None:
    document: object = {"a": 1}
    for _ in range(100_000):
        document = [document]
    assert list(values_at(document, parse_json_path("$..a"))) == [1]
    while isinstance(document, list):  # level by level: no recursion
        document = document.pop()
