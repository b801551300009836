"""What topics a command of maintenance is for: names, lists, patterns."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from tests.cli.conftest import Run

RunJson = Callable[..., Any]


@pytest.fixture
def log(root: Path) -> Iterator[SparkLog]:
    with sparklog.open(root) as log:
        for name in ("orders-eu", "orders-us", "people"):
            log.create_topic(name, 1)
            for _ in range(2):
                log.append(name, pa.table({"value": ["x"]}))
        log.commit_offsets("g", {("people", 0): 1})
        yield log


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["*"], ["orders-eu", "orders-us", "people"]),
        (["orders-*"], ["orders-eu", "orders-us"]),
        (["orders-??"], ["orders-eu", "orders-us"]),
        (["people", "*-eu", "orders-eu"], ["people", "orders-eu"]),
        (["people,orders-us"], ["people", "orders-us"]),
        (["__*"], ["__consumer_offsets"]),
        ([], ["__consumer_offsets", "orders-eu", "orders-us", "people"]),
    ],
)
def test_names_lists_and_patterns(run_json: RunJson, words: list[str], meant: list[str]) -> None:
    found = run_json("optimize", *words, "--dry-run")["topics"]
    assert sorted(one["topic"] for one in found) == sorted(meant)


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("command", ["optimize", "compact", "expire", "maintain"])
def test_what_means_none_is_refused(run: Run, command: str) -> None:
    refused = run(command, "nothing-*", exit_code=2).stderr
    assert "found no topic for 'nothing-*'" in refused
    assert "sparklog topics list" in refused
    assert "expected names of topics" in run(command, ",", exit_code=2).stderr
    assert "did you mean 'people'" in run(command, "peple", exit_code=1).stderr


def test_a_pattern_is_acted_on(log: SparkLog, run: Run) -> None:
    run("optimize", "orders-*")
    assert [
        len(log.refresh().partition(name, 0).extents) for name in ("orders-eu", "orders-us", "people")
    ] == [
        1,
        1,
        2,
    ]
    run("maintain", "*", "--min-input-files", "2")
    assert len(log.refresh().partition("people", 0).extents) == 1
