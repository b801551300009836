"""How Spark gets to know the format: discovery, registration, and the interpreter of its workers."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import InheritableThread, SparkContext
from pyspark.sql import DataFrame, SparkSession

import sparklog
import sparklog.spark
from sparklog.errors import InvalidRequestError
from sparklog.spark.interpreter import worker_python

LOCAL_FILES = "spark.hadoop.fs.AbstractFileSystem.file.impl"
DISCOVERY = """
import sys
from pyspark.sql import SparkSession
import sparklog
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = sparklog.spark.configure(builder).getOrCreate()
rows = spark.range(5).selectExpr("CAST(id AS STRING) value")
rows.write.format("sparklog").mode("append").option("topic", "t").save(sys.argv[1])
print("rows", spark.read.format("sparklog").option("subscribe", "t").load(sys.argv[1]).count())
"""


@pytest.mark.slow
@pytest.mark.spark
def test_spark_finds_the_format_without_registration(root: str) -> None:
    """From an environment that is not activated: configure() tells Spark the interpreter."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    result = subprocess.run(
        [sys.executable, "-c", DISCOVERY, root], capture_output=True, text=True, check=False, env=clean
    )
    assert "rows 5" in result.stdout, result.stderr[-2000:]


@pytest.mark.spark
def test_threads_of_ones_own_read_and_write(spark: SparkSession, root: str, tmp_path: Path) -> None:
    """Spark looks for a format in the active session of the thread, and a new thread has none."""

    def write(number: int) -> str:
        sparklog.spark.register(spark)
        rows = spark.range(5).selectExpr("CAST(id AS STRING) AS value")
        rows.write.format("sparklog").mode("append").option("topic", f"t{number}").save(root)
        stream = spark.readStream.format("sparklog").option("subscribe", f"t{number}")
        query = (
            stream.option("startingOffsets", "earliest")
            .load(root)
            .select("value")
            .writeStream.format("sparklog")
            .option("topic", f"u{number}")
            .option("checkpointLocation", str(tmp_path / f"checkpoint-{number}"))
            .trigger(availableNow=True)
            .start(root)
        )
        query.awaitTermination(120)
        return f"u{number}"

    with ThreadPoolExecutor(max_workers=2) as pool:
        topics = list(pool.map(write, range(2)))
    image = sparklog.open(root).image
    assert [sum(one.log_end_offset for one in image.topic(name).partitions) for name in topics] == [5, 5]


