"""Rows: every Arrow flavour of the columns is taken, everything else refused by name."""

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.client.rows import normalise_rows, validate_timestamps
from sparklog.errors import InvalidRequestError
from sparklog.log.config import TopicConfig


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.string_view(),
        pa.binary_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
)
def test_keys_and_values_may_be_any_string_or_binary(kind: pa.DataType) -> None:
    column = pa.array(["a", None, "bc"], pa.string())
    if pa.types.is_dictionary(kind):
        column = column.dictionary_encode()
    else:
        column = (
            column.cast(kind) if "view" not in str(kind) else pa.array([b"a", None, b"bc"], pa.binary_view())
        )
    rows = normalise_rows(batch(key=column, value=column))
    assert rows.key is not None
    assert rows.value is not None
    assert rows.key.type == rows.value.type == pa.binary()
    assert rows.value.to_pylist() == [b"a", None, b"bc"]


def test_timestamps_may_be_timestamps_of_any_unit_or_milliseconds() -> None:
    moment = dt.datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
    expected = int(moment.timestamp() * 1000)
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Paris"), pa.timestamp("ms")):
        column = pa.array([moment, None], pa.timestamp("ns", "UTC")).cast(kind, safe=False)
        assert normalise_rows(batch(value=["a", "b"], timestamp=column)).timestamp_ms.tolist() == [
            expected,
            -1,
        ]
    column = pa.array([5, None], pa.int32())
    assert normalise_rows(batch(value=["a", "b"], timestamp=column)).timestamp_ms.tolist() == [5, -1]
    assert normalise_rows(batch(value=["a"])).timestamp_ms.tolist() == [-1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"valeu": ["a"]}, r"unknown column 'valeu'.*rename it to 'value'"),
        ({"value": ["a"], "x": ["a"]}, r"unknown column 'x'"),
        ({"partition": [1]}, r"expected key or value among them"),
        ({"value": [1]}, r"column value: found int64, expected binary or string"),
        ({"value": ["a"], "partition": ["0"]}, r"'partition': found type string, expected int"),
        ({"value": ["a"], "timestamp": ["0"]}, r"'timestamp': found type string, expected timestamp"),
        ({"value": ["a"], "timestamp": [-5]}, r"row 0: found timestamp -5 ms"),
        ({"value": ["a"], "headers": ["h"]}, r"column headers: found string, expected list"),
        (
            {"value": ["a"], "headers": [[{"key": "a", "val": b"1"}]]},
            r"column headers: found list<.*val: binary",
        ),
    ],
)
def test_wrong_columns_are_refused_by_name(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        normalise_rows(batch(**columns))


def test_duplicate_columns_are_refused() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["value", "value"])
    with pytest.raises(InvalidRequestError, match="duplicate column 'value'"):
        normalise_rows(twice)


def test_a_column_of_nulls_counts_as_not_given() -> None:
    rows = normalise_rows(
        batch(key=pa.nulls(2), value=["a", "b"], headers=pa.nulls(2), partition=pa.nulls(2))
    )
    assert rows.key is rows.headers is rows.partition is None


def test_taken_rows_keep_nothing_else_alive() -> None:
    whole = normalise_rows(batch(key=["k"] * 1000, value=["v" * 1000] * 1000, partition=[1] * 1000))
    few = whole.take(np.array([3, 5]))
    assert few.value is not None
    assert few.value.get_total_buffer_size() < 5000
    assert few.num_rows == 2


@pytest.mark.parametrize(
    ("times", "found"),
    [
        (pa.array([5, None, -1], pa.int64()), -1),
        (pa.array([5, None, -2], pa.int32()), -2),
        (pa.array([5, None, -1], pa.timestamp("s")), -1000),
        (pa.array([5, None, -1], pa.timestamp("ms", "UTC")), -1),
        (pa.array([5, None, -1], pa.timestamp("us", "UTC")), -1),
        (pa.array([5, None, -1_000_001], pa.timestamp("ns")), -2),
    ],
    ids=["ms", "int32 of ms", "s", "ms of UTC", "us", "ns"],
)
def test_times_before_1970_are_refused_and_null_is_now(times: pa.Array, found: int) -> None:
    """Whatever the unit: none of them becomes now, or 1970, without a word."""
    with pytest.raises(InvalidRequestError, match=f"row 2: found timestamp {found} ms.* or null") as raised:
        normalise_rows(pa.record_batch({"value": ["a", "b", "c"], "timestamp": times}))
    assert "write null for the time of the append" in raised.value.fix
    kept = normalise_rows(pa.record_batch({"value": ["a", "b"], "timestamp": times[:2]}))
    assert kept.timestamp_ms[0] >= 0
    assert kept.timestamp_ms[1] == -1


def test_timestamps_far_from_now_are_refused() -> None:
    config = TopicConfig(message_timestamp_after_max_ms=10, message_timestamp_before_max_ms=20)
    validate_timestamps(np.array([980, 1010]), config, 1000)
    with pytest.raises(InvalidRequestError, match=r"row 1: found timestamp 1011 ms.*after\.max\.ms"):
        validate_timestamps(np.array([1000, 1011]), config, 1000)
    with pytest.raises(InvalidRequestError, match=r"row 0: found timestamp 979 ms.*before\.max\.ms"):
        validate_timestamps(np.array([979]), config, 1000)
    appended = TopicConfig(message_timestamp_after_max_ms=10, message_timestamp_type="LogAppendTime")
    validate_timestamps(np.array([9999]), appended, 1000)


@pytest.mark.parametrize(
    "timestamps", [pa.array([1 << 62], pa.timestamp("s")), pa.array([(1 << 64) - 1], pa.uint64())]
)
def test_timestamps_that_are_no_milliseconds_of_64_bits_are_refused(timestamps: pa.Array) -> None:
    with pytest.raises(InvalidRequestError, match="column 'timestamp'"):
        normalise_rows(pa.record_batch({"value": ["a"], "timestamp": timestamps}))
