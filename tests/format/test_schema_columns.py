"""Columns of every Arrow type become the encoder's own, or are refused; nothing is lost on the way."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import InvalidRequestError
from sparklog.format.decode import decode_records, scan_batches
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns, value_bytes


def views_of_one_value(rows: int, size: int) -> pa.Array:
    """As Polars makes them of a literal: all rows point to the same bytes."""
    views = np.zeros((rows, 2), np.uint64)
    views[:, 0] = size
    return pa.Array.from_buffers(
        pa.binary_view(), rows, [None, pa.py_buffer(views), pa.py_buffer(np.zeros(size, np.uint8))]
    )


def dictionary_of_one_value(rows: int, size: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([bytes(size)]))


@pytest.mark.parametrize("shared", [views_of_one_value, dictionary_of_one_value])
def test_columns_whose_rows_share_more_than_2_gib_are_refused_before_they_are_copied(
    shared: Callable[[int, int], pa.Array],
) -> None:
    rows, size = 3000, 1 << 20
    column = shared(rows, size)
    assert column.nbytes < 2 * size
    entries = pa.StructArray.from_arrays([pa.array(["h"] * rows), column], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), entries)
    times = np.zeros(rows, np.int64)
    allocated = pa.total_allocated_bytes()
    with pytest.raises(InvalidRequestError, match=r"RECORD_COLUMN_TOO_LARGE.*column value"):
        encode_batches(RecordColumns(key=None, value=column, timestamp_ms=times), EncodeOptions())
    with pytest.raises(InvalidRequestError, match=r"RECORD_COLUMN_TOO_LARGE.*column headers"):
        encode_batches(
            RecordColumns(key=None, value=None, headers=headers, timestamp_ms=times), EncodeOptions()
        )
    assert pa.total_allocated_bytes() - allocated < 2 * size


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.struct([("key", pa.string()), ("val", pa.binary())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary()), ("at", pa.int64())])),
        pa.list_(pa.struct([("key", pa.string())])),
        pa.list_view(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        pa.large_list_view(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    ],
)
def test_headers_that_a_cast_would_lose_are_refused(kind: pa.DataType) -> None:
    headers = pa.array([[{"key": "a"}], None, [{"key": "b"}]], kind)
    with pytest.raises(InvalidRequestError, match=r"RECORD_COLUMN_TYPE.*column headers: found (large_)?list"):
        encode_batches(
            RecordColumns(key=None, value=None, headers=headers, timestamp_ms=np.zeros(3, np.int64)),
            EncodeOptions(),
        )


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.string())])),
        pa.list_(pa.struct([("value", pa.binary_view()), ("key", pa.string_view())])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.dictionary(pa.int8(), pa.binary()))])),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]), 1),
        pa.map_(pa.string(), pa.binary_view()),
    ],
)
def test_headers_of_other_types_and_of_a_slice(kind: pa.DataType) -> None:
    rows: list[Any] = [[{"key": "a", "value": b"1"}], None, [{"key": "b", "value": b"long " * 9}]]
    if pa.types.is_map(kind):
        given: Any = [row and [(one["key"], one["value"]) for one in row] for row in rows]
    else:
        given = rows
    headers = pa.array(given[2:] + given + given[:1], kind).slice(1, 3)
    columns = RecordColumns(key=None, value=None, headers=headers, timestamp_ms=np.zeros(3, np.int64))
    data = encode_batches(columns, EncodeOptions()).to_bytes()
    found = decode_records(data, scan_batches(data, where="test"), where="test", include_headers=True)
    assert found.headers is not None
    assert found.headers.to_pylist() == rows


def test_headers_that_are_all_empty_have_no_type() -> None:
    headers = pa.array([[], None])
    assert headers.type == pa.list_(pa.null())
    encoded = encode_batches(
        RecordColumns(key=None, value=None, headers=headers, timestamp_ms=np.zeros(2, np.int64)),
        EncodeOptions(),
    )
    assert encoded.record_count == 2


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array(["abc", None, "x" * 30], pa.string_view()), 33),
        (pa.array(["abc", None, "x" * 30], pa.string_view()).slice(1), 30),
        (pa.array(["abc"], pa.string_view()).slice(1), 0),
        (pa.array(["abc", None, "x" * 30, "abc"]).dictionary_encode(), 36),
        (pa.array(["abc", None, "x" * 30, "abc"]).dictionary_encode().slice(1, 2), 30),
        (pa.array([b"abcd", b"abcd"], pa.binary(4)).dictionary_encode(), 8),
        (pa.array([[("a", "x" * 20), ("b", None)], None], pa.map_(pa.string_view(), pa.string_view())), 22),
        (pa.array([1, 2, 3], pa.int64()).slice(1), 16),
    ],
)
def test_values_count_for_each_row_that_has_them(column: pa.Array, expected: int) -> None:
    assert value_bytes(column) == expected
