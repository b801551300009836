"""sparklog-python: Spark's workers import the pyspark that is installed, compiled, and not its zip."""

import contextlib
import os
import subprocess
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparklog
from sparklog.spark.features import UNIX_SOCKETS
from sparklog.spark.interpreter import without_installed_zips, worker_python
from tests.spark.conftest import Until, lacks, needs

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A site-packages with pyspark and py4j, and pyspark's zips."""
    for name in ("pyspark", "py4j", "pyspark/python/lib"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("pyspark/__init__.py", "py4j/__init__.py"):
        (tmp_path / name).touch()
    return tmp_path


def test_only_the_zips_of_the_installed_pyspark_are_left_out(packages: Path) -> None:
    (packages / "link").symlink_to(packages / "pyspark")
    lib = packages / "pyspark" / "python" / "lib"
    kept = ["", "/opt/spark/python/lib/pyspark.zip", str(lib), "/job/dependencies.zip"]
    dropped = [str(lib / "pyspark.zip"), str(packages / "link" / "python" / "lib" / "py4j-0.10-src.zip")]
    given = os.pathsep.join([kept[0], dropped[0], kept[1], dropped[1], *kept[2:]])
    assert without_installed_zips(given, packages) == os.pathsep.join(kept)


def test_zips_stay_when_they_are_all_there_is(packages: Path) -> None:
    (packages / "py4j" / "__init__.py").unlink()
    given = str(packages / "pyspark" / "python" / "lib" / "pyspark.zip")
    assert without_installed_zips(given, packages) == given


@pytest.mark.slow
def test_it_is_python_with_the_same_arguments() -> None:
    code = "import sys; print(sys.argv[1:], sys.flags.optimize, sys.prefix); sys.exit(7)"
    python = worker_python()
    assert python.endswith("sparklog-python")
    done = subprocess.run([python, "-O", "-c", code, "a", "-b"], capture_output=True, text=True, check=False)
    assert (done.stdout.split(" /")[0], done.returncode) == ("['a', '-b'] 1", 7), done.stderr


def test_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    def where(_: int) -> str:
        import pyspark

        return pyspark.__file__

    (found,) = spark.sparkContext.parallelize([0], 1).map(where).collect()
    assert ".zip" not in found


def paths_of_sources() -> list[str]:
    """The PYTHONPATH of each interpreter that a streaming query of this process has for its source."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # of another query, ended meanwhile
            if RUNNER in process.cmdline():
                found.append(process.environ()["PYTHONPATH"])
    return found


def test_so_does_the_source_of_a_stream(spark: SparkSession, root: str, tmp_path: Path, until: Until) -> None:
    """It runs in PYSPARK_DRIVER_PYTHON, which found the format; Spark gives it 10 s to start."""
    log = sparklog.open(root, create=True)
    log.create_topic("t")
    log.append("t", pa.table({"value": [b"a"]}))
    options = {"subscribe": "t", "startingOffsets": "earliest"}
    rows = spark.readStream.format("sparklog").options(**options).load(root)
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        until(lambda: query.lastProgress is not None, query)
        paths = paths_of_sources()
    finally:
        query.stop()
    assert paths
    assert not [path for path in paths if "pyspark.zip" in path], "is PYSPARK_DRIVER_PYTHON plain python?"


def unix_sockets(spark: SparkSession) -> str | None:
    """What Spark has told a worker of them."""

    def variable(_: int) -> str | None:
        return os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED")

    (found,) = spark.sparkContext.parallelize([0], 1).map(variable).collect()
    assert found is None or isinstance(found, str)
    return found


@needs(UNIX_SOCKETS)
def test_workers_are_reached_by_unix_sockets(spark: SparkSession) -> None:
    # Spark writes "True"; a umask that lets others write turns it off (test_session.py).
    asked = spark.conf.get("spark.python.unix.domain.socket.enabled", "false")
    assert str(unix_sockets(spark)).lower() == asked


@lacks(UNIX_SOCKETS)
def test_a_spark_without_unix_sockets_passes_the_setting_over(spark: SparkSession) -> None:
    assert unix_sockets(spark) is None
