"""The formats of `--output`, each the same document."""

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

RunJson = Callable[..., Any]
Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def topics(run: Run) -> None:
    run("topics", "create", "--topic", "a", "--partitions", "2", "--config", "cleanup.policy=delete,compact")
    run("topics", "create", "--topic", "b")


def test_json_lines_are_the_items_of_a_list(run: Run, run_json: RunJson) -> None:
    lines = run("topics", "describe", "--output", "jsonl").stdout.splitlines()
    assert list(map(json.loads, lines)) == run_json("topics", "describe")
    (line,) = run("root", "describe", "--output", "jsonl").stdout.splitlines()
    assert json.loads(line) == run_json("root", "describe")


def test_csv_has_every_field_and_json_in_lists(run: Run, run_json: RunJson) -> None:
    rows = list(csv.DictReader(io.StringIO(run("topics", "describe", "--output", "csv").stdout)))
    expected = run_json("topics", "describe")
    assert list(rows[0]) == list(expected[0])
    assert [row["topic"] for row in rows] == ["a", "b"]
    assert (rows[0]["internal"], rows[0]["partition_count"]) == ("false", "2")
    assert json.loads(rows[0]["partitions"]) == expected[0]["partitions"]
    controller = run("controller", "describe", "--output", "csv").stdout.splitlines()
    assert controller[1].startswith(",,0,")
    assert run("groups", "list", "--output", "csv").stdout == ""


def test_yaml_is_in_blocks_with_json_for_scalars(run: Run, run_json: RunJson) -> None:
    shown = run("topics", "describe", "a", "--output", "yaml").stdout
    topic_id = run_json("topics", "describe", "a")[0]["topic_id"]
    assert shown.splitlines()[:11] == [
        '- topic: "a"',
        f'  topic_id: "{topic_id}"',
        "  partition_count: 2",
        "  internal: false",
        "  configs:",
        '    cleanup.policy: "delete,compact"',
        "  partitions:",
        "    - partition: 0",
        "      log_start_offset: 0",
        "      log_end_offset: 0",
        "      size_bytes: 0",
    ]
    assert "      leader: null\n" in shown
    assert shown.endswith("      isr: []\n")
    assert run("groups", "list", "--output", "yaml").stdout == "[]\n"


def test_wide_has_every_field(run: Run) -> None:
    heading, *_ = run("topics", "list", "--output", "wide").stdout.splitlines()
    assert heading.split() == ["TOPIC", "PARTITIONS", "RECORDS", "SIZE", "TOPIC-ID", "INTERNAL"]


@pytest.mark.parametrize("output", ["csv", "yaml"])
def test_records_are_lines(run: Run, output: str) -> None:
    assert "json or jsonl" in run("consume", "a", "-e", "--output", output, exit_code=2).stderr


@pytest.mark.parametrize(("output", "is_json"), [("jsonl", True), ("yaml", True), ("csv", False)])
def test_errors_are_json_where_results_are(run: Run, output: str, is_json: bool) -> None:
    error = run("topics", "describe", "nosuch", "--output", output, exit_code=1).stderr
    assert error.startswith('{"error": {"code": "SPARKLOG_TOPIC_MISSING"') == is_json
