"""How many tasks run at the same time: where settings fix it, and how the planner gets to know."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

import sparklog
import sparklog.spark
from sparklog.client import SparkLog
from sparklog.errors import InvalidRequestError
from sparklog.spark.task_slots import (
    VARIABLE,
    set_task_slots,
    task_slots_of_environment,
    task_slots_of_settings,
)
from tests.spark.conftest import Read

DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}


def settings(master: str, **more: str) -> dict[str, str]:
    return {
        "spark.master": master,
        **{f"spark.{name.replace('_', '.')}": text for name, text in more.items()},
    }


@pytest.mark.parametrize(
    ("conf", "slots"),
    [
        (settings("local"), 1),
        (settings("local[4]"), 4),
        (settings("local[*]"), 16),
        (settings("local[*, 3]"), 16),
        (settings("local[6,3]", task_cpus="2"), 3),
        (settings("local[1]", task_cpus="2"), None),
        (settings("local-cluster[2,3,1024]"), 6),
        (settings("yarn"), 2),
        (settings("yarn", executor_instances="5", executor_cores="4"), 20),
        (settings("yarn", executor_instances="5", executor_cores="4", task_cpus="3"), 5),
        (settings("k8s://https://host", executor_instances="3"), 3),
        (settings("spark://host:7077"), None),
        (settings("spark://host:7077", executor_cores="4"), None),
        (settings("spark://host:7077", cores_max="10"), 10),
        (settings("spark://host:7077", cores_max="10", executor_cores="4"), 8),
        (settings("spark://host:7077", cores_max="10", task_cpus="2"), 5),
        (settings("spark://host:7077", cores_max="2", executor_cores="4"), None),
        ({**settings("yarn", executor_instances="5", executor_cores="4"), **DYNAMIC}, None),
        (
            {**settings("yarn", executor_cores="4"), **DYNAMIC, "spark.dynamicAllocation.maxExecutors": "10"},
            40,
        ),
        (
            {**settings("yarn"), **DYNAMIC, "spark.dynamicAllocation.maxExecutors": str(2**31 - 1)},
            None,
        ),
        (
            {
                **settings("spark://host:7077", cores_max="8", executor_cores="4"),
                **DYNAMIC,
                "spark.dynamicAllocation.maxExecutors": "1",
            },
            4,
        ),
        (settings("something://else", executor_instances="5", executor_cores="4"), None),
        ({}, None),
    ],
)
def test_what_settings_fix(conf: dict[str, str], slots: int | None) -> None:
    assert task_slots_of_settings(conf, processors=16) == slots


def test_the_variable_is_checked() -> None:
    assert task_slots_of_environment({}) is None
    assert task_slots_of_environment({VARIABLE: " "}) is None
    assert task_slots_of_environment({VARIABLE: "0"}) is None
    assert task_slots_of_environment({VARIABLE: "12"}) == 12
    with pytest.raises(InvalidRequestError, match=VARIABLE):
        task_slots_of_environment({VARIABLE: "many"})


class Session:
    """What `set_task_slots` uses of one."""

    def __init__(self, master: str, variable: str | None = None, *, internals: bool = True) -> None:
        self.variables: dict[str, str] = {VARIABLE: "77"}
        told = SimpleNamespace(put=self.variables.__setitem__, remove=lambda name: self.variables.pop(name))
        source = SimpleNamespace(dataSourceCls=lambda: SimpleNamespace(envVars=lambda: told))

        def look_up(name: str) -> Any:
            if not internals:
                raise Py4JError("lookupDataSource does not exist in the JVM")
            return source

        manager = SimpleNamespace(lookupDataSource=look_up)
        state = SimpleNamespace(dataSourceManager=lambda: manager)
        self._jsparkSession = SimpleNamespace(sessionState=lambda: state)
        runtime = SimpleNamespace(availableProcessors=lambda: 16)
        lang = SimpleNamespace(
            System=SimpleNamespace(getenv=lambda name: variable),
            Runtime=SimpleNamespace(getRuntime=lambda: runtime),
        )
        self._jvm = SimpleNamespace(java=SimpleNamespace(lang=lang))
        conf = SimpleNamespace(get={"spark.master": master}.get)
        self.sparkContext = SimpleNamespace(_jsc=SimpleNamespace(getConf=lambda: conf))


@pytest.mark.parametrize(
    ("session", "left"),
    [
        (Session("local[*]"), {VARIABLE: "16"}),
        (Session("spark://host:7077"), {}),
        (Session("local[*]", variable="3"), {VARIABLE: "77"}),
        (Session("local[*]", internals=False), {VARIABLE: "77"}),
    ],
)
def test_the_number_is_left_with_the_class(session: Any, left: dict[str, str]) -> None:
    """Not where the driver's environment says it, nor where Spark has no such place."""
    set_task_slots(session, "sparklog")
    assert session.variables == left


def test_over_connect_nothing_is_told() -> None:
    set_task_slots(SimpleNamespace(), "sparklog")  # type: ignore[arg-type]


@pytest.fixture
def log(root: str) -> SparkLog:
    """Six partitions of 50 records each, partition p's values 50 * p to 50 * p + 49 in order."""
    opened = sparklog.open(root, create=True)
    opened.create_topic("t", partitions=6)
    for partition in range(6):
        values = [b"%d" % (50 * partition + i) for i in range(50)]
        opened.append("t", pa.table({"value": values}), partition=partition)
    return opened


@pytest.mark.spark
@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, 2),
        ({"minPartitions": "1"}, 6),
        ({"maxPartitions": "3"}, 3),
        ({"maxRecordsPerPartition": "99"}, 6),
    ],
)
def test_a_batch_reads_with_as_many_tasks_as_run_at_a_time(
    read: Read, options: dict[str, str], tasks: int
) -> None:
    df = read(subscribe="t", **options)
    found = df.rdd.mapPartitions(lambda rows: iter([[(r.partition, r.offset) for r in rows]])).collect()
    assert len(found) == tasks
    for task in found:
        assert task == sorted(task), "one partition after the other, each in its order"
    assert sorted(pair for task in found for pair in task) == [(p, n) for p in range(6) for n in range(50)]


@pytest.mark.spark
@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(("options", "tasks"), [({}, 2), ({"minPartitions": "1"}, 6)])
def test_a_stream_reads_with_as_many_tasks_as_run_at_a_time(
    spark: SparkSession, root: str, tmp_path: Path, options: dict[str, str], tasks: int
) -> None:
    seen: list[tuple[int, list[int]]] = []

    def look(df: DataFrame, _: int) -> None:
        seen.append((df.rdd.getNumPartitions(), sorted(int(row.value) for row in df.collect())))

    source = {"subscribe": "t", "startingOffsets": "earliest", **options}
    reader = spark.readStream.format("sparklog").options(**source).load(root)
    writer = reader.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination(120)
    assert seen == [(tasks, list(range(300)))]
