"""Exactly once per topic: Delta's idiom in foreachBatch and copied checkpoints write all that they should."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import sparklog
from sparklog.client import SparkLog
from tests.spark.test_stream import rows, values

pytestmark = pytest.mark.spark


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
