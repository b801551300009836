"""What the driver's environment allows holds for queries, and no option widens it. With Spark itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import sparklog
from sparklog.spark.datasource import SparklogDataSource

pytestmark = pytest.mark.spark


@pytest.fixture
def bounded(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """A session whose Python workers have the variable, as if the driver's process had it.

    What is registered keeps the environment of that moment, and Spark 4.0 does not register again what it has
    found by itself: so it gets a name of its own.
    """

    class Bounded(SparklogDataSource):
        @classmethod
        def name(cls) -> str:
            return "bounded"

    context = spark.sparkContext
    context.environment["SPARKLOG_ALLOWED_ROOTS"] = str(tmp_path / "allowed")
    spark.dataSource.register(Bounded)
    yield spark
    del context.environment["SPARKLOG_ALLOWED_ROOTS"]


def test_options_and_sql_cannot_leave_the_allowed_places(bounded: SparkSession, tmp_path: Path) -> None:
    rows = bounded.range(3).selectExpr("CAST(id AS STRING) value")
    inside, outside = tmp_path / "allowed" / "log", tmp_path / "outside"
    rows.write.format("bounded").mode("append").option("topic", "t").save(str(inside))
    assert bounded.read.format("bounded").option("subscribe", "t").load(str(inside)).count() == 3
    secret = sparklog.open(outside)
    secret.create_topic("t")
    for allowed in ({}, {"allowedRoots": "/"}):
        with pytest.raises(PySparkException, match="ROOT_NOT_ALLOWED"):
            rows.write.format("bounded").mode("append").options(topic="t", **allowed).save(str(outside))
        with pytest.raises(PySparkException, match="ROOT_NOT_ALLOWED"):
            bounded.read.format("bounded").options(subscribe="t", **allowed).load(str(outside)).count()
    bounded.sql(f"CREATE OR REPLACE TEMP VIEW out USING bounded OPTIONS (path '{outside}', subscribe 't')")
    with pytest.raises(PySparkException, match="ROOT_NOT_ALLOWED"):
        bounded.sql("SELECT * FROM out").count()
    bounded.sql("DROP VIEW out")
    assert secret.log_end_offset("t", 0) == 0
