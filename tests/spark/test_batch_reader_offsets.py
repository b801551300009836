"""Where batch reads start and end, how they are cut into tasks, and what pushdown leaves out."""

import json
from collections.abc import Iterable

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import sparklog
from sparklog.client import SparkLog
from sparklog.spark.features import FILTER_PUSHDOWN
from tests.spark.conftest import Options, Read, lacks, needs

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000

Found = list[tuple[int, int]]  # (partition, offset)


@pytest.fixture
def log(root: str) -> SparkLog:
    """Topic t: partition 0 with offsets 0-99 an hour apart in 10 appends, 1 with 0-9, 2 empty."""
    opened = sparklog.open(root, create=True)
    opened.create_topic("t", partitions=3)
    for start in range(0, 100, 10):
        opened.append("t", rows(start, 10), partition=0)
    opened.append("t", rows(0, 10), partition=1)
    return opened


def rows(start: int, count: int) -> pa.Table:
    ids = range(start, start + count)
    return pa.table(
        {"value": [b"%d" % i for i in ids], "timestamp": pa.array([i * HOUR_MS for i in ids], pa.int64())}
    )


def found(df: DataFrame) -> Found:
    return sorted((r.partition, r.offset) for r in df.select("partition", "offset").collect())


def expected(**partitions: Iterable[int]) -> Found:
    return sorted((int(p[1:]), o) for p, offsets in partitions.items() for o in offsets)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("options", "result"),
    [
        ({}, expected(p0=range(100), p1=range(10))),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, expected(p0=range(100), p1=range(10))),
        (
            {
                "startingOffsets": '{"t":{"0":95,"1":-2,"2":0}}',
                "endingOffsets": '{"t":{"0":97,"1":5,"2":-1}}',
            },
            expected(p0=range(95, 97), p1=range(5)),
        ),
        (
            {"startingTimestamp": str(98 * HOUR_MS), "startingOffsetsByTimestampStrategy": "latest"},
            expected(p0=range(98, 100)),
        ),
        ({"endingTimestamp": str(3 * HOUR_MS)}, expected(p0=range(3), p1=range(3))),
        (
            {
                "startingOffsetsByTimestamp": json.dumps({"t": {"0": 97 * HOUR_MS + 1, "1": 0, "2": 0}}),
                "startingOffsetsByTimestampStrategy": "latest",
                "endingOffsetsByTimestamp": json.dumps({"t": {"0": 99 * HOUR_MS, "1": HOUR_MS, "2": 5}}),
            },
            expected(p0=[98], p1=[0]),
        ),
        # precedence: the timestamp beats the offsets
        ({"endingTimestamp": str(HOUR_MS), "endingOffsets": "latest"}, expected(p0=[0], p1=[0])),
    ],
)
def test_where_a_batch_read_starts_and_ends(
    log: SparkLog, read: Read, options: Options, result: Found
) -> None:
    assert found(read(subscribe="t", **options)) == result


def test_assign_reads_only_those_partitions(log: SparkLog, read: Read) -> None:
    assert found(read(assign='{"t":[1,2]}')) == expected(p1=range(10))


def test_a_groups_position_as_start_and_end(log: SparkLog, read: Read) -> None:
    log.commit_offsets("g", {("t", 0): 90, ("t", 1): 10})
    group = {"kafka.group.id": "g"}
    assert found(read(subscribe="t", startingOffsets="group", **group)) == expected(p0=range(90, 100))
    assert found(read(subscribe="t", endingOffsets="group", **group)) == expected(p0=range(90), p1=range(10))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nosuch"}, "nosuch.*topics: t"),
        ({"assign": '{"t":[7]}'}, "t-7"),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":5}}'}, "lacks t-1, t-2"),
        (
            {"subscribe": "t", "startingOffsets": '{"t":{"0":500,"1":0,"2":0}}'},
            "OFFSET_OUT_OF_RANGE.*no offset 500.*0 to 100",
        ),
        ({"subscribe": "t", "startingTimestamp": str(99 * HOUR_MS)}, "t-1 has no record with a timestamp of"),
        ({"subscribe": "t", "startingOffsets": "latest"}, "can't be latest"),
        ({"subscribe": "t", "maxOfsetsPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger"),
        ({}, "exactly one of subscribe"),
    ],
)
def test_wrong_bounds_are_explained(log: SparkLog, read: Read, options: Options, message: str) -> None:
    with pytest.raises(PySparkException, match=f"(?s){message}.*Fix: .*SQLSTATE"):
        read(**options).count()


