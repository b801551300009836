"""Batch writes and reads through Spark: rows, columns, options, and errors before anything is written."""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

import sparklog
from sparklog.format.key_hashes import partition_for_keys
from tests.spark.conftest import Options, Read, Write

pytestmark = pytest.mark.spark


def numbered(spark: SparkSession, n: int, *columns: str) -> DataFrame:
    return spark.range(n, numPartitions=2).selectExpr(*(columns or ("CAST(id AS STRING) AS value",)))


def test_rows_have_the_columns_of_kafkas_connector(spark: SparkSession, write: Write, read: Read) -> None:
    write(numbered(spark, 3, "CAST(id AS STRING) key", "CAST(id AS STRING) value"), topic="t")
    df = read(subscribe="t")
    assert df.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    rows = df.orderBy("offset").collect()
    assert [r.offset for r in rows] == [0, 1, 2]
    assert sorted(bytes(r.key) for r in rows) == [b"0", b"1", b"2"]
    assert {(r.topic, r.partition, r.timestampType) for r in rows} == {("t", 0, 0)}


def test_headers_nulls_and_timestamps_come_back_as_written(
    spark: SparkSession, write: Write, read: Read
) -> None:
    moment = dt.datetime(2020, 5, 17, 12, 34, 56, 789000)
    rows: list[tuple[Any, ...]] = [
        ("k", "v", moment, [("h", b"1"), ("h", None)]),
        (None, None, moment, None),
        ("", "", moment, []),
    ]
    schema = "key string, value string, timestamp timestamp, headers array<struct<key:string,value:binary>>"
    write(spark.createDataFrame(rows, schema).coalesce(1), topic="t")
    found = read(subscribe="t", includeHeaders="true").orderBy("offset").collect()
    assert [r.key and bytes(r.key) for r in found] == [b"k", None, b""]
    assert [r.value and bytes(r.value) for r in found] == [b"v", None, b""]
    assert {r.timestamp for r in found} == {moment}
    assert [(h.key, h.value and bytes(h.value)) for h in found[0].headers] == [("h", b"1"), ("h", None)]
    assert found[1].headers is None


def test_rows_read_from_a_topic_can_be_written_to_another_as_they_are(
    spark: SparkSession, write: Write, read: Read
) -> None:
    rows = numbered(spark, 20, "CAST(id AS STRING) key", "CAST(id AS STRING) value")
    write(rows, topic="a", **{"num.partitions": "3"})
    write(read(subscribe="a"), topic="b", **{"num.partitions": "3"})
    columns = ["key", "value", "partition", "timestamp"]
    assert_df_equality(
        read(subscribe="b").select(columns), read(subscribe="a").select(columns), ignore_row_order=True
    )


def test_keys_go_where_the_java_client_would_put_them(spark: SparkSession, write: Write, read: Read) -> None:
    write(numbered(spark, 500, "CAST(id AS STRING) key", "'x' value"), topic="t", **{"num.partitions": "7"})
    rows = read(subscribe="t").select("key", "partition").collect()
    keys = pa.array([bytes(r.key) for r in rows], pa.binary())
    assert [r.partition for r in rows] == partition_for_keys(keys, 7).tolist()
    assert {r.partition for r in rows} == set(range(7))


def test_order_is_kept_per_key_and_task(spark: SparkSession, write: Write, read: Read) -> None:
    rows = numbered(spark, 1000, "CAST(id % 5 AS STRING) key", "id % 2 AS odd", "CAST(id AS STRING) value")
    write(rows, topic="t", **{"num.partitions": "3"})
    for key in range(5):
        of_key = read(subscribe="t").where(F.col("key").cast("string") == str(key))
        in_order = of_key.orderBy("partition", "offset").select(F.col("value").cast("string"))
        values = [int(r.value) for r in in_order.collect()]
        assert values == sorted(values)
        assert len(values) == 200


def test_an_explicit_partition_wins_over_the_key(
    spark: SparkSession, write: Write, read: Read, root: str
) -> None:
    sparklog.open(root, create=True).create_topic("t", partitions=4)
    rows = numbered(spark, 40, "'same' key", "CAST(id AS STRING) value", "CAST(id % 4 AS INT) partition")
    write(rows, topic="t")
    counts = {r.partition: r["count"] for r in read(subscribe="t").groupBy("partition").count().collect()}
    assert counts == {0: 10, 1: 10, 2: 10, 3: 10}


