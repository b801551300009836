"""Rows for the sink, should Spark hand them over one by one."""

import datetime as dt
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    Row,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sparklog.spark import rows as row_batches
from sparklog.spark.rows import arrow_batches, as_arrow_batches

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
SCHEMA = StructType(
    [
        StructField("other", LongType()),
        StructField("value", BinaryType()),
        StructField("key", StringType()),
        StructField("headers", HEADERS),
        StructField("partition", IntegerType()),
        StructField("timestamp", TimestampType()),
    ]
)
COLUMNS = ["key", "value", "headers", "partition", "timestamp"]


def row(value: bytes | bytearray | None = b"v", **fields: Any) -> Row:
    values = {"other": 1, "value": value, "key": None, "headers": None, "partition": None, "timestamp": None}
    return Row(*SCHEMA.fieldNames())(*{**values, **fields}.values())


def rows(count: int) -> Iterator[Row]:
    return (row(bytearray(str(number).encode())) for number in range(count))


@pytest.fixture
def far_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Eleven hours from UTC: what is taken for the wrong zone shows."""
    monkeypatch.setenv("TZ", "Pacific/Noumea")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_columns_become_arrow_arrays(far_zone: None) -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
    local = moment.astimezone().replace(tzinfo=None)  # as Spark hands it over
    headers = [Row(key="h", value=bytearray(b"1")), Row(key="n", value=None)]
    given = row(bytearray(b"v"), key="k", headers=headers, partition=3, timestamp=local)
    (batch,) = arrow_batches(iter([given, row(None)]), SCHEMA, COLUMNS)
    assert batch.schema.names == COLUMNS
    assert batch.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert batch.to_pylist() == [
        {
            "key": "k",
            "value": b"v",
            "headers": [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
            "partition": 3,
            "timestamp": moment,
        },
        dict.fromkeys(COLUMNS),
    ]


def test_rows_keep_their_order_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_batches, "BATCH_ROWS", 100)
    batches = list(arrow_batches(rows(250), SCHEMA, ["value"]))
    assert [batch.num_rows for batch in batches] == [100, 100, 50]
    values = [value for batch in batches for value in batch["value"].to_pylist()]
    assert values == [str(number).encode() for number in range(250)]


def test_a_batch_ends_when_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_batches, "BATCH_BYTES", 1000)
    large = (row(b"x" * 600) for _ in range(5))
    assert [batch.num_rows for batch in arrow_batches(large, SCHEMA, ["value"])] == [2, 2, 1]


def test_no_rows_are_no_batch() -> None:
    assert list(arrow_batches(iter([]), SCHEMA, COLUMNS)) == []
    assert list(as_arrow_batches(iter([]), SCHEMA, COLUMNS)) == []


def test_arrow_batches_are_taken_as_they_are_and_rows_made_into_some() -> None:
    given = [pa.RecordBatch.from_pydict({"value": [b"%d" % number]}) for number in range(3)]
    assert all(a is b for a, b in zip(as_arrow_batches(iter(given), SCHEMA, COLUMNS), given, strict=True))
    (batch,) = as_arrow_batches(rows(3), SCHEMA, ["value"])
    assert batch.to_pydict() == {"value": [b"0", b"1", b"2"]}
