"""`--watch`, as a process that a signal ends."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.test_output import BOLD, on_terminal

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_passes_follow_one_another_until_a_signal(run: Run, root: Path, number: signal.Signals) -> None:
    run("topics", "create", "--topic", "a")
    command = [sys.executable, "-m", "sparklog", "--root", str(root), "topics", "list", "--names"]
    with subprocess.Popen([*command, "--watch", "0.1"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["a\n", "a\n"]
        run("topics", "create", "--topic", "b")
        assert "b\n" in iter(process.stdout.readline, "")
        process.send_signal(number)
        process.stdout.read()
        assert process.wait(timeout=60) == 0


def test_a_terminal_shows_the_newest_pass(run: Run) -> None:
    run("topics", "create", "--topic", "a")
    shown = on_terminal("topics", "list", "--watch", "0.1", lines=8)
    assert shown[0] == "\x1b[H\x1b[2Jsparklog topics list, every 0.1 s. Ctrl-C ends it."
    assert shown[4:6] == shown[:2]
    assert shown[2].startswith(BOLD)


@pytest.mark.parametrize("seconds", ["0", "often"])
def test_pauses_that_cannot_be_are_refused(run: Run, seconds: str) -> None:
    assert "--watch" in run("topics", "list", "--watch", seconds, exit_code=2).stderr
