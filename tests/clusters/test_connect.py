"""Spark Connect: the server is started by its script, and both sides are set up as docs/deploy.md says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.spark_processes import environment, example, process, spark_home

JOB = """
root, checkpoint = sys.argv[1:]
sparklog.register(spark)
rows = spark.range(100).selectExpr("CAST(id AS STRING) key", "CAST(id AS STRING) value")
rows.write.format("sparklog").mode("append").option("topic", "t").save(root)
source = spark.readStream.format("sparklog").options(subscribe="t", startingOffsets="earliest").load(root)
copy = source.select("key", "value").writeStream.format("sparklog").option("topic", "u")
query = copy.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(root)
query.awaitTermination()
found = spark.read.format("sparklog").option("subscribe", "u").load(root).selectExpr("CAST(value AS STRING)")
print("rows", type(spark).__module__, found.distinct().count(), found.count())
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.usefixtures("directory")
def test_a_connect_server(root: str, tmp_path: Path) -> None:
    home = spark_home(tmp_path / "spark")
    conf = tmp_path / "conf"
    conf.mkdir()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    told = dict(line.split("=", 1) for line in example("Spark Connect", "properties").split())
    assert not told.keys() & settings.keys()
    lines = [f"{name} {value}" for name, value in (settings | told).items()]
    (conf / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    env = environment(
        home,
        SPARK_CONF_DIR=str(conf),
        SPARK_DAEMON_MEMORY="700m",
        SPARK_LOG_DIR=str(tmp_path / "logs"),
        SPARK_NO_DAEMONIZE="1",
        SPARK_PID_DIR=str(tmp_path / "pids"),
    )
    server = example("Spark Connect", "bash")
    with process(server, env, tmp_path, r"Spark Connect server started at: \S*?:(\d+)") as port:
        client = example("Spark Connect", "python").replace("host:15002", f"127.0.0.1:{port[1]}")
        client = f"import os, sys\nimport sparklog\nfrom pyspark.sql import SparkSession\n{client}{JOB}"
        result = subprocess.run(
            [sys.executable, "-c", client, root, str(tmp_path / "checkpoint")],
            env={name: value for name, value in os.environ.items() if "SPARK" not in name},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
    assert result.stdout.strip() == "rows pyspark.sql.connect.session 100 100", result.stderr[-3000:]
