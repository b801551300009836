"""Commit documents: the same bytes for ever, and no damaged byte goes unnoticed."""

from pathlib import Path

import msgspec
import pytest

from sparklog.errors import CorruptLogError, InvalidRequestError, UnsupportedVersionError
from sparklog.metadata import (
    Action,
    AddPartitions,
    AdvanceLogStart,
    AllocateProducerIds,
    AppendExtents,
    BrokerListener,
    CreateTopic,
    DeleteTopic,
    ExpireProducers,
    Extent,
    MoveSweepHorizon,
    NoteCleaned,
    RegisterBroker,
    ReplaceExtents,
    RequestApplied,
    SetConfigs,
    WriterTxn,
)
from sparklog.metadata.documents import document as document_module
from sparklog.metadata.documents.document import (
    CommitBody,
    Header,
    checksum,
    decode_commit,
    encode_commit,
    encode_document,
    required_version,
)
from sparklog.metadata.model.actions import ACTION_TYPES
from tests.metadata.golden_brokers import ACTIONS_8_BROKERS
from tests.metadata.golden_transactions import ACTIONS_9

GOLDEN = Path(__file__).parent.parent / "golden" / "metadata_commit.bin"
GOLDEN_2 = GOLDEN.with_name("metadata_commit_2.bin")
GOLDEN_4_TXN = GOLDEN.with_name("metadata_commit_4_txn.bin")
GOLDEN_3 = GOLDEN.with_name("metadata_commit_3.bin")
GOLDEN_4 = GOLDEN.with_name("metadata_commit_4.bin")
GOLDEN_5 = GOLDEN.with_name("metadata_commit_5.bin")
GOLDEN_6 = GOLDEN.with_name("metadata_commit_6.bin")
GOLDEN_7 = GOLDEN.with_name("metadata_commit_7.bin")
GOLDEN_8 = GOLDEN.with_name("metadata_commit_8.bin")
CLUSTER = "CCCCCCCCCCCCCCCCCCCCCC"
TOPIC = "AAAAAAAAAAAAAAAAAAAAAA"
EXTENT = Extent(
    topic_id=TOPIC,
    partition=1,
    segment="segments/w/0.log",
    position=61,
    size=1000,
    base_offset=42,
    record_count=10,
    max_timestamp_ms=1_700_000_000_000,
    offset_delta=42,
    producer_id=7,
    producer_epoch=0,
    base_sequence=3,
)
ACTIONS: tuple[Action, ...] = (
    CreateTopic(topic_id=TOPIC, name="orders.eu", partitions=3, configs={"retention.ms": "1"}),
    SetConfigs(topic_id=TOPIC, configs={"retention.ms": None, "cleanup.policy": "compact"}),
    SetConfigs(configs={"segment.bytes": "1048576"}),
    AddPartitions(topic_id=TOPIC, partitions=4),
    AppendExtents(extents=(EXTENT,)),
    ReplaceExtents(
        topic_id=TOPIC, partition=1, start_offset=42, end_offset=52, removed_count=1, added=(EXTENT,)
    ),
    AdvanceLogStart(topic_id=TOPIC, partition=1, log_start_offset=50),
    WriterTxn(application="query-1", version=9),
    DeleteTopic(topic_id=TOPIC),
)
ACTIONS_3: tuple[Action, ...] = (
    RequestApplied(publisher="JJJJJJJJJJJJJJJJJJJJJJ", sequence=4, actions=1),
    WriterTxn(application="query-1", version=9),
    RequestApplied(publisher="KKKKKKKKKKKKKKKKKKKKKK", sequence=0),
)
ACTIONS_4: tuple[Action, ...] = (
    RequestApplied(publisher="J" * 22, sequence=4, actions=1, base=17, nonce="N" * 22),
    SetConfigs(configs={"segment.bytes": None}),
    RequestApplied(publisher="K" * 22, sequence=0, nonce="M" * 22),
)
ACTIONS_4_TXN: tuple[Action, ...] = (
    WriterTxn(application="query-1", version=10, topics=(TOPIC, "BBBBBBBBBBBBBBBBBBBBBB")),
    WriterTxn(application="query-2", version=0, topics=(TOPIC,), content="offsets 5 to 9"),
)
ACTIONS_2: tuple[Action, ...] = (
    RegisterBroker(
        node_id=1,
        broker_epoch=7,
        incarnation_id="IIIIIIIIIIIIIIIIIIIIII",
        listeners=(BrokerListener(host="localhost", port=9092), BrokerListener(host="::1", port=9093)),
    ),
    AllocateProducerIds(first=2000, count=1000),
)

