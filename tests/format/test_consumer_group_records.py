"""Records of consumer groups: Kafka's bytes, and no others."""

import pytest

from sparklog.errors import CorruptLogError, UnsupportedVersionError
from sparklog.format.consumer_group_records import (
    ClassicMember,
    ConsumerGroupKey,
    ConsumerGroupValue,
    CurrentAssignment,
    GroupEpoch,
    MemberState,
    MemberTarget,
    RecordKind,
    ResolvedRegex,
    Subscription,
    TargetEpoch,
    decode_consumer_group_key,
    decode_consumer_group_value,
    encode_consumer_group_key,
    encode_consumer_group_value,
    is_consumer_group_key,
)

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
# Written by Kafka 4.3.1's GroupCoordinatorRecordSerde (kafka-group-coordinator), for these values.
KAFKA: dict[RecordKind, tuple[ConsumerGroupValue, str]] = {
    RecordKind.GROUP: (GroupEpoch(epoch=3, metadata_hash=-5), "000000000003010008fffffffffffffffb"),
    RecordKind.MEMBER: (
        Subscription(
            instance_id="i",
            client_id="c",
            client_host="/h",
            topics=("t", "u"),
            regex="t.*",
            rebalance_timeout_ms=300_000,
        ),
        "00000269000263032f68030274027504742e2a000493e00000",
    ),
    RecordKind.TARGET: (TargetEpoch(epoch=5), "00000000000500"),
    RecordKind.MEMBER_TARGET: (
        MemberTarget(partitions={TOPIC_ID: frozenset({0, 2})}),
        "000002000000000000000000000000000000010300000000000000020000",
    ),
    RecordKind.MEMBER_ASSIGNMENT: (
        CurrentAssignment(
            epoch=7,
            previous_epoch=6,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned={TOPIC_ID: {0: 4}},
            pending_revocation={TOPIC_ID: {1: 5, 2: 6}},
        ),
        (
            "00000000000700000006010200000000000000000000000000000001020000000001000502000000"
            "04020000000000000000000000000000000103000000010000000201000903000000050000000600"
        ),
    ),
    RecordKind.REGEX: (
        ResolvedRegex(topics=("t1",), version=9, timestamp_ms=1_000),
        "000002037431000000000000000900000000000003e800",
    ),
}


@pytest.mark.parametrize("kind", KAFKA)
def test_values_are_kafkas(kind: RecordKind) -> None:
    value, stored = KAFKA[kind]
    assert encode_consumer_group_value(value).hex() == stored
    assert decode_consumer_group_value(kind, bytes.fromhex(stored)) == value


@pytest.mark.parametrize("kind", RecordKind)
def test_keys_are_read_as_written(kind: RecordKind) -> None:
    is_named = kind not in {RecordKind.GROUP, RecordKind.TARGET}
    key = ConsumerGroupKey(kind, "g", "m" if is_named else "")
    data = encode_consumer_group_key(key)
    assert data.hex() == f"{kind:04x}000167" + ("00016d" if is_named else "")
    assert is_consumer_group_key(data)
    assert decode_consumer_group_key(data) == key


# As above, by Kafka 4.4.0: a member of the classic protocol in a consumer group.
CLASSIC = Subscription(
    client_id="c",
    client_host="/h",
    topics=("t",),
    rebalance_timeout_ms=300_000,
    classic=ClassicMember(session_timeout_ms=45_000, protocols=(("range", b"\1\2\3"),)),
)
CLASSIC_BY_KAFKA = "000000000263032f6802027400000493e000010012010000afc8020672616e6765040102030000"


def test_a_classic_member_is_kafkas() -> None:
    assert encode_consumer_group_value(CLASSIC).hex() == CLASSIC_BY_KAFKA
    data = bytes.fromhex(CLASSIC_BY_KAFKA)
    assert decode_consumer_group_value(RecordKind.MEMBER, data) == CLASSIC
    for end in range(2, len(data)):
        with pytest.raises(CorruptLogError, match="expected Kafka's schema"):
            decode_consumer_group_value(RecordKind.MEMBER, data[:end])


def test_a_classic_member_that_is_damaged_is_refused() -> None:
    no_bytes = CLASSIC_BY_KAFKA.replace("04010203", "00").replace("0012", "000f")
    with pytest.raises(CorruptLogError, match="no bytes"):
        decode_consumer_group_value(RecordKind.MEMBER, bytes.fromhex(no_bytes))
    null = CLASSIC_BY_KAFKA[: CLASSIC_BY_KAFKA.index("0012")] + "0001ff"
    found = decode_consumer_group_value(RecordKind.MEMBER, bytes.fromhex(null))
    assert isinstance(found, Subscription)
    assert found.classic is None


def test_other_keys_are_not_of_consumer_groups() -> None:
    assert not is_consumer_group_key(b"\0\2\0\1g")
    assert not is_consumer_group_key(b"\0")


@pytest.mark.parametrize("kind", KAFKA)
def test_a_value_that_ends_early_is_refused_wherever_it_ends(kind: RecordKind) -> None:
    data = bytes.fromhex(KAFKA[kind][1])
    for end in range(2, len(data)):
        with pytest.raises(CorruptLogError, match="expected Kafka's schema"):
            decode_consumer_group_value(kind, data[:end])
    with pytest.raises(CorruptLogError, match="1 bytes after the last field"):
        decode_consumer_group_value(kind, data + b"\0")


def test_counts_beyond_the_data_allocate_nothing() -> None:
    with pytest.raises(CorruptLogError, match="an array of 268435454 elements"):
        decode_consumer_group_value(RecordKind.MEMBER_TARGET, bytes.fromhex("0000ffffff7f"))


def test_unknown_versions_are_refused_and_unknown_tags_skipped() -> None:
    with pytest.raises(UnsupportedVersionError, match="version 1"):
        decode_consumer_group_value(RecordKind.TARGET, bytes.fromhex("00010000000500"))
    tagged = bytes.fromhex("00000000000501090155")
    assert decode_consumer_group_value(RecordKind.TARGET, tagged) == TargetEpoch(epoch=5)


def test_a_state_that_is_not_known_is_refused() -> None:
    data = encode_consumer_group_value(CurrentAssignment(epoch=1, previous_epoch=0, state=MemberState.STABLE))
    with pytest.raises(CorruptLogError, match="state 9"):
        decode_consumer_group_value(RecordKind.MEMBER_ASSIGNMENT, data[:10] + b"\x09" + data[11:])
