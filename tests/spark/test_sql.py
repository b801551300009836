"""Every statement of docs/sql.md, in the page's order, and what it says of Spark."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

import sparklog

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sql.md"
STATEMENT = re.compile(r"```sql\n(.*?);\n```", re.DOTALL)
pytestmark = pytest.mark.spark


@pytest.fixture
def sql(spark: SparkSession, root: str) -> Iterator[Callable[[str], list[Row]]]:
    """sql(statement): run it on the test's root instead of the page's."""
    yield lambda statement: spark.sql(statement.replace("/tmp/shop-log", root)).collect()
    spark.sql("DROP TABLE IF EXISTS shop")
    spark.sql("DROP VIEW IF EXISTS orders")


def refused(sql: Callable[[str], list[Row]], statement: str, pattern: str) -> None:
    with pytest.raises(PySparkException, match=rf"(?s){pattern}.*docs/sql\.md"):
        sql(statement)


def test_the_pages_statements_and_what_it_says_of_spark(
    spark: SparkSession, sql: Callable[[str], list[Row]], root: str
) -> None:
    results = [sql(statement) for statement in STATEMENT.findall(PAGE.read_text())]
    view, insert, select, table, insert_into_table, count = results
    assert (view, insert, table, insert_into_table) == ([], [], [], [])
    assert [tuple(row) for row in select] == [("alice", "book", "orders", 0, 0)]
    assert count == [Row(**{"count(1)": 2})]
    log = sparklog.open(root)
    assert log.read("orders", 0, 0)["key"].to_pylist() == [b"alice", b"bob"]

    assert spark.table("orders").count() == 1, "a view shows the log as it was when it was first queried"
    sql(STATEMENT.findall(PAGE.read_text())[0].replace("CREATE", "CREATE OR REPLACE"))
    assert spark.table("orders").count() == 2
    assert spark.read.option("path", root).option("subscribe", "orders").table("shop").count() == 2

    options = "OPTIONS (path '/tmp/shop-log', subscribe 'orders', topic 'orders')"
    refused(sql, "SELECT * FROM shop", "SPARKLOG_MISSING_OPTION.*keeps no options")
    refused(sql, f"CREATE TABLE x USING sparklog {options}", r"SPARKLOG_UNSUPPORTED_TABLE.*location, path")
    commit = log.refresh().commit
    refused(sql, f"CREATE TABLE x USING sparklog {options} AS SELECT 'x' AS value", "SPARKLOG_MISSING_OPTION")
    assert log.refresh().commit == commit
    assert not spark.catalog.tableExists("x")