# The least that goes into columns: of two topics, from two segments, one of them merged, some of producers.
ACTIONS_5: tuple[Action, ...] = (
    AppendExtents(
        extents=tuple(
            msgspec.structs.replace(
                EXTENT,
                topic_id=TOPIC if partition < 5 else "B" * 22,
                partition=partition,
                segment=f"segments/w/{partition % 2}.log",
                position=1000 * partition,
                base_offset=100 - partition,
                offset_delta=0 if partition == 7 else 100 - partition,
                producer_id=7 if partition == 3 else -1,
                producer_epoch=0 if partition == 3 else -1,
                base_sequence=3 if partition == 3 else -1,
            )
            for partition in range(8)
        )
    ),
    WriterTxn(application="query-1", version=11, topics=(TOPIC,)),
)
ACTIONS_6: tuple[Action, ...] = (MoveSweepHorizon(horizon=4),)
ACTIONS_7: tuple[Action, ...] = (
    NoteCleaned(topic_id=TOPIC, partition=2, first_dirty_offset=17, delete_horizon_ms=1_700_000_000_000),
    NoteCleaned(topic_id=TOPIC, partition=3, first_dirty_offset=5),
)
ACTIONS_8: tuple[Action, ...] = (
    ExpireProducers(time_ms=1_700_000_000_000, marks_only=True),
    ExpireProducers(time_ms=1_700_086_400_000, max_timestamp_ms=1_700_043_200_000),
)


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
    assert encoded() == GOLDEN.read_bytes()


def test_golden_commit_is_decoded() -> None:
    found, actions = decode(GOLDEN.read_bytes())
    assert actions == ACTIONS
    assert found == msgspec.structs.replace(header(), length=found.length, crc32c=found.crc32c)


def test_golden_commit_of_version_2() -> None:
    assert encoded(ACTIONS_2, version=2) == GOLDEN_2.read_bytes()
    assert decode(GOLDEN_2.read_bytes())[1] == ACTIONS_2


def test_golden_commit_of_version_3() -> None:
    assert encoded(ACTIONS_3, version=3) == GOLDEN_3.read_bytes()
    assert decode(GOLDEN_3.read_bytes())[1] == ACTIONS_3


def test_golden_commit_of_version_4() -> None:
    assert encoded(ACTIONS_4, version=4) == GOLDEN_4.read_bytes()
    assert decode(GOLDEN_4.read_bytes())[1] == ACTIONS_4


def test_golden_commit_of_writer_txns_of_version_4() -> None:
    assert encoded(ACTIONS_4_TXN, version=4) == GOLDEN_4_TXN.read_bytes()
    assert decode(GOLDEN_4_TXN.read_bytes())[1] == ACTIONS_4_TXN


def test_golden_commit_of_version_5() -> None:
    assert encode_commit(header(), ACTIONS_5) == GOLDEN_5.read_bytes()
    found, actions = decode(GOLDEN_5.read_bytes())
    assert (found.version, actions) == (5, ACTIONS_5)


def test_golden_commit_of_version_6() -> None:
    assert encoded(ACTIONS_6, version=6) == GOLDEN_6.read_bytes()
    assert decode(GOLDEN_6.read_bytes())[1] == ACTIONS_6
    assert {action.document_version for action in ACTIONS_6} == {6}


