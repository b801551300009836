"""What clients hand in: every rule has a batch that breaks it, and what passes is stored as it came."""

import random
import re
import struct

import pytest
from kio.schema.errors import ErrorCode

from sparklog.format.batch_table import scan_batches
from sparklog.format.codec import Codec, compress
from sparklog.format.decode import decode_records
from sparklog.format.encode import EncodedBatches
from sparklog.format.record_batch import (
    HEADER,
    BatchHeader,
    encode_header,
    validate_batch,
)
from sparklog_server.publish.backlog import checked
from sparklog_server.publish.parts import AppendPart, RefusedBatchError
from sparklog_server.publish.produced_batches import (
    BatchRules,
    CheckTerms,
    Scratch,
    UncheckedPart,
    check_produced,
)
from tests.server.publish.batches import NOW_MS, batch, raw_header, rules, with_header

CODECS = list(Codec)


def check(data: bytes, which: BatchRules | None = None, *, version: int = 9) -> tuple[EncodedBatches, int]:
    encoded, _, appended_ms = check_produced(
        data, which or rules(), where="orders-3", now_ms=NOW_MS, api_version=version
    )
    return encoded, appended_ms


def refused(data: bytes, which: BatchRules | None = None, *, version: int = 9) -> RefusedBatchError:
    with pytest.raises(RefusedBatchError) as caught:
        check(data, which, version=version)
    assert str(caught.value).split("] ")[1].startswith("orders-3")
    return caught.value


def values_of(data: bytes) -> list[bytes | None]:
    table = scan_batches(data, where="here")
    found: list[bytes | None] = decode_records(data, table, where="here").value.to_pylist()
    return found


# --- accepted ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 127, 128, 129, 1000])
def test_what_passes_is_stored_byte_for_byte(codec: Codec, count: int) -> None:
    data = batch([b"value %d" % n for n in range(count)], codec=codec)
    encoded, appended_ms = check(data)
    assert encoded.to_bytes() == data
    assert (encoded.size_bytes, encoded.record_count) == (len(data), count)
    assert encoded.max_timestamp_ms == NOW_MS
    assert encoded.base_offset.tolist() == encoded.position.tolist() == [0]
    assert encoded.batch_record_count.tolist() == [count]
    assert encoded.size.tolist() == [len(data)]
    assert appended_ms == -1


@pytest.mark.parametrize(
    ("codec", "size", "expected"),
    [
        (Codec.NONE, 100, True),
        (Codec.NONE, 20_000, True),
        (Codec.NONE, 300_000, False),
        (Codec.LZ4, 100, True),
        (Codec.ZSTD, 20_000, True),  # however large it becomes: what it may take is bounded
        (Codec.GZIP, 20_000, False),
    ],
)
def test_small_batches_are_left_to_the_publisher(codec: Codec, size: int, *, expected: bool) -> None:
    data = batch([random.Random(1).randbytes(size).hex()[:size].encode()], codec=codec)
    part = unchecked(data)
    assert part.is_small is expected


@pytest.mark.parametrize("data", [b"", b"short"])
def test_what_is_no_batch_is_refused(data: bytes) -> None:
    part = unchecked(data)
    with pytest.raises(RefusedBatchError):
        part.check()


def unchecked(data: bytes, which: BatchRules | None = None) -> UncheckedPart:
    terms = CheckTerms(rules=which or rules(), topic_id="i", topic="t", now_ms=lambda: NOW_MS, api_version=9)
    return UncheckedPart.of(data, terms, 0, 1)


