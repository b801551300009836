"""`groups reset-offsets`, `delete` and `delete-offsets` on a root that no broker has served."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.metadata import new_id, plan_join_broker
from tests.cli.conftest import Run

RunJson = Callable[..., Any]
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def log(root: Path) -> sparklog.SparkLog:
    """Topics t (two partitions) and u, ten records each, an hour apart up to now; group g has read five."""
    log = sparklog.open(root)
    now_ms = log.clock.now_ms()
    times = pa.array([now_ms - (9 - n) * HOUR_MS - 60_000 for n in range(10)], pa.timestamp("ms", "UTC"))
    rows = pa.table({"value": pa.array([b"v"] * 10), "timestamp": times})
    log.create_topic("t", 2)
    for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
        log.append(topic, rows, partition=partition)
    log.commit_offsets("g", {("t", 0): 5, ("t", 1): 5, ("u", 0): 5})
    return log


def iso(ago_ms: int, log: sparklog.SparkLog) -> str:
    from sparklog.wording import shown_time

    return shown_time(log.clock.now_ms() - ago_ms).removesuffix("Z")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-current"], 5),
        (["--to-offset", "7"], 7),
        (["--to-offset", "70"], 10),
        (["--shift-by", "2"], 7),
        (["--shift-by", "-2"], 3),
        (["--shift-by=-20"], 0),
        (["--by-duration", "PT2H30M"], 7),
        (["--by-duration", "P0DT2H30M0S"], 7),
        (["--by-duration", "P1D"], 0),
        (["--by-duration", "PT0S"], 10),
        (["--by-duration", "150m"], 7),
    ],
)
def test_each_way_is_shown_then_done(
    log: sparklog.SparkLog, run: Run, words: list[str], expected: int
) -> None:
    command = ("groups", "reset-offsets", "--group", "g", "--topic", "t", *words)
    shown = run(*command)
    heading, *rows = shown.stdout.splitlines()
    assert heading.split() == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]
    assert [row.split() for row in rows] == [["g", "t", str(number), str(expected)] for number in range(2)]
    assert "give --execute" in shown.stderr
    assert log.committed_offsets("g") == {("t", 0): 5, ("t", 1): 5, ("u", 0): 5}
    kafka = run("kafka-consumer-groups", "--reset-offsets", *command[2:], "--execute")
    assert kafka.stdout == shown.stdout
    assert log.committed_offsets("g") == {("t", 0): expected, ("t", 1): expected, ("u", 0): 5}


def test_to_a_time(log: sparklog.SparkLog, run: Run) -> None:
    words = ("groups", "reset-offsets", "-g", "g", "--topic", "u", "--execute")
    run(*words, "--to-datetime", iso(HOUR_MS * 5 // 2, log))
    assert log.committed_offsets("g")["u", 0] == 7
    run(*words, "--to-datetime", iso(HOUR_MS * 9 // 2, log) + "+00:00")
    assert log.committed_offsets("g")["u", 0] == 5
    shown = run(*words, "--to-datetime", iso(-HOUR_MS, log) + "Z")
    assert "u-0: no record is that new" in shown.stderr
    assert log.committed_offsets("g")["u", 0] == 10


def test_only_what_is_named(log: sparklog.SparkLog, run: Run, run_json: RunJson) -> None:
    run("groups", "reset-offsets", "g", "--topic", "t:1", "--topic", "u", "--to-latest", "--execute")
    assert log.committed_offsets("g") == {("t", 0): 5, ("t", 1): 10, ("u", 0): 10}
    log.commit_offsets("h", {("u", 0): 1})
    found = run_json("groups", "reset-offsets", "--all-groups", "--all-topics", "--to-earliest", "--execute")
    assert found["dry_run"] is False
    assert [(one["group"], one["topic"], one["partition"]) for one in found["partitions"]] == [
        ("g", "t", 0),
        ("g", "t", 1),
        ("g", "u", 0),
        ("h", "u", 0),
    ]
    assert {(one["current_offset"], one["new_offset"]) for one in found["partitions"]} == {
        (5, 0),
        (10, 0),
        (1, 0),
    }
    assert log.committed_offsets("h") == {("u", 0): 0}


def test_an_exported_plan_is_gone_back_to(log: sparklog.SparkLog, run: Run, tmp_path: Path) -> None:
    log.commit_offsets("h", {("u", 0): 1})
    for groups, lines in (
        (["-g", "g"], ["t,0,5", "t,1,5", "u,0,5"]),
        (["--all-groups"], ["g,t,0,5", "g,t,1,5", "g,u,0,5", "h,u,0,1"]),
    ):
        saved = run("groups", "reset-offsets", *groups, "--all-topics", "--to-current", "--export")
        assert saved.stdout.splitlines() == lines
        assert saved.stderr == ""
        (tmp_path / "plan.csv").write_text(saved.stdout)
        run("groups", "reset-offsets", *groups, "--all-topics", "--to-latest", "--execute")
        run("groups", "reset-offsets", *groups, "--from-file", str(tmp_path / "plan.csv"), "--execute")
        assert log.committed_offsets("g") == {("t", 0): 5, ("t", 1): 5, ("u", 0): 5}
    assert log.committed_offsets("h") == {("u", 0): 1}


@pytest.mark.parametrize(
    "words",
    [
        ["-g", "g", "--topic", "t"],
        ["-g", "g", "--topic", "t", "--to-latest", "--to-earliest"],
        ["-g", "g", "--topic", "t", "--to-latest", "--to-offset", "0"],
        ["-g", "g", "--to-latest"],
        ["-g", "g", "--topic", "t", "--all-topics", "--to-latest"],
        ["--topic", "t", "--to-latest"],
        ["-g", "g", "--all-groups", "--topic", "t", "--to-latest"],
        ["-g", "g", "--topic", "t", "--to-latest", "--dry-run", "--execute"],
        ["-g", "g", "--topic", "t", "--to-latest", "--export", "--output", "json"],
        ["-g", "g", "--topic", "t:x", "--to-latest"],
        ["-g", "g", "--topic", f"t:{'9' * 5000}", "--to-latest"],
        ["-g", "g", "--topic", "t", "--to-offset", "-1"],
        ["-g", "g", "--topic", "t", "--to-datetime", "yesterday"],
        ["-g", "g", "--topic", "t", "--by-duration", "P"],
        ["-g", "g", "--topic", "t", "--by-duration", "P1DT"],
        ["-g", "g", "--topic", "t", "--by-duration", "P99999999D"],
    ],
)
def test_wrong_usage(run: Run, words: list[str]) -> None:
    run("groups", "reset-offsets", *words, exit_code=2)


def test_nothing_is_done_where_a_part_cannot_be(log: sparklog.SparkLog, run: Run, tmp_path: Path) -> None:
    words = ("groups", "reset-offsets", "--execute")
    assert "TOPIC_MISSING" in run(*words, "-g", "g", "--topic", "x", "--to-latest", exit_code=1).stderr
    run(*words, "-g", "g", "--topic", "t:0,2", "--to-latest", exit_code=1)
    log.commit_offsets("h", {("u", 0): 1})
    shown = run(*words, "--all-groups", "--topic", "t", "--shift-by", "1", exit_code=1)
    assert "t-0: group 'h' has committed no offset" in shown.stderr
    (tmp_path / "bad.csv").write_bytes(b"\xff")
    run(*words, "-g", "g", "--from-file", str(tmp_path / "bad.csv"), exit_code=1)
    assert log.committed_offsets("g") == {("t", 0): 5, ("t", 1): 5, ("u", 0): 5}


def test_groups_are_deleted(log: sparklog.SparkLog, run: Run, run_json: RunJson) -> None:
    log.commit_offsets("h", {("u", 0): 1})
    shown = run("kafka-consumer-groups", "--delete", "--group", "g", "--group", "x", exit_code=1)
    assert shown.stdout == "Deletion of requested consumer groups ('g') was successful.\n"
    assert "1 of 2 groups: group 'x': GROUP_ID_NOT_FOUND" in shown.stderr
    assert log.groups() == ["h"]
    assert "give --yes" in run("groups", "delete", "--all-groups", exit_code=2).stderr
    assert run_json("groups", "delete", "--all-groups", "--yes") == [
        {"group": "h", "deleted": True, "error": None}
    ]
    assert log.groups() == []
    run("groups", "delete", exit_code=2)


def test_offsets_are_deleted(log: sparklog.SparkLog, run: Run, run_json: RunJson) -> None:
    log.commit_offsets("g", {("gone", 0): 1})
    heading, *rows = run("groups", "delete-offsets", "-g", "g", "--topic", "t:1").stdout.splitlines()
    assert heading.split() == ["TOPIC", "PARTITION", "STATUS"]
    assert [row.split() for row in rows] == [["t", "1", "Successful"]]
    found = run_json("groups", "delete-offsets", "-g", "g", "--topic", "t", "--topic", "gone")
    assert [(one["topic"], one["partition"], one["error"]) for one in found] == [
        ("gone", 0, None),
        ("t", 0, None),
    ]
    assert log.committed_offsets("g") == {("u", 0): 5}
    assert (
        "nothing for topic 't'"
        in run(
            "kafka-consumer-groups", "--delete-offsets", "--group", "g", "--topic", "t", exit_code=1
        ).stderr
    )
    assert (
        "'x' does not exist" in run("groups", "delete-offsets", "-g", "x", "--topic", "t", exit_code=1).stderr
    )


@pytest.mark.parametrize(
    "words",
    [
        ["reset-offsets", "-g", "g", "--all-topics", "--to-latest", "--execute"],
        ["delete", "-g", "g"],
        ["delete-offsets", "-g", "g", "--topic", "u"],
    ],
)
def test_a_root_that_a_broker_has_served_is_refused(
    log: sparklog.SparkLog, run: Run, words: list[str]
) -> None:
    before = log.committed_offsets("g")
    log.metadata.publish(lambda image: [plan_join_broker(image, 7, incarnation_id=new_id())])
    told = run("groups", *words, exit_code=1).stderr
    assert "BROKER_COORDINATES" in told
    assert "--bootstrap-server" in told
    assert log.committed_offsets("g") == before
    run("groups", *words, "--force")
    run("groups", "describe", "-g", "g", "--members", exit_code=2)
