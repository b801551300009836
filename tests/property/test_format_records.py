"""Property: whatever records Arrow can hold come back as they were, in any layout, batch size and codec."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparklog.format.batch_table import BatchTable
from sparklog.format.codec import Codec
from sparklog.format.decode import decode_records, scan_batches
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.record_batch import HEADER as BATCH_HEADER
from sparklog.format.schema import HEADERS_TYPE, RecordColumns, TimestampType
from tests.support.plain_records import record as plain_record

INT64 = st.integers(-(2**63), 2**63 - 1)
# Lengths on both sides of what fits into an Arrow view, a word, and 1 or 2 bytes of varint.
BYTES = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([7, 8, 9, 11, 12, 13, 63, 64, 65, 300, 8191, 8192]).map(lambda size: b"\xa5" * size),
)
NULLABLE = st.one_of(st.none(), BYTES)
HEADER = st.fixed_dictionaries(
    {"key": st.text(max_size=6), "value": st.one_of(st.none(), st.binary(max_size=15))}
)
HEADERS = st.one_of(st.none(), st.lists(HEADER, max_size=4))
TIMES = st.one_of(st.integers(1_600_000_000_000, 1_800_000_000_000), st.integers(-3, 3), INT64)
RECORD = st.tuples(NULLABLE, NULLABLE, TIMES, HEADERS)
COLUMN_TYPES = st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()])


def _sliced(values: list[Any], kind: pa.DataType, before: int) -> pa.Array:
    """An array with offset != 0 and other values around."""
    filler = [[{"key": "other", "value": b"other"}]] if pa.types.is_list(kind) else [b"other values"]
    column = pa.array(
        filler * before + values + filler, HEADERS_TYPE if pa.types.is_list(kind) else pa.binary()
    )
    return column.cast(kind).slice(before, len(values))


def _bodies(data: bytes, table: BatchTable) -> list[bytes]:
    ends = table.position + table.size
    return [
        data[start + BATCH_HEADER.size : end]
        for start, end in zip(table.position.tolist(), ends.tolist(), strict=True)
    ]


def _plain_bodies(
    table: BatchTable, keys: list[Any] | None, values: list[Any], times: list[int], headers: Any
) -> list[bytes]:
    """The same records, encoded one by one."""
    bodies, row = [], 0
    for count, first in zip(table.record_count.tolist(), table.first_timestamp_ms.tolist(), strict=True):
        body = b""
        for delta in range(count):
            pairs = [(one["key"].encode(), one["value"]) for one in (headers and headers[row]) or ()]
            time_delta = (times[row] - first + (1 << 63)) % (1 << 64) - (1 << 63)  # wraps, as Java's does
            body += plain_record(time_delta, delta, keys[row] if keys else None, values[row], pairs)
            row += 1
        bodies.append(body)
    return bodies


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    records=st.lists(RECORD, max_size=60),
    repeat=st.sampled_from([1, 1, 1, 40]),
    kind=COLUMN_TYPES,
    before=st.integers(0, 3),
    codec=st.sampled_from(list(Codec)),
    max_batch_bytes=st.sampled_from([1, 200, 2000, 1 << 20]),
    base=st.one_of(st.just(0), st.integers(0, 2**63 - 1 - 10_000)),
    with_key=st.booleans(),
    with_headers=st.booleans(),
)
def test_records_come_back(
    records: list[tuple[Any, ...]],
    repeat: int,
    kind: pa.DataType,
    before: int,
    codec: Codec,
    max_batch_bytes: int,
    base: int,
    with_key: bool,
    with_headers: bool,
) -> None:
    records = records * repeat
    keys, values, times, headers = ([record[field] for record in records] for field in range(4))
    columns = RecordColumns(
        key=_sliced(keys, kind, before) if with_key else None,
        value=_sliced(values, kind, before),
        timestamp_ms=np.array(times, np.int64),
        headers=_sliced(headers, HEADERS_TYPE, before) if with_headers else None,
    )
    encoded = encode_batches(
        columns, EncodeOptions(codec=codec, max_batch_bytes=max_batch_bytes), base_offset=base
    )
    data = encoded.to_bytes()
    table = scan_batches(data, where="test")
    if codec is Codec.NONE:
        assert _bodies(data, table) == _plain_bodies(
            table, keys if with_key else None, values, times, with_headers and headers
        )
    assert int(table.record_count.sum()) == encoded.record_count == len(records)
    decoded = decode_records(data, table, include_headers=True, where="test")
    assert decoded.offset.tolist() == list(range(base, base + len(records)))
    assert decoded.timestamp_ms.tolist() == times
    assert decoded.key.to_pylist() == (keys if with_key else [None] * len(records))
    assert decoded.value.to_pylist() == values
    assert decoded.headers is not None
    assert decoded.headers.to_pylist() == [row or None for row in headers] if with_headers else True
    for column in (decoded.key, decoded.value, decoded.headers):
        column.validate(full=True)
    if records:
        assert encoded.max_timestamp_ms == max(times)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=400),
    start=st.integers(-5, 400),
    length=st.integers(0, 400),
    delta=st.integers(0, 2**40),
    timestamp_type=st.sampled_from(list(TimestampType)),
)
def test_any_range_is_the_same_slice(
    sizes: list[int], start: int, length: int, delta: int, timestamp_type: TimestampType
) -> None:
    values = pa.array([b"v" * size for size in sizes], pa.binary())
    columns = RecordColumns(key=None, value=values, timestamp_ms=np.arange(len(sizes), dtype=np.int64) * 7)
    data = encode_batches(
        columns, EncodeOptions(max_batch_bytes=1500, timestamp_type=timestamp_type)
    ).to_bytes()
    table = scan_batches(data, where="test")
    whole = decode_records(data, table, offset_delta=delta, where="test")
    part = decode_records(
        data,
        table,
        offset_delta=delta,
        start_offset=delta + start,
        end_offset=delta + start + length,
        where="test",
    )
    expected = whole.slice(max(0, start), max(0, start + length))
    assert part.offset.tolist() == expected.offset.tolist()
    assert part.timestamp_ms.tolist() == expected.timestamp_ms.tolist()
    assert part.value == expected.value