def test_a_topic_column_spreads_one_write_over_topics_atomically(
    spark: SparkSession, write: Write, read: Read, root: str
) -> None:
    write(numbered(spark, 30, "CAST(id AS STRING) value", "concat('t', CAST(id % 3 AS STRING)) topic"))
    counts = read(subscribePattern="t.").groupBy("topic").count().collect()
    assert {(r.topic, r["count"]) for r in counts} == {("t0", 10), ("t1", 10), ("t2", 10)}
    log = sparklog.open(root)
    commits_before = log.image.commit
    write(numbered(spark, 30, "CAST(id AS STRING) value", "concat('t', CAST(id % 3 AS STRING)) topic"))
    assert log.refresh().commit == commits_before + 1, "one write is one commit, whatever its topics"


def test_the_option_topic_overrides_the_column(spark: SparkSession, write: Write, read: Read) -> None:
    write(numbered(spark, 3, "'x' value", "'ignored' topic"), topic="t")
    assert read(subscribe="t").count() == 3
    with pytest.raises(PySparkException, match="ignored"):
        read(subscribe="ignored").count()


def test_a_rerun_with_the_same_txn_writes_nothing(spark: SparkSession, write: Write, read: Read) -> None:
    for _ in range(2):
        write(numbered(spark, 10), topic="t", txnAppId="backfill", txnVersion="1")
    assert read(subscribe="t").count() == 10
    write(numbered(spark, 10), topic="t", txnAppId="backfill", txnVersion="2")
    assert read(subscribe="t").count() == 20


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        (("CAST(id AS STRING) body",), {"topic": "t"}, "SPARKLOG_INVALID_COLUMN.*value is missing.*body"),
        (
            ("id AS value",),
            {"topic": "t"},
            "SPARKLOG_INVALID_COLUMN.*value is bigint, expected string or binary",
        ),
        (("'x' value", "id AS key"), {"topic": "t"}, "key is bigint"),
        (("'x' value", "id AS partition"), {"topic": "t"}, "partition is bigint, expected int"),
        (("'x' value", "array(id) AS headers"), {"topic": "t"}, "headers is array<bigint>"),
        (("'x' value", "'k' Key"), {"topic": "t"}, "found column Key, expected it in lower case"),
        (
            ("'x' value", "struct(id) AS key"),
            {"topic": "t"},
            "key is struct<id:bigint>, expected string or binary",
        ),
        (("'x' value", "1 AS topic"), {}, "topic is int, expected string"),
        (("'x' value",), {}, "neither the option topic nor a column topic is set"),
        (("'x' value",), {"topic": "a/b"}, "SPARKLOG_INVALID_TOPIC_NAME.*a/b"),
        (("'x' value",), {"topic": ".."}, "SPARKLOG_INVALID_TOPIC_NAME"),
        (("'x' value",), {"topic": "t", "topics": "u"}, "SPARKLOG_UNKNOWN_OPTION.*did you mean topic"),
        (("'x' value",), {"topic": "t", "compression.type": "lz5"}, "SPARKLOG_.*lz5"),
        (("'x' value", "CAST(9 AS INT) partition"), {"topic": "t"}, "SPARKLOG_PARTITION_OUT_OF_RANGE"),
        (("'x' value", "CAST(-1 AS INT) partition"), {"topic": "t"}, "SPARKLOG_PARTITION_OUT_OF_RANGE"),
        (("repeat('x', 2000000) value",), {"topic": "t"}, "SPARKLOG_RECORD_TOO_LARGE"),
        (("'x' value", "CAST(NULL AS STRING) topic"), {}, "SPARKLOG_INVALID_ROWS.*topic"),
        (("'x' value",), {"topic": "__consumer_offsets"}, "SPARKLOG_INTERNAL_TOPIC"),
        (("'x' value", "if(id = 9, '__consumer_offsets', 't') topic"), {}, "SPARKLOG_INTERNAL_TOPIC"),
    ],
)
def test_a_wrong_write_says_what_is_wrong_and_leaves_nothing(
    spark: SparkSession,
    write: Write,
    read: Read,
    root: str,
    columns: tuple[str, ...],
    options: Options,
    expected: str,
) -> None:
    write(numbered(spark, 1), topic="before")
    with pytest.raises(PySparkException, match=f"(?s){expected}.*Fix: .*SQLSTATE"):
        write(numbered(spark, 10, *columns), **options)
    log = sparklog.open(root)
    assert log.topics(include_internal=True) == ["before"]
    assert log.log_end_offset("before", 0) == 1


