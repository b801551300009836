"""A task's memory does not grow with the partition it reads or writes."""

from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

import sparklog
from tests.spark.conftest import Read, Write

pytestmark = pytest.mark.spark

LIMIT_MB = 300
LIMIT_S3_MB = 400  # botocore, and what is fetched ahead or on its way


def worker_peaks_mb() -> list[float]:
    """Peak resident memory of Spark's living Python processes; workers outlive their tasks."""
    peaks = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "pyspark" in " ".join(process.cmdline()) and "java" not in process.name():
                status = Path(f"/proc/{process.pid}/status").read_text()
                peaks.append(int(status.split("VmHWM:")[1].split()[0]) / 1024)
        except (psutil.NoSuchProcess, FileNotFoundError):
            continue
    return sorted(peaks)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_one_task_reads_and_writes_much_more_than_it_may_hold(
    spark: SparkSession, root: str, write: Write, read: Read, codec: str
) -> None:
    rows, topic = 350_000, codec
    log = sparklog.open(root, create=True)
    log.create_topic(topic, partitions=1)
    df = spark.range(rows, numPartitions=1).selectExpr(
        "CAST(id AS STRING) key", "CAST(repeat(sha2(CAST(id AS STRING), 512), 8) AS BINARY) value"
    )
    write(df, topic=topic, **{"compression.type": codec})
    assert read(subscribe=topic).selectExpr("sum(length(value)) n").collect()[0].n == rows * 1024
    peaks = worker_peaks_mb()
    print(f"peak MB of the workers: {peaks}")
    limit_mb = LIMIT_S3_MB if root.startswith("s3:") else LIMIT_MB
    assert 100 < max(peaks) < limit_mb, "below 100 it would not be the workers that import Arrow"
