"""Spark's own processes, started by its scripts as a user would, and the examples of docs/deploy.md."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy.md"
ENVIRONMENT = "/opt/env"  # where docs/deploy.md has the Python environment
LINE_SECONDS = 120


def example(section: str, language: str, *, number: int = 0) -> str:
    """A code block of a section of docs/deploy.md, with this environment's path for that of the docs."""
    (text,) = re.findall(
        rf"^## {re.escape(section)}$(.*?)(?=^## |\Z)", DEPLOY.read_text(), re.DOTALL | re.MULTILINE
    )
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return str(blocks[number]).replace(ENVIRONMENT, sys.prefix)


def spark_home(directory: Path) -> Path:
    """The installed Spark, by links: some of its processes keep files under SPARK_HOME."""
    directory.mkdir()
    for installed in Path(pyspark.__file__).parent.iterdir():
        (directory / installed.name).symlink_to(installed)
    (directory / "work").unlink(missing_ok=True)
    return directory


def environment(home: Path, **more: str) -> dict[str, str]:
    """For Spark's scripts: nothing that this process has set for its own session, and small daemons."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    ours = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PATH": f"{home / 'sbin'}:{home / 'bin'}:{os.environ['PATH']}",
    }
    return kept | ours | more


@contextlib.contextmanager
def process(words: str | list[str], env: Mapping[str, str], cwd: Path, until: str) -> Iterator[re.Match[str]]:
    """A process, given a line that matches `until` on its output; ended with its children afterwards."""
    with subprocess.Popen(
        words,
        shell=isinstance(words, str),
        env=dict(env),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as started:
        assert started.stdout is not None
        end = threading.Timer(LINE_SECONDS, lambda: _end(started, signal.SIGKILL))
        end.start()
        reader = None
        try:
            said, found = [], None
            for line in started.stdout:
                said.append(line)
                if found := re.search(until, line):
                    break
            end.cancel()
            assert found, f"{words} ended, or said nothing like {until!r}: {''.join(said)[-3000:]}"
            # A process that nobody reads from stops when the pipe is full.
            reader = threading.Thread(target=started.stdout.read)
            reader.start()
            yield found
        finally:
            end.cancel()
            _end(started, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(20)
            _end(started, signal.SIGKILL)
            if reader is not None:
                reader.join()


def _end(started: "subprocess.Popen[str]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, number)
