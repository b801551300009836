"""Keys and values of __consumer_offsets."""

import struct

import pytest

from sparklog.errors import CorruptLogError, InvalidRequestError, UnsupportedVersionError
from sparklog.format.consumer_offsets import (
    GroupKey,
    OffsetKey,
    OffsetValue,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_offset_key,
    encode_offset_value,
)

KEY = OffsetKey(group="größe", topic="orders", partition=2**31 - 1)
VALUE = OffsetValue(offset=2**62, leader_epoch=7, metadata="nöte", commit_timestamp_ms=-1)


def test_round_trip() -> None:
    assert decode_key(encode_offset_key(KEY)) == KEY
    assert decode_offset_value(encode_offset_value(VALUE)) == VALUE
    empty = OffsetKey(group="", topic="", partition=0)
    assert decode_key(encode_offset_key(empty)) == empty


def test_key_version_0_is_read() -> None:
    assert decode_key(b"\0\0" + encode_offset_key(KEY)[2:]) == KEY


def test_group_key_is_recognised() -> None:
    assert decode_key(struct.pack(">hh", 2, 2) + b"g1") == GroupKey(group="g1")
    assert encode_group_key(GroupKey(group="g1")) == struct.pack(">hh", 2, 2) + b"g1"


@pytest.mark.parametrize(
    ("version", "data", "expire_timestamp_ms"),
    [
        (0, struct.pack(">qh4sq", 42, 4, b"note", 99), -1),
        (1, struct.pack(">qh4sqq", 42, 4, b"note", 99, 100), 100),
        (2, struct.pack(">qh4sq", 42, 4, b"note", 99), -1),
    ],
)
def test_older_values_are_read(version: int, data: bytes, expire_timestamp_ms: int) -> None:
    assert decode_offset_value(struct.pack(">h", version) + data) == OffsetValue(
        offset=42, metadata="note", commit_timestamp_ms=99, expire_timestamp_ms=expire_timestamp_ms
    )


def test_an_offset_with_an_expiry_is_written_as_version_1() -> None:
    value = OffsetValue(offset=42, metadata="note", commit_timestamp_ms=99, expire_timestamp_ms=100)
    data = encode_offset_value(value)
    assert data == struct.pack(">hqh4sqq", 1, 42, 4, b"note", 99, 100)
    assert decode_offset_value(data) == value


@pytest.mark.parametrize("version", [-1, 3, 4, 32767])
def test_unknown_key_version_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"UNSUPPORTED_CONSUMER_OFFSET.*key version {version}"):
        decode_key(struct.pack(">h", version) + encode_offset_key(KEY)[2:])


@pytest.mark.parametrize("version", [-1, 4, 32767])
def test_unknown_value_version_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"value version {version}"):
        decode_offset_value(struct.pack(">h", version) + encode_offset_value(VALUE)[2:])


def test_every_truncation_and_extra_byte_is_refused() -> None:
    for data, decode in (
        (encode_offset_key(KEY), decode_key),
        (encode_offset_value(VALUE), decode_offset_value),
    ):
        for size in range(len(data)):
            with pytest.raises(CorruptLogError, match=r"CORRUPT_CONSUMER_OFFSET.*here@3, byte \d+"):
                decode(data[:size], where="here@3")
        with pytest.raises(CorruptLogError, match="1 bytes after the last field"):
            decode(data + b"\0")


def test_negative_size_and_bad_utf8_are_refused() -> None:
    with pytest.raises(CorruptLogError, match="a string of -1 bytes"):
        decode_key(struct.pack(">hh", 1, -1))
    with pytest.raises(CorruptLogError, match="not UTF-8"):
        decode_key(struct.pack(">hh", 2, 1) + b"\xff")


def test_longest_strings() -> None:
    longest = OffsetValue(offset=0, metadata="x" * 32767, commit_timestamp_ms=0)
    assert decode_offset_value(encode_offset_value(longest)) == longest
    with pytest.raises(
        InvalidRequestError, match=r"CONSUMER_OFFSET_STRING_TOO_LONG.*metadata: found 32768 bytes"
    ):
        encode_offset_value(OffsetValue(offset=0, metadata="x" * 32768, commit_timestamp_ms=0))