def test_one_bad_row_among_many_leaves_the_whole_write_out(
    spark: SparkSession, write: Write, read: Read, root: str
) -> None:
    write(numbered(spark, 5), topic="t")
    with pytest.raises(PySparkException, match="SPARKLOG_RECORD_TOO_LARGE"):
        write(numbered(spark, 1000, "repeat('x', CAST(if(id = 999, 2000000, 5) AS INT)) value"), topic="t")
    assert read(subscribe="t").count() == 5


def test_auto_create_can_be_turned_off(spark: SparkSession, write: Write, root: str) -> None:
    with pytest.raises(PySparkException, match="nosuch"):
        write(numbered(spark, 3), topic="nosuch", **{"auto.create.topics.enable": "false"})


def test_overwrite_is_refused_with_the_reason(spark: SparkSession, root: str) -> None:
    with pytest.raises(PySparkException, match=r"SPARKLOG_UNSUPPORTED_SAVE_MODE.*appended"):
        numbered(spark, 3).write.format("sparklog").mode("overwrite").option("topic", "t").save(root)


def test_reading_from_a_directory_that_is_no_log(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=r"(?s)SPARKLOG_.*nowhere.*Fix:"):
        spark.read.format("sparklog").option("subscribe", "t").load(str(tmp_path / "nowhere")).count()
    assert not (tmp_path / "nowhere").exists(), "reading must not create a root"


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, root: str, write: Write) -> None:
    write(numbered(spark, 1), topic="t")
    with pytest.raises(PySparkException, match=r"SPARKLOG_INVALID_COLUMN.*fixed schema"):
        spark.read.format("sparklog").schema("a int").option("subscribe", "t").load(root).count()


def test_a_session_whose_timestamps_have_no_zone_reads_and_writes_all_the_same(
    spark: SparkSession, write: Write, read: Read
) -> None:
    """There the name TIMESTAMP in our schema would mean another type than the one that we hand over."""
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        write(numbered(spark, 3, "'x' value", "timestamp_millis(1767225600000 + id) timestamp"), topic="t")
        rows = read(subscribe="t").selectExpr("unix_millis(timestamp) AS ms", "timestamp", "value")
        assert isinstance(rows.schema["timestamp"].dataType, TimestampType)
        assert sorted(row.ms for row in rows.collect()) == [1767225600000, 1767225600001, 1767225600002]
        write(rows.select("value", "timestamp"), topic="copy")
        with pytest.raises(PySparkException, match=r"timestamp is timestamp_ntz.*TIMESTAMP_LTZ"):
            write(numbered(spark, 1, "'x' value", "TIMESTAMP'2026-01-01 00:00:00' timestamp"), topic="t")
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_codecs_by_option_and_by_topic(spark: SparkSession, write: Write, read: Read, root: str) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        write(numbered(spark, 100, "repeat('x', 100) value"), topic=codec, **{"compression.type": codec})
        assert read(subscribe=codec).where("CAST(value AS STRING) = repeat('x', 100)").count() == 100
    log = sparklog.open(root)
    partitions = {c: log.image.topics[c].partitions[0] for c in ("none", "zstd", "gzip")}
    sizes = {c: sum(e.size for e in p.extents) for c, p in partitions.items()}
    assert sizes["zstd"] < sizes["none"] / 5
    assert sizes["gzip"] < sizes["none"] / 5


def test_an_empty_write_is_fine(spark: SparkSession, write: Write, read: Read, root: str) -> None:
    write(numbered(spark, 1), topic="t")
    write(numbered(spark, 10).where("value = 'no such'"), topic="t")
    assert read(subscribe="t").count() == 1
