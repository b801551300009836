"""Extents in columns: the same extents come out, and hostile columns cost nothing before they are refused."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.appender import StagedAppend
from sparklog.client.publish import WriterAsks, decode_payload, encode_payload
from sparklog.errors import CorruptLogError
from sparklog.metadata import Action, AppendExtents, DraftExtent, Extent, SetConfigs
from sparklog.metadata.documents import extent_columns
from sparklog.metadata.documents.document import (
    Header,
    checksum,
    decode_commit,
    encode_commit,
)
from sparklog.metadata.documents.extent_columns import (
    MAX_COMMIT_EXTENTS,
    MAX_REQUEST_EXTENTS,
    MIN_COLUMN_EXTENTS,
)

CLUSTER = "C" * 22
HEADER = Header(
    version=1,
    kind="commit",
    commit=5,
    cluster_id=CLUSTER,
    uuid="U" * 22,
    previous="P" * 22,
    timestamp_ms=0,
    length=0,
)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FEW = st.one_of(st.integers(-2, 3), INT64)
EXTENT = st.builds(
    Extent,
    topic_id=st.sampled_from(["A" * 22, "B" * 22, "ä,"]),
    partition=FEW,
    segment=st.sampled_from(["segments/w/0.log", "a,b", ""]),
    position=FEW,
    size=FEW,
    base_offset=FEW,
    record_count=FEW,
    max_timestamp_ms=FEW,
    offset_delta=FEW,
    producer_id=FEW,
    producer_epoch=FEW,
    base_sequence=FEW,
)


def extent(number: int, **fields: Any) -> Extent:
    values: dict[str, Any] = {
        "topic_id": "A" * 22,
        "partition": number,
        "segment": "segments/w/0.log",
        "position": 170 * number,
        "size": 170,
        "base_offset": 7,
        "record_count": 1,
        "max_timestamp_ms": 5,
        "offset_delta": 7,
    }
    return Extent(**{**values, **fields})


def draft(number: int) -> DraftExtent:
    fields = msgspec.structs.asdict(extent(number))
    return DraftExtent(**{name: fields[name] for name in DraftExtent.__struct_fields__})


def decode(data: bytes) -> tuple[Action, ...]:
    return decode_commit(data, where="root/5.json", commit=5, cluster_id=CLUSTER)[1]


def body(data: bytes) -> Any:
    return json.loads(data.split(b"\n")[1])


def with_action(action: dict[str, Any], *, times: int = 1) -> bytes:
    """An intact commit that says this."""
    second = json.dumps({"actions": [action] * times}, separators=(",", ":")).encode()
    header = msgspec.structs.replace(HEADER, length=len(second))
    first = msgspec.json.encode(header)
    prefix, suffix = first[:-10], b'"}\n' + second + b"\n"
    return prefix + checksum(prefix, b"00000000", suffix).encode() + suffix


def columns(count: int = MIN_COLUMN_EXTENTS, **fields: Any) -> dict[str, Any]:
    """`append_columns` of extents that differ in nothing but their partition."""
    found: dict[str, Any] = {
        "type": "append_columns",
        "topics": ["A" * 22],
        "segments": ["segments/w/0.log"],
        "partition": list(range(count)),
        "position": 0,
        "size": 61,
        "base_offset": 0,
        "record_count": 1,
        "max_timestamp_ms": 0,
    }
    found |= fields
    return {name: value for name, value in found.items() if value is not None}


@given(st.lists(EXTENT, min_size=1, max_size=40))
def test_extents_come_back(extents: list[Extent]) -> None:
    actions = (SetConfigs(configs={"a": None}), AppendExtents(extents=tuple(extents)))
    data = encode_commit(HEADER, actions)
    assert decode(data) == actions
    in_columns = len(extents) >= MIN_COLUMN_EXTENTS
    assert body(data)["actions"][1]["type"] == ("append_columns" if in_columns else "append_extents")


@pytest.mark.slow
@given(st.lists(EXTENT, min_size=1, max_size=40), st.integers(0, 3))
def test_drafts_come_back(extents: list[Extent], cut: int) -> None:
    drafts = [
        DraftExtent(**{name: getattr(one, name) for name in DraftExtent.__struct_fields__}) for one in extents
    ]
    staged = [StagedAppend(drafts=tuple(drafts[:cut])), StagedAppend(drafts=tuple(drafts[cut:]))]
    payload = encode_payload(staged, None)
    assert decode_payload(payload) == WriterAsks(staged=StagedAppend(drafts=tuple(drafts)), writer=None)
    in_columns = len(drafts) >= MIN_COLUMN_EXTENTS
    assert ("columns" in json.loads(payload)) == in_columns


def test_what_is_the_same_in_all_extents_is_said_once() -> None:
    extents = tuple(extent(number) for number in range(1024))
    data = encode_commit(HEADER, [AppendExtents(extents=extents)])
    (found,) = body(data)["actions"]
    assert found == {
        "type": "append_columns",
        "topics": ["A" * 22],
        "segments": ["segments/w/0.log"],
        "partition": list(range(1024)),
        "position": [170 * number for number in range(1024)],
        "size": 170,
        "base_offset": 7,
        "record_count": 1,
        "max_timestamp_ms": 5,
    }
    assert len(data) < 1024 * 14


def test_names_are_shared_by_all_extents() -> None:
    (action,) = decode(with_action(columns(100)))
    assert isinstance(action, AppendExtents)
    assert len({id(one.segment) for one in action.extents}) == 1
    assert len({id(one.topic_id) for one in action.extents}) == 1


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"partition": 3}, "partition: expected an array"),
        ({"partition": []}, "0 numbers, expected 1"),
        ({"size": [61] * 7}, "size: 7 numbers, expected 8"),
        ({"size": [61] * 9}, "size: 9 numbers, expected 8"),
        ({"size": []}, "size: 1 numbers, expected 8"),
        ({"topic": [0] * 7 + [1]}, "topic: found an index outside 1 names"),
        ({"topic": [0] * 7 + [-1]}, "topic: found an index outside 1 names"),
        ({"segment": 1}, "segment: found an index outside 1 names"),
        ({"topics": []}, "topic: found an index outside 0 names"),
        ({"segments": ["s"] * 9}, "segment: found an index outside 9 names, of 8 extents"),
        ({"position": None}, "missing required field `position`"),
        ({"position": "0"}, "Expected `int`, got `str`"),
        ({"position": [0, 1, 2, 3, 4, 5, 6, [7]]}, "Expected `int`, got `array`"),
        ({"position": 1 << 63}, r"Expected `int` <= 9223372036854775807|out of range"),
        ({"base_offset": {}}, "Expected `int`, got `object`"),
    ],
)
def test_columns_that_do_not_fit_are_refused(fields: dict[str, Any], problem: str) -> None:
    assert decode(with_action(columns()))
    with pytest.raises(CorruptLogError, match=f"root/5.json: cannot be decoded: .*{problem}"):
        decode(with_action(columns(**fields)))


def test_more_extents_than_a_commit_may_have_stay_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extent_columns, "MAX_COMMIT_EXTENTS", 20)
    actions = tuple(
        AppendExtents(extents=tuple(extent(number) for number in range(count))) for count in (12, 9, 8, 8)
    )
    data = encode_commit(HEADER, actions)
    kinds = [action["type"] for action in body(data)["actions"]]
    assert kinds == ["append_columns", "append_extents", "append_columns", "append_extents"]
    assert decode(data) == actions


@pytest.mark.parametrize("times", [1, 3])
def test_too_many_extents_are_refused_before_one_is_made(times: int) -> None:
    data = with_action(columns(partition=[0] * (MAX_COMMIT_EXTENTS // times + 1)), times=times)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptLogError, match=f"expected at most {MAX_COMMIT_EXTENTS}"):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(data)
    finally:
        tracemalloc.stop()


def test_a_column_that_is_longer_than_the_others_is_not_read() -> None:
    data = with_action(columns(size=[61] * 1_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptLogError, match="1000000 numbers, expected 8"):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(data)
    finally:
        tracemalloc.stop()


def test_too_many_drafts_are_refused_before_one_is_made() -> None:
    found = columns(partition=[0] * (MAX_REQUEST_EXTENTS + 1))
    del found["type"], found["base_offset"]
    payload = json.dumps({"columns": found}, separators=(",", ":")).encode()
    tracemalloc.start()
    try:
        with pytest.raises(CorruptLogError, match=f"expected at most {MAX_REQUEST_EXTENTS}"):
            decode_payload(payload)
        assert tracemalloc.get_traced_memory()[1] < 300_000
    finally:
        tracemalloc.stop()


def test_more_drafts_than_a_request_may_have_stay_objects() -> None:
    drafts = tuple(draft(number) for number in range(MAX_REQUEST_EXTENTS + 1))
    staged = [StagedAppend(drafts=drafts)]
    assert decode_payload(encode_payload(staged, None)) == WriterAsks(staged=staged[0], writer=None)


def test_the_command_of_format_md_names_fields_that_there_are() -> None:
    text = (Path(__file__).parents[2] / "FORMAT.md").read_text("utf-8")
    command = text.split("tail -n 1 ")[1].split("```")[0]
    for name in ("partition", "position", "size", "base_offset"):
        assert f"$c.{name}" in command
        assert name in extent_columns.AppendColumns.__struct_fields__
