"""Masks: what a rule hides stays hidden, in every format."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparklog.console.message_masks import FieldMask, MaskRule, Masks, load_rules, parse_masks
from sparklog.console.message_values import MAX_JSON_BYTES, AvroDecoder
from sparklog.errors import InvalidRequestError
from sparklog.format.schema import HEADERS_TYPE
from tests.console.made_records import HOSTILE
from tests.console.test_message_values import avro, descriptor_set


def masked(data: bytes | None, *rules: MaskRule, decoder: Any = None) -> bytes | None:
    found: bytes | None = FieldMask(rules, decoder).applied(pa.array([data], pa.binary()))[0].as_py()
    return found


PATH = MaskRule(json_path="$..card")
REGEX = MaskRule(regex=r"\d{4}")


@pytest.mark.parametrize(
    ("data", "rule", "expected"),
    [
        (None, PATH, None),
        (b'{"a": {"card": [1]}, "b": 1.50}', PATH, b'{"a":{"card":"***"},"b":1.5}'),
        (b'{"c\\u0061rd": 1}', PATH, b'{"card":"***"}'),
        (b'{"card": 1, "card": 2}', PATH, b'{"card":"***"}'),
        (b'{"card": 1', PATH, b"***"),
        (b"", PATH, b"***"),
        (b"[" * 5000, PATH, b"***"),
        (b'"' + b"x" * MAX_JSON_BYTES + b'"', PATH, b"***"),
        (b"5", PATH, b"5"),
        (None, REGEX, None),
        (b"no 4111 2222\xff 3333", REGEX, b"no *** ***\xff ***"),
        (b"", REGEX, b""),
    ],
)
def test_masked_bytes(data: bytes | None, rule: MaskRule, expected: bytes | None) -> None:
    assert masked(data, rule) == expected


def test_hostile_bytes_pass_through_masks() -> None:
    for data in HOSTILE:
        assert masked(data, REGEX) == data
        assert masked(data, PATH) in {b"***", data} or json.loads(masked(data, PATH) or b"") == json.loads(
            data
        )


def test_rules_apply_one_after_the_other() -> None:
    data = b'{"card": 1, "text": "no 4111"}'
    assert masked(data, PATH, REGEX) == b'{"card":"***","text":"no ***"}'


SCHEMA = {
    "type": "record",
    "name": "P",
    "fields": [{"name": "card", "type": "long"}, {"name": "n", "type": "int"}],
}


def test_what_a_schema_decodes_is_masked_as_json() -> None:
    data = avro(SCHEMA, {"card": 4111, "n": 1})
    assert masked(data, PATH) == b"***"
    decoder = AvroDecoder(json.dumps(SCHEMA))
    assert masked(data, PATH, decoder=decoder) == b'{"card":"***","n":1}'
    assert masked(data, REGEX, decoder=decoder) == b'{"card":***,"n":1}'  # the bytes of Avro have no digits
    assert masked(b"\xff", PATH, decoder=decoder) == b"***"
    assert masked(b"\xff 4111", REGEX, decoder=decoder) == b"\xff ***"


def test_what_is_both_json_and_of_the_schema_is_hidden() -> None:
    """Decoded, the JSON is a text, in which a path finds nothing."""
    data = b'{"card": 4111}'
    decoder = AvroDecoder(json.dumps({"type": "fixed", "name": "F", "size": len(data)}))
    assert masked(data, PATH, decoder=decoder) == b"***"
    assert masked(b"no JSON at all", PATH, decoder=decoder) == b'"no JSON at all"'


@pytest.mark.parametrize("nesting", [201, 5000])
def test_what_is_nested_too_deeply_is_hidden(nesting: int) -> None:
    data = b"[" * nesting + b'{"card": 4111}' + b"]" * nesting
    assert masked(data, PATH) == b"***"
    decoder = AvroDecoder(json.dumps({"type": "fixed", "name": "F", "size": len(data)}))
    assert masked(data, PATH, decoder=decoder) == b"***"


def test_fields_and_topics_of_a_rule() -> None:
    rules = parse_masks(
        b'[{"topics": "pay*", "fields": ["value"], "regex": "4111"}, {"fields": ["headers"], "regex": "key"}]'
    )
    column = pa.array([b"4111 key"], pa.binary())
    headers = pa.array(
        [[{"key": "key", "value": b"a key"}], None, [], [{"key": "b", "value": None}]], HEADERS_TYPE
    )
    hidden = [[{"key": "key", "value": b"a ***"}], None, [], [{"key": "b", "value": None}]]
    for topic, value in (("payments", b"*** key"), ("clicks", b"4111 key")):
        masks = Masks(rules, topic)
        assert masks.column("key", column) == column
        assert masks.column("value", column).to_pylist() == [value]
        assert masks.column("headers", headers).to_pylist() == hidden
        assert masks.column("headers", headers.slice(1, 3)).to_pylist() == hidden[1:]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{}", "Expected `array`"),
        (b"no", "truncated"),
        (b'[{"regexp": "x"}]', "unknown field `regexp`"),
        (b"[{}]", "found json_path '' and regex ''"),
        (b'[{"regex": "a", "json_path": "a"}]', "expected one of them"),
        (b'[{"regex": "a*"}]', "which matches an empty text"),
        (b'[{"regex": "("}]', "a pattern of masks"),
        (b'[{"json_path": "["}]', "a JSON path"),
        (b'[{"regex": "a", "fields": ["offset"]}]', "Invalid enum value 'offset'"),
    ],
)
def test_wrong_rules_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem.replace("(", r"\(").replace("*", r"\*")):
        parse_masks(data)


def test_rules_come_from_a_file_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "masks.json").write_text('[{"topics": "pay", "fields": ["value"], "json_path": "card"}]')
    folder = tmp_path / "schemas"
    folder.mkdir()
    for name in ("pay-key", "pay-value"):
        (folder / f"{name}.avsc").write_text(json.dumps(SCHEMA))
    (folder / "clicks-value@p.Second.desc").write_bytes(descriptor_set())
    (folder / "README.md").write_text("no schema")
    rules = load_rules(tmp_path / "masks.json", folder)
    assert sorted(rules.schemas) == ["clicks-value", "pay-key", "pay-value"]
    assert {name: decoder.name for name, decoder in rules.decoders_of("clicks").items()} == {
        "value": "Protobuf"
    }
    assert list(rules.decoders_of("pay")) == ["key"]  # values are masked, and so decoded already
    data = pa.array([avro(SCHEMA, {"card": 4111, "n": 1})], pa.binary())
    assert rules.masks_of("pay").column("value", data).to_pylist() == [b'{"card":"***","n":1}']
    assert load_rules().decoders_of("pay") == {}


def test_a_schema_that_is_not_correct_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a-value.avsc").write_text("{}")
    with pytest.raises(InvalidRequestError, match="an Avro schema"):
        load_rules(None, tmp_path)