def test_a_batch_is_the_same_with_a_scratch_and_without() -> None:
    plain, keyed = batch([b"a", b"b"], keys=[b"k", None]), batch([b"c"] * 300, timestamps=[NOW_MS - 5] * 300)
    broken = bytearray(plain)
    broken[-1] ^= 1
    bad_record = with_header(plain[: HEADER.size] + plain[HEADER.size :][::-1])
    parts = [
        unchecked(plain),
        unchecked(bytes(broken)),
        unchecked(plain, rules(cleanup_policy="compact")),
        unchecked(b""),
        unchecked(keyed, rules(message_timestamp_type="LogAppendTime")),
        *(unchecked(batch([b"x" * 100] * 40, codec=codec)) for codec in CODECS),
        unchecked(batch([b"y" * 1000] * 600, codec=Codec.LZ4)),
        unchecked(batch([b"z" * 400_000])),
        unchecked(batch([b"a"] * 3), rules(compression_type="lz4")),
    ]
    for part in (*parts, unchecked(bad_record)):
        found = checked(part, Scratch())
        if isinstance(found, AppendPart):
            alone = part.check()
            assert found.encoded.to_bytes() == alone.encoded.to_bytes()
            assert found.encoded.max_timestamp_ms == alone.encoded.max_timestamp_ms
            assert found.log_append_time_ms == alone.log_append_time_ms
        else:
            with pytest.raises(type(found), match=re.escape(str(found))):
                part.check()
    refused_parts = [isinstance(checked(one, Scratch()), RefusedBatchError) for one in parts]
    assert refused_parts == [False, True, True, True] + [False] * (len(parts) - 4)


def test_leader_epoch_is_the_brokers() -> None:
    data = bytearray(batch())
    struct.pack_into(">i", data, 12, -1)
    assert raw_header(check(bytes(data))[0].to_bytes()).partition_leader_epoch == 0


def test_wrong_largest_timestamp_is_corrected() -> None:
    for claimed in (NOW_MS + 50, NOW_MS - 50, -1):
        data = with_header(batch(timestamps=[NOW_MS, NOW_MS - 7]), max_timestamp_ms=claimed)
        stored = check(data)[0].to_bytes()
        assert validate_batch(stored, 0, "here").max_timestamp_ms == NOW_MS
        assert stored[HEADER.size :] == data[HEADER.size :]


def test_log_append_time_replaces_the_largest_timestamp() -> None:
    data = batch(timestamps=[5, 6])
    encoded, appended_ms = check(data, rules(message_timestamp_type="LogAppendTime"))
    stored = encoded.to_bytes()
    header = validate_batch(stored, 0, "here")
    assert (appended_ms, header.max_timestamp_ms, encoded.max_timestamp_ms) == (NOW_MS,) * 3
    assert header.attributes == raw_header(data).attributes | 0x08
    table = scan_batches(stored, where="here")
    assert decode_records(stored, table, where="here").timestamp_ms.tolist() == [NOW_MS, NOW_MS]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topics_codec_wins(codec: Codec, name: str) -> None:
    data = batch([b"abc" * 50, None, b"x"] * 10, codec=codec)
    encoded, _ = check(data, rules(compression_type=name))
    stored = encoded.to_bytes()
    header = validate_batch(stored, 0, "here")
    assert header.codec is Codec.from_name(name)
    assert header.size == len(stored) == encoded.size_bytes
    assert values_of(stored) == values_of(data)
    if raw_header(data).codec is header.codec:
        assert stored == data


def test_no_timestamp_is_never_out_of_range() -> None:
    tight = rules(message_timestamp_before_max_ms="10", message_timestamp_after_max_ms="10")
    data = batch(timestamps=[-1, NOW_MS])
    assert check(data, tight)[0].max_timestamp_ms == NOW_MS
    assert check(batch(timestamps=[-1, -1]), tight)[0].max_timestamp_ms == -1


def test_timestamps_at_the_bounds() -> None:
    tight = rules(message_timestamp_before_max_ms="10", message_timestamp_after_max_ms="20")
    check(batch(timestamps=[NOW_MS - 10, NOW_MS + 20]), tight)


def test_size_at_the_limit() -> None:
    data = batch()
    check(data, rules(max_message_bytes=str(len(data)), segment_bytes=str(len(data))))


# --- refused: bytes ----------------------------------------------------------------------------------


def test_truncation_at_every_byte() -> None:
    data = batch()
    assert refused(b"").kafka_code is ErrorCode.invalid_record  # as Kafka: no batch at all
    for size in range(1, len(data)):
        assert refused(data[:size]).kafka_code is ErrorCode.corrupt_message, size


