"""Streaming: triggers and limits, topics that appear, progress and groups, restarts."""

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import sparklog
from sparklog.client import SparkLog
from sparklog.spark import StreamingLagListener
from sparklog.spark.datasource import SparklogDataSource
from sparklog.spark.features import ADMISSION_CONTROL
from sparklog.spark.options import parse_sink_options
from sparklog.spark.stream_writer import SparklogStreamWriter
from tests.spark.conftest import MISSING, CopyStream, Until, lacks, needs

pytestmark = pytest.mark.spark

EARLIEST = {"startingOffsets": "earliest"}


def rows(start: int, count: int) -> pa.Table:
    ids = range(start, start + count)
    return pa.table({"key": [b"k%d" % (i % 7) for i in ids], "value": [b"%d" % i for i in ids]})


@pytest.fixture
def log(root: str) -> SparkLog:
    opened = sparklog.open(root, create=True)
    opened.create_topic("in", partitions=3)
    opened.append("in", rows(0, 300))
    return opened


def values(log: SparkLog, topic: str = "out") -> list[int]:
    log.refresh()
    partitions = len(log.image.topics[topic].partitions)
    tables = [log.read(topic, p, log.log_start_offset(topic, p)) for p in range(partitions)]
    return sorted(int(v) for table in tables for v in table["value"].to_pylist())


def notes(tmp_path: Path, kind: str) -> list[Path]:
    """What the checkpoint holds of a kind (offsets: planned, commits: done), one file a micro-batch."""
    return sorted((tmp_path / "checkpoint" / kind).glob("[0-9]*"), key=lambda p: int(p.name))


def forget(note: Path) -> None:
    note.unlink()
    (note.parent / f".{note.name}.crc").unlink(missing_ok=True)


def batches(query: StreamingQuery) -> list[StreamingQueryProgress]:
    return [p for p in query.recentProgress if p.numInputRows]


def test_available_now_copies_everything_once_and_stops(log: SparkLog, copy_stream: CopyStream) -> None:
    query = copy_stream({"subscribe": "in", **EARLIEST}, {"topic": "out"})
    assert values(log) == list(range(300))
    assert len(batches(query)) == 1
    copy_stream({"subscribe": "in", **EARLIEST}, {"topic": "out"})
    assert values(log) == list(range(300)), "a restart with nothing new writes nothing"
    log.append("in", rows(300, 50))
    copy_stream({"subscribe": "in", **EARLIEST}, {"topic": "out"})
    assert values(log) == list(range(350))


def test_a_checkpoint_moves_between_sessions_with_and_without_hadoops_checksum_files(
    log: SparkLog, copy_stream: CopyStream, spark: SparkSession, tmp_path: Path
) -> None:
    """`configure` does without them (ADR 0011); a session built otherwise goes on where the last stopped."""
    classes = ["LocalFs", "RawLocalFs", "LocalFs", "RawLocalFs"]
    try:
        for number, name in enumerate(classes):
            spark.conf.set("fs.AbstractFileSystem.file.impl", f"org.apache.hadoop.fs.local.{name}")
            copy_stream({"subscribe": "in", **EARLIEST}, {"topic": "out"})
            assert values(log) == list(range(300 + 50 * number))
            log.append("in", rows(300 + 50 * number, 50))
    finally:
        spark.conf.unset("fs.AbstractFileSystem.file.impl")
    for directory in ("offsets", "commits"):
        names = {path.name for path in (tmp_path / "checkpoint" / directory).iterdir()}
        assert names == {"0", ".0.crc", "1", "2", ".2.crc", "3"}


@pytest.mark.parametrize("tasks", [None, 1, 2])
def test_max_partitions_lets_partitions_share_a_task(
    log: SparkLog, spark: SparkSession, root: str, tmp_path: Path, tasks: int | None
) -> None:
    options = {"subscribe": "in", **EARLIEST} | ({} if tasks is None else {"maxPartitions": str(tasks)})
    seen: list[tuple[int, list[int]]] = []

    def look(df: DataFrame, _: int) -> None:
        seen.append((df.rdd.getNumPartitions(), sorted(int(row.value) for row in df.collect())))

    reader = spark.readStream.format("sparklog").options(**options).load(root)
    writer = reader.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination(120)
    assert seen == [(tasks or 2, list(range(300)))], "without it as many as the session runs at a time"


