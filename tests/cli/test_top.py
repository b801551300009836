"""`sparklog top`: rates of two images, lag and its change, and the live view on a terminal."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result

import sparklog
from sparklog.cli.top import Look, due_steps_of, group_rows, look_at, topic_rows
from sparklog.client import SparkLog, admin

Run = Callable[..., Result]
RunJson = Callable[..., Any]


@pytest.fixture
def log(root: Path) -> Iterator[SparkLog]:
    with sparklog.open(root) as log:
        log.create_topic("t", 2)
        yield log


def append(log: SparkLog, topic: str, count: int, partition: int = 0) -> None:
    log.append(topic, pa.table({"value": ["x" * 100] * count}), partition=partition)


def looked(log: SparkLog, at_s: float) -> Look:
    """What is seen now, as if at that second."""
    log.refresh(force=True)
    seen = look_at(log)
    return Look(seen.image, at_s, seen.now_ms, seen.committed)


def test_rates_are_of_two_looks(log: SparkLog) -> None:
    log.create_topic("quiet")
    append(log, "t", 10)
    before = looked(log, 100)
    append(log, "t", 30)
    append(log, "t", 10, partition=1)
    now = looked(log, 104)
    busy, quiet = topic_rows(before, now)
    sizes = [
        sum(state.extents.stored_bytes for state in one.image.topic("t").partitions) for one in (before, now)
    ]
    assert busy == {
        "topic": "t",
        "partitions": 2,
        "records": 50,
        "size_bytes": sizes[1],
        "records_per_second": 10.0,
        "bytes_per_second": round((sizes[1] - sizes[0]) / 4),
    }
    assert (quiet["topic"], quiet["records_per_second"], quiet["bytes_per_second"]) == ("quiet", 0.0, 0)
    first = topic_rows(None, now)
    assert [row["records_per_second"] for row in first] == [None, None]


def test_a_topic_that_is_made_again_begins_at_nothing(log: SparkLog) -> None:
    append(log, "t", 40)
    before = looked(log, 0)
    log.delete_topic("t")
    log.create_topic("t")
    append(log, "t", 6)
    (row,) = topic_rows(before, looked(log, 2))
    assert row["records_per_second"] == 3.0


def test_what_is_merged_or_expires_is_not_written(log: SparkLog, run: Run) -> None:
    for _ in range(5):
        append(log, "t", 10)
    before = looked(log, 0)
    run("optimize")
    run("topics", "alter", "--topic", "t", "--config", "retention.bytes=0")
    run("expire")
    (row,) = topic_rows(before, looked(log, 1))
    assert (row["records"], row["records_per_second"], row["bytes_per_second"]) == (0, 0.0, 0)


def test_lag_and_its_change(log: SparkLog) -> None:
    append(log, "t", 10)
    append(log, "t", 10, partition=1)
    log.commit_offsets("g", {("t", 0): 4, ("t", 1): 10})
    before = looked(log, 0)
    (first,) = group_rows(None, before)
    assert (first["lag"], first["lag_per_second"], first["read_per_second"]) == (6, None, None)
    append(log, "t", 20)
    log.commit_offsets("g", {("t", 0): 12})
    log.commit_offsets("late", {("t", 0): 0})
    late, row = group_rows(before, looked(log, 2))
    assert (row["group"], row["topic"]) == ("g", "t")
    assert (row["lag"], row["lag_per_second"], row["read_per_second"]) == (18, 6.0, 4.0)
    assert isinstance(row["behind_ms"], int)
    assert (late["group"], late["lag"], late["lag_per_second"]) == ("late", 30, None)
    log.commit_offsets("g", {("t", 0): 30})
    done = next(one for one in group_rows(before, looked(log, 3)) if one["group"] == "g")
    assert (done["lag"], done["behind_ms"]) == (0, None)


def test_lag_is_that_of_groups_describe(log: SparkLog, run_json: RunJson) -> None:
    """Also where records that were not read have been deleted: Kafka's lag counts them."""
    append(log, "t", 10)
    log.commit_offsets("g", {("t", 0): 2})
    admin.delete_records(log.metadata, {("t", 0): 7})
    (row,) = group_rows(None, looked(log, 0))
    (described,) = run_json("groups", "describe", "-g", "g")
    assert row["lag"] == described["lag"] == 8


def test_a_group_of_a_topic_that_is_gone(log: SparkLog) -> None:
    log.commit_offsets("g", {("gone", 0): 4})
    (row,) = group_rows(looked(log, 0), looked(log, 1))
    assert (row["topic"], row["lag"], row["behind_ms"]) == ("gone", None, None)


def test_what_is_due(log: SparkLog) -> None:
    log.append("t", pa.table({"value": ["a"], "timestamp": pa.array([1], pa.int64())}))
    assert due_steps_of(looked(log, 0)) == []
    log.alter_topic("t", {"retention.ms": "1000"})
    assert due_steps_of(looked(log, 0)) == ["expire"]


def test_without_a_terminal_it_is_printed_once(log: SparkLog, run: Run, run_json: RunJson) -> None:
    append(log, "t", 3)
    log.commit_offsets("g", {("t", 0): 1})
    heading, empty, *tables = run("top", "--interval", "100ms").stdout.splitlines()
    assert heading.startswith(f"{log.url}  commit ")
    assert heading.endswith("0.0 commits/s, due: nothing")
    assert empty == ""
    assert tables[0].split() == ["TOPIC", "PARTITIONS", "RECORDS", "SIZE", "RECORDS/S", "BYTES/S"]
    assert tables[1].split()[:3] == ["t", "2", "3"]
    assert tables[3].split() == ["GROUP", "TOPIC", "LAG", "LAG/S", "READ/S", "UNREAD-SINCE"]
    assert tables[4].split()[:3] == ["g", "t", "2"]
    found = run_json("top", "--interval", "100ms", "--once")
    assert (found["root"], found["commits_per_second"], found["due"]) == (log.url, 0.0, [])
    assert [row["group"] for row in found["groups"]] == ["g"]
    run("top", "--interval", "1ms", exit_code=2)


def test_a_root_without_topics(run: Run, root: Path) -> None:
    sparklog.open(root).close()
    assert run("top", "--interval", "100ms").stdout.splitlines()[2:] == ["There are no topics."]


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["q", "SIGINT", "SIGTERM"])
def test_the_live_view_ends(log: SparkLog, root: Path, ending: str) -> None:
    append(log, "t", 3)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "SPARKLOG_ROOT": str(root), "TERM": "xterm", "LINES": "24", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-m", "sparklog", "top", "--interval", "1h"],
        stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    ) as process:  # fmt: skip
        os.close(theirs)
        try:
            shown = b""
            while b"q: quit" not in shown:
                shown += os.read(ours, 1 << 16)
            if ending == "q":
                os.write(ours, b"xq")  # any other key changes nothing
            else:
                process.send_signal(signal.Signals[ending])
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
            os.close(ours)
    assert (process.returncode, errors) == (0, b"")
    assert b"RECORDS/S" in shown
