"""An option that takes one value is refused when it is given twice: the first would be forgotten silently."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import Run

RunJson = Callable[..., Any]


@pytest.mark.parametrize(
    "words",
    [
        ("produce", "--topic", "t", "--topic", "u"),
        ("produce", "-t", "t", "--topic=u"),
        ("kafka-console-producer", "--topic", "t", "--topic", "u"),
        ("consume", "--topic", "t", "-e", "--group", "a", "-G", "b"),
        ("topics", "alter", "--topic", "t", "--topic", "u", "--partitions", "4"),
        ("topics", "create", "--topic", "v", "--partitions", "1", "--partitions", "2"),
        ("kafka-topics", "--alter", "--topic", "t", "--topic", "u", "--partitions", "4"),
        ("groups", "expire", "--older-than", "7d", "--older-than", "0"),
        ("vacuum", "--retain", "7d", "--retain", "0"),
    ],
)
def test_nothing_is_done(run: Run, run_json: RunJson, words: tuple[str, ...]) -> None:
    for topic in ("t", "u"):
        run("topics", "create", "--topic", topic)
    told = run(*words, stdin="x\n", exit_code=2).stderr
    assert "it is given more than once, and takes one value" in told
    described = run_json("topics", "describe")
    assert [(one["topic"], one["partition_count"]) for one in described] == [("t", 1), ("u", 1)]
    assert run("consume", "--topic", "t", "-e").stdout == run("consume", "--topic", "u", "-e").stdout == ""


def test_what_takes_several_values_takes_them(run: Run) -> None:
    run("topics", "create", "--topic", "t", "--config", "flush.ms=5", "--config", "segment.bytes=1000")
    for partition in ("0", "0"):
        run("produce", "--topic", "t", "-p", partition, "-H", "a=1", "-H", "b=2", stdin="x\n")
    assert run("consume", "--topic", "t", "-e", "-p", "0", "-p", "0").stdout == "x\nx\n"


def test_of_the_common_options_the_last_one_wins(run: Run) -> None:
    """They may stand before the command, in an alias of the shell, and after it."""
    run("topics", "create", "--topic", "t")
    assert run("topics", "list", "--output", "json", "--output", "table", "--names").stdout == "t\n"


def test_a_capital_m_is_no_minute(run: Run) -> None:
    """Months were meant, and offsets of six minutes ago would have gone."""
    run("topics", "create", "--topic", "t")
    told = run("groups", "expire", "--older-than", "6M", exit_code=2).stderr
    assert "found '6M': write 6m for minutes; for months, days" in told
    assert run("groups", "expire", "--older-than", "6D").stdout == "No group is older than that.\n"
