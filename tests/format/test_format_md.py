"""FORMAT.md's tables are those of the code, and its examples are real."""

import re
import struct
from pathlib import Path

import pytest

from sparklog.format.codec import Codec
from sparklog.format.consumer_offsets import (
    GROUP_VALUE_FIELDS,
    MEMBER_FIELDS,
    OFFSET_KEY_FIELDS,
    OFFSET_VALUE_FIELDS,
)
from sparklog.format.control_batch import CONTROL_KEY_FIELDS, CONTROL_VALUE_FIELDS
from sparklog.format.index import OFFSET_ENTRY_FIELDS, TIME_ENTRY_FIELDS
from sparklog.format.record_batch import ATTRIBUTE_FIELDS, HEADER_FIELDS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "FORMAT.md").read_text(encoding="utf-8")
TYPES = {"q": "i64", "i": "i32", "h": "i16", "b": "i8", "I": "u32"}


def _section(title: str) -> str:
    match = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert match is not None, title
    return match[1]


def _tables(title: str) -> list[list[list[str]]]:
    """The rows of every table of a section, without its head."""
    tables = re.findall(r"((?:^\|.*\|\n)+)", _section(title), re.MULTILINE)
    return [[line.strip("|").split("|") for line in table.splitlines()[2:]] for table in tables]


def _with_positions(fields: tuple[tuple[str, str, str], ...]) -> list[list[str]]:
    rows, position = [], 0
    for name, code, meaning in fields:
        rows.append([str(position), name, TYPES[code], meaning, "yes"])
        position += struct.calcsize(">" + code)
    return rows


@pytest.mark.parametrize(
    ("title", "number", "fields"),
    [
        ("Record batch", 0, HEADER_FIELDS),
        ("Control batch", 0, CONTROL_KEY_FIELDS),
        ("Control batch", 1, CONTROL_VALUE_FIELDS),
        ("Offset index", 0, OFFSET_ENTRY_FIELDS),
        ("Time index", 0, TIME_ENTRY_FIELDS),
    ],
)
def test_field_tables(title: str, number: int, fields: tuple[tuple[str, str, str], ...]) -> None:
    assert _tables(title)[number] == _with_positions(fields)


def test_attribute_table() -> None:
    assert _tables("Record batch")[1] == [
        [f"{mask:#04x}", name, meaning] for name, mask, meaning in ATTRIBUTE_FIELDS
    ]


def test_codec_table() -> None:
    assert [row[:2] for row in _tables("Compression")[0]] == [
        [str(codec.value), codec.label] for codec in Codec
    ]


@pytest.mark.parametrize(("number", "fields"), [(0, OFFSET_KEY_FIELDS), (1, OFFSET_VALUE_FIELDS)])
def test_consumer_offset_tables(number: int, fields: tuple[tuple[str, str, str], ...]) -> None:
    assert _tables("Consumer offsets")[number] == [[*field, "yes"] for field in fields]


@pytest.mark.parametrize(("number", "fields"), [(0, GROUP_VALUE_FIELDS), (1, MEMBER_FIELDS)])
def test_group_metadata_tables(number: int, fields: tuple[tuple[str, str, str], ...]) -> None:
    assert _tables("Group metadata")[number] == [[*field, "yes"] for field in fields]


def test_worked_group_metadata_is_the_golden_file() -> None:
    (value,) = re.findall(r"Example \(.*?\): `([0-9a-f \n]+)`", _section("Group metadata"))
    assert bytes.fromhex(value) == (ROOT / "tests/golden/group_metadata_value.bin").read_bytes()


def test_worked_example_is_the_golden_file() -> None:
    block = re.search(r"batch_two_records.bin.*?```\n(.*?)```", _section("Record batch"), re.DOTALL)
    assert block is not None
    hexadecimal = "".join(re.split(r"   +", line)[0] for line in block[1].splitlines())
    assert bytes.fromhex(hexadecimal) == (ROOT / "tests/golden/batch_two_records.bin").read_bytes()


def test_worked_consumer_offset_is_the_golden_file() -> None:
    key, value = re.findall(r"`((?:[0-9a-f]{4,} ){3,}[0-9a-f]+)`", _section("Consumer offsets"))
    assert bytes.fromhex(key) == (ROOT / "tests/golden/consumer_offset_key.bin").read_bytes()
    assert bytes.fromhex(value) == (ROOT / "tests/golden/consumer_offset_value.bin").read_bytes()


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Offset index", "offset_index.bin"),
        ("Time index", "time_index.bin"),
        ("Control batch", "control_commit.bin"),
    ],
)
def test_worked_entries_are_in_the_golden_files(title: str, name: str) -> None:
    example = re.search(r"Example: `([0-9a-f ]+)`", _section(title))
    assert example is not None
    assert bytes.fromhex(example[1]) in (ROOT / "tests/golden" / name).read_bytes()


def test_links_lead_to_headings() -> None:
    headings = {title.lower().replace(" ", "-") for title in re.findall(r"^#{2,3} (.*)$", TEXT, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([a-z-]+)\)", TEXT)) <= headings
    for module in (ROOT / "sparklog" / "format").glob("*.py"):
        assert set(re.findall(r"FORMAT\.md#([a-z-]+)", module.read_text(encoding="utf-8"))) <= headings, (
            module
        )
