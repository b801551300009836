"""Values of group metadata in __consumer_offsets."""

import struct
from pathlib import Path

import pytest

from sparklog.errors import CorruptLogError, InvalidRequestError, UnsupportedVersionError
from sparklog.format.consumer_offsets import (
    GroupValue,
    StoredMember,
    decode_group_value,
    encode_group_value,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "group_metadata_value.bin"
MEMBER = StoredMember(
    member_id="m1",
    instance_id="i1",
    client_id="c",
    client_host="/10.0.0.1",
    rebalance_timeout_ms=300_000,
    session_timeout_ms=45_000,
    subscription=b"\x00\x01",
    assignment=b"\x02",
)
STABLE = GroupValue(
    protocol_type="consumer",
    generation_id=7,
    protocol="range",
    leader="m1",
    state_timestamp_ms=1_700_000_000_000,
    members=(MEMBER,),
)
EMPTY = GroupValue(protocol_type="consumer", generation_id=8, protocol=None, leader=None)


def packed(version: int) -> bytes:
    """STABLE by hand, after Kafka's GroupMetadataValue.json."""
    data = struct.pack(">hh8sih5sh2s", version, 8, b"consumer", 7, 5, b"range", 2, b"m1")
    if version >= 2:
        data += struct.pack(">q", 1_700_000_000_000)
    data += struct.pack(">ih2s", 1, 2, b"m1")
    if version >= 3:
        data += struct.pack(">h2s", 2, b"i1")
    data += struct.pack(">h1sh9s", 1, b"c", 9, b"/10.0.0.1")
    if version >= 1:
        data += struct.pack(">i", 300_000)
    return data + struct.pack(">ii2si1s", 45_000, 2, b"\x00\x01", 1, b"\x02")


def test_round_trip() -> None:
    for value in (STABLE, EMPTY):
        assert decode_group_value(encode_group_value(value), where="here") == value


def test_bytes_are_kafkas() -> None:
    assert encode_group_value(STABLE) == packed(3) == GOLDEN.read_bytes()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_older_versions_are_read(version: int) -> None:
    value = decode_group_value(packed(version), where="here")
    assert value.state_timestamp_ms == (1_700_000_000_000 if version == 2 else -1)
    (member,) = value.members
    assert member.instance_id is None
    assert member.rebalance_timeout_ms == (300_000 if version else 45_000)
    assert (member.subscription, member.assignment) == (b"\x00\x01", b"\x02")


@pytest.mark.parametrize("version", [-1, 4, 32767])
def test_unknown_versions_are_refused(version: int) -> None:
    data = struct.pack(">h", version) + packed(3)[2:]
    with pytest.raises(UnsupportedVersionError, match=f"group metadata version {version}"):
        decode_group_value(data, where="here")


def test_every_truncation_and_extra_byte_is_refused() -> None:
    data = packed(3)
    for size in range(len(data)):
        with pytest.raises(CorruptLogError, match=r"CORRUPT_CONSUMER_OFFSET.*here@3, byte \d+"):
            decode_group_value(data[:size], where="here@3")
    with pytest.raises(CorruptLogError, match="1 bytes after the last field"):
        decode_group_value(data + b"\0", where="here")


@pytest.mark.parametrize("count", [-1, 2**31 - 1])
def test_member_counts_that_the_value_cannot_hold_are_refused(count: int) -> None:
    data = encode_group_value(EMPTY)[:-4] + struct.pack(">i", count)
    with pytest.raises(CorruptLogError, match=f"an array of {count} elements in 0 bytes"):
        decode_group_value(data, where="here")


def test_negative_sizes_are_refused() -> None:
    negative_bytes = packed(3)[:-5] + struct.pack(">i", -1)
    with pytest.raises(CorruptLogError, match="bytes of size -1"):
        decode_group_value(negative_bytes, where="here")
    with pytest.raises(CorruptLogError, match="a string of -1 bytes"):
        decode_group_value(struct.pack(">hh", 3, -1), where="here")
    with pytest.raises(CorruptLogError, match="a string of -2 bytes"):
        decode_group_value(struct.pack(">hhih", 3, 0, 0, -2), where="here")


def test_too_long_names_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="client id: found 32768 bytes"):
        encode_group_value(
            GroupValue(
                protocol_type="consumer",
                generation_id=1,
                protocol="range",
                leader="m1",
                members=(
                    StoredMember(
                        member_id="m1",
                        client_id="c" * 32768,
                        client_host="",
                        rebalance_timeout_ms=1,
                        session_timeout_ms=1,
                        subscription=b"",
                        assignment=b"",
                    ),
                ),
            )
        )
