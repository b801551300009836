"""Hostile bytes behind a right CRC: every wrong field of a record is refused, with its place."""

from collections.abc import Callable

import numpy as np
import pytest

from sparklog.errors import CorruptLogError, SparklogError, UnsupportedVersionError
from sparklog.format.codec import Codec, compress
from sparklog.format.decode import DecodedRecords, decode_records, scan_batches

Build = Callable[..., bytes]
TOO_LONG = b"\x80\x80\x80\x80\x80\x00"  # a varint of 6 bytes
MINUS_TWO = b"\x03"
HUGE = b"\xfe\xff\xff\xff\x0f"  # 2^31 - 1


def _decode(data: bytes) -> DecodedRecords:
    return decode_records(data, scan_batches(data, where="here"), where="here", include_headers=True)


BAD_RECORDS = {
    "length beyond the batch": {"length": 1000},
    "length negative": {"length": -1},
    "length too small": {"length": 7},
    "length too large by one": {"length": 10},
    "length 2^31 - 1": {"length": 2**31 - 1},
    "attributes": {"attributes": 1},
    "timestamp delta of 11 bytes": {"timestamp_delta": b"\x80" * 10 + b"\x00"},
    "timestamp delta of more than 64 bits": {"timestamp_delta": b"\xff" * 9 + b"\x02"},
    "offset delta negative": {"offset_delta": -1},
    "offset delta beyond the batch": {"offset_delta": 1},
    "key length below -1": {"key_length": MINUS_TWO},
    "key length beyond the record": {"key_length": b"\x7e"},
    "key length 2^31 - 1": {"key_length": HUGE},
    "key length of 6 bytes": {"key_length": TOO_LONG},
    "value length below -1": {"value_length": MINUS_TWO},
    "value length beyond the record": {"value_length": b"\x7e"},
    "value length 2^31 - 1": {"value_length": HUGE},
    "value length of 6 bytes": {"value_length": TOO_LONG},
    "header count negative": {"header_count": b"\x01"},
    "header count without headers": {"header_count": b"\x02"},
    "header count 2^31 - 1": {"header_count": HUGE},
    "header count of 6 bytes": {"header_count": TOO_LONG},
    "bytes behind the last field": {"headers": b"x"},
    "header key negative": {"header_count": b"\x02", "headers": b"\x01\x00"},
    "header key beyond the record": {"header_count": b"\x02", "headers": b"\x7e\x00"},
    "header key of 6 bytes": {"header_count": b"\x02", "headers": TOO_LONG + b"\x00"},
    "header value below -1": {"header_count": b"\x02", "headers": b"\x02a\x03"},
    "header value beyond the record": {"header_count": b"\x02", "headers": b"\x02a\x7e"},
    "header value cut off": {"header_count": b"\x02", "headers": b"\x02a"},
    "fewer headers than bytes": {"header_count": b"\x02", "headers": b"\x00\x00\x00"},
    "more headers than bytes": {"header_count": b"\x04", "headers": b"\x00\x00\x00"},
}


@pytest.mark.sampled(41)
@pytest.mark.parametrize("wrong", BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("before", [0, 1, 100])
def test_wrong_field_is_refused(
    raw_batch: Build, raw_record: Build, wrong: dict[str, int], codec: Codec, before: int
) -> None:
    good = b"".join(raw_record(offset_delta=offset) for offset in range(before))
    bad = (
        raw_record(**{"offset_delta": before, **wrong})
        if wrong.get("offset_delta") != 1
        else raw_record(offset_delta=before + 1)
    )
    body = bytes(compress(codec, good + bad))
    first = raw_batch()
    data = first + raw_batch(body, base_offset=1, attributes=codec.value, record_count=before + 1)
    with pytest.raises(CorruptLogError, match=rf"CORRUPT_BATCH\] here@{len(first)}[ ,:]"):
        _decode(data)


@pytest.mark.parametrize("wrong", BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_wrong_field_among_many_batches_is_refused(
    raw_batch: Build, raw_record: Build, wrong: dict[str, int]
) -> None:
    # So many batches that their records are found in lockstep; one of them is bad.
    batches = [
        raw_batch(
            raw_record() + raw_record(offset_delta=1, value=b"vv", value_length=b"\x04"), record_count=2
        )
    ] * 40
    batches[23] = raw_batch(raw_record(**{"offset_delta": 2, **wrong}), record_count=1)
    with pytest.raises(CorruptLogError, match=rf"CORRUPT_BATCH\] here@{sum(map(len, batches[:23]))}[ ,:]"):
        _decode(b"".join(batches))


def test_many_headers_with_one_bad(raw_batch: Build, raw_record: Build) -> None:
    good = {"header_count": b"\x04", "headers": b"\x02a\x02b\x02c\x01"}
    records = [raw_record(offset_delta=offset, **good) for offset in range(60)]
    assert _decode(raw_batch(b"".join(records), record_count=60)).num_rows == 60
    for bad in (
        b"\x02a\x02b\x02c\x03",
        b"\x02a\x02b\x02c\x7e",
        b"\x02a\x02b\x01c\x01",
        b"\x02a\x02b\x00\x00\x00",
    ):
        records[41] = raw_record(offset_delta=41, header_count=b"\x04", headers=bad)
        with pytest.raises(CorruptLogError, match="record 41"):
            _decode(raw_batch(b"".join(records), record_count=60))


@pytest.mark.parametrize(("count", "last"), [(1, 1), (3, 2), (100, 99), (2**31 - 1, 2**31 - 2)])
def test_count_that_does_not_match_the_body_is_refused(
    raw_batch: Build, raw_record: Build, count: int, last: int
) -> None:
    body = raw_record() + raw_record(offset_delta=1)
    with pytest.raises(CorruptLogError, match="CORRUPT_BATCH"):
        _decode(raw_batch(body, record_count=count, last_offset_delta=last))


def test_records_in_a_batch_that_says_there_are_none(raw_batch: Build, raw_record: Build) -> None:
    with pytest.raises(CorruptLogError, match="CORRUPT_BATCH"):
        _decode(raw_batch(raw_record(), record_count=0, last_offset_delta=0))


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (-1, 0), (0, 2)])
def test_offsets_that_do_not_ascend_within_the_batch_are_refused(
    raw_batch: Build, raw_record: Build, deltas: tuple[int, int]
) -> None:
    body = b"".join(raw_record(offset_delta=delta) for delta in deltas)
    with pytest.raises(CorruptLogError, match="offset delta"):
        _decode(raw_batch(body, record_count=2))


