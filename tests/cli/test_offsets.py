"""`sparklog offsets`: what kafka-get-offsets prints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result

import sparklog

Run = Callable[..., Result]
RunJson = Callable[..., Any]


def test_offsets_are_printed_as_kafka_does(run: Run, run_json: RunJson) -> None:
    run("topics", "create", "--topic", "t", "--partitions", "2")
    run("produce", "--topic", "t", "-p", "0", stdin="a\nb\n")
    assert run("offsets", "get", "--topic", "t").stdout == "t:0:2\nt:1:0\n"
    assert run("offsets", "get", "--topic", "t", "--time", "-2").stdout == "t:0:0\nt:1:0\n"
    assert run("offsets", "get", "--topic-partitions", "t:0", "--time", "latest").stdout == "t:0:2\n"
    assert run("offsets", "get", "--topic", "t", "--partitions", "0", "--time", "0").stdout == "t:0:0\n"
    assert run("kafka-get-offsets", "--topic", "t", "--time", "9999999999999").stdout == "t:0:\nt:1:\n"
    assert run_json("offsets", "get", "--time", "9999999999999")[0] == {
        "topic": "t",
        "partition": 0,
        "offset": None,
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("--topic-partitions", "t:x"),
        ("--topic-partitions", "t:1:2"),
        ("--topic-partitions", "t,"),
        ("--topic-partitions", "t:0", "--topic", "t"),
        ("--partitions", "x"),
        ("--time", "yesterday"),
        ("--time", "-7"),
    ],
)
def test_offsets_usage_errors(run: Run, arguments: tuple[str, ...]) -> None:
    run("topics", "create", "--topic", "t")
    run("offsets", "get", *arguments, exit_code=2)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("-1", ["t:0:3", "t:1:0"]),
        ("latest", ["t:0:3", "t:1:0"]),
        ("-2", ["t:0:0", "t:1:0"]),
        ("earliest", ["t:0:0", "t:1:0"]),
        ("-3", ["t:0:1", "t:1:"]),
        ("max-timestamp", ["t:0:1", "t:1:"]),
        ("-4", ["t:0:0", "t:1:0"]),
        ("earliest-local", ["t:0:0", "t:1:0"]),
        ("-5", ["t:0:", "t:1:"]),
        ("latest-tiered", ["t:0:", "t:1:"]),
        ("earliest-pending-upload", ["t:0:", "t:1:"]),
        ("5500", ["t:0:1", "t:1:"]),
    ],
)
def test_special_times_of_kafka(run: Run, root: Path, named: str, found: list[str]) -> None:
    run("topics", "create", "--topic", "t", "--partitions", "2")
    with sparklog.open(str(root), create=False) as log:
        rows = pa.table({"value": ["a", "b", "c"], "timestamp": pa.array([5000, 9000, 7000], pa.int64())})
        log.append("t", rows, partition=0)
    assert run("offsets", "get", "--topic", "t", "--time", named).stdout.splitlines() == found


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a:1", ["a:1"]),
        ("a:1-3", ["a:1", "a:2"]),
        ("a:2-", ["a:2", "a:3"]),
        ("a:-1", ["a:0"]),
        ("b", ["b:0", "b:1"]),
        (":0", ["a:0", "b:0"]),
        ("[ab]:1", ["a:1", "b:1"]),
        ("b:0,a:3,b", ["b:0", "a:3", "b:1"]),
    ],
)
def test_topic_partitions_are_kafkas_patterns(run: Run, pattern: str, found: list[str]) -> None:
    run("topics", "create", "--topic", "a", "--partitions", "4")
    run("topics", "create", "--topic", "b", "--partitions", "2")
    shown = run("kafka-get-offsets", "--topic-partitions", pattern).stdout.splitlines()
    assert shown == [f"{name}:0" for name in found]


def test_topic_partitions_that_do_not_exist(run: Run) -> None:
    run("topics", "create", "--topic", "t")
    assert "no partition is among" in run("offsets", "get", "--topic-partitions", "t:4-", exit_code=1).stderr
    run("offsets", "get", "--topic-partitions", "t:4", exit_code=1)
    run("offsets", "get", "--topic-partitions", "u:0", exit_code=1)
