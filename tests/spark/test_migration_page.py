"""The foreachBatch of docs/migrate-from-kafka.md writes each row once, to both topics."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sparklog
from tests.spark.test_stream_reader_queries import forget

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrate-from-kafka.md"
pytestmark = pytest.mark.spark


@pytest.fixture
def run(spark: SparkSession, root: str, tmp_path: Path) -> Callable[[], None]:
    """run(): the page's code, with places of the test's."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    code = code.replace("/tmp/sorting", f"{tmp_path}/sorting").replace("/tmp/shop-log", root)

    def execute() -> None:
        exec(code, {"spark": spark})

    return execute


def test_the_pages_code_writes_each_row_once(
    spark: SparkSession, root: str, tmp_path: Path, run: Callable[[], None]
) -> None:
    orders = [("alice", "book"), ("bob", "lamp"), ("alice", "pen")]
    rows = spark.createDataFrame(orders, ["key", "value"])
    rows.write.format("sparklog").mode("append").option("topic", "orders").save(root)
    run()
    # As if killed before Spark noted that the micro-batch is done.
    forget(tmp_path / "sorting-checkpoint" / "commits" / "0")
    run()
    log = sparklog.open(root)
    assert log.read("books", 0, 0)["value"].to_pylist() == [b"book"]
    assert log.read("others", 0, 0)["value"].to_pylist() == [b"lamp", b"pen"]

    (tmp_path / "sorting-checkpoint").rename(tmp_path / "lost")
    run()
    log.refresh()
    assert log.log_end_offset("books", 0) == 2, "a new checkpoint is a new query: nothing is left out"
