"""Reading: limits, ranges, errors, and the columns of Spark's Kafka source."""

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.client.consumer import SCHEMA, SCHEMA_WITH_HEADERS
from sparklog.errors import InvalidRequestError, OffsetOutOfRangeError, UnknownTopicError
from sparklog.metadata import plan_advance_log_start


@pytest.fixture
def filled(log: SparkLog) -> SparkLog:
    """Topic t, one partition, 100 records of 10 bytes in 10 extents."""
    for start in range(0, 100, 10):
        log.append("t", pa.table({"value": [f"{number:010}" for number in range(start, start + 10)]}))
    return log


def offsets(table: pa.Table) -> list[int]:
    found: list[int] = table["offset"].to_pylist()
    return found


def test_the_columns_are_those_of_sparks_kafka_source(filled: SparkLog) -> None:
    assert filled.read("t", 0, 0).schema == SCHEMA
    assert filled.read("t", 0, 100).schema == SCHEMA
    assert filled.read("t", 0, 0, include_headers=True).schema == SCHEMA_WITH_HEADERS
    assert filled.read("t", 0, 42, max_records=1).select(
        ["key", "value", "topic", "partition"]
    ).to_pylist() == [{"key": None, "value": b"0000000042", "topic": "t", "partition": 0}]


@pytest.mark.parametrize(("start", "count"), [(0, 1), (5, 20), (99, 5), (0, 1000), (100, 3)])
def test_max_records(filled: SparkLog, start: int, count: int) -> None:
    assert offsets(filled.read("t", 0, start, max_records=count)) == list(range(100))[start : start + count]


@pytest.mark.parametrize(("max_bytes", "count"), [(1, 1), (10, 1), (19, 1), (20, 2), (155, 15), (10**6, 90)])
def test_max_bytes_but_always_one_record(filled: SparkLog, max_bytes: int, count: int) -> None:
    assert offsets(filled.read("t", 0, 10, max_bytes=max_bytes)) == list(range(10, 10 + count))
    assert offsets(filled.read("t", 0, 10, max_bytes=max_bytes, max_records=7)) == list(
        range(10, 10 + min(count, 7))
    )


def test_limits_below_one_are_refused(filled: SparkLog) -> None:
    with pytest.raises(InvalidRequestError, match="max_records: found 0, expected at least 1"):
        filled.read("t", 0, 0, max_records=0)
    with pytest.raises(InvalidRequestError, match="max_bytes: found -1, expected at least 1"):
        filled.read("t", 0, 0, max_bytes=-1)


def test_offsets_outside_the_log_are_refused(filled: SparkLog) -> None:
    with pytest.raises(OffsetOutOfRangeError, match="found start offset 101, expected 0 to 100"):
        filled.read("t", 0, 101)
    with pytest.raises(OffsetOutOfRangeError, match="found end offset 101"):
        filled.read_batches("t", 0, 0, 101)


def test_records_below_the_log_start_are_gone(filled: SparkLog) -> None:
    action = plan_advance_log_start(filled.image, filled.image.topics["t"].topic_id, 0, 15)
    assert action is not None
    filled.metadata.publish(lambda _: [action])
    assert filled.log_start_offset("t", 0) == 15
    with pytest.raises(OffsetOutOfRangeError, match="found start offset 14, expected 15 to 100"):
        filled.read("t", 0, 14)
    assert offsets(filled.read("t", 0, 15, max_records=2)) == [15, 16]
    assert next(filled.read_batches("t", 0)).column("offset")[0].as_py() == 15


def test_unknown_topics_and_partitions(filled: SparkLog) -> None:
    with pytest.raises(UnknownTopicError, match="'nope'"):
        filled.read("nope", 0, 0)
    with pytest.raises(UnknownTopicError, match="no partition 1"):
        filled.read("t", 1, 0)


def test_read_batches_yields_a_range_in_order(filled: SparkLog) -> None:
    found = [offset for part in filled.read_batches("t", 0, 13, 87) for offset in part["offset"].to_pylist()]
    assert found == list(range(13, 87))


def test_another_process_sees_what_was_published(filled: SparkLog, other: SparkLog) -> None:
    filled.append("t", pa.table({"value": ["more"]}))
    assert other.log_end_offset("t", 0) == 101
    assert other.read("t", 0, 100)["value"].to_pylist() == [b"more"]


def test_offsets_for_time(log: SparkLog) -> None:
    log.create_topic("t", 2)
    times = pa.array([100, 200, 150])
    log.append("t", pa.table({"value": ["a", "b", "c"], "timestamp": times}), partition=1)
    assert log.offsets_for_time("t", 120) == {0: None, 1: 1}
    assert log.offset_for_time("t", 1, 201) is None
