"""What a shell completes."""

import os
import subprocess
import sys

import pytest

from tests.cli.conftest import Run

FUNCTION = "_sparklog_completion"


@pytest.mark.slow  # asks bash for its version
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(run: Run, shell: str) -> None:
    assert FUNCTION in run("completion", shell).stdout


@pytest.mark.slow
def test_bash_completes_commands(run: Run) -> None:
    words = "COMP_WORDS=(sparklog topics de); COMP_CWORD=2"
    script = f"{run('completion', 'bash').stdout}\n{words}; {FUNCTION} sparklog; echo ${{COMPREPLY[@]}}"
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "delete describe\n"
