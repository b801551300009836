"""Transactional ids: what is open, for how long, and what is staged."""

from collections.abc import Callable
from typing import Any

from sparklog.client import SparkLog
from tests.console.conftest import rows

Get = Callable[[str], Any]


def begin(log: SparkLog, name: str) -> None:
    """Stage records, and leave the transaction open."""
    txn = log.transaction(name, timeout_ms=60_000)
    txn.__enter__()
    txn.append("orders", rows(5), partition=1)
    txn.commit_offsets("etl", {("orders", 0): 1})
    txn.flush()


def test_what_is_open_comes_first(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("orders", partitions=2)
    with log.transaction("done") as txn:
        txn.append("orders", rows(1))
    begin(log, "open")
    log.clock.sleep_ms(30_000)
    found = api("/transactions")
    assert [one["transactional_id"] for one in found["transactions"]] == ["open", "done"]
    assert (found["open"], found["late"]) == (1, 0)
    row = found["transactions"][0]
    assert (row["state"], row["running_ms"], row["is_late"]) == ("Ongoing", 30_000, False)
    assert (row["staged_extents"], row["staged_bytes"] > 0) == (2, True)  # with the offsets
    assert found["transactions"][1]["state"] == "CompleteCommit"
    assert "2 transactional ids · 1 open" in page("/transactions")
    assert [one["transactional_id"] for one in api("/transactions?filter=OP")["transactions"]] == ["open"]


def test_past_its_time_out(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("orders", partitions=2)
    begin(log, "open")
    log.clock.sleep_ms(61_000)
    assert api("/transactions")["late"] == 1
    assert "1 past the time-out" in page("/transactions")
    assert "Past its time-out" in page("/transaction?id=open")


def test_what_is_staged(log: SparkLog, api: Get, page: Callable[[str], str]) -> None:
    log.create_topic("orders", partitions=2)
    begin(log, "open")
    found = api("/transaction?id=open")
    (row,) = [one for one in found["staged"] if one["topic"] == "orders"]
    assert (row["partition"], row["records"], row["extents"]) == (1, 5, 1)
    assert "orders 1 5" in page("/transaction?id=open")


def test_none(page: Callable[[str], str]) -> None:
    assert "No transactional id is in use." in page("/transactions")
