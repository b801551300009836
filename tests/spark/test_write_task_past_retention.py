"""A write of records that are past their topic's retention says so: one line a commit, on the driver."""

import datetime as dt

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.log.past_retention import past_retention_text
from sparklog.spark.options import parse_sink_options
from sparklog.spark.write_task import TaskResult, publish
from tests.support.told import Told

LONG_AGO = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def log(root: str) -> SparkLog:
    log = sparklog.open(root)
    log.create_topic("kept", 1)
    log.create_topic("week", 1, {"retention.ms": str(7 * 24 * 3_600_000)})
    return log


def task(log: SparkLog, topic: str, rows: int) -> TaskResult:
    with log.appender() as appender:
        appender.add(pa.table({"value": ["v"] * rows, "timestamp": [LONG_AGO] * rows}), topic)
        staged = appender.finish()
    return TaskResult(cluster_id=log.cluster_id, staged=staged, query_id="q", batch_id=0)


def test_each_commit_says_how_many(log: SparkLog, told: Told) -> None:
    options = parse_sink_options({"path": log.url}, streaming=True)
    told.forget()
    for batch in range(2):
        publish(log, options, [task(log, "week", 3), task(log, "week", 4)], txn=("q", batch))
    assert told("sparklog.spark") == [past_retention_text({"week": 7})] * 2
    publish(log, options, [task(log, "week", 3)], txn=("q", 1))  # left out: it was repeated
    publish(log, options, [task(log, "kept", 3)], txn=("q", 2))
    assert len(told("sparklog.spark")) == 2
