"""Property: any bytes give records or an error that says where, in bounded time and memory."""

import contextlib
import re
import time
import tracemalloc

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import CorruptLogError, UnsupportedVersionError
from sparklog.format.codec import Codec, compress, decompress
from sparklog.format.consumer_offsets import decode_key, decode_offset_value
from sparklog.format.control_batch import decode_control_batch
from sparklog.format.decode import (
    DecodedRecords,
    decode_records,
    record_times,
    scan_batches,
    scan_valid_prefix,
)
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.index import parse_offset_entries, parse_time_entries
from sparklog.format.record_batch import HEADER, BatchHeader, encode_header
from sparklog.format.schema import HEADERS_TYPE, RecordColumns

LIMIT_BYTES = 1 << 20
# Bytes that matter to varints, so that random bodies get further than their first field.
LIKELY = st.sampled_from([0, 0, 0, 1, 2, 3, 4, 6, 14, 16, 0x7F, 0x80, 0x81, 0xFE, 0xFF])
BODY = st.one_of(st.binary(max_size=200), st.lists(LIKELY, max_size=200).map(bytes))


def _examined(data: bytes) -> DecodedRecords | None:
    """Decode, and check what came out in full. None if refused."""
    found, error = _decoded(data)
    _assert_times_are_those_of(data, found, error)
    if found is None:
        return None
    for column in _byte_columns(found):
        assert len(column) == found.num_rows
        column.validate(full=True)
    assert (found.offset >= 0).all()
    return found


def _decoded(data: bytes) -> tuple[DecodedRecords | None, Exception | None]:
    try:
        records = decode_records(
            data,
            scan_batches(data, where="here"),
            where="here",
            include_headers=True,
            max_decompressed_bytes=LIMIT_BYTES,
        )
    except (CorruptLogError, UnsupportedVersionError) as error:
        _assert_located(error)
        return None, error
    return records, None


def _assert_times_are_those_of(data: bytes, records: DecodedRecords | None, error: Exception | None) -> None:
    """What is looked up by time is what is read."""
    header = BatchHeader(*HEADER.unpack_from(data)) if len(data) >= HEADER.size else BatchHeader()
    if header.size != len(data) or header.is_control:
        return  # it is not one batch of records
    found: list[list[int]] = []
    refused = ""
    try:
        both = record_times(data, header, where="here", max_decompressed_bytes=LIMIT_BYTES)
        found = [column.tolist() for column in both]
    except (CorruptLogError, UnsupportedVersionError) as refusal:
        refused = str(refusal)
    assert refused == str(error or "")
    assert found == ([] if records is None else [records.offset.tolist(), records.timestamp_ms.tolist()])


def _byte_columns(records: DecodedRecords) -> list[pa.Array]:
    return [records.key, records.value, records.headers]


def _assert_located(error: Exception) -> None:
    assert re.search(r"here@\d+", str(error))


def _valid(seed: int, codec: Codec, count: int) -> bytes:
    random = np.random.default_rng(seed)
    values = [
        None if size % 7 == 0 else bytes([size % 251]) * size
        for size in random.integers(0, 90, count).tolist()
    ]
    headers = [[{"key": "h" * (row % 3), "value": b"v" * (row % 5)}] * (row % 3) for row in range(count)]
    columns = RecordColumns(
        key=pa.array(values[::-1], pa.binary()),
        value=pa.array(values, pa.binary()),
        timestamp_ms=random.integers(-(10**6), 10**13, count),
        headers=pa.array(headers, HEADERS_TYPE) if seed % 2 else None,
    )
    return encode_batches(columns, EncodeOptions(codec=codec, max_batch_bytes=700)).to_bytes()


@settings(max_examples=300)
@given(data=st.one_of(st.binary(max_size=300), BODY))
def test_any_bytes(data: bytes) -> None:
    assert _examined(data) is None or data == b""
    table, valid_bytes, error = scan_valid_prefix(data, where="here")
    assert (error is None) == (valid_bytes == len(data))
    assert int(table.size.sum()) == valid_bytes
    for parse in (parse_offset_entries, parse_time_entries):
        with contextlib.suppress(CorruptLogError):
            parse(data, "here").floor(5)
    for decode in (decode_key, decode_offset_value):
        with contextlib.suppress(CorruptLogError, UnsupportedVersionError):
            decode(data, where="here")


