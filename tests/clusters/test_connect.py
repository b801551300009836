"""Spark Connect: the server is started by its script, and both sides are set up as docs/deploy.md says."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.spark.spark_processes import environment, example, process, spark_home

MIGRATION = Path(__file__).resolve().parents[2] / "docs" / "migrate-from-kafka.md"
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


# The foreachBatch of docs/migrate-from-kafka.md; the second run as after a crash before Spark's own note.
SORTING = """
page, root, checkpoint = sys.argv[1:]
sparklog.register(spark)
orders = spark.createDataFrame([("alice", "book"), ("bob", "lamp"), ("alice", "pen")], ["key", "value"])
orders.write.format("sparklog").mode("append").option("topic", "orders").save(root)
for _ in range(2):
    exec(page)
    for name in ("0", ".0.crc"):
        (pathlib.Path(checkpoint) / "commits" / name).unlink(missing_ok=True)
for topic in ("books", "others"):
    found = spark.read.format("sparklog").option("subscribe", topic).load(root)
    print(*(row.value for row in found.selectExpr("CAST(value AS STRING) value").collect()))
spark.stop()
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """run(job, *arguments): what a client of a Connect server prints."""
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
        client = f"import os, pathlib, sys\nimport sparklog\nfrom pyspark.sql import SparkSession\n{client}"

        def run_client(job: str, *arguments: str) -> str:
            result = subprocess.run(
                [sys.executable, "-c", client + job, *arguments],
                env={name: value for name, value in os.environ.items() if "SPARK" not in name},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
                timeout=200,
            )
            assert result.returncode == 0, result.stderr[-3000:]
            return result.stdout.strip()

        yield run_client


@pytest.mark.spark
@pytest.mark.usefixtures("directory")
def test_a_connect_server(root: str, tmp_path: Path, run: Callable[..., str]) -> None:
    assert run(JOB, root, str(tmp_path / "checkpoint")) == "rows pyspark.sql.connect.session 100 100"

    (page,) = re.findall(r"```python\n(.*?)```", MIGRATION.read_text(), re.DOTALL)
    sorting, checkpoint = f"{root}-sorting", str(tmp_path / "sorting-checkpoint")
    page = page.replace("/tmp/sorting-checkpoint", checkpoint).replace("/tmp/shop-log", sorting)
    assert run(SORTING, page, sorting, checkpoint) == "book\nlamp pen"
