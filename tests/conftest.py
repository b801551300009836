"""Fixtures that several layers' tests share: a Spark session, started only when a test asks for it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """One small local session for the whole run, with sparklog registered."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    import sparklog.spark

    home = tmp_path_factory.mktemp("spark")
    builder = sparklog.spark.configure(SparkSession.builder.appName("sparklog-tests")).master("local[2]")
    settings: dict[str, Any] = {
        "spark.ui.enabled": False,
        "spark.sql.shuffle.partitions": 2,
        "spark.default.parallelism": 2,
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={home} -Djava.io.tmpdir={home}",
        "spark.sql.python.filterPushdown.enabled": True,
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": True,
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    sparklog.spark.register(session)
    yield session
    session.stop()


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A directory for a log that does not exist yet."""
    return str(tmp_path / "log")
