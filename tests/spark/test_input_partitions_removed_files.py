"""Tasks whose files are merged, or expire, and are removed after they were planned."""

import pickle  # noqa: TID251 - Spark carries plans this way
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import DataLossError
from sparklog.spark import roots
from sparklog.spark.batch_reader import SparklogBatchReader
from sparklog.spark.features import FILTER_PUSHDOWN
from sparklog.spark.options import parse_source_options
from tests.spark.conftest import Read, needs
from tests.support.removing import dead_segments, expire_below, merge, remove, remove_dead

pytestmark = pytest.mark.slow

APPENDS, RECORDS = 20, 30
END = APPENDS * RECORDS


@pytest.fixture
def log(root: str) -> Iterator[SparkLog]:
    """20 segments of 1 MiB with 30 records each: more than a task reads at once."""
    with sparklog.open(root, create=True) as log:
        log.create_topic("t", partitions=1)
        fill(log)
        yield log


def fill(log: SparkLog) -> None:
    for start in range(0, END, RECORDS):
        values = [value_of(offset) for offset in range(start, start + RECORDS)]
        times = pa.array(range(start, start + RECORDS), pa.int64())
        log.append("t", pa.table({"value": pa.array(values, pa.binary()), "timestamp": times}))
        log.close()  # the next append begins another segment


