"""The batch header: layout, attributes, what is refused, the CRC's scope."""

import struct
from collections.abc import Callable

import numpy as np
import pytest

from sparklog.errors import CorruptLogError, SparklogError, UnsupportedVersionError
from sparklog.format.codec import Codec
from sparklog.format.record_batch import (
    ATTRIBUTE_FIELDS,
    CRC_START,
    HEADER,
    HEADER_FIELDS,
    KNOWN_ATTRIBUTES,
    BatchHeader,
    crc32c,
    parse_header,
    set_base_offsets,
    validate_batch,
)
from sparklog.format.schema import TimestampType

Build = Callable[..., bytes]


def test_layout_is_kafkas() -> None:
    assert HEADER.format == ">qiibIhiqqqhii"
    assert [name for name, _, _ in HEADER_FIELDS][:5] == [
        "base_offset",
        "batch_length",
        "partition_leader_epoch",
        "magic",
        "crc",
    ]


def test_crc32c_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_header_round_trip(raw_batch: Build) -> None:
    fields = {
        "base_offset": 2**62,
        "partition_leader_epoch": 7,
        "attributes": 0x14,
        "last_offset_delta": 41,
        "first_timestamp_ms": -5,
        "max_timestamp_ms": 2**63 - 1,
        "producer_id": 4711,
        "producer_epoch": 3,
        "base_sequence": 2**31 - 1,
        "record_count": 40,
    }
    batch = raw_batch(b"body", **fields)
    header = validate_batch(batch, 0, "here")
    assert {name: getattr(header, name) for name in fields} == fields
    assert (header.size, header.last_offset, header.codec) == (65, 2**62 + 41, Codec.ZSTD)
    assert header.is_transactional
    assert not header.is_control
    assert header.timestamp_type is TimestampType.CREATE_TIME


@pytest.mark.parametrize(("name", "mask"), [(name, mask) for name, mask, _ in ATTRIBUTE_FIELDS[1:]])
def test_attribute_bits(name: str, mask: int) -> None:
    assert getattr(BatchHeader(attributes=mask), name)
    assert not getattr(BatchHeader(attributes=KNOWN_ATTRIBUTES & ~mask), name)


@pytest.mark.parametrize("magic", [-1, 0, 1, 3])
def test_other_magic_is_refused(raw_batch: Build, magic: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"UNSUPPORTED_MAGIC.*here@0: found magic {magic}"):
        parse_header(raw_batch(magic=magic & 0xFF), 0, "here")


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_refused(raw_batch: Build, codec: int) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"UNSUPPORTED_CODEC.*codec {codec}"):
        parse_header(raw_batch(attributes=codec), 0, "here")


@pytest.mark.parametrize("bit", range(7, 16))
def test_unknown_attributes_are_refused(raw_batch: Build, bit: int) -> None:
    attributes = struct.unpack(">h", struct.pack(">H", 1 << bit))[0]
    with pytest.raises(UnsupportedVersionError, match=f"UNSUPPORTED_ATTRIBUTES.*{1 << bit:#06x}"):
        parse_header(raw_batch(attributes=attributes), 0, "here")


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_length": 48},
        {"batch_length": -1},
        {"batch_length": -(2**31)},
        {"base_offset": -1},
        {"last_offset_delta": -1},
        {"base_offset": 2**63 - 1, "last_offset_delta": 1, "record_count": 1},
        {"record_count": -1, "last_offset_delta": 0},
        {"record_count": 3, "last_offset_delta": 1},
    ],
)
def test_illegal_numbers_are_refused(raw_batch: Build, fields: dict[str, int]) -> None:
    with pytest.raises(CorruptLogError, match=r"CORRUPT_BATCH.*here@0"):
        parse_header(raw_batch(**fields), 0, "here")


def test_last_offset_may_be_the_largest_there_is(raw_batch: Build) -> None:
    assert parse_header(raw_batch(base_offset=2**63 - 1), 0, "here").last_offset == 2**63 - 1


def test_every_truncation_is_refused(raw_batch: Build) -> None:
    batch = raw_batch()
    for size in range(len(batch)):
        with pytest.raises(CorruptLogError, match=f"here@5: found {size} bytes"):
            validate_batch(b"12345" + batch[:size], 5, "here")


def test_position_outside_is_refused(raw_batch: Build) -> None:
    for position in (-1, 1000):
        with pytest.raises(CorruptLogError):
            parse_header(raw_batch(), position, "here")


def test_every_bit_flip_is_refused(raw_batch: Build) -> None:
    batch = raw_batch()
    for bit in range(8 * len(batch)):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        if bit // 8 >= CRC_START or 17 <= bit // 8 < 21:
            with pytest.raises(SparklogError) as caught:
                validate_batch(flipped, 0, "here")
            assert isinstance(caught.value, CorruptLogError | UnsupportedVersionError)


def test_sequencing_leaves_the_crc_right(raw_batch: Build) -> None:
    batches = bytearray(2 * raw_batch())
    second = len(batches) // 2
    batches[12:16] = b"\xff" * 4
    positions = np.array([0, second])
    set_base_offsets(memoryview(batches), positions, np.array([10**12, 2**63 - 9]), leader_epoch=2**31 - 1)
    headers = [validate_batch(batches, position, "here") for position in (0, second)]
    assert [header.base_offset for header in headers] == [10**12, 2**63 - 9]
    assert [header.partition_leader_epoch for header in headers] == [2**31 - 1] * 2


def test_crc_can_be_waived(raw_batch: Build) -> None:
    batch = bytearray(raw_batch())
    batch[-1] ^= 1
    assert validate_batch(batch, 0, "here", verify_crc=False).record_count == 1
