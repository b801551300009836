from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from click.testing import Result

import sparklog
from sparklog.metadata import plan_delete_topic

Run = Callable[..., Result]
RunJson = Callable[..., Any]


def test_groups_are_listed_with_their_states(run: Run, run_json: RunJson) -> None:
    run("produce", "-t", "t", stdin="x\n")
    run("consume", "-t", "t", "-G", "g", "-e")
    assert run("kafka-consumer-groups", "--list", "--state").stdout == "GROUP  STATE\ng      Empty\n"
    assert run_json("groups", "list", "--state") == [{"group": "g", "type": "classic", "state": "Empty"}]


def test_groups_are_listed_and_described(run: Run, run_json: RunJson) -> None:
    run("produce", "--topic", "t", stdin="a\nb\n")
    run("consume", "--topic", "t", "--group", "g", "-e")
    assert run("groups", "list").stdout == "g\n"
    assert run_json("groups", "list") == [{"group": "g", "type": "classic"}]
    heading, row = run("groups", "describe", "--all-groups").stdout.splitlines()
    assert heading.split() == [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
        "LAG-SECONDS",
    ]
    assert row.split() == ["g", "t", "0", "2", "2", "0", "-", "-", "-", "0.0"]
    assert run("kafka-consumer-groups", "--describe", "--group", "g").stdout.splitlines() == [heading, row]


def test_a_topic_goes_with_what_groups_have_committed_for_it(run: Run) -> None:
    run("produce", "--topic", "t", stdin="a\n")
    run("consume", "--topic", "t", "--group", "g", "-e")
    run("topics", "delete", "--topic", "t")
    assert "'g' does not exist" in run("groups", "describe", "--group", "g", exit_code=1).stderr
    run("produce", "--topic", "t", stdin="b\n")
    assert run("consume", "--topic", "t", "--group", "g", "-e").stdout == "b\n"


def test_offsets_of_a_deleted_topic_have_no_lag(run: Run, run_json: RunJson, root: Path) -> None:
    """Committed by a reader that had not noticed, or left there by an older client."""
    run("produce", "--topic", "t", stdin="a\n")
    run("consume", "--topic", "t", "--group", "g", "-e")
    with sparklog.open(str(root), create=False) as log:
        log.metadata.publish(lambda image: [plan_delete_topic(image, "t")])
    (row,) = run_json("groups", "describe", "--group", "g")
    assert (row["current_offset"], row["log_end_offset"], row["lag"]) == (1, None, None)


def test_lag_in_seconds_is_the_age_of_the_first_unread_record(
    run: Run, run_json: RunJson, root: Path
) -> None:
    run("topics", "create", "--topic", "t")
    with sparklog.open(root) as log:
        ages = pa.array([log.clock.now_ms() - 60_000 * n for n in (9, 5, 3)], pa.timestamp("ms", "UTC"))
        log.append("t", pa.table({"value": [b"v"] * 3, "timestamp": ages}))
        log.commit_offsets("g", {("t", 0): 1}, metadata="by hand")
    (row,) = run_json("groups", "describe", "--group", "g")
    assert 300 <= row["lag_seconds"] < 360
    assert row["metadata"] == "by hand"
    heading = run("groups", "describe", "--group", "g", "--verbose").stdout.splitlines()[0]
    assert heading.split()[-3:] == ["LAG-SECONDS", "LAST-COMMIT", "METADATA"]


def test_without_a_broker_a_group_is_empty(run: Run, run_json: RunJson) -> None:
    run("produce", "--topic", "t", stdin="a\n")
    run("consume", "--topic", "t", "--group", "g", "-e")
    (state,) = run_json("groups", "describe", "--all-groups", "--state")
    assert (state["group"], state["state"], state["members"]) == ("g", "Empty", 0)
    members = run("groups", "describe", "--group", "g", "--members")
    assert members.stdout.split() == ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    assert "has no active members" in members.stderr
    run("groups", "describe", "--group", "g", "--members", "--state", exit_code=2)


def test_unknown_group_is_an_error(run: Run) -> None:
    run("topics", "create", "--topic", "t")
    assert (
        "Consumer group 'g' does not exist" in run("groups", "describe", "--group", "g", exit_code=1).stderr
    )
    run("groups", "describe", exit_code=2)


def test_what_a_group_has_missed_is_told(run: Run) -> None:
    """It went on at the log's start without a word, and committed."""
    words = ("consume", "--topic", "t", "--group", "g", "-e")
    run("produce", "--topic", "t", stdin="a\nb\n")
    assert "Warning" not in run(*words).stderr
    run("produce", "--topic", "t", stdin="c\n")
    run("topics", "alter", "--topic", "t", "--config", "retention.bytes=0")
    run("expire")
    run("produce", "--topic", "t", stdin="d\n")
    result = run(*words)
    assert result.stdout == "d\n"
    assert (
        "group g is at offset 2, and the log starts at 3: the group has not read offsets 2 to 2"
        in result.stderr
    )
    assert "Reading goes on at 3" in result.stderr
    assert "Warning" not in run(*words).stderr


def test_silent_groups_are_removed(run: Run, run_json: RunJson) -> None:
    run("produce", "--topic", "t", stdin="a\nb\n")
    for group in ("g", "h"):
        run("consume", "--topic", "t", "--group", group, "-e")
    assert run("groups", "expire", "--older-than", "1d").stdout == "No group is older than that.\n"
    found = run_json("groups", "expire", "--older-than", "0", "--dry-run")
    assert (found["dry_run"], [one["group"] for one in found["groups"]]) == (True, ["g", "h"])
    heading, row = run("groups", "expire", "--older-than", "0", "--group", "g").stdout.splitlines()
    assert heading.split() == ["GROUP", "OFFSETS", "LAST-COMMIT"]
    assert row.split()[:2] == ["g", "1"]
    assert run("groups", "list").stdout == "h\n"
    run("groups", "expire", exit_code=2)
