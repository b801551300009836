"""Maintenance on executors: the same as on one machine, published by the driver."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import InvalidRequestError
from sparklog.spark import maintenance, maintenance_job


@pytest.fixture
def log(root: str) -> Iterator[SparkLog]:
    """Two topics of small extents, one of which is compacted."""
    with sparklog.open(root) as log:
        log.create_topic("t", 3)
        log.create_topic("table", 2, {"cleanup.policy": "compact"})
        for number in range(20):
            for partition in range(3):
                log.append("t", pa.table({"value": [f"{partition}-{number}"]}), partition=partition)
            for partition in range(2):
                rows = pa.table({"key": [f"k{number % 2}"], "value": [str(number)]})
                log.append("table", rows, partition=partition)
        yield log


def values(log: SparkLog, topic: str, partition: int) -> list[str]:
    log.refresh()
    column = log.read(topic, partition, log.log_start_offset(topic, partition))["value"]
    return [str(value) for value in column.cast("string").to_pylist()]


def extent_counts(log: SparkLog, topic: str) -> list[int]:
    return [len(state.extents) for state in log.refresh().topic(topic).partitions]


def test_extents_are_merged_by_tasks(spark: SparkSession, log: SparkLog, root: str) -> None:
    report = maintenance.optimize(spark, root, ["t"], dry_run=True)
    assert report.topics["t"].merged_extents == 60
    assert extent_counts(log, "t") == [20, 20, 20]
    report = maintenance.optimize(spark, root, ["t"])
    assert (report.topics["t"].merged_extents, report.topics["t"].added_extents) == (60, 3)
    assert extent_counts(log, "t") == [1, 1, 1]
    assert extent_counts(log, "table") == [20, 20]
    for partition in range(3):
        assert values(log, "t", partition) == [f"{partition}-{number}" for number in range(20)]
    assert maintenance.optimize(spark, root, ["t"]).topics["t"].merged_extents == 0


def test_partitions_are_compacted_by_tasks_in_waves(spark: SparkSession, log: SparkLog, root: str) -> None:
    report = maintenance.compact(spark, root, max_concurrent_file_group_rewrites=1)
    assert report.topics["table"].superseded == 36
    for partition in range(2):
        assert values(log, "table", partition) == ["18", "19"]
    assert maintenance.compact(spark, root, only_due=True).topics["table"].partitions == 0


class TasksHere:
    """A context that runs tasks here, and counts them."""

    defaultParallelism = 1

    def __init__(self) -> None:
        self.waves: list[int] = []

    def parallelize(self, wave: list[list[int]], slices: int) -> "TasksHere":
        assert len(wave) == slices
        self.waves.append(slices)
        self._wave = wave
        return self

    def map(self, task: Callable[[list[int]], list[int]]) -> "TasksHere":
        self._made = [task(one) for one in self._wave]
        return self

    def collect(self) -> list[list[int]]:
        return self._made


def test_a_group_of_works_is_a_task() -> None:
    context = TasksHere()
    grouped = [[1, 2], [3], [4, 5, 6]]
    made = maintenance.in_waves(context, grouped, lambda works: [10 * one for one in works], None)  # type: ignore[arg-type,type-var]
    assert list(made) == [10, 20, 30, 40, 50, 60]
    assert context.waves == [2, 1]


def test_what_changed_meanwhile_is_left_out(
    spark: SparkSession, log: SparkLog, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is deleted while executors are at work."""
    really = maintenance.in_waves

    def slow(*arguments: object) -> Iterator[object]:
        results = list(really(*arguments))  # type: ignore[arg-type]
        if "t" in log.topics():
            log.delete_topic("t")
        yield from results

    monkeypatch.setattr(maintenance, "in_waves", slow)
    report = maintenance.optimize(spark, root, ["t"])
    assert (report.topics["t"].merged_extents, report.topics["t"].left_out) == (0, 3)


def test_spark_connect_is_refused(root: str) -> None:
    with pytest.raises(InvalidRequestError, match="SPARK_CONNECT_UNSUPPORTED"):
        maintenance.optimize(object(), root)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_concurrent_file_group_rewrites", 0),
        ("max_concurrent_file_group_rewrites", -1),
        ("target_file_size_bytes", 0),
        ("min_input_files", 1),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    log: SparkLog, root: str, option: str, value: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidRequestError, match=rf"INVALID_OPTION.*{option}: found {value}, expected at"):
        maintenance.optimize(None, root, **{option: value})  # type: ignore[arg-type]
    if option.startswith("max"):
        with pytest.raises(InvalidRequestError, match="INVALID_OPTION"):
            maintenance.compact(None, root, **{option: value})  # type: ignore[arg-type]
    words = [f"--{option.replace('_', '-')}={value}"]
    with pytest.raises(SystemExit) as ended:
        maintenance_job.main(["optimize", root, *words])
    assert ended.value.code == 2
    assert f"found {value}, expected at least" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "found"),
    [(["--help"], "into large segments"), (["optimize", "--help"], "ROOT"), (["compact", "--help"], "ROOT")],
)
def test_help_is_for_users(words: list[str], found: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        maintenance_job.main(words)
    told = " ".join(capsys.readouterr().out.split())
    assert found in told
    assert "Not here" not in told


@pytest.mark.spark
def test_by_spark_submit(log: SparkLog, root: str, tmp_path: Path) -> None:
    assert extent_counts(log, "t") == [20, 20, 20]
    submit = Path(sys.executable).with_name("spark-submit")
    env = {name: text for name, text in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    env |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    words = [str(submit), "--master", "local[2]", str(maintenance_job.__file__), "optimize", root, "t"]
    done = subprocess.run(
        words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["topics"]["t"]["merged_extents"] == 60
    assert extent_counts(log, "t") == [1, 1, 1]
