"""The command, and how long a long history takes."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.history.checker import check
from tests.history.events import Event
from tests.history.recorder import HistoryWriter

PROJECT = Path(__file__).parents[2]


def judge(*paths: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "tests.history", *map(str, paths)]
    return subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_command_judges_files_together(tmp_path: Path) -> None:
    writer, reader = tmp_path / "writer.jsonl", tmp_path / "reader.jsonl"
    with HistoryWriter(writer, "w") as history:
        history.send({"t-0": ["t/a"]}).ok({"t-0": (["t/a"], [0])})
        history.send({"t-0": ["t/b"]}).ok({"t-0": (["t/b"], [1])})
    with HistoryWriter(reader, "r") as history:
        history.poll(final=True).ok({"t-0": (["t/b"], [1])})
    result = judge(writer, reader)
    assert result.returncode == 1
    assert "lost-write: t/a of t-0@0 (w#0)" in result.stdout
    result = judge(writer)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("no anomalies: 2 operations, 2 records acknowledged, 0 read")
    assert judge().returncode == 2


@pytest.mark.slow
def test_a_hundred_thousand_operations_take_seconds() -> None:
    events: list[Event] = []
    total = 50_000
    for number in range(total):
        key, offset = f"t-{number % 8}", number // 8
        value = f"t/w/{number}"
        for proc, f in ((f"w{number % 5}", "send"), (f"r{number % 8}", "poll")):
            t = number * 10 + (f == "poll") * 3
            events.append(
                Event(i=number, proc=proc, f=f, type="ok", key=key, value=[value], offset=[offset],
                      t_inv=t, t_done=t + 7)
            )  # fmt: skip
    start = time.thread_time()
    verdict = check(events)
    took = time.thread_time() - start
    assert not verdict.names, verdict
    assert verdict.operations == 2 * total
    assert took < 15  # of the processor; what is quadratic takes hours
