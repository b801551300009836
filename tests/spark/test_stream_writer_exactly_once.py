"""Exactly once per topic: Delta's idiom in foreachBatch and copied checkpoints write all that they should."""

import functools
import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

import sparklog
from sparklog.client import SparkLog
from tests.spark.conftest import RUNS_AFTER_A_CRASH
from tests.spark.test_stream_reader_queries import rows, values

pytestmark = pytest.mark.spark

FORMAT_VERSION = "spark.sql.streaming.offsetLog.formatVersion"
NAMED_SOURCES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


@pytest.fixture
def log(root: str) -> SparkLog:
    opened = sparklog.open(root, create=True)
    opened.create_topic("in", partitions=3)
    opened.append("in", rows(0, 300))
    return opened


def read_stream(spark: SparkSession, root: str) -> DataFrame:
    options = {"subscribe": "in", "startingOffsets": "earliest"}
    rows = spark.readStream.format("sparklog").options(**options).load(root)
    return rows.select("key", "value")


def copy(spark: SparkSession, root: str, checkpoint: Path, topic: str, **options: str) -> None:
    """Run a query to the topic until it has caught up."""
    writer = read_stream(spark, root).writeStream.format("sparklog").options(topic=topic, **options)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start(root).awaitTermination(120)


def test_two_writes_of_a_micro_batch_share_application_and_version(
    spark: SparkSession, log: SparkLog, root: str, tmp_path: Path
) -> None:
    def save(df: DataFrame, batch: int) -> None:
        once = {"txnAppId": "job", "txnVersion": str(batch)}
        for topic in ("all", "odd"):
            part = df if topic == "all" else df.where("CAST(CAST(value AS STRING) AS INT) % 2 = 1")
            for _ in range(2):  # the second as after a crash in between
                part.write.format("sparklog").mode("append").options(topic=topic, **once).save(root)

    writer = read_stream(spark, root).writeStream.foreachBatch(save)
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    writer.start().awaitTermination(120)
    assert values(log, "all") == list(range(300))
    assert values(log, "odd") == list(range(1, 300, 2))


def test_a_copied_checkpoint_writes_to_another_topic(
    spark: SparkSession, log: SparkLog, root: str, tmp_path: Path
) -> None:
    blue, green = tmp_path / "blue", tmp_path / "green"
    copy(spark, root, blue, "blue")
    shutil.copytree(blue, green)
    log.append("in", rows(300, 50))
    copy(spark, root, blue, "blue")
    copy(spark, root, green, "green")
    assert values(log, "blue") == list(range(350))
    assert values(log, "green") == list(range(300, 350))


# --- restored checkpoints ----------------------------------------------------------------------------