@pytest.mark.spark
def test_threads_of_a_foreach_batch_and_inheritable_threads_write(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """Each says the line that makes its session the active one; a foreachBatch has a session of its own."""

    def write(batch: DataFrame, topic: str) -> None:
        sparklog.spark.register(batch.sparkSession)
        batch.select("value").write.format("sparklog").mode("append").option("topic", topic).save(root)

    def write_twice(batch: DataFrame, _batch_id: int) -> None:
        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(write, [batch, batch], ["pool-0", "pool-1"]))

    rows = spark.range(5).selectExpr("CAST(id AS STRING) AS value")
    thread = InheritableThread(target=write, args=(rows, "in"))
    thread.start()
    thread.join()
    stream = spark.readStream.format("sparklog").option("subscribe", "in")
    query = (
        stream.option("startingOffsets", "earliest")
        .load(root)
        .writeStream.foreachBatch(write_twice)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    image = sparklog.open(root).image
    found = [
        sum(one.log_end_offset for one in image.topic(name).partitions) for name in ("in", "pool-0", "pool-1")
    ]
    assert found == [5, 5, 5]


def test_what_is_known_is_not_registered_again() -> None:
    """Spark warns of a source that replaces one that it has found by itself, at every start of a query."""
    registered: list[type] = []

    def session(*, known: bool) -> Any:
        manager = SimpleNamespace(dataSourceExists=lambda name: known and name == "sparklog")
        state = SimpleNamespace(dataSourceManager=lambda: manager)
        return SimpleNamespace(
            _jsparkSession=SimpleNamespace(sessionState=lambda: state),
            _jvm=None,
            dataSource=SimpleNamespace(register=registered.append),
            conf=SimpleNamespace(get=lambda name, default: "mine"),
        )

    sparklog.spark.register(session(known=True))
    assert registered == []
    sparklog.spark.register(session(known=False))
    assert registered == [sparklog.spark.SparklogDataSource]


@pytest.mark.slow
def test_a_broken_sparklog_never_breaks_the_discovery_of_other_sources(tmp_path: Path) -> None:
    broken = tmp_path / "sparklog"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError('broken')")
    source = Path(sparklog.__file__).resolve().parent.parent / "pyspark_sparklog"
    (tmp_path / "pyspark_sparklog").symlink_to(source)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import pyspark_sparklog as p; "
        "print(p.__all__, hasattr(p, 'DefaultSource'))"
    )
    result = subprocess.run(
        [sys.executable, "-S", "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.stdout.strip() == "[] False", result.stderr


def test_configure_sets_the_interpreter_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    builder = SparkSession.builder
    before = os.umask(0o022)
    try:
        assert sparklog.spark.configure(builder) is builder
    finally:
        os.umask(before)
    assert os.environ["PYSPARK_PYTHON"] == worker_python()
    assert builder._options["spark.python.unix.domain.socket.enabled"] == "true"
    assert builder._options[LOCAL_FILES].endswith(".RawLocalFs")
    monkeypatch.setenv("PYSPARK_PYTHON", "/somewhere/python")
    sparklog.spark.configure(builder.config(LOCAL_FILES, "my.Files"))
    assert builder._options[LOCAL_FILES] == "my.Files"
    assert os.environ["PYSPARK_PYTHON"] == "/somewhere/python"


@pytest.mark.parametrize("by_environment", [True, False])
def test_configure_leaves_a_connect_servers_settings_alone(
    monkeypatch: pytest.MonkeyPatch, by_environment: bool
) -> None:
    """Spark Connect refuses a session that asks for settings of its server's start."""
    monkeypatch.setenv("PYSPARK_PYTHON", "unset below, and put back after the test")
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace(pythonExec="/other/python"))
    builder = SparkSession.Builder()
    monkeypatch.setattr(builder, "_options", {})
    if by_environment:
        monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002")
    else:
        builder._options["spark.remote"] = "sc://host:15002"
    sparklog.spark.configure(builder)
    assert set(builder._options) <= {"spark.remote", "spark.sql.redaction.options.regex"}
    assert "PYSPARK_PYTHON" not in os.environ, "the server has its own"
    builder._options["spark.remote"] = "local[2]"
    sparklog.spark.configure(builder)
    assert os.environ["PYSPARK_PYTHON"] == worker_python(), "that server is started here"


def test_sockets_that_others_may_write_to_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    before = os.umask(0o002)
    try:
        builder = sparklog.spark.configure(SparkSession.builder)
        assert os.umask(0o002) == 0o002
    finally:
        os.umask(before)
    assert not [name for name in builder._options if "socket" in name]


def test_configure_refuses_a_session_that_runs_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace(pythonExec="/other/python"))
    with pytest.raises(InvalidRequestError, match=r"/other/python.*stop that session") as caught:
        sparklog.spark.configure(SparkSession.builder)
    assert caught.value.code == "WRONG_PYTHON"


@pytest.mark.slow
def test_importing_sparklog_spark_does_not_import_pyspark() -> None:
    code = "import sys, sparklog.spark; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_spark_learns_of_the_source_without_loading_arrow() -> None:
    code = (
        "import sys, pyspark.sql.datasource; of_spark = set(sys.modules);"  # 4.0 loads NumPy
        "import pyspark_sparklog; assert pyspark_sparklog.DefaultSource;"
        "source = pyspark_sparklog.DefaultSource({'path': '/nowhere', 'subscribe': 't'}); source.schema();"
        "sys.exit(', '.join({'pyarrow', 'numpy', 'sparklog.client'} & (set(sys.modules) - of_spark)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
