"""What a query's checkpoint is worth: repeated, lost, deleted, of another root."""

import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import sparklog
from sparklog.client import SparkLog
from tests.spark.conftest import RUNS_AFTER_A_CRASH, CopyStream
from tests.spark.test_stream_reader_queries import EARLIEST, forget, notes, rows, values

pytestmark = pytest.mark.spark


@pytest.fixture
def log(root: str) -> SparkLog:
    opened = sparklog.open(root, create=True)
    opened.create_topic("in", partitions=3)
    opened.append("in", rows(0, 300))
    return opened


def test_a_micro_batch_that_spark_runs_again_is_written_once(
    log: SparkLog, copy_stream: CopyStream, tmp_path: Path
) -> None:
    """Killed between the sink's commit and Spark's own note of it: the same batch comes again."""
    options = {"subscribe": "in", "maxOffsetsPerTrigger": "100", **EARLIEST}
    copy_stream(options, {"topic": "out"})
    forget(notes(tmp_path, "commits")[-1])
    copy_stream(options, {"topic": "out"})
    assert values(log) == list(range(300))


def test_a_checkpoint_that_has_lost_its_last_micro_batch_is_refused(
    log: SparkLog, copy_stream: CopyStream, tmp_path: Path
) -> None:
    """Put back from a copy, or half of it lost with the power: the one below the last comes again.

    What it holds may be other than then, and nothing tells. So it is neither written nor left out.
    """
    options = {"subscribe": "in", **EARLIEST}
    for start in (300, 350, 400):
        copy_stream(options, {"topic": "out"})
        log.append("in", rows(start, 50))
    for done in notes(tmp_path, "commits")[-2:]:
        forget(done)
    forget(notes(tmp_path, "offsets")[-1])
    with pytest.raises(StreamingQueryException, match="SPARKLOG_CHECKPOINT_OUTDATED"):
        copy_stream(options, {"topic": "out"})
    assert values(log) == list(range(400))


def test_a_first_micro_batch_that_failed_is_repeated_after_a_partition_was_added(
    log: SparkLog, spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """As SPARK-53560: startingOffsets names the partitions of then, and the query must not need it again."""
    offsets = '{"in": {"0": 0, "1": 0, "2": 0}}'
    df = spark.readStream.format("sparklog").options(subscribe="in", startingOffsets=offsets).load(root)
    seen: list[int] = []

    def run(*, fail: bool) -> None:
        def collect(batch: DataFrame, _: int) -> None:
            if fail:
                raise RuntimeError("the first micro-batch fails")
            seen.extend(int(row.value) for row in batch.select("value").collect())

        writer = df.writeStream.foreachBatch(collect).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(100)

    with pytest.raises(StreamingQueryException, match="the first micro-batch fails"):
        run(fail=True)
    log.add_partitions("in", 4)
    log.append("in", rows(300, 10), partition=3)
    for _ in range(RUNS_AFTER_A_CRASH):
        run(fail=False)
    assert sorted(seen) == list(range(310))


def test_a_checkpoint_of_another_root_is_refused(
    log: SparkLog, copy_stream: CopyStream, spark: SparkSession, tmp_path: Path, root: str
) -> None:
    copy_stream({"subscribe": "in", **EARLIEST}, {"topic": "out"})
    other = str(tmp_path / "other")
    second = sparklog.open(other, create=True)
    second.create_topic("in", partitions=3)
    second.append("in", rows(0, 1000))
    query = (
        spark.readStream.format("sparklog").option("subscribe", "in").load(other)
        .select("value").writeStream.format("sparklog").option("topic", "out")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start(root)
    )  # fmt: skip
    with pytest.raises(StreamingQueryException, match=r"SPARKLOG_WRONG_ROOT.*checkpoint belongs to"):
        query.awaitTermination(60)


def test_a_stream_without_a_checkpoint_is_refused_by_spark(
    spark: SparkSession, log: SparkLog, root: str
) -> None:
    df = spark.readStream.format("sparklog").option("subscribe", "in").load(root)
    with pytest.raises(PySparkException, match=r"checkpointLocation"):
        df.writeStream.format("sparklog").option("topic", "out").start(root)


def test_a_checkpoint_that_was_deleted_means_a_new_query(
    log: SparkLog, copy_stream: CopyStream, tmp_path: Path
) -> None:
    """Spark gives a new checkpoint a new query id, so what was written before is not recognised."""
    copy_stream({"subscribe": "in", **EARLIEST}, {"topic": "out"})
    shutil.rmtree(tmp_path / "checkpoint")
    copy_stream({"subscribe": "in", **EARLIEST}, {"topic": "out"})
    assert values(log) == sorted([*range(300), *range(300)])
