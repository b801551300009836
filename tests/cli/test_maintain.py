"""`sparklog maintain`: rounds by hand, and for as long as it runs; ended by signals."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.cli.doctor import Status, check_root
from sparklog.client import SparkLog
from sparklog.maintenance import ROUND, alone
from tests.cli.conftest import Run
from tests.support.broker_process import until

MAINTAIN = [sys.executable, "-m", "sparklog", "maintain"]


@pytest.fixture
def log(root: Path) -> Iterator[SparkLog]:
    with sparklog.open(root) as log:
        log.create_topic("t", 1)
        yield log


def fill(log: SparkLog, count: int, size: int = 1) -> None:
    for number in range(count):
        log.append("t", pa.table({"value": [f"{number}".encode() * size]}), partition=0)


def extent_count(log: SparkLog) -> int:
    return len(log.refresh().partition("t", 0).extents)


@pytest.fixture
def watch(root: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start it as a process."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*MAINTAIN, *arguments],
            env={**os.environ, "SPARKLOG_ROOT": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_round_tells_what_it_did(log: SparkLog, run: Run) -> None:
    fill(log, 3)
    assert run("maintain").stdout == "Nothing is due.\n"
    told = run("maintain", "--min-input-files", "3").stdout
    assert "optimize  done" in told
    assert "merged_extents=3" in told
    assert "Extents: 3 -> 1" in told
    assert extent_count(log) == 1


def test_as_json(log: SparkLog, run_json: Callable[..., Any]) -> None:
    fill(log, 2)
    found = run_json("maintain", "t", "--min-input-files", "2", "--dry-run")
    assert set(found) == {"dry_run", "steps", "before", "after", "duration_ms", "is_stopped"}
    assert found["dry_run"] is True
    outcomes = {one["step"]: one["outcome"] for one in found["steps"]}
    assert outcomes.pop("optimize") == "due"
    assert set(outcomes.values()) == {"nothing"}
    assert set(found["steps"][0]) == {
        "step",
        "outcome",
        "figures",
        "message",
        "uncleanable",
        "duration_ms",
    }
    assert found["before"] == found["after"] == {"extents": 2, "bytes": found["before"]["bytes"]}


def test_a_damaged_partition_is_named_and_the_others_are_merged(
    log: SparkLog, run: Run, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fill(log, 3)
    log.close()
    (segment,) = root.glob("segments/*/*.log")
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    log.create_topic("u", 1)
    with sparklog.open(root) as other:
        for number in range(3):
            other.append("u", pa.table({"value": [f"{number}"]}))
    told = run("maintain", "--min-input-files", "3", exit_code=1)
    assert "optimize  done" in told.stdout
    assert "t-0 is left as it is: [SPARKLOG_CORRUPT_BATCH]" in told.stderr
    (found,) = [one for one in check_root(str(root), deep=False) if one.check == "uncleanable"]
    assert (found.status, "t-0 is left as it is" in found.detail) == (Status.WARN, True)
    assert (extent_count(log), len(log.refresh().partition("u", 0).extents)) == (3, 1)
    data[-1] ^= 1
    segment.write_bytes(data)  # restored, and asked for by hand
    assert "optimize  done" in run("maintain", "--min-input-files", "3").stdout
    assert extent_count(log) == 1


@pytest.mark.slow
def test_watching_leaves_a_damaged_partition_out(
    log: SparkLog, root: Path, watch: Callable[..., subprocess.Popen[str]]
) -> None:
    fill(log, 4)
    log.close()
    (segment,) = root.glob("segments/*/*.log")
    damaged = bytearray(segment.read_bytes())
    damaged[-1] ^= 1
    segment.write_bytes(damaged)
    log.create_topic("u", 1)
    process = watch("--watch", "--interval", "10ms", "--min-input-files", "4")
    assert process.stdout is not None
    with sparklog.open(root) as other:
        for _ in range(2):
            for number in range(4):
                other.append("u", pa.table({"value": [f"{number}"]}))
            assert process.stdout.readline().startswith("optimize: merged_extents=")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors.count("t-0 is left as it is") == 1
    assert extent_count(log) == 4


@pytest.mark.parametrize("wrong", ["5", "5 minutesx", "-1s", "", "m"])
def test_an_interval_is_a_duration(root: Path, run: Run, wrong: str) -> None:
    assert "such as 7d" in run("maintain", "--interval", wrong, exit_code=2).stderr


def test_watching_is_no_dry_run(root: Path, run: Run) -> None:
    assert "exclude each other" in run("maintain", "--watch", "--dry-run", exit_code=2).stderr


def test_watching_all_the_time_is_refused(root: Path, run: Run) -> None:
    assert "longer than nothing" in run("maintain", "--watch", "--interval", "0s", exit_code=2).stderr


def test_one_at_a_time(log: SparkLog, run: Run) -> None:
    with alone(log.metadata, ROUND):
        assert "MAINTENANCE_RUNNING" in run("maintain", exit_code=1).stderr
        assert run("maintain", "--dry-run").stdout == "Nothing is due.\n"  # only looks


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_watching_goes_on_until_a_signal(
    log: SparkLog, watch: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = watch("--watch", "--interval", "10ms", "--min-input-files", "4")
    assert process.stdout is not None
    for _ in range(2):
        fill(log, 4)
        assert process.stdout.readline().startswith("optimize: merged_extents=")
    assert extent_count(log) < 4
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.slow
def test_a_signal_ends_a_round_that_rests(log: SparkLog, watch: Callable[..., subprocess.Popen[str]]) -> None:
    """Of a rate so low that the first step rests for hours."""
    fill(log, 8, size=1000)
    process = watch("--min-input-files", "4", "--max-bytes-per-second", "1", "--max-bytes", "1")
    until(lambda: list(Path(log.url.removeprefix("file://")).glob("segments/*/*.log"))[1:])
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "cut" in out
    assert "Stopped" in errors
    assert extent_count(log) == 8
