"""The demo's two jobs on the first flights of the year; make demo runs them all, and kills them."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sparklog.demo import dataset
from sparklog.demo import dataset as verify
from sparklog.demo.jobs import backfill, hourly_delays
from sparklog.demo.run import Observer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 3_000


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "first.csv"
    with dataset.unpack_flights(tmp_path).open() as whole:
        path.write_text("".join(islice(whole, FLIGHTS + 1)))
    return path


def test_tasks_add_up_what_they_are_given() -> None:
    flights = pa.table({"origin": ["JFK"] * 3, "time_hour": ["t1", "t1", "t2"], "dep_delay": [1, None, 3]})
    (batch,) = hourly_delays.add_up_task(iter(flights.to_batches(max_chunksize=1)))
    assert batch.to_pylist() == verify.hourly_delays(flights).to_pylist()
    assert list(hourly_delays.add_up_task(iter(()))) == []
    assert [field.split()[0] for field in hourly_delays.DELAYS.split(", ")] == verify.DELAYS_SCHEMA.names


def test_jobs_are_exact_and_may_be_run_again(spark: "SparkSession", csv: Path, tmp_path: Path) -> None:
    root, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    observer = Observer(root, checkpoint)
    observer.create_topic("flights", 4)
    for _ in range(2):
        backfill.write_flights(spark, str(csv), str(root))
    expected = dataset.read_flights(csv)
    found = verify.parse_values(observer.values("flights"), dataset.ARROW_SCHEMA)
    assert verify.compare_rows(expected, found).equal
    for _ in range(2):
        hourly_delays.start_query(spark, str(root), str(checkpoint), FLIGHTS // 3).awaitTermination()
    records = verify.parse_values(observer.values("delays"), verify.DELAYS_SCHEMA)
    assert verify.add_up(records).equals(verify.hourly_delays(expected))
    assert observer.noted_by_spark() >= 3
    assert observer.lag("demo-delays", "flights") == 0
    assert observer.published("delays") == observer.noted_by_spark()
