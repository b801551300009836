"""`sparklog transactions`, on a root that no broker serves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import ManualClock, SystemClock
from sparklog.metadata import plan_add_to_transaction, plan_begin_producer, plan_end_transaction

Run = Callable[..., Result]
RunJson = Callable[..., Any]
TIMEOUT_MS = 1_000_000


def begin(log: SparkLog, name: str, *, opens: bool, hours_ago: int = 0) -> tuple[int, int]:
    """A producer; with a transaction in two partitions, and offsets of a group, open for so long."""
    now_ms = SystemClock().now_ms() - hours_ago * 3_600_000
    begun = plan_begin_producer(log.refresh(), name, timeout_ms=TIMEOUT_MS, now_ms=now_ms)
    log.metadata.publish(lambda _: begun.actions)
    if opens:
        topic_id = log.image.topic("t").topic_id
        added = plan_add_to_transaction(
            log.image,
            name,
            begun.producer_id,
            begun.producer_epoch,
            partitions=[(topic_id, 1), (topic_id, 0)],
            groups=["g"],
            now_ms=now_ms,
        )
        log.metadata.publish(lambda _: added)
    return begun.producer_id, begun.producer_epoch


@pytest.fixture
def log(root: Path) -> Any:
    clock = ManualClock(SystemClock().now_ms() - 4 * 3_600_000)  # no time is older than the newest commit
    with sparklog.open(str(root), clock=clock) as log:
        log.create_topic("t", 2)
        yield log


def test_nothing_to_list(log: SparkLog, run: Run, run_json: RunJson) -> None:
    assert run("transactions", "list").stdout == "No transactional id is in use.\n"
    assert run_json("transactions", "list") == []
    assert run("transactions", "find-hanging").stdout == "No transaction hangs.\n"
    assert run_json("transactions", "find-hanging") == []


def test_ids_are_listed_with_kafkas_columns(log: SparkLog, run: Run, run_json: RunJson) -> None:
    begin(log, "app-2", opens=True, hours_ago=1)
    begin(log, "app-1", opens=False)
    heading, one, two = (line.split() for line in run("transactions", "list").stdout.splitlines())
    assert heading == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
    assert [one, two] == [["app-1", "-", "1", "Empty"], ["app-2", "-", "0", "Ongoing"]]
    open_one = {"transactional_id": "app-2", "coordinator": None, "producer_id": 0, "state": "Ongoing"}
    for words in (
        ("--state", "Ongoing"),
        ("--producer-id", "0"),
        ("--duration-filter", "3500000"),
        ("--transactional-id-pattern", ".*2"),
    ):
        assert run_json("transactions", "list", *words) == [open_one], words
    assert run_json("transactions", "list", "--duration-filter", "9999999") == []
    run("transactions", "list", "--state", "open", exit_code=2)
    assert (
        "INVALID_PATTERN"
        in run("transactions", "list", "--transactional-id-pattern", "[", exit_code=1).output
    )


def test_an_id_is_described_with_kafkas_columns(log: SparkLog, run: Run, run_json: RunJson) -> None:
    producer_id, epoch = begin(log, "app", opens=True, hours_ago=1)
    heading, row = (
        line.split()
        for line in run("transactions", "describe", "--transactional-id", "app").stdout.splitlines()
    )
    assert heading == [
        "CoordinatorId",
        "TransactionalId",
        "ProducerId",
        "ProducerEpoch",
        "TransactionState",
        "TransactionTimeoutMs",
        "CurrentTransactionStartTimeMs",
        "TransactionDurationMs",
        "TopicPartitions",
    ]
    assert row[1:6] == ["app", str(producer_id), str(epoch), "Ongoing", str(TIMEOUT_MS)]
    found = run_json("transactions", "describe", "--transactional-id", "app")
    assert found["topic_partitions"] == ["t-0", "t-1"]
    assert (found["groups"], found["staged_bytes"]) == (["g"], 0)
    assert found["duration_ms"] >= 3_600_000
    assert set(found) == {
        "coordinator",
        "transactional_id",
        "producer_id",
        "producer_epoch",
        "state",
        "timeout_ms",
        "started_ms",
        "duration_ms",
        "topic_partitions",
        "groups",
        "staged_bytes",
    }
    unknown = run("transactions", "describe", "--transactional-id", "apq", exit_code=1).output
    assert "did you mean 'app'?" in unknown


@pytest.mark.parametrize("by", ["--transactional-id", "--producer-id"])
def test_an_abort_ends_it_and_fences_its_producer(
    log: SparkLog, run: Run, run_json: RunJson, by: str
) -> None:
    producer_id, epoch = begin(log, "app", opens=True)
    name = "app" if by == "--transactional-id" else str(producer_id)
    assert run_json("transactions", "abort", by, name) == {"transactional_id": "app", "aborted": True}
    found = log.refresh().transactions["app"]
    assert (found.phase, found.producer_epoch) == ("aborted", epoch + 1)
    assert "nothing to abort" in run("transactions", "abort", by, name).stdout
    assert run_json("transactions", "abort", by, name) == {"transactional_id": "app", "aborted": False}


def test_an_abort_means_one(log: SparkLog, run: Run) -> None:
    run("transactions", "abort", exit_code=2)
    run("transactions", "abort", "--transactional-id", "a", "--producer-id", "1", exit_code=2)
    for words in (("--transactional-id", "a"), ("--producer-id", "7")):
        assert "TRANSACTION_MISSING" in run("transactions", "abort", *words, exit_code=1).output


def test_unused_ids_are_forgotten(log: SparkLog, run: Run, run_json: RunJson) -> None:
    for name in ("a", "b", "c"):
        begin(log, name, opens=False, hours_ago=2)
    begin(log, "open", opens=True, hours_ago=2)
    begin(log, "new", opens=False)
    forgotten = run_json("transactions", "forget", "--transactional-id", "b", "--transactional-id", "a")
    assert forgotten == {"transactional_ids": ["a", "b"]}
    assert set(log.refresh().transactions) == {"c", "open", "new"}
    assert run_json("transactions", "forget", "--unused-for", "3600000") == {"transactional_ids": ["c"]}
    assert (
        "0 transactional ids are forgotten."
        in run("transactions", "forget", "--unused-for", "3600000").stdout
    )
    assert set(log.refresh().transactions) == {"open", "new"}


def test_what_is_not_forgotten(log: SparkLog, run: Run) -> None:
    begin(log, "open", opens=True, hours_ago=2)
    run("transactions", "forget", exit_code=2)
    run("transactions", "forget", "--transactional-id", "open", "--unused-for", "1", exit_code=2)
    refused = run("transactions", "forget", "--transactional-id", "open", exit_code=1).output
    assert "TRANSACTION_STATE" in refused
    assert "abort it before" in refused
    unknown = run("transactions", "forget", "--transactional-id", "opne", exit_code=1).output
    assert "did you mean 'open'?" in unknown
    assert set(log.refresh().transactions) == {"open"}


def test_what_hangs_is_past_its_time_out(log: SparkLog, run: Run, run_json: RunJson) -> None:
    begin(log, "late", opens=True, hours_ago=2)
    begin(log, "young", opens=True)
    producer_id, epoch = begin(log, "over", opens=True, hours_ago=3)
    ended = plan_end_transaction(
        log.image, "over", producer_id, epoch, committed=False, second=False, now_ms=log.clock.now_ms()
    )
    log.metadata.publish(lambda _: ended.actions)
    heading, *rows = (line.split() for line in run("transactions", "find-hanging").stdout.splitlines())
    assert heading[:8] == [
        "Topic",
        "Partition",
        "ProducerId",
        "ProducerEpoch",
        "CoordinatorEpoch",
        "StartOffset",
        "LastTimestamp",
        "Duration(min)",
    ]
    assert [(row[0], row[1], row[7], row[8]) for row in rows] == [
        ("t", "0", "120", "late"),
        ("t", "1", "120", "late"),
    ]
    assert run_json("transactions", "find-hanging", "--max-transaction-timeout", "121") == []
    assert run_json("transactions", "find-hanging", "--topic", "other") == []
    (one, _) = run_json("transactions", "find-hanging", "--topic", "t")
    assert (one["transactional_id"], one["topic"], one["partition"]) == ("late", "t", 0)