@pytest.mark.parametrize(
    ("options", "tasks"),
    [({}, 2), ({"minPartitions": "11"}, 11), ({"maxRecordsPerPartition": "30"}, 5),
     ({"maxRecordsPerPartition": "30", "minPartitions": "2"}, 5), ({"maxPartitions": "1"}, 1),
     ({"maxPartitions": "3", "maxRecordsPerPartition": "30"}, 5)],
)  # fmt: skip
def test_tasks(log: SparkLog, read: Read, options: Options, tasks: int) -> None:
    df = read(subscribe="t", **options)
    assert df.rdd.getNumPartitions() == tasks
    assert found(df) == expected(p0=range(100), p1=range(10))


@needs(FILTER_PUSHDOWN)
@pytest.mark.parametrize(
    ("condition", "result", "most_read"),
    [
        ("partition = 1", expected(p1=range(10)), 10),
        ("partition IN (1, 2) AND offset >= 5", expected(p1=range(5, 10)), 5),
        ("offset BETWEEN 40 AND 44 AND topic = 't'", expected(p0=range(40, 45)), 5),
        ("offset = 77", expected(p0=[77]), 1),
        ("timestamp >= timestamp_millis(95L * 3600000)", expected(p0=range(95, 100)), 10),
        ("topic = 'other'", [], 0),
        ("partition = 1 OR offset = 50", expected(p0=[50], p1=range(10)), 110),
    ],
)
def test_pushdown_reads_less_and_gives_the_same(
    log: SparkLog, spark: SparkSession, read: Read, condition: str, result: Found, most_read: int
) -> None:
    plain = read(subscribe="t").where(condition)
    pushed = read(subscribe="t", filterPushdown="true").where(condition)
    assert found(plain) == found(pushed) == result

    assert rows_read(pushed) <= most_read


@lacks(FILTER_PUSHDOWN)
def test_without_pushdown_spark_filters_what_was_read(log: SparkLog, read: Read) -> None:
    pushed = read(subscribe="t", filterPushdown="true").where("partition = 1 AND offset >= 5")
    assert found(pushed) == expected(p1=range(5, 10))
    assert rows_read(pushed) == 110


def rows_read(df: DataFrame) -> int:
    """Rows that left the source, from the executed plan's metrics."""
    df.collect()
    plan = df._jdf.queryExecution().executedPlan()
    pattern = plan.toString()
    assert "BatchScan" in pattern, pattern
    scans = plan.collectLeaves()
    return sum(int(scans.apply(i).metrics().apply("numOutputRows").value()) for i in range(scans.size()))


def test_retention_makes_old_offsets_data_loss_or_a_warning(log: SparkLog, read: Read) -> None:
    from sparklog.metadata.model.extents import AdvanceLogStart

    topic_id = log.image.topics["t"].topic_id
    log.metadata.publish(lambda _: [AdvanceLogStart(topic_id=topic_id, partition=0, log_start_offset=50)])
    start = {"startingOffsets": '{"t":{"0":10,"1":0,"2":0}}'}
    with pytest.raises(PySparkException, match=r"OFFSET_OUT_OF_RANGE|DATA_LOSS"):
        read(subscribe="t", **start).count()
    left = expected(p0=range(50, 100), p1=range(10))
    assert found(read(subscribe="t", failOnDataLoss="false", **start)) == left
    assert found(read(subscribe="t")) == left
