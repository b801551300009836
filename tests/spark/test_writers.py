"""The sinks' driver side without Spark: versions, what is left out, and what is said about it."""

import logging

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

import sparklog
from sparklog.client import SparkLog
from sparklog.spark.batch_writer import SparklogBatchWriter
from sparklog.spark.options import parse_sink_options
from sparklog.spark.stream_writer import SparklogStreamWriter
from sparklog.spark.write_task import TaskResult

QUERY = "7a7e0c4e-0000-4000-8000-000000000001"


@pytest.fixture
def log(root: str) -> SparkLog:
    return sparklog.open(root, create=True)


def schema() -> StructType:
    return StructType().add("value", StringType())


def staged(log: SparkLog, *topics: str, batch: int | None = None) -> list[TaskResult]:
    """What one task hands over: a row for each topic."""
    log.refresh()
    with log.appender() as appender:
        for topic in topics:
            appender.add(pa.table({"value": [f"{topic} {batch}"]}), topic)
        one = appender.finish()
    query = None if batch is None else QUERY
    return [TaskResult(cluster_id=log.cluster_id, staged=one, query_id=query, batch_id=batch)]


def batch_writer(root: str, version: int) -> SparklogBatchWriter:
    options = {"path": root, "txnAppId": "job", "txnVersion": str(version)}
    return SparklogBatchWriter(schema(), parse_sink_options({**options, "topic": "a"}, streaming=False))


def stream_writer(root: str, **options: str) -> SparklogStreamWriter:
    given = {"path": root, "topic": "a", **options}
    return SparklogStreamWriter(schema(), parse_sink_options(given, streaming=True))


def values(log: SparkLog, topic: str) -> list[str]:
    return [value.decode() for value in log.read(topic, 0, 0)["value"].to_pylist()]


def test_a_skipped_batch_write_is_said(log: SparkLog, root: str, caplog: pytest.LogCaptureFixture) -> None:
    batch_writer(root, 3).commit(list(staged(log, "a")))
    assert caplog.messages == []
    commit = log.refresh().commit
    batch_writer(root, 3).commit(list(staged(log, "a", "b")))
    (message,) = caplog.messages
    assert "this write is version 3 of 'job'" in message
    assert message.endswith(f": a has version 3, in commit {commit}")
    caplog.clear()
    batch_writer(root, 2).commit(list(staged(log, "b")))
    assert [f"b has version 3, in commit {commit + 1}" in message for message in caplog.messages] == [True]
    assert (values(log, "a"), values(log, "b")) == (["a None"], ["b None"])


def test_a_repeated_micro_batch_is_said(log: SparkLog, root: str, caplog: pytest.LogCaptureFixture) -> None:
    for batch in (0, 1):
        stream_writer(root).commit(list(staged(log, "a", batch=batch)), batch)
    assert caplog.messages == []
    stream_writer(root).commit(list(staged(log, "a", batch=1)), 1)
    (message,) = caplog.messages
    assert f"micro-batch 1 is version 1 of 'spark-streaming:{QUERY}'" in message
    assert values(log, "a") == ["a 0", "a 1"]
    assert caplog.records[0].levelno == logging.WARNING