@needs(ADMISSION_CONTROL)
def test_max_offsets_per_trigger_bounds_every_micro_batch(log: SparkLog, copy_stream: CopyStream) -> None:
    query = copy_stream({"subscribe": "in", "maxOffsetsPerTrigger": "100", **EARLIEST}, {"topic": "out"})
    rows_read = [p.numInputRows for p in batches(query)]
    assert sum(rows_read) == 300
    assert all(97 <= n <= 100 for n in rows_read[:3]), rows_read
    assert values(log) == list(range(300))


@needs(ADMISSION_CONTROL)
def test_max_bytes_per_trigger_bounds_every_micro_batch(log: SparkLog, copy_stream: CopyStream) -> None:
    size = sum(e.size for p in log.image.topics["in"].partitions for e in p.extents)
    limit = {"maxBytesPerTrigger": str(size // 4)}
    query = copy_stream({"subscribe": "in", **limit, **EARLIEST}, {"topic": "out"})
    assert len(batches(query)) in (4, 5, 6)
    assert values(log) == list(range(300))


def test_min_offsets_does_not_keep_available_now_from_ending(log: SparkLog, copy_stream: CopyStream) -> None:
    copy_stream({"subscribe": "in", "minOffsetsPerTrigger": "1000", **EARLIEST}, {"topic": "out"})
    assert values(log) == list(range(300))


@needs(ADMISSION_CONTROL)
def test_progress_shows_offsets_in_kafkas_shape_and_the_lag(
    log: SparkLog, copy_stream: CopyStream, spark: SparkSession
) -> None:
    listener = StreamingLagListener()
    spark.streams.addListener(listener)
    try:
        query = copy_stream({"subscribe": "in", "maxOffsetsPerTrigger": "100", **EARLIEST}, {"topic": "out"})
        first = batches(query)[0].sources[0]
        end, latest = json.loads(first.endOffset), json.loads(first.latestOffset)
        assert set(end["in"]) == {"0", "1", "2"}
        assert sum(end["in"].values()) == pytest.approx(100, abs=3)
        assert sum(latest["in"].values()) == 300
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        lag = listener.lag(query.id)
        assert lag is not None
        assert lag.total == 0
        assert set(lag.by_partition) == {("in", 0), ("in", 1), ("in", 2)}
    finally:
        spark.streams.removeListener(listener)


@lacks(ADMISSION_CONTROL)
def test_without_admission_control_available_now_reads_all_in_one_and_the_lag_is_unknown(
    log: SparkLog, copy_stream: CopyStream, spark: SparkSession
) -> None:
    listener = StreamingLagListener()
    spark.streams.addListener(listener)
    try:
        for start, count in ((0, 300), (300, 250)):
            if start:
                log.append("in", rows(start, count))
            options = {"subscribe": "in", "maxOffsetsPerTrigger": "100", **EARLIEST}
            query = copy_stream(options, {"topic": "out"})
            assert [p.numInputRows for p in batches(query)] == [count]
            assert values(log) == list(range(start + count))
            spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
            assert listener.lag(query.id) is None
    finally:
        spark.streams.removeListener(listener)


@lacks(ADMISSION_CONTROL)
def test_without_admission_control_available_now_after_a_crash_runs_what_was_planned_and_then_the_rest(
    log: SparkLog, copy_stream: CopyStream, tmp_path: Path
) -> None:
    options = {"subscribe": "in", **EARLIEST}
    copy_stream(options, {"topic": "out"})
    forget(notes(tmp_path, "commits")[-1])
    log.append("in", rows(300, 50))
    for rows_read, end in ((300, 300), (50, 350)):
        query = copy_stream(options, {"topic": "out"})
        assert [p.numInputRows for p in batches(query)] == [rows_read]
        assert values(log) == list(range(end))


@lacks(ADMISSION_CONTROL)
def test_without_admission_control_limits_hold_from_the_second_micro_batch_on(
    log: SparkLog, spark: SparkSession, root: str, tmp_path: Path, until: Until
) -> None:
    options = {"subscribe": "in", "maxOffsetsPerTrigger": "100", **EARLIEST}
    query = (
        spark.readStream.format("sparklog").options(**options).load(root)
        .select("key", "value").writeStream.format("sparklog").option("topic", "out")
        .option("checkpointLocation", str(tmp_path / "c")).start(root)
    )  # fmt: skip
    try:
        until(lambda: "out" in log.refresh().topics and values(log) == list(range(300)), query)
        log.append("in", rows(300, 300))
        until(lambda: values(log) == list(range(600)), query)
        query.processAllAvailable()
        sizes = [p.numInputRows for p in batches(query)]
    finally:
        query.stop()
    assert sizes[0] == 300
    assert all(97 <= n <= 100 for n in sizes[1:4]), sizes
    assert sum(sizes) == 600


def test_the_sink_takes_every_column(log: SparkLog, spark: SparkSession, root: str, tmp_path: Path) -> None:
    columns = (
        "CONCAT('key-', CAST(value AS STRING)) AS key",
        "value",
        "CAST(CAST(CAST(value AS STRING) AS INT) % 2 AS INT) AS partition",
        "TIMESTAMP_MILLIS(CAST(CAST(value AS STRING) AS BIGINT) * 3600000) AS timestamp",
        "ARRAY(NAMED_STRUCT('key', 'of', 'value', value)) AS headers",
    )
    source = spark.readStream.format("sparklog").option("subscribe", "in").options(**EARLIEST).load(root)
    writer = source.selectExpr(*columns).writeStream.format("sparklog").options(topic="out")
    writer = writer.option("num.partitions", "2").option("checkpointLocation", str(tmp_path / "c"))
    writer.trigger(availableNow=True).start(root).awaitTermination(120)
    read = spark.read.format("sparklog").option("subscribe", "out").option("includeHeaders", "true")
    found = read.load(root).select("key", "value", "partition", "timestamp", "headers")
    expected = [
        (
            b"key-%d" % n,
            b"%d" % n,
            n % 2,
            dt.datetime(1970, 1, 1) + dt.timedelta(hours=n),
            [("of", b"%d" % n)],
        )
        for n in range(300)
    ]
    assert sorted(map(tuple, found.collect())) == sorted(expected)


def test_the_sink_gets_arrow_batches(log: SparkLog, spark: SparkSession, root: str, tmp_path: Path) -> None:
    """Of every Spark: rows one by one would take several times the processor time."""
    seen = tmp_path / "seen"

    class Watched(SparklogStreamWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            def watched() -> Iterator[pa.RecordBatch]:
                for one in iterator:
                    seen.write_text(type(one).__name__)
                    yield one

            return SparklogStreamWriter.write(self, watched())

    class Source(SparklogDataSource):
        @classmethod
        def name(cls) -> str:
            return "watched"

        def streamWriter(self, schema: StructType, overwrite: bool) -> SparklogStreamWriter:
            return Watched(schema, parse_sink_options({**self.options}, streaming=True))

    spark.dataSource.register(Source)
    rows = spark.readStream.format("sparklog").option("subscribe", "in").options(**EARLIEST).load(root)
    writer = rows.select("value").writeStream.format("watched").option("topic", "out")
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    writer.start(root).awaitTermination(120)
    assert seen.read_text() == "RecordBatch"
    assert values(log) == list(range(300))


def test_a_group_id_makes_the_progress_visible(log: SparkLog, copy_stream: CopyStream) -> None:
    group = {"maxOffsetsPerTrigger": "100", "kafka.group.id": "etl"}
    copy_stream({"subscribe": "in", **group, **EARLIEST}, {"topic": "out"})
    if ADMISSION_CONTROL in MISSING:  # one micro-batch, and nothing tells of its end but the next start
        copy_stream({"subscribe": "in", **group, **EARLIEST}, {"topic": "out"})
    ends = {("in", p): log.log_end_offset("in", p) for p in range(3)}
    log.refresh()
    assert log.committed_offsets("etl") == ends
    assert "etl" in [str(getattr(g, "group_id", g)) for g in log.groups()]


def test_new_partitions_and_topics_are_found_while_running(
    spark: SparkSession, log: SparkLog, root: str, tmp_path: Path, until: Until
) -> None:
    log.create_topic("in2", partitions=1)
    query = (
        spark.readStream.format("sparklog").option("subscribePattern", "in.*").options(**EARLIEST).load(root)
        .select("key", "value").writeStream.format("sparklog").option("topic", "out")
        .option("checkpointLocation", str(tmp_path / "c")).start(root)
    )  # fmt: skip
    try:
        until(lambda: "out" in log.refresh().topics and values(log) == list(range(300)), query)
        log.add_partitions("in", 4)
        log.append("in", rows(300, 5), partition=3)
        log.create_topic("in3", partitions=1)
        log.append("in3", rows(305, 5))
        until(lambda: values(log) == list(range(310)), query)
    finally:
        query.stop()


def test_a_latest_start_loses_nothing_when_the_first_micro_batch_dies(
    spark: SparkSession, log: SparkLog, root: str, tmp_path: Path, until: Until
) -> None:
    """The start of the first micro-batch must survive the query, although Spark does not log it."""
    seen: list[int] = []

    def stream(*, fail: bool) -> StreamingQuery:
        def handle(df: DataFrame, _: int) -> None:
            if fail:
                raise RuntimeError("dies in its first micro-batch")
            seen.extend(int(r.value) for r in df.select(F.col("value").cast("string")).collect())

        return (
            spark.readStream.format("sparklog").option("subscribe", "in").load(root)  # latest is the default
            .writeStream.foreachBatch(handle).option("checkpointLocation", str(tmp_path / "c")).start()
        )  # fmt: skip

    with pytest.raises(StreamingQueryException, match=r"dies in its first"):
        stream(fail=True).awaitTermination(60)
    log.append("in", rows(300, 10))
    query = stream(fail=False)
    try:
        until(lambda: sorted(seen) == list(range(300, 310)), query)
    finally:
        query.stop()


def test_a_topic_made_anew_is_not_taken_for_the_old_one(log: SparkLog, copy_stream: CopyStream) -> None:
    copy_stream({"subscribe": "in", **EARLIEST}, {"topic": "out"})
    log.delete_topic("in")
    log.create_topic("in", partitions=3)
    log.append("in", rows(1000, 900))
    with pytest.raises(StreamingQueryException, match=r"SPARKLOG_DATA_LOSS.*deleted and created again"):
        copy_stream({"subscribe": "in", **EARLIEST}, {"topic": "out"})
    copy_stream({"subscribe": "in", "failOnDataLoss": "false", **EARLIEST}, {"topic": "out"})
    assert values(log) == [*range(300), *range(1000, 1900)]


def test_retention_passing_the_position_is_data_loss(log: SparkLog, copy_stream: CopyStream) -> None:
    from sparklog.metadata.model.extents import AdvanceLogStart

    copy_stream({"subscribe": "in", **EARLIEST}, {"topic": "out"})
    log.append("in", rows(300, 30), partition=0)
    end = log.log_end_offset("in", 0)
    topic_id = log.image.topics["in"].topic_id
    advance = AdvanceLogStart(topic_id=topic_id, partition=0, log_start_offset=end - 5)
    log.metadata.publish(lambda _: [advance])
    with pytest.raises(StreamingQueryException, match=r"SPARKLOG_DATA_LOSS.*in-0.*gone"):
        copy_stream({"subscribe": "in", **EARLIEST}, {"topic": "out"})
    copy_stream({"subscribe": "in", "failOnDataLoss": "false", **EARLIEST}, {"topic": "out"})
    assert values(log) == [*range(300), *range(325, 330)]


def test_a_missing_topic_ends_the_query_at_once(log: SparkLog, copy_stream: CopyStream) -> None:
    with pytest.raises(StreamingQueryException, match=r"nosuch.*topics: in"):
        copy_stream({"subscribe": "nosuch"}, {"topic": "out"})


def test_complete_mode_appends_each_result(
    log: SparkLog, spark: SparkSession, root: str, tmp_path: Path
) -> None:
    counts = (
        spark.readStream.format("sparklog").option("subscribe", "in").options(**EARLIEST).load(root)
        .groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")
    )  # fmt: skip
    query = (
        counts.writeStream.format("sparklog").option("topic", "counts").outputMode("complete")
        .option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start(root)
    )  # fmt: skip
    query.awaitTermination(120)
    assert sum(values(log, "counts")) == 300
    assert len(values(log, "counts")) == 7
