"""`records delete`: kafka-delete-records without a JVM."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

RunJson = Callable[..., Any]


@pytest.fixture(autouse=True)
def topic(run: Run) -> None:
    run("topics", "create", "--topic", "t", "--partitions", "2")
    for partition in "01":
        run("produce", "--topic", "t", "-p", partition, stdin="a\nb\nc\n")


def starts(run: Run) -> list[str]:
    return run("offsets", "get", "-t", "t", "--time", "earliest").stdout.split()


def test_records_before_an_offset_go(run: Run, run_json: RunJson) -> None:
    words = ("records", "delete", "--topic", "t", "--partition", "0", "--offset")
    heading, row = run(*words, "2", "--dry-run").stdout.splitlines()
    assert heading.split() == ["TOPIC", "PARTITION", "LOG-START-OFFSET", "NEW", "OFFSETS"]
    assert row.split() == ["t", "0", "0", "2", "2"]
    assert starts(run) == ["t:0:0", "t:1:0"]
    shown = run(*words, "2").stdout.splitlines()
    assert shown == ["Records delete operation completed:", "partition: t-0\tlow_watermark: 2"]
    assert starts(run) == ["t:0:2", "t:1:0"]
    assert run("consume", "t", "-p", "0", "-e").stdout == "c\n"
    assert run_json(*words, "-1") == {
        "dry_run": False,
        "partitions": [
            {
                "topic": "t",
                "partition": 0,
                "log_start_offset": 2,
                "new_log_start_offset": 3,
                "offsets": 1,
            }
        ],
    }
    assert "OFFSET_OUT_OF_RANGE" in run(*words, "4", exit_code=1).stderr


def test_by_kafkas_file(run: Run, tmp_path: Path) -> None:
    entries = [{"topic": "t", "partition": 0, "offset": 1}, {"topic": "t", "partition": 1, "offset": -1}]
    path = tmp_path / "offsets.json"
    path.write_text(json.dumps({"partitions": entries, "version": 1}))
    shown = run("kafka-delete-records", "--offset-json-file", str(path)).stdout.splitlines()
    assert shown[1:] == ["partition: t-0\tlow_watermark: 1", "partition: t-1\tlow_watermark: 3"]
    assert starts(run) == ["t:0:1", "t:1:3"]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--topic", "t", "--partition", "0"],
        ["--topic", "t", "--offset", "0"],
        ["--partition", "0", "--offset", "0"],
        ["--topic", "t", "--partition", "0", "--offset", "-2"],
        ["--offset-json-file", "-", "--topic", "t"],
    ],
)
def test_wrong_usage(run: Run, words: list[str]) -> None:
    run("records", "delete", *words, exit_code=2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "truncated"),
        ('{"partitions": []}', "length >= 1"),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', "missing required field `offset`"),
        ('{"partitions": [{"topic": "t", "partition": 0, "offset": -2}]}', "$.partitions[0].offset"),
        (
            '{"partitions": [%s, %s]}' % (('{"topic": "t", "partition": 0, "offset": 1}',) * 2),
            "found t-0 again",
        ),
    ],
)
def test_other_files_are_refused(run: Run, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    told = run("records", "delete", "--offset-json-file", str(tmp_path / "bad.json"), exit_code=1).stderr
    assert "INVALID_PARTITION_FILE" in told
    assert problem in told
    assert starts(run) == ["t:0:0", "t:1:0"]


def test_a_topic_that_is_not_there(run: Run) -> None:
    words = ("records", "delete", "--partition", "0", "--offset", "0", "--topic")
    assert "TOPIC_MISSING" in run(*words, "x", exit_code=1).stderr
    run("topics", "alter", "--topic", "t", "--config", "cleanup.policy=compact")
    assert "COMPACTED_TOPIC" in run(*words, "t", exit_code=1).stderr
