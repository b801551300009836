"""Encoding: how rows become batches, limits, and which columns are accepted."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import InvalidRequestError
from sparklog.format.codec import DEFAULT_MAX_DECOMPRESSED_BYTES, Codec
from sparklog.format.decode import decode_records, scan_batches
from sparklog.format.encode import EncodedBatches, EncodeOptions, encode_batches
from sparklog.format.record_batch import HEADER, parse_header
from sparklog.format.schema import HEADERS_TYPE, RecordColumns, TimestampType

Build = Callable[..., RecordColumns]


def _decoded(encoded: EncodedBatches) -> Any:
    data = encoded.to_bytes()
    return decode_records(data, scan_batches(data, where="test"), where="test", include_headers=True)


def test_no_rows_give_no_batches(columns: Build) -> None:
    encoded = encode_batches(columns([]), EncodeOptions())
    assert (encoded.data, encoded.size_bytes, encoded.record_count, encoded.batch_count) == ([], 0, 0, 0)
    assert encoded.max_timestamp_ms == -1
    assert len(encoded.position) == 0


def test_table_describes_the_batches(columns: Build) -> None:
    times = [5, -3, 9, 2, 1]
    encoded = encode_batches(
        columns([b"x" * 100] * 5, timestamps_ms=times), EncodeOptions(max_batch_bytes=300), base_offset=1000
    )
    data = encoded.to_bytes()
    table = scan_batches(data, where="test")
    assert encoded.batch_count == 3
    assert encoded.size_bytes == len(data)
    assert encoded.record_count == 5
    assert encoded.max_timestamp_ms == 9
    assert encoded.position.tolist() == table.position.tolist()
    assert encoded.size.tolist() == table.size.tolist()
    assert encoded.base_offset.tolist() == table.base_offset.tolist() == [1000, 1002, 1004]
    assert encoded.batch_record_count.tolist() == table.record_count.tolist() == [2, 2, 1]
    assert encoded.batch_max_timestamp_ms.tolist() == table.max_timestamp_ms.tolist() == [5, 9, 1]
    assert table.first_timestamp_ms.tolist() == [5, 9, 1]
    assert _decoded(encoded).offset.tolist() == [1000, 1001, 1002, 1003, 1004]


@pytest.mark.parametrize("max_batch_bytes", [1, 100, 1000, 10_000])
def test_batches_keep_their_target_size(columns: Build, max_batch_bytes: int) -> None:
    values = [bytes([row & 0xFF]) * (row * 37 % 300) for row in range(1000)]
    encoded = encode_batches(columns(values), EncodeOptions(max_batch_bytes=max_batch_bytes))
    several = encoded.batch_record_count > 1
    assert (encoded.size[several] <= max_batch_bytes).all()
    assert _decoded(encoded).value.to_pylist() == values


def test_batches_are_nearly_full(columns: Build) -> None:
    encoded = encode_batches(columns([b"x" * 100] * 5000), EncodeOptions(max_batch_bytes=20_000))
    assert (encoded.size[:-1] > 19_000).all()


def test_offset_deltas_of_every_length(columns: Build) -> None:
    # 70,000 empty records in one batch: offset deltas of 1, 2 and 3 bytes.
    encoded = encode_batches(columns([b""] * 70_000), EncodeOptions(max_batch_bytes=1 << 20))
    assert encoded.batch_count == 1
    assert (_decoded(encoded).offset == np.arange(70_000)).all()


def test_sequences_count_over_batches_and_wrap(columns: Build) -> None:
    options = EncodeOptions(
        max_batch_bytes=300,
        producer_id=7,
        producer_epoch=2,
        base_sequence=2**31 - 3,
        is_transactional=True,
        partition_leader_epoch=5,
    )
    table = scan_batches(encode_batches(columns([b"x" * 100] * 6), options).to_bytes(), where="test")
    assert table.base_sequence.tolist() == [2**31 - 3, 2**31 - 1, 1]
    assert set(table.producer_id) == {7}
    assert set(table.producer_epoch) == {2}
    assert set(table.partition_leader_epoch) == {5}
    assert table.is_transactional.all()


def test_log_append_time_is_the_batchs(columns: Build) -> None:
    options = EncodeOptions(timestamp_type=TimestampType.LOG_APPEND_TIME)
    decoded = _decoded(encode_batches(columns([b"a", b"b"], timestamps_ms=[10, 20]), options))
    assert decoded.timestamp_ms.tolist() == [20, 20]
    assert decoded.timestamp_type.tolist() == [1, 1]


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_what_does_not_shrink_is_stored_as_it_is(columns: Build, codec: Codec) -> None:
    noise = np.random.default_rng(1).bytes(5000)
    table = scan_batches(
        encode_batches(columns([noise]), EncodeOptions(codec=codec)).to_bytes(), where="test"
    )
    assert table.codec.tolist() == [Codec.NONE]
    table = scan_batches(
        encode_batches(columns([b"x" * 5000]), EncodeOptions(codec=codec)).to_bytes(), where="test"
    )
    assert table.codec.tolist() == [codec]


def test_compression_that_does_not_pay_is_tried_for_one_batch_in_four(columns: Build) -> None:
    random = np.random.default_rng(1)
    noise = [random.bytes(5000) for _ in range(6)]
    options = EncodeOptions(codec=Codec.LZ4, max_batch_bytes=5200)
    codecs = scan_batches(
        encode_batches(columns([*noise, *[b"x" * 5000] * 4]), options).to_bytes(), where="t"
    )
    # Batches 0 and 4 are tried in vain, 5 to 7 are not tried, and from 8 on it pays.
    assert codecs.codec.tolist() == [0] * 8 + [Codec.LZ4] * 2


def test_a_batch_that_only_fits_compressed_is_always_tried(columns: Build) -> None:
    random = np.random.default_rng(1)
    noise = [random.bytes(900) for _ in range(3)]
    options = EncodeOptions(codec=Codec.LZ4, max_batch_bytes=1000, max_message_bytes=1000)
    table = scan_batches(encode_batches(columns([*noise, b"x" * 5000]), options).to_bytes(), where="t")
    assert table.codec.tolist() == [0, 0, 0, Codec.LZ4]


def test_record_too_large_names_its_row(columns: Build) -> None:
    values = [b"small", b"x" * 2000, b"small"]
    with pytest.raises(InvalidRequestError, match=r"RECORD_TOO_LARGE.*row 1: .* at most 1000"):
        encode_batches(columns(values), EncodeOptions(max_message_bytes=1000))


def test_largest_record_that_fits(columns: Build) -> None:
    overhead = encode_batches(columns([b"x" * 900]), EncodeOptions()).size_bytes - 900
    fits = EncodeOptions(max_message_bytes=900 + overhead)
    assert encode_batches(columns([b"x" * 900]), fits).size_bytes == 900 + overhead
    with pytest.raises(InvalidRequestError, match=f"row 0: .*{901 + overhead} bytes"):
        encode_batches(columns([b"x" * 901]), fits)


def test_limit_applies_after_compression(columns: Build) -> None:
    options = EncodeOptions(codec=Codec.ZSTD, max_message_bytes=1000)
    assert encode_batches(columns([b"x" * 100_000]), options).size_bytes < 1000


def test_batch_that_grows_under_compression_is_split(columns: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only a target above the limit lets a batch of several records be too large after compression.
    noise = np.random.default_rng(2)
    values = [noise.bytes(100) for _ in range(64)]
    monkeypatch.setattr("sparklog.format.encode.batch_limit", lambda options: options.max_batch_bytes)
    encoded = encode_batches(
        columns(values), EncodeOptions(codec=Codec.GZIP, max_message_bytes=1000, max_batch_bytes=1 << 20)
    )
    assert (encoded.size <= 1000).all()
    assert _decoded(encoded).value.to_pylist() == values


@pytest.mark.parametrize("base_offset", [-1, 2**63 - 2, 2**63])
def test_offsets_beyond_the_domain_are_refused(columns: Build, base_offset: int) -> None:
    with pytest.raises(InvalidRequestError, match="OFFSET_OUT_OF_RANGE"):
        encode_batches(columns([b"a", b"b"]), EncodeOptions(), base_offset=base_offset)


def test_last_offset_of_all(columns: Build) -> None:
    encoded = encode_batches(columns([b"a", b"b"]), EncodeOptions(), base_offset=2**63 - 3)
    assert _decoded(encoded).offset.tolist() == [2**63 - 3, 2**63 - 2]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.uint64(), pa.large_binary()),
    ],
)
def test_binary_and_string_columns_are_accepted(kind: pa.DataType) -> None:
    for column in (
        pa.array(["a", None, "", "längere Zeichenkette"], pa.string()).cast(kind),
        pa.array(["junk", "a", None, "", "längere Zeichenkette", "junk"], pa.string()).cast(kind).slice(1, 4),
    ):
        encoded = encode_batches(
            RecordColumns(key=column, value=column, timestamp_ms=np.zeros(4, np.int64)), EncodeOptions()
        )
        expected = [b"a", None, b"", "längere Zeichenkette".encode()]
        assert _decoded(encoded).key.to_pylist() == expected
        assert _decoded(encoded).value.to_pylist() == expected


def test_fixed_size_and_null_columns_are_accepted() -> None:
    encoded = encode_batches(
        RecordColumns(
            key=pa.array([b"abcd", None], pa.binary(4)), value=pa.nulls(2), timestamp_ms=np.zeros(2, np.int64)
        ),
        EncodeOptions(),
    )
    assert _decoded(encoded).key.to_pylist() == [b"abcd", None]
    assert _decoded(encoded).value.to_pylist() == [None, None]


def test_chunked_columns_are_combined() -> None:
    values = pa.chunked_array([[b"a"], [], [b"b", None]], pa.binary())
    headers = pa.chunked_array(
        [pa.array([[{"key": "h", "value": b"1"}]], HEADERS_TYPE), pa.array([None, []], HEADERS_TYPE)]
    )
    decoded = _decoded(
        encode_batches(
            RecordColumns(key=None, value=values, timestamp_ms=np.zeros(3, np.int64), headers=headers),
            EncodeOptions(),
        )
    )
    assert decoded.value.to_pylist() == [b"a", b"b", None]
    assert decoded.headers.to_pylist() == [[{"key": "h", "value": b"1"}], None, None]


def test_null_rows_may_hide_bytes() -> None:
    # Arrow lets a null have a length and bytes; they must not reach the log.
    hidden = pa.Array.from_buffers(
        pa.binary(),
        3,
        [
            pa.py_buffer(b"\x05"),
            pa.py_buffer(np.array([0, 3, 9, 12], np.int32)),
            pa.py_buffer(b"onehiddentwo"),
        ],
    )
    assert hidden.to_pylist() == [b"one", None, b"two"]
    encoded = encode_batches(
        RecordColumns(key=hidden, value=hidden, timestamp_ms=np.zeros(3, np.int64)), EncodeOptions()
    )
    assert b"hidden" not in encoded.to_bytes()
    assert _decoded(encoded).value.to_pylist() == [b"one", None, b"two"]


def test_null_lists_may_hide_headers() -> None:
    entries = pa.array(
        [{"key": "a", "value": b"1"}, {"key": "hidden", "value": b"2"}], HEADERS_TYPE.value_type
    )
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 2], pa.int32()), entries, type=HEADERS_TYPE, mask=pa.array([False, True, False])
    )
    encoded = encode_batches(
        RecordColumns(key=None, value=None, timestamp_ms=np.zeros(3, np.int64), headers=lists),
        EncodeOptions(),
    )
    assert b"hidden" not in encoded.to_bytes()
    assert _decoded(encoded).headers.to_pylist() == [[{"key": "a", "value": b"1"}], None, None]


def test_sliced_headers() -> None:
    rows = [[{"key": f"h{row}", "value": None if row % 2 else b"v"}] * (row % 4) for row in range(40)]
    for kind in (HEADERS_TYPE, pa.large_list(HEADERS_TYPE.value_type)):
        headers = pa.array(rows, kind).slice(7, 20)
        encoded = encode_batches(
            RecordColumns(key=None, value=None, timestamp_ms=np.zeros(20, np.int64), headers=headers),
            EncodeOptions(max_batch_bytes=200),
        )
        assert encoded.batch_count > 1
        assert _decoded(encoded).headers.to_pylist() == [row or None for row in rows[7:27]]


@pytest.mark.parametrize(
    "headers",
    [
        pa.array([[None]], HEADERS_TYPE),
        pa.array([[{"key": None, "value": b""}]], HEADERS_TYPE),
    ],
)
def test_null_header_or_header_key_is_refused(headers: pa.Array) -> None:
    with pytest.raises(InvalidRequestError, match="RECORD_HEADER_NULL"):
        encode_batches(
            RecordColumns(key=None, value=None, timestamp_ms=np.zeros(1, np.int64), headers=headers),
            EncodeOptions(),
        )


@pytest.mark.parametrize(
    ("name", "column", "code"),
    [
        ("key", pa.array([1]), "RECORD_COLUMN_TYPE"),
        ("value", pa.array([1.5]), "RECORD_COLUMN_TYPE"),
        ("value", pa.array([b"a", b"b"]), "RECORD_COLUMN_LENGTH"),
        ("headers", pa.array([[1]]), "RECORD_COLUMN_TYPE"),
        ("headers", pa.array([b"x"]), "RECORD_COLUMN_TYPE"),
        ("headers", pa.array([[{"k": "a", "value": b""}]]), "RECORD_COLUMN_TYPE"),
        ("headers", pa.array([[{"key": [1], "value": b""}]]), "RECORD_COLUMN_TYPE"),
        ("timestamp_ms", np.zeros(1, np.int32), "RECORD_COLUMN_TYPE"),
        ("timestamp_ms", np.zeros((1, 1), np.int64), "RECORD_COLUMN_TYPE"),
    ],
)
def test_wrong_columns_are_refused(name: str, column: Any, code: str) -> None:
    given = {"key": None, "value": None, "timestamp_ms": np.zeros(1, np.int64), name: column}
    with pytest.raises(InvalidRequestError, match=f"{code}.*column {name}"):
        encode_batches(RecordColumns(**given), EncodeOptions())


def test_columns_of_more_than_2_gib_are_refused() -> None:
    # Zeros that are never touched take no memory.
    data = pa.py_buffer(np.zeros((1 << 31) + 100, np.uint8))
    ends = np.array([0, (1 << 30) + 50, (1 << 31) + 100], np.int64)
    large = pa.Array.from_buffers(pa.large_binary(), 2, [None, pa.py_buffer(ends), data])
    half = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(ends[:2].astype(np.int32)), data])
    for column in (large, pa.chunked_array([half, half])):
        with pytest.raises(InvalidRequestError, match=r"RECORD_COLUMN_TOO_LARGE.*column value"):
            encode_batches(
                RecordColumns(key=None, value=column, timestamp_ms=np.zeros(2, np.int64)), EncodeOptions()
            )


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_record_that_no_compression_can_save_is_refused_before_it_is_copied(codec: Codec) -> None:
    size = (1 << 31) - 20
    data = pa.py_buffer(np.zeros(size, np.uint8))
    ends = pa.py_buffer(np.array([0, size], np.int32))
    value = pa.Array.from_buffers(pa.binary(), 1, [None, ends, data])
    columns = RecordColumns(key=None, value=value, timestamp_ms=np.zeros(1, np.int64))
    allocated = pa.total_allocated_bytes()
    with pytest.raises(InvalidRequestError, match=r"RECORD_TOO_LARGE.*row 0"):
        encode_batches(columns, EncodeOptions(codec=codec))
    assert pa.total_allocated_bytes() - allocated < 1 << 20


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_what_no_reader_would_decompress_again_is_not_compressed(
    columns: Build, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 10_000
    monkeypatch.setattr("sparklog.format.encode.DEFAULT_MAX_DECOMPRESSED_BYTES", limit)
    values = [b"x" * 5000, b"x" * limit, b"x" * 5000]
    encoded = encode_batches(columns(values), EncodeOptions(codec=codec, max_batch_bytes=6000))
    assert scan_batches(encoded.to_bytes(), where="test").codec.tolist() == [codec, 0, codec]
    assert _decoded(encoded).value.to_pylist() == values
    together = encode_batches(columns(values), EncodeOptions(codec=codec, max_batch_bytes=100_000))
    assert scan_batches(together.to_bytes(), where="test").codec.tolist() == [0]
    with pytest.raises(InvalidRequestError, match=r"RECORD_TOO_LARGE.*row 1"):
        encode_batches(
            columns(values), EncodeOptions(codec=codec, max_batch_bytes=6000, max_message_bytes=6000)
        )


@pytest.mark.slow
def test_zeros_that_compress_well_but_are_too_many_to_be_read_are_refused() -> None:
    value = pa.array([bytes(DEFAULT_MAX_DECOMPRESSED_BYTES + 1)], pa.binary())
    columns = RecordColumns(key=None, value=value, timestamp_ms=np.zeros(1, np.int64))
    with pytest.raises(InvalidRequestError, match=r"RECORD_TOO_LARGE.*row 0"):
        encode_batches(columns, EncodeOptions(codec=Codec.ZSTD))


def test_null_headers_column(columns: Build) -> None:
    given = RecordColumns(key=None, value=None, timestamp_ms=np.zeros(2, np.int64), headers=pa.nulls(2))
    assert _decoded(encode_batches(given, EncodeOptions())).headers.to_pylist() == [None, None]


def test_timestamps_may_be_any_view(columns: Build) -> None:
    times = np.arange(10, dtype=np.int64)[::2]
    decoded = _decoded(
        encode_batches(RecordColumns(key=None, value=None, timestamp_ms=times), EncodeOptions())
    )
    assert decoded.timestamp_ms.tolist() == [0, 2, 4, 6, 8]


def test_chunks_are_headers_and_bodies(columns: Build) -> None:
    encoded = encode_batches(columns([b"x" * 100] * 10), EncodeOptions(max_batch_bytes=400))
    assert len(encoded.data) == 2 * encoded.batch_count
    for position, header in zip(encoded.position.tolist(), encoded.data[::2], strict=True):
        assert len(header) == HEADER.size
        assert parse_header(header, 0, f"test@{position}").record_count <= 10
