"""FORMAT.md says what the code does: fields, actions, and the worked example."""

import re
from pathlib import Path

import msgspec

from sparklog.metadata import Extent, WriterTxn
from sparklog.metadata.documents.document import (
    WIRE_TYPES,
    CommitBody,
    Header,
    decode_commit,
    encode_document,
)
from sparklog.metadata.documents.extent_columns import (
    MAX_COMMIT_EXTENTS,
    MAX_REQUEST_EXTENTS,
    MIN_COLUMN_EXTENTS,
    AppendColumns,
    DraftColumns,
)
from sparklog.metadata.documents.properties import encode_properties
from sparklog.metadata.documents.snapshot import SnapshotState
from sparklog.metadata.model.actions import ACTION_TYPES, EFFECTS
from sparklog.metadata.model.extent_list import NUMBER_COLUMNS

TEXT = (Path(__file__).parent.parent.parent / "FORMAT.md").read_text("utf-8")


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def tables(title: str) -> list[list[list[str]]]:
    found = re.findall(r"((?:^\|.*\|\n)+)", section(title), re.MULTILINE)
    return [[line.strip("|").split("|") for line in table.splitlines()[2:]] for table in found]


def names(rows: list[list[str]]) -> list[str]:
    return [row[0] for row in rows]


def test_fields_of_extents() -> None:
    fields = Extent.__struct_fields__
    assert names(tables("Segments and extents")[0]) == list(fields)
    assert list(NUMBER_COLUMNS) == list(fields[3:])
    optional = [row[0] for row in tables("Segments and extents")[0] if row[3] == "no"]
    assert optional == [field.name for field in msgspec.structs.fields(Extent) if not field.required]


def test_fields_of_headers() -> None:
    assert names(tables("Metadata log")[0]) == list(Header.__struct_fields__)


def test_actions_and_their_fields() -> None:
    rows = tables("Metadata log")[1]
    assert names(rows) == [kind.__struct_config__.tag for kind in WIRE_TYPES]
    for row, kind in zip(rows, WIRE_TYPES, strict=True):
        assert row[1].split(", ") == list(kind.__struct_fields__)


def test_every_action_has_an_effect() -> None:
    assert tuple(EFFECTS) == ACTION_TYPES
    assert len(set(EFFECTS.values())) == len(EFFECTS)


def test_fields_of_columns() -> None:
    rows = [(name, row[3]) for row in tables("Metadata log")[2] for name in row[0].split(", ")]
    assert [name for name, _ in rows] == list(AppendColumns.__struct_fields__)
    optional = [name for name, required in rows if required == "no"]
    assert optional == [field.name for field in msgspec.structs.fields(AppendColumns) if not field.required]
    left_out = [name for name, _ in rows if name not in {"base_offset", "offset_delta"}]
    assert list(DraftColumns.__struct_fields__) == left_out
    text = " ".join(section("Metadata log").split())
    assert f"more than {MAX_COMMIT_EXTENTS:,} extents in all columns of a commit" in text
    assert f"of at most {MAX_REQUEST_EXTENTS:,} drafts" in text
    assert f"columns from {MIN_COLUMN_EXTENTS} extents on" in text


def test_fields_of_the_snapshot_state() -> None:
    assert names(tables("Metadata log")[3]) == list(SnapshotState.__struct_fields__)


def test_worked_example() -> None:
    blocks = re.findall(r"```\n(\{.*?)```", section("Metadata log"), re.DOTALL)
    header, actions = decode_commit(blocks[0].encode(), where="FORMAT.md", commit=0, cluster_id="C" * 22)
    assert actions == (WriterTxn(application="query-1", version=9, topics=("A" * 22,)),)
    assert encode_document(header, CommitBody(actions=actions)).decode() == blocks[0]


def test_meta_properties() -> None:
    lines = encode_properties("C" * 22).decode().splitlines()
    assert names(tables("Layout of a root")[0]) == [line.split("=")[0] for line in lines]
    assert f"Example (`meta.properties`): `{'`, `'.join(lines)}`." in section("Layout of a root")
