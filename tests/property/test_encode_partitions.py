"""Property: the batches of many partitions encoded at once are those of each partition encoded by itself."""

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparklog.errors import InvalidRequestError
from sparklog.format import encode_partitions as module
from sparklog.format.byte_views import ByteViews
from sparklog.format.codec import Codec
from sparklog.format.encode import EncodedBatches, EncodeOptions, encode_batches
from sparklog.format.encode_partitions import EncodedPartitions, encode_partitions
from sparklog.format.schema import HEADERS_TYPE, RecordColumns, TimestampType
from tests.property.test_format_records import RECORD

COLUMNS = ("position", "size", "base_offset", "batch_record_count", "batch_max_timestamp_ms")
OPTIONS = st.builds(
    EncodeOptions,
    codec=st.sampled_from(list(Codec)),
    timestamp_type=st.sampled_from(list(TimestampType)),
    max_batch_bytes=st.sampled_from([1, 200, 2000, 1 << 20]),
    max_message_bytes=st.sampled_from([9000, 1 << 20]),
    partition_leader_epoch=st.sampled_from([0, 7]),
    is_transactional=st.booleans(),
)
PRODUCERS = st.sampled_from([(-1, -1, -1), (9, 2, 2**31 - 3)])


def record_columns(
    records: list[tuple[Any, ...]], *, views: bool = False, with_headers: bool = True
) -> RecordColumns:
    keys, values, times, headers = ([record[field] for record in records] for field in range(4))
    key, value = pa.array(keys, pa.binary()), pa.array(values, pa.binary())
    return RecordColumns(
        key=ByteViews.of(key) if views else key,
        value=ByteViews.of(value) if views else value,
        timestamp_ms=np.array(times, np.int64),
        headers=pa.array(headers, HEADERS_TYPE) if with_headers else None,
    )


def assert_same(together: EncodedPartitions, alone: list[EncodedBatches]) -> None:
    assert len(together) == len(alone)
    assert together.batches.to_bytes() == b"".join(one.to_bytes() for one in alone)
    assert together.batches.size_bytes == sum(one.size_bytes for one in alone)
    assert together.batches.record_count == sum(one.record_count for one in alone)
    assert together.batches.max_timestamp_ms == max(one.max_timestamp_ms for one in alone)
    start = 0
    for number, (part, one) in enumerate(zip(together.split(), alone, strict=True)):
        assert part.to_bytes() == one.to_bytes()
        assert (part.size_bytes, part.record_count, part.max_timestamp_ms) == (
            one.size_bytes,
            one.record_count,
            one.max_timestamp_ms,
        )
        for name in COLUMNS:
            assert getattr(part, name).tolist() == getattr(one, name).tolist()
        assert int(together.position[number]) == start
        assert int(together.size_bytes[number]) == one.size_bytes
        assert int(together.record_count[number]) == one.record_count
        assert int(together.max_timestamp_ms[number]) == one.max_timestamp_ms
        start += one.size_bytes


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    partitions=st.lists(st.lists(RECORD, min_size=1, max_size=12), min_size=1, max_size=12),
    repeat=st.sampled_from([1, 1, 1, 20]),
    options=OPTIONS,
    producer=PRODUCERS,
    views=st.booleans(),
    with_headers=st.booleans(),
)
def test_batches_are_those_of_each_partition_by_itself(
    partitions: list[list[tuple[Any, ...]]],
    repeat: int,
    options: EncodeOptions,
    producer: tuple[int, int, int],
    views: bool,
    with_headers: bool,
) -> None:
    partitions = [records * repeat for records in partitions]
    producer_id, epoch, sequence = producer
    options = dataclasses.replace(
        options, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    everything = [record for records in partitions for record in records]
    columns = record_columns(everything, views=views, with_headers=with_headers)
    rows = np.array([len(records) for records in partitions], np.int64)
    together = encode_partitions(columns, rows, options)
    if together is None:
        largest = max(sum(len(one or b"") for one in record[:2]) for record in everything)
        assert largest > 8000, "it declined what it can encode"
        return
    alone = [
        encode_batches(record_columns(records, with_headers=with_headers), options) for records in partitions
    ]
    assert_same(together, alone)


@pytest.mark.parametrize("codec", list(Codec))
def test_large_batches_are_not_copied_together(codec: Codec) -> None:
    records = [(None, b"%05d" % n + b"v" * 995, n, None) for n in range(600)]
    options = EncodeOptions(codec=codec, max_batch_bytes=64 << 10)
    rows = np.array([100, 1, 199, 300], np.int64)
    together = encode_partitions(record_columns(records), rows, options)
    assert together is not None
    if codec is Codec.NONE:
        assert len(together.batches.data) == 2 * together.batches.batch_count
    ends = np.cumsum(rows).tolist()
    alone = [
        encode_batches(record_columns(records[end - count : end]), options)
        for count, end in zip(rows.tolist(), ends, strict=True)
    ]
    assert_same(together, alone)


def test_a_partition_learns_from_its_own_batches_whether_compression_pays() -> None:
    """After a batch that does not shrink, three are not tried; those of the next partition are."""
    random = np.random.default_rng(3).bytes(4 * 500)
    hard = [(None, random[n : n + 500], 0, None) for n in range(0, 2000, 500)]
    easy = [(None, b"v" * 500, 0, None)]
    options = EncodeOptions(codec=Codec.ZSTD, max_batch_bytes=1)
    together = encode_partitions(record_columns([*hard[:1], *easy]), np.array([1, 1]), options)
    assert together is not None
    assert_same(together, [encode_batches(record_columns(one), options) for one in (hard[:1], easy)])
    assert together.size_bytes[1] < 200


@pytest.mark.parametrize("size", [1, 2000])
def test_what_needs_a_decision_is_declined(size: int) -> None:
    records = [(None, b"v" * size, 0, None) for _ in range(3)]
    options = EncodeOptions(max_message_bytes=1000)
    found = encode_partitions(record_columns(records), np.array([1, 2]), options)
    assert (found is None) == (size == 2000)


def test_more_than_may_be_laid_out_at_once_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [(None, b"v" * 100, 0, None) for _ in range(3)]
    found = []
    for most in (312, 311):  # 100 bytes, two of the value's length, one each for no key and no headers
        monkeypatch.setattr(module, "MAX_BYTES", most)
        found.append(encode_partitions(record_columns(records), np.array([1, 2]), EncodeOptions()))
    assert [one is None for one in found] == [False, True]


def test_a_null_header_is_refused_as_by_itself() -> None:
    records = [(None, b"v", 0, None), (None, b"v", 0, [None])]
    with pytest.raises(InvalidRequestError, match="RECORD_HEADER_NULL"):
        encode_partitions(record_columns(records), np.array([1, 1]), EncodeOptions())