def test_every_bit_under_the_crc() -> None:
    data = batch([b"a"])
    for at in range(17, len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            code = refused(bytes(damaged)).kafka_code
            codec = damaged[22] & 7 == 4  # zstd: fine from version 7 on
            assert code is ErrorCode.corrupt_message, (at, bit, codec)


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_other_magic(magic: int) -> None:
    data = bytearray(batch())
    struct.pack_into(">b", data, 16, magic)
    error = refused(bytes(data))
    assert error.kafka_code is ErrorCode.invalid_record
    assert f"magic {magic}" in str(error)


def test_two_batches() -> None:
    error = refused(batch() + batch())
    assert error.kafka_code is ErrorCode.invalid_record
    assert "exactly one batch" in str(error)


def test_base_offset() -> None:
    data = bytearray(batch())
    struct.pack_into(">q", data, 0, 1)
    assert refused(bytes(data)).kafka_code is ErrorCode.invalid_record


def test_zstd_before_version_7() -> None:
    data = batch([b"a" * 500], codec=Codec.ZSTD)
    check(data, version=7)
    assert refused(data, version=6).kafka_code is ErrorCode.unsupported_compression_type


def test_too_large_by_one_byte() -> None:
    data = batch()
    error = refused(data, rules(max_message_bytes=str(len(data) - 1)))
    assert error.kafka_code is ErrorCode.message_too_large
    error = refused(data, rules(segment_bytes=str(len(data) - 1)))
    assert error.kafka_code is ErrorCode.record_list_too_large


def test_size_is_checked_before_the_crc() -> None:
    data = bytearray(batch())
    data[-1] ^= 1
    assert refused(bytes(data), rules(max_message_bytes="10")).kafka_code is ErrorCode.message_too_large


def test_too_large_after_decompression_to_the_topics_codec() -> None:
    data = batch([b"a" * 5000], codec=Codec.ZSTD)
    tight = rules(compression_type="uncompressed", max_message_bytes="1000")
    assert len(data) < 1000
    assert refused(data, tight).kafka_code is ErrorCode.message_too_large


# --- refused: header ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"record_count": 3}, ErrorCode.invalid_record),
        ({"record_count": 1}, ErrorCode.invalid_record),
        ({"record_count": 0}, ErrorCode.invalid_record),
        ({"record_count": -1}, ErrorCode.invalid_record),
        ({"last_offset_delta": -1}, ErrorCode.invalid_record),
        ({"last_offset_delta": -1, "record_count": 0}, ErrorCode.invalid_record),
        ({"record_count": 3, "last_offset_delta": 2}, ErrorCode.invalid_record),
        ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, ErrorCode.invalid_record),
        ({"attributes": 0x20}, ErrorCode.invalid_record),  # control
        ({"attributes": 0x40}, ErrorCode.invalid_record),  # delete horizon
        ({"attributes": 0x80}, ErrorCode.invalid_record),  # unknown
        ({"attributes": -0x8000}, ErrorCode.invalid_record),
        ({"attributes": 0x08}, ErrorCode.invalid_timestamp),  # LogAppendTime
        ({"attributes": 0x05}, ErrorCode.unsupported_compression_type),
        ({"attributes": 0x07}, ErrorCode.unsupported_compression_type),
        ({"attributes": 0x10, "producer_id": 1}, ErrorCode.transactional_id_authorization_failed),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": -1}, ErrorCode.invalid_record),
        ({"producer_id": 1, "producer_epoch": -1, "base_sequence": 0}, ErrorCode.invalid_record),
    ],
)
def test_headers(fields: dict[str, int], code: ErrorCode) -> None:
    assert refused(with_header(batch(), **fields)).kafka_code is code


# --- refused: records --------------------------------------------------------------------------------