def value_of(offset: int) -> bytes:
    return (b"%d " % offset) * (35_000 // len(b"%d " % offset))


class Tasks:
    """A batch read's tasks as Spark has them: planned in one process, read in another."""

    def __init__(self, root: str, **options: str) -> None:
        parsed = parse_source_options({"path": root, "subscribe": "t", **options}, streaming=False)
        planner = SparklogBatchReader(parsed)
        tasks = [pickle.dumps(task) for task in planner.partitions()]
        reader: SparklogBatchReader = pickle.loads(pickle.dumps(planner))
        self._read = [reader.read(pickle.loads(task)) for task in tasks]

    def step(self) -> list[int]:
        """Offsets of the first task's next Arrow batch; the values are checked."""
        return checked(next(self._read[0]))

    def rest(self) -> list[int]:
        """Offsets of all that is left."""
        return [offset for task in self._read for rows in task for offset in checked(rows)]


def checked(rows: pa.RecordBatch) -> list[int]:
    offsets: list[int] = rows.column("offset").to_pylist()
    assert rows.column("value").to_pylist() == [value_of(offset) for offset in offsets]
    return offsets


def test_partitions_that_share_a_task_go_on_each_from_where_it_was(
    log: SparkLog, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.delete_topic("t")
    remove_dead(log)
    log.create_topic("t", partitions=3)
    for partition in range(3):
        for start in range(0, END, RECORDS):
            values = pa.array([value_of(offset) for offset in range(start, start + RECORDS)], pa.binary())
            log.append("t", pa.table({"value": values}), partition=partition)
            log.close()
    monkeypatch.setenv("SPARKLOG_TASK_SLOTS", "1")
    tasks = Tasks(root)
    found = tasks.step()
    merge(log)
    assert len(remove_dead(log)) == 3 * APPENDS
    assert found + tasks.rest() == [*range(END)] * 3


@pytest.fixture(autouse=True)
def _other_process() -> None:
    """What an executor reads was never opened there before."""
    roots.reset()


@pytest.mark.parametrize("shared_bytes", [0, 4 << 20])
@pytest.mark.parametrize("options", [{}, {"maxRecordsPerPartition": "70"}, {"minPartitions": "7"}])
def test_tasks_go_on_when_their_files_are_merged_and_removed(
    log: SparkLog, root: str, options: dict[str, str], shared_bytes: int
) -> None:
    tasks = Tasks(root, **options)
    found = tasks.step()
    merge(log, shared_bytes=shared_bytes)
    assert len(remove_dead(log)) == APPENDS
    assert found + tasks.rest() == [*range(END)]


def test_a_range_of_offsets_stays_one(log: SparkLog, root: str) -> None:
    tasks = Tasks(root, startingOffsets='{"t": {"0": 17}}', endingOffsets='{"t": {"0": 555}}')
    merge(log)
    remove_dead(log)
    assert tasks.rest() == [*range(17, 555)]


def test_the_metadata_are_opened_only_for_a_missing_file(
    log: SparkLog, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(root)
    monkeypatch.setattr("sparklog.spark.input_partitions.open_root", None)
    assert tasks.rest() == [*range(END)]


def test_a_lost_segment_is_data_loss_whatever_the_option(log: SparkLog, root: str) -> None:
    tasks = Tasks(root, failOnDataLoss="false")
    merge(log)
    remove(log, [*dead_segments(log), log.image.partition("t", 0).extents[0].segment])
    with pytest.raises(DataLossError, match="SEGMENT_MISSING"):
        tasks.rest()


def test_expired_offsets_are_data_loss(log: SparkLog, root: str) -> None:
    tasks = Tasks(root)
    expire_below(log, 500)
    remove_dead(log)
    with pytest.raises(DataLossError, match="t-0: offsets 0 to 500 expired while they were read"):
        tasks.rest()


def test_or_passed_over(log: SparkLog, root: str, caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks(root, failOnDataLoss="false")
    expire_below(log, 500)
    remove_dead(log)
    assert tasks.rest() == [*range(500, END)]
    assert "t-0: offsets 0 to 500 expired while they were read" in caplog.text


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_topic_is_data_loss_too(log: SparkLog, root: str, again: bool) -> None:
    failing, going_on = Tasks(root), Tasks(root, failOnDataLoss="false")
    log.delete_topic("t")
    remove_dead(log)
    if again:
        log.create_topic("t", 1)
        fill(log)
    with pytest.raises(DataLossError, match="t-0: found its files removed, and the topic deleted"):
        failing.rest()
    assert going_on.rest() == []


@needs(FILTER_PUSHDOWN)
def test_a_plan_with_filters_stays_within_them(log: SparkLog, root: str) -> None:
    """Pruned ranges are of old extents; merged ones are larger."""
    from pyspark.sql import datasource as pushdown

    from sparklog.spark.pushdown import SparklogPushdownReader

    parsed = parse_source_options({"path": root, "subscribe": "t", "filterPushdown": "true"}, streaming=False)
    reader = SparklogPushdownReader(parsed)
    filters = [
        pushdown.GreaterThanOrEqual(("offset",), 45),
        pushdown.LessThan(("offset",), 301),
    ]
    list(reader.pushFilters(filters))
    tasks = [pickle.loads(pickle.dumps(task)) for task in reader.partitions()]
    merge(log)
    remove_dead(log)
    found = [offset for task in tasks for rows in reader.read(task) for offset in checked(rows)]
    assert found == [*range(45, 301)]


def test_the_driver_plans_again(log: SparkLog, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its look at the newest commit and into the extents that it cuts."""
    parsed = parse_source_options({"path": root, "subscribe": "t", "minPartitions": "3"}, streaming=False)
    opened = roots.open_root(root, create=False)
    merge(log, shared_bytes=0)
    remove_dead(log)
    monkeypatch.setattr("sparklog.spark.batch_reader.open_root", lambda *_, **__: opened)
    reader = SparklogBatchReader(parsed)
    found = [offset for task in reader.partitions() for rows in reader.read(task) for offset in checked(rows)]
    assert found == [*range(END)]


# --- with Spark ------------------------------------------------------------------------------------


def gated(rows: DataFrame, gate: Path) -> DataFrame:
    """The offsets; each task waits with its first rows until the gate is open, and says that it waits."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 0:
                (gate / "waiting").touch()
                for _ in range(6000):
                    if (gate / "open").exists():
                        break
                    threading.Event().wait(0.01)
                else:
                    raise TimeoutError("the gate was never opened")
            yield batch.select(["offset"])

    return rows.mapInArrow(wait, "offset long")


def merge_behind(log: SparkLog, gate: Path) -> list[str]:
    """When the first tasks have begun, merge, remove, and let them go on."""
    for _ in range(9000):
        if (gate / "waiting").exists():
            break
        threading.Event().wait(0.01)
    merge(log)
    removed = remove_dead(log)
    (gate / "open").touch()
    return removed


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    made = tmp_path / "gate"
    made.mkdir()
    return made


@pytest.mark.spark
@pytest.mark.usefixtures("directory")
def test_a_job_whose_files_go(spark: SparkSession, log: SparkLog, read: Read, gate: Path) -> None:
    rows = gated(read(subscribe="t", maxRecordsPerPartition="200"), gate)
    with ThreadPoolExecutor(1) as pool:
        removing = pool.submit(merge_behind, log, gate)
        found = sorted(row.offset for row in rows.collect())
        assert len(removing.result()) == APPENDS
    assert found == [*range(END)]


@pytest.mark.spark
@pytest.mark.usefixtures("directory")
def test_a_stream_whose_files_go(
    spark: SparkSession, log: SparkLog, root: str, gate: Path, tmp_path: Path
) -> None:
    source = spark.readStream.format("sparklog").options(subscribe="t", startingOffsets="earliest").load(root)
    query = (
        gated(source, gate)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "found"))
    )
    try:
        assert len(merge_behind(log, gate)) == APPENDS
        query.awaitTermination(120)
        assert query.exception() is None
    finally:
        query.stop()
    found = spark.read.parquet(str(tmp_path / "found"))
    assert sorted(row.offset for row in found.collect()) == [*range(END)]
