"""The blocks of docs/tutorial.md print what the page shows, with the kill between them."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
KILL = f"\nimport os, signal\nos.kill(os.getpid(), signal.{signal.SIGKILL.name})\n"


@pytest.mark.exhaustive
@pytest.mark.spark
def test_the_blocks_print_what_is_shown(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    (session, _), (read, table), (stream, late), (count, both), (consume, messages) = blocks
    write = next(line for line in session.splitlines() if line.startswith("rows.write"))

    def run(code: str, *, expected: int = 0) -> str:
        code = code.replace("/tmp/tutorial-", f"{tmp_path}/")
        words = [sys.executable, "-c", code]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == expected, done.stderr[-3000:]
        return "".join(line + "\n" for line in done.stdout.splitlines() if line)

    assert run(session + read + stream + KILL, expected=-signal.SIGKILL) == table + late
    assert run(session.replace(write, "") + stream + count) == late + both
    with serving(tmp_path / "log") as server:
        assert run(consume.replace("127.0.0.1:9092", server.bootstrap)) == messages