def crafted(body: bytes, count: int = 1, codec: Codec = Codec.NONE) -> bytes:
    header = BatchHeader(
        record_count=count,
        last_offset_delta=count - 1,
        attributes=codec.value,
        first_timestamp_ms=NOW_MS,
        max_timestamp_ms=NOW_MS,
    )
    return encode_header(header, body) + body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x0c\0\0\0\1\1",  # cut off
        b"\x0c\0\0\0\1\1\0\0",  # a byte behind
        b"\x0c\1\0\0\1\1\0",  # attributes
        b"\x0c\0\0\2\1\1\0",  # offset delta 1
        b"\x0c\0\0\0\3\1\0",  # key length -2
        b"\x0c\0\0\0\x20\1\0",  # key longer than the record
        b"\x0c\0\0\0\1\3\0",  # value length -2
        b"\x0c\0\0\0\1\1\1",  # -1 headers
        b"\x0c\0\0\0\1\1\x7e",  # more headers than bytes
        b"\x10\0\0\0\1\1\2\1\1",  # header key null
        b"\xff\xff\xff\xff\xff\x01\0\0\0\1\1\0",  # a varint of 6 bytes
        b"\x22\0" + b"\xff" * 10 + b"\1\0\1\1\0",  # a varlong of 11
        b"\x0b\0\0\0\1\1\0",  # negative length
    ],
)
def test_records(body: bytes) -> None:
    assert refused(crafted(body)).kafka_code is ErrorCode.invalid_record
    many = body * 200
    assert refused(crafted(many, 200)).kafka_code is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_damaged_frames(codec: Codec) -> None:
    assert refused(crafted(b"nonsense", 1, codec)).kafka_code is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("count", [1, 5000])
def test_bombs(codec: Codec, count: int) -> None:
    bomb = crafted(bytes(compress(codec, bytes(40_000_000))), count, codec)
    which = rules(1 << 20, max_message_bytes=str(len(bomb)))
    error = refused(bomb, which)
    assert error.kafka_code is ErrorCode.message_too_large


def test_uncompressed_batch_above_the_bound() -> None:
    for values in ([b"a" * 5000], [b"a" * 50] * 200):
        error = refused(batch(values), rules(4096))
        assert error.kafka_code is ErrorCode.message_too_large


@pytest.mark.parametrize("count", [3, 300])
def test_compacted_topics_need_keys(count: int) -> None:
    compacted = rules(cleanup_policy="compact")
    keys: list[bytes | None] = [b"k"] * count
    check(batch([b"v"] * count, keys=keys), compacted)
    keys[1] = keys[2] = None
    error = refused(batch([b"v"] * count, keys=keys), compacted)
    assert error.kafka_code is ErrorCode.invalid_record
    assert [index for index, _ in error.record_errors] == [1, 2]
    assert "without key" in error.record_errors[0][1]
    check(batch([b"v"] * count, keys=[b""] * count), compacted)  # an empty key is one


@pytest.mark.parametrize("count", [3, 300])
def test_timestamps_out_of_range(count: int) -> None:
    tight = rules(message_timestamp_before_max_ms="10", message_timestamp_after_max_ms="20")
    for wrong in (NOW_MS - 11, NOW_MS + 21, 0):
        times = [NOW_MS] * count
        times[1] = wrong
        error = refused(batch([b"v"] * count, timestamps=times), tight)
        assert error.kafka_code is ErrorCode.invalid_timestamp
        ((index, text),) = error.record_errors
        assert index == 1
        assert str(wrong) in text
        # The topic's own clock does not care.
        check(
            batch([b"v"] * count, timestamps=times),
            rules(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="10"),
        )


def test_an_hour_ahead_is_refused_by_default() -> None:
    check(batch([b"v"], timestamps=[NOW_MS + 3_600_000]))
    assert refused(batch([b"v"], timestamps=[NOW_MS + 3_600_001])).kafka_code is ErrorCode.invalid_timestamp


def test_times_below_minus_one_are_refused() -> None:
    assert refused(batch([b"v"], timestamps=[-2])).kafka_code is ErrorCode.invalid_timestamp
    data = with_header(batch([b"v"]), first_timestamp_ms=-(1 << 63))
    assert refused(data).kafka_code is ErrorCode.invalid_timestamp


def test_record_errors_are_bounded() -> None:
    error = refused(batch([b"v"] * 5000), rules(cleanup_policy="compact"))
    assert len(error.record_errors) == 100
    assert len(str(error)) < 2000
