"""Spark jobs as processes: start with spark-submit, wait, or kill with SIGKILL.

A job runs in a session of its own, so that "all of it" is well defined: the launcher, the JVM, and
PySpark's worker daemon, which leaves the process group but not the session.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sparklog.clock import Clock
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.spark.interpreter import worker_python

JOBS = Path(__file__).parent / "jobs"
SPARK_CONF = {
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
}
TAIL_LINES = 12
LINE_CHARACTERS = 300
NOISE = re.compile(r"\s+at |\s*\.\.\. \d+ more|\S+ \S+ (INFO|WARN) |\s*[+:]- ")
KILL_ATTEMPTS = 100


class SparkJob:
    """One running spark-submit."""

    def __init__(self, script: str, arguments: Sequence[str], *, log: Path, cwd: Path, clock: Clock) -> None:
        self.name = script.removesuffix(".py")
        self.log = log
        self._clock = clock
        command = [str(spark_submit()), "--master", "local[2]"]
        for key, value in SPARK_CONF.items():
            command += ["--conf", f"{key}={value}"]
        command += [str(JOBS / script), *arguments]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=spark_environment(),
                start_new_session=True,
            )

    def running(self) -> bool:
        """Whether it still runs; a job that failed raises instead."""
        code = self._process.poll()
        if code is None:
            return True
        if code != 0:
            raise SparklogError(
                "DEMO_JOB_FAILED",
                f"the Spark job {self.name} ended with exit code {code}; its last lines:\n{self.tail()}\n",
                fix=f"read {self.log}, and run `sparklog doctor`",
            )
        return False

    def kill(self) -> int:
        """SIGKILL every process of the job's session; returns how many there were."""
        killed: set[int] = set()
        for _ in range(KILL_ATTEMPTS):
            members = session_members(self._process.pid)
            if not members - {self._process.pid} and self._process.poll() is not None:
                break
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= members
            self._process.poll()
            self._clock.sleep_ms(20)
        self._process.wait()
        return len(killed)

    def tail(self) -> str:
        """The end of the job's output, without log lines and Java's stack."""
        lines = self.log.read_text(errors="replace").splitlines()
        telling = [line for line in lines if line.strip() and not NOISE.match(line)]
        return "\n".join(f"    {line[:LINE_CHARACTERS]}" for line in telling[-TAIL_LINES:])


def session_members(session: int) -> set[int]:
    """The processes of a session; where there is no /proc, the session's leader alone."""
    members = set()
    entries = list(Path("/proc").glob("[0-9]*")) or [Path(str(session))]
    for entry in entries:
        pid = int(entry.name)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == session and not _is_zombie(entry):
                members.add(pid)
    return members


def _is_zombie(entry: Path) -> bool:
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def spark_submit() -> Path:
    """The spark-submit of the installed pyspark, whatever the PATH says."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidRequestError(
            "DEMO_SPARK_MISSING",
            "pyspark is not installed beside sparklog",
            fix="pip install 'sparklog[demo]', or run `make demo` in a clone",
        )
    return Path(spec.submodule_search_locations[0]) / "bin" / "spark-submit"


def spark_environment() -> dict[str, str]:
    """The environment of this process, with this interpreter for Spark and no other Spark."""
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = worker_python()
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return environment