def test_record_newer_than_batch_max_is_refused(raw_batch: Build, raw_record: Build) -> None:
    data = raw_batch(raw_record(timestamp_delta=b"\x02"), first_timestamp_ms=1_000, max_timestamp_ms=1_000)
    with pytest.raises(CorruptLogError, match="1001 > 1000"):
        _decode(data)
    appended = raw_batch(
        raw_record(timestamp_delta=b"\x02"), first_timestamp_ms=1_000, max_timestamp_ms=1_000, attributes=8
    )
    assert _decode(appended).timestamp_ms.tolist() == [1_000]


def test_every_truncation_of_a_body_behind_a_right_crc(raw_batch: Build, raw_record: Build) -> None:
    record = raw_record(header_count=b"\x02", headers=b"\x02h\x02v", key_length=b"\x14", key=b"0123456789")
    body = record + raw_record(offset_delta=1)
    for size in range(len(body)):
        with pytest.raises(CorruptLogError):
            _decode(raw_batch(body[:size], record_count=2))


def test_every_byte_of_a_body_behind_a_right_crc_set_to_anything(raw_batch: Build, raw_record: Build) -> None:
    body = raw_record(header_count=b"\x02", headers=b"\x02h\x02v") + raw_record(offset_delta=1)
    for position in range(len(body)):
        for byte in (0x00, 0x01, 0x02, 0x7F, 0x80, 0x81, 0xFE, 0xFF):
            changed = bytearray(body)
            changed[position] = byte
            try:
                records = _decode(raw_batch(bytes(changed), record_count=2))
            except (CorruptLogError, UnsupportedVersionError):
                continue
            assert records.num_rows == 2
            for column in (records.key, records.value, records.headers):
                assert column is not None
                column.validate(full=True)


def test_every_bit_flip_of_a_log_is_noticed(raw_batch: Build) -> None:
    data = raw_batch() + raw_batch(base_offset=1)
    size = len(raw_batch())
    for bit in range(8 * len(data)):
        position = bit // 8 % size
        if position < 8 or 12 <= position < 16:
            continue  # base_offset and leader epoch are set by the sequencer, outside the CRC
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SparklogError):
            scan_batches(flipped, where="here")


def test_bad_headers_are_refused_even_when_nobody_asks_for_them(raw_batch: Build, raw_record: Build) -> None:
    data = raw_batch(raw_record(header_count=b"\x02", headers=b"\x02a\x03"))
    with pytest.raises(CorruptLogError, match="record 0"):
        decode_records(data, scan_batches(data, where="here"), where="here")


def test_lengths_that_lead_out_of_the_buffer_in_many_batches(raw_batch: Build, raw_record: Build) -> None:
    good = raw_batch(
        raw_record() + raw_record(offset_delta=1, value=b"vv", value_length=b"\x04"), record_count=2
    )
    bad = raw_batch(raw_record(length=7000) + raw_record(offset_delta=1), record_count=2)
    with pytest.raises(CorruptLogError, match=f"here@{20 * len(good)}, record 0: found length 7000"):
        _decode(good * 20 + bad)


def test_one_record_of_very_many_headers_is_quick(raw_batch: Build, raw_record: Build) -> None:
    count = 100_000
    coded = bytearray()
    zigzag = count << 1
    while zigzag > 0x7F:
        coded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    coded.append(zigzag)
    records = _decode(raw_batch(raw_record(header_count=bytes(coded), headers=b"\0\0" * count)))
    assert records.headers is not None
    assert len(records.headers[0]) == count


def test_random_bodies_never_crash(raw_batch: Build) -> None:
    noise = np.random.default_rng(3)
    refused = 0
    for size in range(300):
        body = noise.integers(0, 256 if size % 2 else 20, size, dtype=np.uint8).tobytes()
        try:
            _decode(raw_batch(body, record_count=max(1, size // 20)))
        except CorruptLogError:
            refused += 1
    assert refused > 290