@settings(max_examples=400)
@given(
    body=BODY,
    compressed=st.booleans(),
    attributes=st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4, 5, 8, 0x10, 0x20, 0x30, 0x40, 0x80]),
    count=st.one_of(st.integers(0, 40), st.sampled_from([-1, 2**31 - 1])),
    last=st.one_of(st.integers(-1, 60), st.just(2**31 - 1)),
    base=st.sampled_from([0, 5, 2**63 - 1, -1]),
    times=st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)),
    copies=st.sampled_from([1, 2, 20]),
)
def test_any_body_behind_a_right_crc(
    body: bytes,
    compressed: bool,
    attributes: int,
    count: int,
    last: int,
    base: int,
    times: tuple[int, int],
    copies: int,
) -> None:
    if compressed and attributes & 7 <= max(Codec):
        body = bytes(compress(Codec(attributes & 7), body))
    header = BatchHeader(
        base_offset=base,
        attributes=attributes,
        last_offset_delta=last,
        first_timestamp_ms=times[0],
        max_timestamp_ms=times[1],
        record_count=count,
    )
    batch = encode_header(header, body) + body
    records = _examined(batch)
    if records is not None and not attributes & 0x20:
        assert records.num_rows == count
    if copies > 1 and records is None:
        assert _examined(batch * copies) is None
    with contextlib.suppress(CorruptLogError, UnsupportedVersionError):
        decode_control_batch(batch, where="here")


@settings(max_examples=200)
@given(
    seed=st.integers(0, 20),
    codec=st.sampled_from(list(Codec)),
    count=st.sampled_from([1, 5, 60]),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.one_of(st.none(), st.integers(0, 10**6)),
)
def test_damage_is_noticed(
    seed: int, codec: Codec, count: int, changes: list[tuple[int, int]], cut: int | None
) -> None:
    data = _valid(seed, codec, count)
    damaged = bytearray(data)
    for position, byte in changes:
        damaged[position % len(damaged)] = byte
    if cut is not None:
        del damaged[cut % len(damaged) :]
    records = _examined(bytes(damaged))
    if records is not None:
        # Only what lies outside the CRC may differ: base offsets and leader epochs; or whole batches are cut
        # off.
        original = _examined(data)
        assert original is not None
        assert records.value == original.value.slice(0, records.num_rows)


@settings(max_examples=200)
@given(codec=st.sampled_from(list(Codec)), data=st.binary(max_size=300), prefix=st.booleans())
def test_any_frame(codec: Codec, data: bytes, prefix: bool) -> None:
    frame = bytes(compress(codec, data))[: 20 + len(data) // 2] + data if prefix else data
    with contextlib.suppress(CorruptLogError):
        assert len(decompress(codec, frame, max_bytes=LIMIT_BYTES, where="here")) <= LIMIT_BYTES


def test_hostile_counts_take_neither_time_nor_memory() -> None:
    header = BatchHeader(last_offset_delta=2**31 - 2, record_count=2**31 - 1)
    body = b"\0" * 1000
    batch = encode_header(header, body) + body
    started = time.thread_time()
    tracemalloc.start()
    try:
        assert _examined(batch) is None
        assert tracemalloc.get_traced_memory()[1] < LIMIT_BYTES
    finally:
        tracemalloc.stop()
    assert time.thread_time() - started < 1


def test_bombs_take_neither_time_nor_memory() -> None:
    plain = bytes(200 * LIMIT_BYTES)
    for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY):
        body = bytes(compress(codec, plain))
        batch = encode_header(BatchHeader(attributes=codec.value, record_count=1), body) + body
        tracemalloc.start()
        started = time.thread_time()
        try:
            assert _decoded(batch)[0] is None
            assert tracemalloc.get_traced_memory()[1] < 2 * LIMIT_BYTES + 2 * len(batch)
        finally:
            tracemalloc.stop()
        assert time.thread_time() - started < 1
