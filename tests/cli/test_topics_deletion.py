"""`topics delete`: several, by pattern, internal ones; and Kafka's regular expressions in its other verbs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.client import OFFSETS_TOPIC
from sparklog.errors import StorageError
from sparklog.metadata import CreateTopic, new_id
from tests.cli.conftest import Run

RunJson = Callable[..., Any]


@pytest.fixture(autouse=True)
def topics(run: Run) -> None:
    for name in ("k1", "k2", "my.topic", "my-topic"):
        run("produce", "--topic", name, stdin="one\n")
    run("consume", "--topic", "k1", "--group", "dashboard", "-e")


def names(run: Run) -> list[str]:
    return run("topics", "list", "--names", "--exclude-internal").stdout.split()


@pytest.mark.parametrize("more", [[], ["--yes"], ["--if-exists", "--yes", "--topic", "k1"]])
def test_internal_topic_is_not_deleted_by_a_loop_over_all(run: Run, more: list[str]) -> None:
    told = run("topics", "delete", "--topic", OFFSETS_TOPIC, *more, exit_code=1).stderr
    assert "INTERNAL_TOPIC" in told
    assert "with it would go the positions of 1 group in 1 partition ('dashboard')" in told
    assert "--internal" in told
    assert run("groups", "list").stdout == "dashboard\n"
    assert "k1" in names(run)


def test_internal_topic_is_deleted_where_that_is_said(run: Run, run_json: RunJson) -> None:
    assert run_json("topics", "delete", "--topic", OFFSETS_TOPIC, "--internal") == [
        {"topic": OFFSETS_TOPIC, "deleted": True}
    ]
    assert run("groups", "list").stdout == ""


def test_what_an_internal_topic_holds_is_told_as_far_as_it_can_be_read(run: Run, root: Path) -> None:
    with sparklog.open(root) as log:  # as an older sparklog let anybody make it
        topic = CreateTopic(topic_id=new_id(), name="__transaction_state", partitions=1)
        log.metadata.publish(lambda _: [topic])
    told = run("topics", "delete", "--topic", "__transaction_state", exit_code=1).stderr
    assert "with it would go 0 records of brokers' own state" in told
    with sparklog.open(root) as log:
        for number in range(6):
            log.commit_offsets(f"g{number}", {("k1", 0): 1, ("k2", 0): 1})
    told = run("topics", "delete", "--topic", OFFSETS_TOPIC, exit_code=1).stderr
    assert "7 groups in 13 partitions ('dashboard', 'g0', 'g1', 'g2', 'g3' and 2 more): each begins" in told
    for segment in root.glob("segments/**/*.log"):
        segment.write_bytes(b"x" * segment.stat().st_size)
    told = run("topics", "delete", "--topic", OFFSETS_TOPIC, exit_code=1).stderr
    assert "the positions of all groups (which could not be read: " in told
    run("topics", "delete", "--topic", OFFSETS_TOPIC, "--internal")


@pytest.mark.parametrize("lines", ["", "k:v\n"])
def test_lines_are_not_written_to_an_internal_topic(run: Run, lines: str) -> None:
    """One that is no record of theirs, and no group could be read. It is said before the first line."""
    told = run("produce", "--topic", OFFSETS_TOPIC, "-K:", stdin=lines, exit_code=1).stderr
    assert "INTERNAL_TOPIC" in told
    assert run("groups", "list").stdout == "dashboard\n"


def test_a_pattern_deletes_what_has_been_shown_and_confirmed(run: Run) -> None:
    for words in (("topics", "delete", "--pattern"), ("kafka-topics", "--delete", "--topic")):
        told = run(*words, "k.*", exit_code=2).stderr
        assert "the pattern means 2 topics: k1, k2. Nobody can be asked" in told
    assert "k1" in names(run)
    assert (
        run("kafka-topics", "--delete", "--topic=k.*", "--yes").stdout
        == "Deleted topic k1.\nDeleted topic k2.\n"
    )
    assert names(run) == ["my-topic", "my.topic"]


def test_a_pattern_leaves_internal_topics_out(run: Run) -> None:
    told = run("kafka-topics", "--delete", "--topic", ".*", "--yes")
    assert told.stderr == f"Note: {OFFSETS_TOPIC} left out: internal.\n"
    assert run("topics", "list", "--names", "--include-internal").stdout == f"{OFFSETS_TOPIC}\n"


def test_a_name_is_no_pattern(run: Run) -> None:
    run("kafka-topics", "--delete", "--topic", "my.topic")
    assert names(run) == ["k1", "k2", "my-topic"]
    assert run("kafka-topics", "--list", "--topic", "my.topic").stdout == ""


def test_kafka_verbs_take_regular_expressions(run: Run) -> None:
    assert run("kafka-topics", "--list", "--topic", "k.*").stdout == "k1\nk2\n"
    assert run("kafka-topics", "--topic", "my.topic", "--list").stdout == "my.topic\n"
    described = run("kafka-topics", "--describe", "--topic", " 'k1, k2'").stdout
    assert [line.split()[1] for line in described.splitlines() if line.startswith("Topic:")] == ["k1", "k2"]
    assert run("kafka-get-offsets", "--topic", "k[2-9]").stdout == "k2:0:1\n"
    assert run("kafka-get-offsets", "--topic", "k2").stdout == "k2:0:1\n"
    told = run("kafka-topics", "--alter", "--topic", "k.*", "--partitions", "2", exit_code=1).stderr
    assert "topic 'k.*': not found" in told


def test_a_pattern_that_means_nothing(run: Run) -> None:
    assert "matches 'z.*'" in run("topics", "describe", "--pattern", "z.*", exit_code=1).stderr
    assert "TOPIC_MISSING" in run("kafka-topics", "--delete", "--topic", "z.*", exit_code=1).stderr
    assert run("topics", "delete", "--pattern", "z.*", "--if-exists").stdout == "No topic matches 'z.*'.\n"
    told = run("kafka-topics", "--delete", "--topic", "(?!k)z", "--yes", exit_code=1).stderr
    assert "a pattern of topics: " in told
    assert "use RE2's syntax" in told


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "delete"),
        ("topics", "delete", "--topic", "a", "--pattern", "b"),
        ("topics", "describe", "--topic", "a", "--pattern", "b"),
        ("offsets", "get", "--topic", "a", "--pattern", "b"),
        ("offsets", "get", "--topic-partitions", "a:0", "--pattern", "b"),
    ],
)
def test_which_topics_is_said_once(run: Run, words: tuple[str, ...]) -> None:
    run(*words, exit_code=2)


def test_fixes_of_a_name_that_no_topic_has(run: Run) -> None:
    told = run("topics", "delete", "--topic", "k.*", exit_code=1).stderr
    assert "topics create" not in told
    assert "take a regular expression with --pattern" in told


def test_what_was_deleted_before_a_failure_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    delete_topic = sparklog.SparkLog.delete_topic

    def fail(log: sparklog.SparkLog, name: str) -> None:
        if name == "k2":
            raise StorageError("STORAGE_FAILED", "the disk is gone", fix="find it")
        delete_topic(log, name)

    monkeypatch.setattr(sparklog.SparkLog, "delete_topic", fail)
    result = run("topics", "delete", "--topic", "k1", "--topic", "k2", "--topic", "my.topic", exit_code=1)
    assert (result.stdout, "the disk is gone" in result.stderr) == ("Deleted topic k1.\n", True)


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_it_is_asked(run: Run, root: Path, answer: str) -> None:
    ours, theirs = os.openpty()
    words = ["--pattern", "k.*|__consumer.*", "--internal"]
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "sparklog", "--root", str(root), "topics", "delete", *words],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            os.write(ours, f"{answer}\n".encode())
            _, told = process.communicate(timeout=60)
    finally:
        os.close(theirs)
        os.close(ours)
    assert told.startswith("Delete 3 topics: __consumer_offsets, k1, k2, and all their records?\n")
    assert "Lost with __consumer_offsets: the positions of 1 group" in told
    assert process.returncode == (0 if answer == "y" else 1)
    assert ("k1" in names(run)) is (answer == "n")
