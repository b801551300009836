"""Spark writes an isolated topic beside others: its rows are in its directory, whichever task wrote them."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sparklog
from sparklog.client import SparkLog

pytestmark = pytest.mark.spark


def segments(log: SparkLog, topic: str) -> set[str]:
    return {extent.segment for state in log.refresh().topic(topic).partitions for extent in state.extents}


def test_a_batch_and_a_stream_to_two_topics_of_which_one_is_isolated(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    with sparklog.open(root, create=True) as log:
        log.create_topic("secret", 2, {"sparklog.segment.isolation": "true"})
        log.create_topic("open", 2)
        log.create_topic("in", 2)
        topic = F.when(F.col("id") % 2 == 0, "secret").otherwise("open")
        rows = spark.range(0, 1000, 1, 4).select(
            topic.alias("topic"), F.col("id").cast("string").alias("value")
        )
        rows.write.format("sparklog").mode("append").save(root)
        rows.withColumn("topic", F.lit("in")).write.format("sparklog").mode("append").save(root)
        options = {"subscribe": "in", "startingOffsets": "earliest"}
        stream = spark.readStream.format("sparklog").options(**options).load(root)
        number = F.col("value").cast("string").cast("long")
        routed = stream.select(
            F.when(number % 2 == 0, "secret").otherwise("open").alias("topic"), F.col("value")
        )
        query = routed.writeStream.format("sparklog").option("checkpointLocation", str(tmp_path / "c"))
        query.trigger(availableNow=True).start(root).awaitTermination(120)
        assert {name.startswith("isolated/secret/") for name in segments(log, "secret")} == {True}
        assert {name.startswith("segments/") for name in segments(log, "open")} == {True}
        for name, rest in (("secret", 0), ("open", 1)):
            found = [log.read(name, partition, 0)["value"].to_pylist() for partition in range(2)]
            assert sorted(int(value) for part in found for value in part) == sorted(
                2 * [*range(rest, 1000, 2)]
            )
