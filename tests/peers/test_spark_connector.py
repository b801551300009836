"""Spark's own Kafka connector, reading and writing through our broker."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from benchmarks.peers.fetching import Jars
from sparklog.client import SparkLog
from sparklog.spark.interpreter import worker_python
from tests.compat.embedded import stored_records
from tests.support.broker_process import BrokerProcess

JOB = """
    import sys
    from pyspark.sql import SparkSession
    servers, jars, checkpoint = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.jars", jars).config("spark.sql.shuffle.partitions", "2").getOrCreate()
    kafka = {"kafka.bootstrap.servers": servers}
    columns = ["cast(id as string) key", "cast(id as string) value",
               "array(struct('h' as key, cast(cast(id as string) as binary) as value)) headers"]
    rows = spark.range(2000, numPartitions=2).selectExpr(*columns)
    write = rows.write.format("kafka").options(**kafka).option("includeHeaders", "true")
    write.option("topic", "in").option("kafka.compression.type", "lz4").save()
    source = spark.readStream.format("kafka").options(**kafka).option("subscribe", "in")
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "700")
    source = source.option("includeHeaders", "true").load().select("key", "value", "headers")
    sink = source.writeStream.format("kafka").options(**kafka).option("topic", "out")
    sink = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    sink.start().awaitTermination()
    read = spark.read.format("kafka").options(**kafka).option("subscribePattern", "out|nothing")
    read = read.option("includeHeaders", "true").option("minPartitions", "4").load()
    found = read.selectExpr("count(*)", "count(distinct value)", "sum(offset)", "max(size(headers))").first()
    print("FOUND", *found)
    cut = spark.read.format("kafka").options(**kafka).option("subscribe", "out")
    cut = cut.option("startingTimestamp", "1")
    print("CUT", cut.option("endingOffsets", '{"out": {"0": 5, "1": 5, "2": 5}}').load().count())
    spark.stop()
"""


def test_spark_writes_copies_and_reads(
    connector_jars: Jars, server: BrokerProcess, log: SparkLog, tmp_path: Path
) -> None:
    log.create_topic("in", 3)
    log.create_topic("out", 3)
    job = tmp_path / "job.py"
    job.write_text(textwrap.dedent(JOB))
    jars = ",".join(map(str, connector_jars.files))
    done = subprocess.run(
        [sys.executable, str(job), server.bootstrap, jars, str(tmp_path / "checkpoint")],
        env={**os.environ, "PYSPARK_PYTHON": worker_python(), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    stored = [one for partition in range(3) for one in stored_records(log, "out", partition)]
    assert sorted(int(one.value or b"") for one in stored) == list(range(2000))
    assert all(one.key == one.value and len(one.headers) == 1 for one in stored)
    offsets = sum(one.offset for one in stored)
    assert f"FOUND 2000 2000 {offsets} 1" in done.stdout
    assert "CUT 15" in done.stdout
