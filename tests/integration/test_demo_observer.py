"""What the demo says of the log is counted, however rarely it looks."""

from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.demo.run import Observer

ROW = pa.table({"value": ["x"]})


@pytest.fixture
def observer(tmp_path: Path) -> Observer:
    made = Observer(tmp_path / "log", tmp_path / "checkpoint")
    made.create_topic("delays", 2)
    return made


@pytest.fixture
def log(observer: Observer, tmp_path: Path) -> SparkLog:
    return sparklog.open(tmp_path / "log")


def test_micro_batches_between_two_looks_are_counted(observer: Observer, log: SparkLog) -> None:
    assert observer.published("delays") == 0
    for batch_id in range(3):
        log.append("delays", ROW, txn=("spark-streaming:q", batch_id))
    assert observer.published("delays") == 3
    log.append("delays", ROW, txn=("spark-streaming:q", 2))
    assert observer.published("delays") == 3, "a micro-batch that came again"


def test_what_a_group_has_never_committed_counts_as_not_read(observer: Observer, log: SparkLog) -> None:
    for partition in range(2):
        log.append("delays", ROW, partition=partition)
    assert observer.lag("nobody", "delays") == 2
    log.commit_offsets("somebody", {("delays", 1): 1})
    assert observer.lag("somebody", "delays") == 1
    log.commit_offsets("somebody", {("delays", 0): 1})
    assert observer.lag("somebody", "delays") == 0
