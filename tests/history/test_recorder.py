"""Histories survive the death of their process, and say what was open."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.history.events import completed, read_history
from tests.history.recorder import HistoryWriter

KILLED = """
import os, signal, sys
from tests.history.recorder import HistoryWriter
history = HistoryWriter(sys.argv[1], "w")
history.send({"t-0": ["t/w/0"]}).ok({"t-0": (["t/w/0"], [0])})
history.send({"t": ["t/w/1", "t/w/2"]})
history.poll()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_what_a_killed_process_had_begun_is_info(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    subprocess.run([sys.executable, "-c", KILLED, path], check=False, cwd=Path(__file__).parents[2])
    events = completed(read_history([path]))
    assert [(event.f, event.type, event.key, event.value, event.offset) for event in events] == [
        ("send", "ok", "t-0", ["t/w/0"], [0]),
        ("send", "info", "t", ["t/w/1", "t/w/2"], None),
    ]
    assert events[0].t_done is not None
    assert events[0].t_inv <= events[0].t_done <= events[1].t_inv
    assert events[1].t_done is None


def test_a_torn_last_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    with HistoryWriter(path, "w") as history:
        history.send({"t-0": ["t/w/0"]}).fail(ValueError("no"))
    path.write_bytes(path.read_bytes() + b'{"i":1,"proc":"w","f":"se')
    events = completed(read_history([path]))
    assert [(event.type, event.error) for event in events] == [("fail", "no")]


def test_after_an_unknown_outcome_the_process_has_another_name(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "w.jsonl", "w") as history:
        history.send({"t-0": ["t/w/0"]}).info(TimeoutError())
        history.commit("g", "t-0", 1).ok()
        history.seek()
        history.poll(final=True).ok({"t-0": ([], [])})
    events = completed(read_history([tmp_path / "w.jsonl"]))
    assert [(event.proc, event.i, event.f, event.offset) for event in events] == [
        ("w", 0, "send", None),
        ("w.1", 1, "commit", 1),
        ("w.1", 2, "seek", None),
        ("w.1", 3, "poll", []),
    ]
    assert events[3].final