def put_back(older: Path, checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    shutil.copytree(older, checkpoint)


def test_a_restored_checkpoint_loses_nothing_silently(
    spark: SparkSession, log: SparkLog, root: str, tmp_path: Path
) -> None:
    checkpoint, older = tmp_path / "checkpoint", tmp_path / "older"
    copy(spark, root, checkpoint, "out")
    shutil.copytree(checkpoint, older)
    log.append("in", rows(300, 50))
    copy(spark, root, checkpoint, "out")
    put_back(older, checkpoint)
    log.append("in", rows(350, 50))
    with pytest.raises(StreamingQueryException, match="SPARKLOG_TXN_CONTENT_DIFFERS"):
        copy(spark, root, checkpoint, "out")
    assert values(log, "out") == list(range(350))


@pytest.mark.skipif(not hasattr(DataStreamReader, "name"), reason="this Spark has no names of sources")
def test_sources_with_names_may_be_added_to_a_checkpoint(
    spark: SparkSession, log: SparkLog, root: str, tmp_path: Path
) -> None:
    """As docs/options.md says: another source, and another topic, without a new checkpoint."""
    checkpoint, older = tmp_path / "checkpoint", tmp_path / "older"
    log.create_topic("more", partitions=1)
    log.append("more", rows(1000, 10))

    def run(**subscribed: str) -> None:
        """One source for each name, that reads these topics."""
        sources = [
            spark.readStream.format("sparklog")
            .name(name)
            .options(subscribe=topics, startingOffsets="earliest")
            .load(root)
            .select("key", "value")
            for name, topics in subscribed.items()
        ]
        writer = functools.reduce(DataFrame.union, sources).writeStream.format("sparklog")
        writer = writer.option("topic", "out").option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start(root).awaitTermination(120)

    spark.conf.set(NAMED_SOURCES, "true")
    spark.conf.set(FORMAT_VERSION, "2")  # Spark 4.2 needs it
    try:
        run(first="in")
        run(second="more", first="in")
        assert values(log, "out") == [*range(300), *range(1000, 1010)]
        shutil.copytree(checkpoint, older)
        log.create_topic("late", partitions=1)
        log.append("late", rows(2000, 10))
        run(first="in,late", second="more")
        assert values(log, "out") == [*range(300), *range(1000, 1010), *range(2000, 2010)]
        put_back(older, checkpoint)
        log.append("late", rows(2010, 10))
        with pytest.raises(StreamingQueryException, match="SPARKLOG_TXN_CONTENT_DIFFERS"):
            run(first="in,late", second="more")
    finally:
        spark.conf.unset(NAMED_SOURCES)
        spark.conf.unset(FORMAT_VERSION)
    assert values(log, "out") == [*range(300), *range(1000, 1010), *range(2000, 2010)]


def test_a_crash_before_sparks_own_note_is_no_mismatch(
    spark: SparkSession, log: SparkLog, root: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    for number in range(3):
        for _ in range(RUNS_AFTER_A_CRASH):
            copy(spark, root, checkpoint, "out")
        newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        assert newest.name == str(number)
        newest.unlink()
        log.append("in", rows(300 + 50 * number, 50))
    for _ in range(RUNS_AFTER_A_CRASH):
        copy(spark, root, checkpoint, "out")
    assert values(log, "out") == list(range(450))
    contents = {state.content for state in log.image.topic("out").writer_txns.values()}
    assert len(contents) == 1
    assert "" not in contents


def test_a_named_query_below_the_sessions_checkpoints(
    spark: SparkSession, log: SparkLog, root: str, tmp_path: Path
) -> None:
    def run() -> None:
        writer = read_stream(spark, root).writeStream.format("sparklog").option("topic", "out")
        writer = writer.queryName("a name").trigger(availableNow=True)
        writer.start(root).awaitTermination(120)

    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "all"))
    try:
        run()
        log.append("in", rows(300, 50))
        older = tmp_path / "older"
        shutil.copytree(tmp_path / "all" / "a name", older)
        run()
        put_back(older, tmp_path / "all" / "a name")
        log.append("in", rows(350, 50))
        with pytest.raises(StreamingQueryException, match="SPARKLOG_TXN_CONTENT_DIFFERS"):
            run()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert values(log, "out") == list(range(350))


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_restored_checkpoint_of_a_source_of_files(
    spark: SparkSession, log: SparkLog, root: str, tmp_path: Path, version: str
) -> None:
    """Spark's offsets say only which entries of the source's own log a micro-batch has."""
    files, checkpoint, older = tmp_path / "files", tmp_path / "checkpoint", tmp_path / "older"
    files.mkdir()

    def run() -> None:
        writer = spark.readStream.text(str(files)).writeStream.format("sparklog").option("topic", "out")
        writer = writer.option("checkpointLocation", checkpoint.as_uri()).trigger(availableNow=True)
        writer.start(root).awaitTermination(120)

    spark.conf.set(FORMAT_VERSION, version)
    try:
        for number in range(2):
            (files / f"{number}.txt").write_text(f"{number}\n")
            run()
            if number == 0:
                shutil.copytree(checkpoint, older)
        (checkpoint / "commits" / "1").unlink()
        run()  # repeated
        put_back(older, checkpoint)
        (files / "2.txt").write_text("2\n")
        with pytest.raises(StreamingQueryException, match="SPARKLOG_TXN_CONTENT_DIFFERS"):
            run()
    finally:
        spark.conf.unset(FORMAT_VERSION)
    assert values(log, "out") == [0, 1]
