import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.cli.record_format import TOKENS, ConsumedRecord, FormatError, as_hex, compile_format, json_line


def record(
    key: bytes | None = b"k", value: bytes | None = b"v", headers: tuple[tuple[str, bytes | None], ...] = ()
) -> ConsumedRecord:
    return ConsumedRecord(
        topic="flights",
        partition=3,
        offset=42,
        timestamp_ms=1_357_034_400_000,
        timestamp_type=0,
        key=key,
        value=value,
        headers=headers,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%s\n", b"v\n"),
        (r"%t [%p] at offset %o: key %k: %s\n", b"flights [3] at offset 42: key k: v\n"),
        (r"%T\t%S\t%K", b"1357034400000\t1\t1"),
        (r"100%% \\ \x41\0", b"100% \\ A\0"),
        ("", b""),
        ("plain ü", "plain ü".encode()),
    ],
)
def test_tokens_and_escapes(text: str, expected: bytes) -> None:
    assert compile_format(text)(record()) == expected


def test_null_key_and_value_have_size_minus_one() -> None:
    render = compile_format("%K %S [%k] [%s]")
    assert render(record(key=None, value=None)) == b"-1 -1 [] []"
    assert compile_format("%k %s", null=b"NULL")(record(key=None, value=None)) == b"NULL NULL"
    assert render(record(key=b"", value=b"")) == b"0 0 [] []"


def test_fields_print_in_hexadecimal() -> None:
    render = compile_format("%k %s %S %h", show=as_hex, null=b"NULL")
    assert render(record(value=b"\xff\n", headers=(("a", b"1"),))) == b"6b ff0a 2 61=31"
    assert render(record(key=None)) == b"NULL 76 1 "


def test_headers_print_as_pairs() -> None:
    assert compile_format("%h")(record(headers=(("a", b"1"), ("b", None)))) == b"a=1,b="


def test_every_documented_token_compiles() -> None:
    for token in TOKENS:
        compile_format(f"%{token}")(record())


@pytest.mark.parametrize("text", ["%", "%x", "\\", r"\q"])
def test_unknown_token_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(FormatError, match=r"unknown .* known"):
        compile_format(text)


def test_json_line_has_kcats_fields_in_order() -> None:
    document = json.loads(json_line(record(headers=(("trace", b"1"),))))
    assert list(document) == ["topic", "partition", "offset", "tstype", "ts", "headers", "key", "payload"]
    assert document["headers"] == ["trace", "1"]
    assert document["tstype"] == "create"
    assert (document["key"], document["payload"]) == ("k", "v")


def test_json_line_keeps_bytes_that_are_not_text() -> None:
    document = json.loads(json_line(record(key=None, value=b"\xff\x00")))
    assert document["key"] is None
    assert document["payload"] == {"base64": "/wA="}


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_json_is_always_one_valid_line(key: bytes, value: bytes) -> None:
    line = json_line(record(key=key, value=value))
    assert line.count(b"\n") == 1
    json.loads(line)
