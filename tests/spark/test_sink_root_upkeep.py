"""Who keeps the metadata of a root that only Spark writes to: the sinks, beside their commits."""

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import SystemClock
from sparklog.metadata import MetadataLog, SetConfigs
from sparklog.metadata.upkeep import Work
from sparklog.spark.features import ADMISSION_CONTROL
from sparklog.storage import open_store
from tests.spark.conftest import MISSING, CopyStream
from tests.support.broker_process import until as until_true

DUE = 256  # small commits between snapshots
COMMITS = 1 if ADMISSION_CONTROL in MISSING else 3  # of a stream: without, it takes all records at once


class Dropped:
    """Of processes that are gone."""

    def run(self, work: Work) -> None:
        pass

    def finish(self) -> None:
        pass

    def start_anew(self) -> None:
        pass


def commits_before(root: str, commits: int) -> None:
    """A root with so many commits, and no snapshot."""
    store, clock = open_store(root, create=True), SystemClock()
    log = SparkLog(store, MetadataLog.open(store, clock, create=True, upkeep=Dropped()), clock)
    log.create_topic("s", 1)
    log.create_topic("t", 1)
    for number in range(3):
        log.append("s", pa.table({"value": [str(number)]}))
    while log.image.commit < commits - 1:
        log.metadata.publish(lambda image: [SetConfigs(configs={"x": str(image.commit)})])


def snapshots(root: str) -> list[str]:
    return [path.parent.name for path in Path(root).glob("__cluster_metadata/*.snapshot/manifest.json")]


def test_a_stream_writes_the_snapshot_that_is_due(root: str, copy_stream: CopyStream) -> None:
    start = DUE - min(COMMITS, 2)  # commit DUE - 1, which follows, has it due
    commits_before(root, start)
    copy_stream(
        {"subscribe": "s", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1"}, {"topic": "t"}
    )
    assert sparklog.open(root).image.commit == start - 1 + COMMITS
    until_true(lambda: snapshots(root) == [f"{DUE - 1:020d}.snapshot"])


def test_a_job_of_one_commit_writes_it(root: str, spark: SparkSession) -> None:
    commits_before(root, DUE - 1)
    rows = spark.range(2).selectExpr("cast(id as string) as value")
    rows.write.format("sparklog").option("topic", "t").mode("append").save(root)
    until_true(lambda: snapshots(root) == [f"{DUE - 1:020d}.snapshot"])
