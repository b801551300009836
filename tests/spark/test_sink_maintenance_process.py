"""What a sink has started does not outlive its driver, however that ends."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import sparklog
from tests.support.broker_process import until

DUE = 256  # small extents
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
DRIVER = """
import sys
from pyspark.sql import SparkSession
import sparklog.spark
root, checkpoint, reuse = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.python.worker.reuse", reuse)
spark = sparklog.spark.configure(builder).getOrCreate()
sparklog.register(spark)
rate = spark.readStream.format("rate").option("rowsPerSecond", "5").load()
rows = rate.selectExpr("string(value) as value")
query = rows.writeStream.format("sparklog").option("topic", "t").option("checkpointLocation", checkpoint)
query.start(root).awaitTermination()
"""


def rounds(gate: Path) -> list[psutil.Process]:
    """Of all processes, since who has begun one may have ended, those that maintain this test's root."""
    found = []
    for process in psutil.process_iter():
        try:
            is_round = any("round_process import main" in word for word in process.cmdline())
            if is_round and str(gate) in process.environ().get("SPARKLOG_FAIL", ""):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def end(descendants: list[psutil.Process], driver: "subprocess.Popen[bytes]") -> None:
    """At once: a JVM whose driver is gone takes its time."""
    driver.kill()
    for process in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(descendants, timeout=60)


def fill(root: str) -> None:
    with sparklog.open(root) as log:
        log.create_topic("t", 1)
        for number in range(DUE):
            log.append("t", pa.table({"value": [str(number)]}), partition=0)


def test_a_round_outlives_the_worker_that_has_begun_it(root: str, tmp_path: Path) -> None:
    """Each micro-batch has a worker of its own, which ends with it."""
    fill(root)
    words = [sys.executable, "-c", DRIVER, root, str(tmp_path / "checkpoint"), "false"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with (
        sparklog.open(root) as log,
        subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL) as driver,
    ):
        try:
            until(lambda: len(log.refresh().partition("t", 0).extents) < DUE // 2, 400)
        finally:
            end(psutil.Process(driver.pid).children(recursive=True), driver)


@pytest.mark.parametrize("reuse", [pytest.param("true", marks=pytest.mark.exhaustive), "false"])
def test_kill_9_of_the_driver_leaves_no_round_behind(root: str, tmp_path: Path, reuse: str) -> None:
    fill(root)
    gate = tmp_path / "gate"  # which nobody opens: the round stands before its first publication
    env = {**os.environ, "SPARKLOG_FAIL": f"merge.publishing:1:pause={gate}", "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-c", DRIVER, root, str(tmp_path / "checkpoint"), reuse]
    with subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL) as driver:
        descendants: list[psutil.Process] = []
        try:
            told = psutil.Process(driver.pid)
            (round_,) = until(lambda: rounds(gate), 400, every_seconds=0.2)
            until(Path(f"{gate}.reached").exists, 60)
            descendants = told.children(recursive=True)
            driver.kill()
            _, alive = psutil.wait_procs([round_], timeout=60)
            assert not alive
        finally:
            end(descendants, driver)
    assert len(sparklog.open(root).image.partition("t", 0).extents) >= DUE  # nothing was published
