"""`sparklog compact`: what it shows, and what it does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from tests.cli.conftest import Run


@pytest.fixture
def table(run: Run, root: Path) -> None:
    """A compacted topic with what is superseded, deleted, and without a key; and one that keeps all."""
    run("topics", "create", "--topic", "plain")
    run("topics", "create", "--topic", "t")
    with sparklog.open(root, create=False) as log:
        for keys, values in (
            ([b"a", b"b", None], [b"1", b"1", b"x"]),
            ([b"a", b"b"], [b"2", None]),
        ):
            log.append("t", pa.table({"key": keys, "value": pa.array(values, pa.binary())}))
        log.alter_topic("t", {"cleanup.policy": "compact"})


@pytest.mark.usefixtures("table")
def test_a_dry_run_shows_and_a_run_compacts(run: Run) -> None:
    header, line = run("compact", "--dry-run").stdout.splitlines()
    assert header.split() == ["TOPIC", "PARTITIONS", "DIRTY", "CLEAN"]
    assert line.split()[:2] == ["t", "1"]
    assert run("compact", "--due").stdout != "Nothing to compact.\n"
    done = run("compact", "t")
    assert done.stderr == ""
    assert "Nothing to compact." in run("compact").stdout
    assert run("consume", "--topic", "t", "--exit-at-end").stdout.splitlines()[0] == "2"


@pytest.mark.usefixtures("table")
def test_records_without_a_key_are_told(run: Run) -> None:
    done = run("compact")
    header, line = done.stdout.splitlines()
    assert header.split()[4:9] == ["RECORDS", "SUPERSEDED", "KEYLESS", "TOMBSTONES-GONE", "KEPT"]
    assert done.stderr == "1 record had no key, and is gone.\n"
    assert "5" in line.split()


@pytest.mark.usefixtures("table")
def test_json(run_json: Callable[..., Any]) -> None:
    told = run_json("compact", "--dry-run")
    assert (told["dry_run"], [one["topic"] for one in told["topics"]]) == (True, ["t"])
    (one,) = run_json("compact")["topics"]
    assert (one["superseded"], one["keyless"], one["tombstones_kept"], one["left_out"]) == (2, 1, 1, 0)
    assert one["bytes_after"] < one["bytes_before"] == one["dirty_bytes"]


@pytest.mark.usefixtures("table")
def test_a_topic_that_is_not_compacted(run: Run) -> None:
    refused = run("compact", "plain", exit_code=1)
    assert "NOT_COMPACTED" in refused.stderr
    assert "--config cleanup.policy=compact" in refused.stderr


@pytest.mark.usefixtures("table")
def test_why_nothing_is_due(run: Run, run_json: Callable[..., Any], root: Path) -> None:
    def told(*words: str) -> tuple[str, str]:
        (one,) = run_json("compact", "t", *words)["topics"]
        return one["outcome"], one["reason"]

    assert told("--dry-run") == ("due", "")
    assert told() == ("compacted", "")
    assert told() == ("nothing_due", "nothing was written since the last compaction")
    assert "t: nothing was written since the last compaction." in run("compact").stderr
    run("topics", "alter", "--topic", "t", "--config", "min.compaction.lag.ms=1000000")
    with sparklog.open(root, create=False) as log:
        log.append("t", pa.table({"key": ["z"], "value": ["z"]}))
    assert told() == ("nothing_due", "what is not compacted is younger than min.compaction.lag.ms")
    assert "newest extent" in told("--due")[1]
    run("topics", "alter", "--topic", "t", "--config", "min.compaction.lag.ms=0")
    run("topics", "alter", "--topic", "t", "--config", "min.cleanable.dirty.ratio=0.99")
    with sparklog.open(root, create=False) as log:
        log.append("t", pa.table({"key": ["z"], "value": ["z"]}))
    outcome, reason = told("--due")
    assert (outcome, reason[:12]) == ("nothing_due", "dirty ratio ")
    assert reason.endswith(", of 0.99 (min.cleanable.dirty.ratio)")
    run("topics", "create", "--topic", "empty", "--config", "cleanup.policy=compact")
    assert run_json("compact", "empty")["topics"][0]["reason"] == "no records"


@pytest.mark.usefixtures("table")
def test_a_pattern_means_the_topics_that_are_compacted(run: Run, run_json: Callable[..., Any]) -> None:
    assert [one["topic"] for one in run_json("compact", "*", "--dry-run")["topics"]] == ["t"]
    assert "NOT_COMPACTED" in run("compact", "plain,t", exit_code=1).stderr
