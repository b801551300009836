"""Commit documents: the same bytes forever, and no damaged byte goes unnoticed."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from sparklog.errors import CorruptLogError, InvalidRequestError, UnsupportedVersionError
from sparklog.metadata import Action
from sparklog.metadata.documents import document as document_module
from sparklog.metadata.documents.document import (
    CommitBody,
    Header,
    checksum,
    decode_commit,
    decode_manifest,
    decode_request,
    encode_commit,
    encode_document,
)
from sparklog.metadata.model.actions import ACTION_TYPES
from tests.metadata.golden_actions import ACTIONS

GOLDEN = Path(__file__).parent.parent / "golden" / "metadata_commit.bin"
CLUSTER = "CCCCCCCCCCCCCCCCCCCCCC"


APPEND_WITH_TIER = (
    '{"actions":[{"type":"append_extents","extents":[{"topic_id":"A","partition":0,"segment":"s",'
    '"position":0,"size":61,"base_offset":0,"record_count":1,"max_timestamp_ms":0,"offset_delta":0,"tier":1}]}]}'
)
REPLACE_WITH_TIER = (
    '{"actions":[{"type":"replace_extents","topic_id":"A","partition":0,"start_offset":0,"end_offset":1,'
    '"removed_count":1,"added":[{"tier":1}]}]}'
)


def header(**fields: object) -> Header:
    values: dict[str, object] = {
        "version": 1,
        "kind": "commit",
        "commit": 5,
        "cluster_id": CLUSTER,
        "uuid": "UUUUUUUUUUUUUUUUUUUUUU",
        "previous": "PPPPPPPPPPPPPPPPPPPPPP",
        "timestamp_ms": 1_700_000_000_123,
        "length": 0,
    }
    return Header(**{**values, **fields})  # type: ignore[arg-type]


def encoded(actions: tuple[Action, ...] = ACTIONS, **fields: object) -> bytes:
    return encode_document(header(**fields), CommitBody(actions=actions))


def decode(data: bytes) -> tuple[Header, tuple[Action, ...]]:
    return decode_commit(data, where="root/5.json", commit=5, cluster_id=CLUSTER)


def with_body(body: str, **fields: object) -> bytes:
    """An intact document around any body."""
    data = encoded((), **fields)
    first = data.split(b"\n")[0].replace(b'"length":14', b'"length":%d' % len(body.encode()))
    prefix, suffix = first[:-10], b'"}\n' + body.encode() + b"\n"
    return prefix + checksum(prefix, b"00000000", suffix).encode() + suffix


def test_golden_commit() -> None:
    assert encode_commit(header(), ACTIONS) == GOLDEN.read_bytes()
    found, actions = decode(GOLDEN.read_bytes())
    assert actions == ACTIONS
    assert found == msgspec.structs.replace(header(), length=found.length, crc32c=found.crc32c)


def test_every_action_type_is_in_the_golden_commit() -> None:
    assert {type(action) for action in ACTIONS} == set(ACTION_TYPES)


def test_many_extents_are_in_columns() -> None:
    body = msgspec.json.decode(GOLDEN.read_bytes().splitlines()[1])
    kinds = [one["type"] for one in body["actions"]]
    for few, many in (("append_extents", "append_columns"), ("stage_extents", "stage_columns")):
        assert kinds[kinds.index(few) + 1] == many
    assert body["actions"][kinds.index("stage_columns")]["opens_ms"] == [-1, *[5] * 7]


def test_two_lines_of_json() -> None:
    first, second, rest = encoded().split(b"\n")
    assert rest == b""
    assert msgspec.json.decode(first)["length"] == len(second)
    assert msgspec.json.decode(second)["actions"][1]["type"] == "create_topic"


def test_truncation_at_every_byte_is_detected() -> None:
    data = encoded()
    for size in range(len(data)):
        with pytest.raises(CorruptLogError, match=r"root/5.json"):
            decode(data[:size])


def test_every_bit_flip_is_detected() -> None:
    data = encoded(ACTIONS[:1])
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(CorruptLogError, match=r"root/5.json"):
                decode(bytes(flipped))


@pytest.mark.parametrize("extra", [b"\n", b"x", b"\0" * 512])
def test_bytes_after_the_end_are_detected(extra: bytes) -> None:
    with pytest.raises(CorruptLogError, match="found a body of"):
        decode(encoded() + extra)


def test_block_of_zeros_is_detected() -> None:
    """What a power cut may leave of a file whose data was not synced."""
    for size in (0, 10, 4096, 10_000):
        with pytest.raises(CorruptLogError, match="truncated"):
            decode(bytes(size))


def test_wrong_number_is_refused() -> None:
    with pytest.raises(CorruptLogError, match="found commit number 6, expected 5"):
        decode(encoded(commit=6))


def test_commit_of_another_root_is_refused() -> None:
    with pytest.raises(CorruptLogError, match="another root"):
        decode(encoded(cluster_id="DDDDDDDDDDDDDDDDDDDDDD"))


def test_snapshot_manifest_is_no_commit() -> None:
    with pytest.raises(CorruptLogError, match="kind 'snapshot'"):
        decode(encoded(kind="snapshot"))


@pytest.mark.parametrize("version", [0, 2, 1 << 40])
@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("commit", partial(decode_commit, commit=5)),
        ("snapshot", partial(decode_manifest, commit=5)),
        ("request", partial(decode_request, sequence=5)),
    ],
)
def test_another_version_is_refused_by_name(kind: str, read: Callable[..., object], version: int) -> None:
    data = encoded((), kind=kind, version=version)
    message = rf"root/5.json: found version {version}, expected 1; .*Upgrade"
    with pytest.raises(UnsupportedVersionError, match=message) as raised:
        read(data, where="root/5.json", cluster_id=CLUSTER)
    assert raised.value.code == "UNSUPPORTED_METADATA"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('{"actions":[{"type":"elect_leader","x":1}]}', "unknown type 'elect_leader'"),
        ('{"actions":[{"type":"move_sweep_horizon","horizon":1,"ttl":2}]}', "unknown field 'ttl'"),
        ('{"actions":[],"epoch":1}', "unknown field 'epoch'"),
        (APPEND_WITH_TIER, "unknown field 'tier'"),
        (REPLACE_WITH_TIER, "unknown field 'tier'"),
    ],
)
def test_unknown_things_in_an_intact_commit_ask_for_an_upgrade(body: str, found: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=found) as raised:
        decode(with_body(body))
    assert "Upgrade sparklog" in str(raised.value)


def test_a_newer_version_is_refused_by_what_is_new_in_it() -> None:
    body = '{"actions":[{"type":"elect_leader","x":1}]}'
    with pytest.raises(
        UnsupportedVersionError, match=r"found version 2, expected 1 \(action 0 .* 'elect_leader'\);"
    ):
        decode(with_body(body, version=2))


def test_unknown_field_in_the_header_asks_for_an_upgrade() -> None:
    data = encoded(())
    first, second = data.split(b"\n", 1)
    prefix = first.replace(b',"length"', b',"epoch":1,"length"')[:-10]
    suffix = b'"}\n' + second
    with pytest.raises(UnsupportedVersionError, match="unknown field 'epoch'"):
        decode(prefix + checksum(prefix, b"00000000", suffix).encode() + suffix)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "x",
        "[]",
        "{}",
        '{"actions":null}',
        '{"actions":[1]}',
        '{"actions":[{"type":1}]}',
        '{"actions":[{"type":"writer_txn"}]}',
        '{"actions":[{"type":"writer_txn","application":"a","version":1.5}]}',
        '{"actions":[{"type":"append_extents","extents":[5]}]}',
        '{"actions":[{"type":"writer_txn","application":"a","version":123456789012345678901234567890}]}',
    ],
)
def test_intact_nonsense_is_corrupt(body: str) -> None:
    with pytest.raises(CorruptLogError, match="cannot be decoded"):
        decode(with_body(body))


def test_helper_makes_intact_documents() -> None:
    assert decode(with_body('{"actions":[]}'))[1] == ()


def test_too_large_commit_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_module, "MAX_DOCUMENT_BYTES", 1000)
    with pytest.raises(InvalidRequestError, match="at most 1000"):
        encoded()


def test_too_large_commit_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded()
    monkeypatch.setattr(document_module, "MAX_DOCUMENT_BYTES", 1000)
    with pytest.raises(CorruptLogError, match="more than 1000 bytes"):
        decode(data)