def test_golden_commit_of_version_7() -> None:
    assert encoded(ACTIONS_7, version=7) == GOLDEN_7.read_bytes()
    assert decode(GOLDEN_7.read_bytes())[1] == ACTIONS_7
    assert {action.document_version for action in ACTIONS_7} == {7}


def test_golden_commit_of_version_8() -> None:
    assert encoded(ACTIONS_8, version=8) == GOLDEN_8.read_bytes()
    assert decode(GOLDEN_8.read_bytes())[1] == ACTIONS_8
    assert {action.document_version for action in ACTIONS_8} == {8}


def test_every_action_type_is_in_the_golden_commits() -> None:
    golden = [
        *ACTIONS,
        *ACTIONS_2,
        *ACTIONS_3,
        *ACTIONS_4,
        *ACTIONS_6,
        *ACTIONS_7,
        *ACTIONS_8,
        *ACTIONS_8_BROKERS,
        *ACTIONS_9,
    ]
    assert {type(action) for action in golden} == set(ACTION_TYPES)
    versions = [
        {one.document_version for one in actions} for actions in (ACTIONS, ACTIONS_2, ACTIONS_3, ACTIONS_4)
    ]
    assert [max(found) for found in versions] == [1, 2, 3, 4]


def test_only_brokers_need_version_2() -> None:
    assert required_version(ACTIONS) == 1
    assert required_version(()) == 1
    assert [required_version([*ACTIONS, action]) for action in ACTIONS_2] == [2, 2]


def test_only_requests_need_version_3() -> None:
    assert required_version(ACTIONS_3) == 3
    assert required_version([*ACTIONS_2, *ACTIONS_3]) == 3


@pytest.mark.parametrize("action", ACTIONS_4_TXN)
def test_only_versions_of_topics_need_version_4(action: Action) -> None:
    assert required_version([action]) == required_version([*ACTIONS_3, action]) == 4
    with pytest.raises(CorruptLogError, match="found version 3, expected 4"):
        decode(encoded((action,), version=3))


@pytest.mark.parametrize("action", ACTIONS_2)
def test_action_of_version_2_in_a_document_of_version_1_is_refused(action: Action) -> None:
    with pytest.raises(CorruptLogError, match="found version 1, expected 2"):
        decode(encoded((action,), version=1))


def test_two_lines_of_json() -> None:
    first, second, rest = encoded().split(b"\n")
    assert rest == b""
    assert msgspec.json.decode(first)["length"] == len(second)
    assert msgspec.json.decode(second)["actions"][0]["type"] == "create_topic"


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


def test_newer_version_asks_for_an_upgrade() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"found version 10, expected 1 to 9;.*Upgrade"):
        decode(encoded(version=10))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('{"actions":[{"type":"elect_leader","x":1}]}', "unknown type 'elect_leader'"),
        ('{"actions":[{"type":"writer_txn","application":"a","version":1,"ttl":2}]}', "unknown field 'ttl'"),
        ('{"actions":[],"epoch":1}', "unknown field 'epoch'"),
        (APPEND_WITH_TIER, "unknown field 'tier'"),
        (REPLACE_WITH_TIER, "unknown field 'tier'"),
    ],
)
def test_unknown_things_in_an_intact_commit_ask_for_an_upgrade(body: str, found: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=found) as raised:
        decode(with_body(body))
    assert "Upgrade sparklog" in str(raised.value)


def test_newer_version_is_refused_by_what_is_new_in_it() -> None:
    body = '{"actions":[{"type":"elect_leader","x":1}]}'
    with pytest.raises(
        UnsupportedVersionError, match=r"found version 10, expected 1 to 9 \(action 0 .* 'elect_leader'\);"
    ):
        decode(with_body(body, version=10))


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
