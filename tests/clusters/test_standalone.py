"""A standalone cluster of Spark's own processes; a job goes there by the command of docs/deploy.md."""

import contextlib
import subprocess
from pathlib import Path

import pytest

from tests.spark.spark_processes import environment, example, process, spark_home

JOB = """
import os, sys
from pyspark.sql import SparkSession
import sparklog
builder = SparkSession.builder.config("spark.executor.memory", "512m").config("spark.ui.enabled", "false")
spark = sparklog.spark.configure(builder).getOrCreate()
sparklog.register(spark)
root, checkpoint = os.environ["ROOT"], os.environ["CHECKPOINT"]
rows = spark.range(1000).selectExpr("CAST(id AS STRING) key", "CAST(id AS STRING) value").repartition(4)
rows.write.format("sparklog").mode("append").options(topic="t", **{"num.partitions": "4"}).save(root)
source = spark.readStream.format("sparklog").options(subscribe="t", startingOffsets="earliest").load(root)
copy = source.select("key", "value").writeStream.format("sparklog").option("topic", "u")
query = copy.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(root)
query.awaitTermination()
read = spark.read.format("sparklog").option("subscribe", "u").load(root)
print("rows", read.selectExpr("CAST(value AS STRING)").distinct().count(), read.count())
print("executors", spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.usefixtures("directory")
def test_a_master_and_two_workers(root: str, tmp_path: Path) -> None:
    home = spark_home(tmp_path / "spark")
    env = environment(home)
    daemon = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy"]
    local = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    (tmp_path / "job.py").write_text(JOB)
    with contextlib.ExitStack() as running:
        start = [daemon[0], f"{daemon[1]}.master.Master", *local]
        master = running.enter_context(
            process(start, env, tmp_path, r"Starting Spark master at (spark://\S+)")
        )
        for number in range(2):
            words = [daemon[0], f"{daemon[1]}.worker.Worker", *local, "--cores", "1", "--memory", "600m"]
            words += ["--work-dir", str(tmp_path / f"worker-{number}"), master[1]]
            running.enter_context(process(words, env, tmp_path, "Successfully registered with master"))
        result = subprocess.run(
            example("spark-submit", "bash"),
            shell=True,
            env={**env, "MASTER": master[1], "ROOT": root, "CHECKPOINT": str(tmp_path / "checkpoint")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
    assert result.stdout.split("\n")[:2] == ["rows 1000 1000", "executors 2"], result.stderr[-3000:]
    assert all(list(tmp_path.glob(f"worker-{number}/app-*")) for number in range(2)), "each worker had one"
