"""Every statement of docs/sql.md, in the page's order, and what it says of Spark."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

import sparklog
from sparklog.spark.features import FILLED_COLUMNS
from tests.spark.conftest import MISSING, lacks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sql.md"
STATEMENT = re.compile(r"```sql\n(.*?);\n```", re.DOTALL)
KEPT_PLANS = (4, 1)  # since then, and no feature: docs/spark-issues.md
SOME_COLUMNS = re.compile(r"\(key, value\)\s+VALUES \((.*)\)$", re.DOTALL)
pytestmark = pytest.mark.spark


@pytest.fixture
def sql(spark: SparkSession, root: str) -> Iterator[Callable[[str], list[Row]]]:
    """sql(statement): run it on the test's root instead of the page's."""
    yield lambda statement: spark.sql(statement.replace("/tmp/shop-log", root)).collect()
    spark.sql("DROP TABLE IF EXISTS shop")
    spark.sql("DROP VIEW IF EXISTS orders")


def statements() -> list[str]:
    """The page's; a Spark that does not fill columns in is given all of them."""
    found = STATEMENT.findall(PAGE.read_text())
    if FILLED_COLUMNS in MISSING:
        found = [SOME_COLUMNS.sub(rf"VALUES (\1{', NULL' * 5})", statement) for statement in found]
    return found


def refused(sql: Callable[[str], list[Row]], statement: str, pattern: str) -> None:
    with pytest.raises(PySparkException, match=rf"(?s){pattern}.*docs/sql\.md"):
        sql(statement)


def test_the_pages_statements_and_what_it_says_of_spark(
    spark: SparkSession, sql: Callable[[str], list[Row]], root: str
) -> None:
    results = [sql(statement) for statement in statements()]
    view, insert, select, table, insert_into_table, count = results
    assert (view, insert, table, insert_into_table) == ([], [], [], [])
    assert [tuple(row) for row in select] == [("alice", "book", "orders", 0, 0)]
    assert count == [Row(**{"count(1)": 2})]
    log = sparklog.open(root)
    assert log.read("orders", 0, 0)["key"].to_pylist() == [b"alice", b"bob"]

    kept = tuple(int(part) for part in pyspark.__version__.split(".")[:2]) >= KEPT_PLANS
    shown = spark.table("orders").count()
    assert shown == (1 if kept else 2), "a view shows the log as it was when it was first queried"
    sql(statements()[0].replace("CREATE", "CREATE OR REPLACE"))
    assert spark.table("orders").count() == 2
    assert spark.read.option("path", root).option("subscribe", "orders").table("shop").count() == 2

    options = "OPTIONS (path '/tmp/shop-log', subscribe 'orders', topic 'orders')"
    refused(sql, "SELECT * FROM shop", "SPARKLOG_MISSING_OPTION.*keeps no options")
    refused(sql, f"CREATE TABLE x USING sparklog {options}", r"SPARKLOG_UNSUPPORTED_TABLE.*location, path")
    commit = log.refresh().commit
    refused(sql, f"CREATE TABLE x USING sparklog {options} AS SELECT 'x' AS value", "SPARKLOG_MISSING_OPTION")
    assert log.refresh().commit == commit
    assert not spark.catalog.tableExists("x")


@lacks(FILLED_COLUMNS)
def test_a_spark_that_fills_nothing_in_says_which_column_is_missing(
    spark: SparkSession, sql: Callable[[str], list[Row]], root: str
) -> None:
    view, insert = STATEMENT.findall(PAGE.read_text())[:2]
    sql(view)
    with pytest.raises(PySparkException, match="Cannot find data for the output column `topic`"):
        sql(insert)
    assert not Path(root).exists()
    sql(statements()[1])
    assert sparklog.open(root).read("orders", 0, 0)["value"].to_pylist() == [b"book"]
