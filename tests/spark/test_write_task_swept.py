"""Writes whose segments are swept: workers begin another; the driver says what to do, for it cannot."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import RetriableError
from sparklog.spark.options import parse_sink_options
from sparklog.spark.write_task import TaskResult, publish
from tests.spark.conftest import Write
from tests.support.removing import expire_below, move_horizon, remove_dead


def sweep(log: SparkLog) -> list[str]:
    """Everything expires and goes."""
    log.refresh(force=True)
    for partition in range(log.partition_count("t")):
        expire_below(log, log.log_end_offset("t", partition), partition=partition)
    move_horizon(log)
    return remove_dead(log)


def test_what_the_tasks_wrote_is_too_old(root: str) -> None:
    with sparklog.open(root) as worker, sparklog.open(root) as log:
        worker.create_topic("t", 1)
        with worker.appender() as appender:
            appender.add(pa.table({"value": [b"a"]}), "t")
            result = TaskResult(
                cluster_id=log.cluster_id, staged=appender.finish(), query_id=None, batch_id=None
            )
        sweep(log)
        options = parse_sink_options({"path": root, "topic": "t"}, streaming=False)
        with pytest.raises(RetriableError, match=r"none of them are visible.*run the write again") as raised:
            publish(log, options, [result], txn=("app", 1))
        assert raised.value.code == "STAGING_EXPIRED"
        assert log.append("t", pa.table({"value": [b"a"]}), txn=("app", 1)).commit is not None


@pytest.mark.spark
@pytest.mark.usefixtures("directory")
def test_a_worker_whose_segment_was_swept_begins_another(
    spark: SparkSession, root: str, write: Write, directory: Path
) -> None:
    """Spark's workers live on, and append to the segment that they have."""
    rows = spark.range(100, numPartitions=1).selectExpr("CAST(id AS STRING) value")
    with sparklog.open(root) as log:
        log.create_topic("t", 1)
        for turn in range(3):
            write(rows, topic="t")
            log.refresh()
            found = log.read("t", 0, 100 * turn)["value"].to_pylist()
            assert sorted(found) == sorted(b"%d" % number for number in range(100))
            assert sweep(log)
