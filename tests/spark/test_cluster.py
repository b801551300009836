"""Executors in processes of their own: a batch write, a batch read, and a streaming copy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.spark_processes import spark_home

JOB = """
import sys
from pyspark.sql import SparkSession
import sparklog
builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
builder = builder.config("spark.executor.memory", "512m")
builder = builder.config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
spark = sparklog.spark.configure(builder).getOrCreate()
sparklog.register(spark)
root = sys.argv[1]
rows = spark.range(1000).selectExpr("CAST(id AS STRING) key", "CAST(id AS STRING) value").repartition(4)
sink = {"topic": "t", "num.partitions": "4"}
rows.write.format("sparklog").mode("append").options(**sink).save(root)
source = spark.readStream.format("sparklog").options(subscribe="t", startingOffsets="earliest").load(root)
copy = source.select("key", "value").writeStream.format("sparklog").option("topic", "u")
query = copy.option("checkpointLocation", sys.argv[2]).trigger(availableNow=True).start(root)
query.awaitTermination()
read = spark.read.format("sparklog").option("subscribe", "u").load(root)
print("rows", read.selectExpr("CAST(value AS STRING)").distinct().count(), read.count())
wide = spark.read.format("sparklog").option("subscribe", "t").load(root)
print("tasks", wide.rdd.getNumPartitions(), "rows", wide.count())
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.usefixtures("directory")
def test_two_executors(root: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", JOB, root, str(tmp_path / "checkpoint")]
    environment = os.environ | {"SPARK_HOME": str(spark_home(tmp_path / "spark"))}
    result = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300, env=environment
    )
    assert result.stdout.splitlines() == ["rows 1000 1000", "tasks 2 rows 1000"], result.stderr[-3000:]
    assert list(tmp_path.glob("spark/work/app-*/[01]")), "two executors had directories there"
