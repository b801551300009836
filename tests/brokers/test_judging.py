"""What the trials of brokers would notice: each check has something that it does not pass."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from tests.brokers.faults import Struck
from tests.brokers.judging import CommittedOffsets, check_commits, check_group, check_producers
from tests.brokers.pauses import felt, summary
from tests.history.builder import HistoryBuilder
from tests.history.events import Event

FOUND = {(0, 0): "t/p/0/0", (0, 1): "t/p/0/1", (1, 0): "t/p/1/0", (1, 1): "t/w/1/9"}


def sent(*values: str) -> list[Event]:
    history = HistoryBuilder()
    for value in values:
        history.send("p", {f"t-{value.split('/')[2]}": [(value, 0)]})
    return history.events


def test_producers_whose_records_are_all_there_in_order() -> None:
    check_producers(FOUND, sent("t/p/0/0", "t/p/0/1", "t/p/1/0"), ["p"])


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({(0, 0): "t/p/0/1", (0, 1): "t/p/0/0"}, "at place 0 of 2: .1, 0."),
        ({(0, 1): "t/p/0/2"}, "at place 1 of 2"),
        ({(0, 2): "t/p/0/1"}, "at place 2 of 3"),
        ({(0, 1): "t/p/1/0"}, "t/p/1/0"),
        ({(0, 2): "t/p/0/2"}, "4 records are there, 3 were acknowledged"),
    ],
    ids=["reordered", "lost", "doubled", "elsewhere", "unknown to its producer"],
)
def test_producers_whose_records_are_not(change: dict[tuple[int, int], str], wrong: str) -> None:
    events = sent("t/p/0/0", "t/p/0/1", "t/p/1/0")
    with pytest.raises(AssertionError, match=wrong):
        check_producers({**FOUND, **change}, events, ["p"])


def polled(at: dict[str, list[tuple[str, int]]]) -> list[Event]:
    history = HistoryBuilder()
    history.poll("g.0", {key: records for key, records in at.items() if key == "t-0"})
    history.poll("g.1", {key: records for key, records in at.items() if key != "t-0"})
    return history.events


ALL = {"t-0": [("t/p/0/0", 0), ("t/p/0/1", 1)], "t-1": [("t/p/1/0", 0), ("t/w/1/9", 1)]}


def test_a_group_whose_members_saw_everything_between_them() -> None:
    check_group(FOUND, polled(ALL), "g")


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"t-0": [("t/p/0/0", 0)]}, "did not see 1 records"),
        ({"t-0": [*ALL["t-0"], ("t/x/0/0", 2)]}, "g saw"),
        ({"t-0": [("t/p/0/1", 0), ("t/p/0/1", 1)]}, "g saw"),
    ],
    ids=["missed", "from nowhere", "something else"],
)
def test_a_group_that_did_not(change: dict[str, list[tuple[str, int]]], wrong: str) -> None:
    with pytest.raises(AssertionError, match=wrong):
        check_group(FOUND, polled({**ALL, **change}), "g")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SparkLog]:
    with sparklog.open(str(tmp_path / "log"), create=True) as log:
        log.create_topic("t", 2)
        log.append("t", pa.table({"value": [b"x"] * 10}), partition=0)
        yield log


def test_offsets_that_were_committed_only_grow(log: SparkLog) -> None:
    for offset in (1, 3, 3, 7):
        log.commit_offsets("g", {("t", 0): offset})
    log.commit_offsets("h", {("t", 0): 2})
    assert check_commits(log) == {"g", "h"}
    log.commit_offsets("g", {("t", 0): 6})
    with pytest.raises(AssertionError, match=r"6 at __consumer_offsets-.* after 7"):
        check_commits(log)


def test_offsets_that_were_committed_stay(log: SparkLog) -> None:
    commits = CommittedOffsets(log)
    log.commit_offsets("g", {("t", 0): 3})
    commits.look(["g", "h"])
    log.commit_offsets("g", {("t", 0): 4, ("t", 1): 0})
    commits.look(["g", "h"])
    log.commit_offsets("g", {("t", 0): 3})
    with pytest.raises(AssertionError, match=r"g: .*\('t', 0\): \(4, 3\)"):
        commits.look(["g", "h"])


def test_what_was_felt_of_a_fault_is_the_longest_gap_that_touches_it() -> None:
    history = HistoryBuilder()
    for at_ms in (0, 10, 20, 320, 330, 900):
        times: dict[str, Any] = {"t_inv": at_ms * 1000, "t_done": at_ms * 1000 + 5000}
        history.send("p", {"t-0": [(f"t/p/0/{at_ms}", at_ms)]}, **times)
    history.send("p", {"t-1": [("t/p/1/0", 0)]}, t_inv=50_000, t_done=60_000)
    history.send("p", {"t-1": [("t/p/1/1", 1)]}, t_inv=70_000, type="info")
    fault = Struck("a kill", 50_000, 330_000)
    (one,) = felt(history.events, [fault])
    assert one.longest_ms == {"t-0": 300.0, "t-1": 0.0}
    assert one.worst_ms == 300.0
    assert sorted(one.waited_ms) == [5.0, 10.0]
    assert "a kill: 1 rounds" in summary([one])
