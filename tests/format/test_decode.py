"""Decoding: tables of batches, ranges of offsets, control batches, headers, ownership."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import CorruptLogError, InvalidRequestError, UnsupportedVersionError
from sparklog.format import decode
from sparklog.format.batch_table import BatchTable
from sparklog.format.codec import Codec, compress
from sparklog.format.control_batch import ControlMarker, ControlType, encode_control_batch
from sparklog.format.decode import decode_records, scan_batches, scan_valid_prefix
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import HEADERS_TYPE, RecordColumns

Build = Callable[..., Any]
VALUES = [b"value %d" % row for row in range(300)]


def _log(columns: Build, codec: Codec = Codec.NONE, **options: Any) -> bytes:
    return encode_batches(
        columns(VALUES), EncodeOptions(codec=codec, max_batch_bytes=1000, **options)
    ).to_bytes()


def test_empty_buffer_is_an_empty_table() -> None:
    table = scan_batches(b"", where="test")
    assert len(table) == 0
    assert decode_records(b"", table, where="test").num_rows == 0
    assert decode_records(b"", table, where="test", include_headers=True).headers == pa.array(
        [], HEADERS_TYPE
    )
    assert len(BatchTable.concat([])) == 0
    assert decode.decode_bodies(b"", table, where="test").num_rows == 0


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(
    ("start", "end"), [(None, None), (0, 300), (17, 211), (17, 18), (299, 999), (5, 5), (300, 301)]
)
def test_range_of_offsets(columns: Build, codec: Codec, start: int | None, end: int | None) -> None:
    data = _log(columns, codec)
    table = scan_batches(data, where="test")
    for delta in (0, 10**12):
        records = decode_records(
            data,
            table,
            offset_delta=delta,
            start_offset=None if start is None else start + delta,
            end_offset=None if end is None else end + delta,
            where="test",
        )
        expected = range(300)[slice(start, end)]
        assert records.offset.tolist() == [offset + delta for offset in expected]
        assert records.value.to_pylist() == [VALUES[offset] for offset in expected]
        assert records.headers is None


def test_many_groups_equal_one(columns: Build) -> None:
    headers = [[{"key": "h", "value": b"%d" % row}] if row % 3 else None for row in range(300)]
    data = encode_batches(columns(VALUES, headers=headers), EncodeOptions(max_batch_bytes=500)).to_bytes()
    table = scan_batches(data, where="test")
    whole = decode_records(data, table, where="test", include_headers=True)
    parts = decode_records(data, table, where="test", include_headers=True, block_rows=20)
    assert parts.offset.tolist() == whole.offset.tolist() == list(range(300))
    assert parts.value == whole.value
    assert parts.headers == whole.headers
    assert whole.headers is not None
    assert whole.headers.to_pylist() == headers


def test_only_wanted_batches_are_touched(columns: Build) -> None:
    data = bytearray(_log(columns))
    table = scan_batches(data, where="test")
    data[int(table.position[0]) + 61] ^= 0x40  # breaks the first batch
    records = decode_records(data, table, start_offset=int(table.base_offset[1]), where="test")
    assert records.num_rows == 300 - int(table.base_offset[1])
    with pytest.raises(CorruptLogError):
        decode_records(data, table, where="test")


def test_extents_of_one_buffer_have_deltas_of_their_own(columns: Build) -> None:
    first, second = _log(columns), _log(columns)
    buffer = first + second
    tables = [scan_batches(first, where="a"), scan_batches(second, where="b").shifted(len(first))]
    table = BatchTable.concat(tables)
    deltas = np.repeat([1000, 5000], [len(tables[0]), len(tables[1])])
    records = decode_records(
        buffer, table, offset_delta=deltas, start_offset=1290, end_offset=5010, where="test"
    )
    assert records.offset.tolist() == [*range(1290, 1300), *range(5000, 5010)]
    assert records.value.to_pylist() == VALUES[290:] + VALUES[:10]


def test_batches_that_do_not_ascend_are_refused_in_a_range(columns: Build) -> None:
    data = _log(columns)
    twice = BatchTable.concat([scan_batches(data, where="t")] * 2)
    assert decode_records(data, twice, where="t").num_rows == 600
    with pytest.raises(CorruptLogError, match=r"t@50: found offsets 0 to \d+ \+ 0"):
        decode_records(data, twice, where="t", start_offset=0, position=50)


@pytest.mark.parametrize(("base", "delta"), [(2**63 - 1, 1), (0, -1), (1, 2**63 - 1)])
def test_offsets_beyond_the_domain_are_refused(raw_batch: Build, base: int, delta: int) -> None:
    data = raw_batch(base_offset=base)
    table = scan_batches(data, where="t")
    with pytest.raises(CorruptLogError, match="CORRUPT_BATCH"):
        decode_records(data, table, offset_delta=delta, where="t")


def test_errors_name_the_position_in_the_file(columns: Build, raw_batch: Build, raw_record: Build) -> None:
    data = raw_batch() + raw_batch(raw_record(value_length=b"\x7e"), base_offset=1)
    table = scan_batches(data, where="t", position=1000)
    with pytest.raises(CorruptLogError, match=f"t@{1000 + len(raw_batch())}, record 0"):
        decode_records(data, table, where="t", position=1000)


def test_control_batches_are_left_out_and_leave_gaps(columns: Build) -> None:
    marker = ControlMarker(type=ControlType.COMMIT, producer_id=1, producer_epoch=0, timestamp_ms=0, offset=2)
    data = (
        encode_batches(columns([b"a", b"b"]), EncodeOptions()).to_bytes()
        + encode_control_batch(marker).to_bytes()
        + encode_batches(columns([b"c"]), EncodeOptions(), base_offset=3).to_bytes()
    )
    table = scan_batches(data, where="test")
    assert table.is_control.tolist() == [False, True, False]
    assert decode_records(data, table, where="test").offset.tolist() == [0, 1, 3]


def test_compacted_batches(raw_batch: Build, raw_record: Build) -> None:
    # Records 0, 1 and 4 are gone; so are all of the second batch's.
    body = raw_record(offset_delta=2, value=b"c") + raw_record(offset_delta=3, value=b"d")
    data = raw_batch(body, record_count=2, last_offset_delta=4) + raw_batch(
        b"", base_offset=5, record_count=0, last_offset_delta=9
    )
    table = scan_batches(data, where="test")
    assert table.last_offset.tolist() == [4, 14]
    records = decode_records(data, table, where="test")
    assert records.offset.tolist() == [2, 3]
    assert records.value.to_pylist() == [b"c", b"d"]


def test_mixed_codecs_in_one_call(columns: Build) -> None:
    data, base = b"", 0
    for codec in Codec:
        data += encode_batches(
            columns([b"x" * 500, b"%d" % codec]), EncodeOptions(codec=codec), base_offset=base
        ).to_bytes()
        base += 2
    table = scan_batches(data, where="test")
    assert table.codec.tolist() == list(Codec)
    assert decode_records(data, table, where="test").value.to_pylist()[1::2] == [
        b"%d" % codec for codec in Codec
    ]


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))])
def test_any_buffer(columns: Build, wrap: Callable[[bytes], Any]) -> None:
    data = wrap(_log(columns))
    assert decode_records(data, scan_batches(data, where="t"), where="t").value.to_pylist() == VALUES


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_result_owns_its_memory(columns: Build, codec: Codec) -> None:
    data = bytearray(_log(columns, codec))
    records = decode_records(data, scan_batches(data, where="t"), where="t")
    data[:] = b"\0" * len(data)
    data.clear()  # BufferError if anything still refers to it
    gc.collect()
    assert records.value.to_pylist() == VALUES
    records.value.validate(full=True)


def test_slices(columns: Build) -> None:
    data = _log(columns)
    records = decode_records(data, scan_batches(data, where="t"), where="t", include_headers=True)
    for start, end in ((0, 10), (100, 300), (290, 999), (20, 10)):
        part = records.slice(start, end)
        assert part.offset.tolist() == list(range(300))[start:end]
        assert part.value.to_pylist() == VALUES[start:end]
        assert part.num_rows == len(part.key) == len(part.timestamp_ms) == len(part.timestamp_type)


def test_select_by_slice_mask_and_index(columns: Build) -> None:
    table = scan_batches(_log(columns), where="t")
    expected = table.base_offset.tolist()
    assert table.select(slice(1, 3)).base_offset.tolist() == expected[1:3]
    assert table.select(np.arange(len(table)) == 2).base_offset.tolist() == expected[2:3]
    assert table.select(np.array([2, 0])).base_offset.tolist() == [expected[2], expected[0]]


def test_header_keys_that_are_not_utf8_are_replaced(raw_batch: Build, raw_record: Build) -> None:
    body = raw_record(header_count=b"\x02", headers=b"\x04a\xff\x02v")
    data = raw_batch(body)
    records = decode_records(data, scan_batches(data, where="t"), where="t", include_headers=True)
    assert records.headers is not None
    assert records.headers.to_pylist() == [[{"key": "a\N{REPLACEMENT CHARACTER}", "value": b"v"}]]


def test_many_headers_in_many_records(columns: Build) -> None:
    # More rows than the column-wise reader needs, some of which have far more headers than the others.
    rows = [
        [
            {"key": f"k{number}", "value": None if number % 5 == 0 else b"v" * (number % 20)}
            for number in range(size)
        ]
        for size in [0, 1, 2, 3] * 40 + [200, 0, 300]
    ]
    data = encode_batches(
        columns([b"v"] * len(rows), headers=rows), EncodeOptions(max_batch_bytes=5000)
    ).to_bytes()
    records = decode_records(data, scan_batches(data, where="t"), where="t", include_headers=True)
    assert records.headers is not None
    assert records.headers.to_pylist() == [row or None for row in rows]
    records.headers.validate(full=True)


def test_valid_prefix_ends_before_the_damage(columns: Build) -> None:
    data = bytearray(_log(columns))
    table = scan_batches(data, where="file", position=4096)
    third = int(table.position[2])
    data[third + 70] ^= 1
    prefix, valid_bytes, error = scan_valid_prefix(data, where="file", position=4096)
    assert (len(prefix), valid_bytes) == (2, third)
    assert isinstance(error, CorruptLogError)
    assert f"file@{4096 + third}: found CRC-32C" in str(error)
    with pytest.raises(CorruptLogError, match="CRC-32C"):
        scan_batches(data, where="file")
    assert len(scan_batches(data, where="file", verify_crc=False)) == len(table)


def test_valid_prefix_of_every_truncation(columns: Build) -> None:
    data = encode_batches(columns([b"value"] * 6), EncodeOptions(max_batch_bytes=90)).to_bytes()
    ends = [0, *(scan_batches(data, where="t").position[1:].tolist()), len(data)]
    for size in range(len(data) + 1):
        table, valid_bytes, error = scan_valid_prefix(data[:size], where="t")
        assert valid_bytes == max(end for end in ends if end <= size)
        assert len(table) == ends.index(valid_bytes)
        assert (error is None) == (size in ends)


def test_unknown_attributes_end_the_prefix_as_unsupported(columns: Build, raw_batch: Build) -> None:
    data = raw_batch() + raw_batch(attributes=0x80) + raw_batch()
    table, valid_bytes, error = scan_valid_prefix(data, where="t")
    assert (len(table), valid_bytes) == (1, len(raw_batch()))
    assert isinstance(error, UnsupportedVersionError)


def test_read_of_more_than_2_gib_is_refused(columns: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    for codec in (Codec.NONE, Codec.GZIP):
        data = _log(columns, codec)
        table = scan_batches(data, where="t")
        with monkeypatch.context() as patch:
            patch.setattr(decode, "MAX_INT32", 1000)
            with pytest.raises(InvalidRequestError, match="READ_TOO_LARGE"):
                decode_records(data, table, where="t")


def test_joined_read_of_more_than_2_gib_is_refused(columns: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _log(columns)
    monkeypatch.setattr("sparklog.format.decode.MAX_INT32", 1000)
    with pytest.raises(InvalidRequestError, match="READ_TOO_LARGE"):
        decode_records(data, scan_batches(data, where="t"), where="t", block_rows=20)


def test_decompression_is_bounded_per_batch(columns: Build) -> None:
    data = encode_batches(columns([bytes(100_000)] * 4), EncodeOptions(codec=Codec.GZIP)).to_bytes()
    table = scan_batches(data, where="t")
    assert len(table) == 4
    assert decode_records(data, table, where="t", max_decompressed_bytes=100_100).num_rows == 4
    with pytest.raises(CorruptLogError, match=r"BATCH_TOO_LARGE.*t@0"):
        decode_records(data, table, where="t", max_decompressed_bytes=100_000)


def test_nested_frames_are_not_unpacked(raw_batch: Build, raw_record: Build) -> None:
    body = bytes(compress(Codec.GZIP, compress(Codec.GZIP, raw_record())))
    data = raw_batch(body, attributes=Codec.GZIP.value)
    with pytest.raises(CorruptLogError, match="CORRUPT_BATCH"):
        decode_records(data, scan_batches(data, where="t"), where="t")


def test_peak_memory_is_a_small_multiple_of_the_input() -> None:
    count = 40_000
    values = pa.array([b"x" * 100] * count, pa.binary())
    given = RecordColumns(key=None, value=values, timestamp_ms=np.zeros(count, np.int64))
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    data = encode_batches(given, EncodeOptions()).to_bytes()
    records = decode_records(data, scan_batches(data, where="t"), where="t")
    assert records.num_rows == count
    assert pool.bytes_allocated() - before < 3 * len(data)
