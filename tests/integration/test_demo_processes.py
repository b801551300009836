import os
import sys
from pathlib import Path

import pytest

from sparklog.clock import SystemClock
from sparklog.demo import run
from sparklog.demo.run import SparkJob, session_members, spark_environment, spark_submit
from sparklog.errors import SparklogError
from sparklog.spark.interpreter import worker_python

pytestmark = pytest.mark.slow

# What spark-submit looks like from outside: a leader with a child that leaves its process group,
# as PySpark's worker daemon does.
FAMILY = """#!/bin/sh
%s -c '
import os, time
if os.fork() == 0:
    os.setpgid(0, 0)
    open("child", "w").write(str(os.getpid()))
    os.rename("child", "child.pid")
    time.sleep(600)
time.sleep(600)
'
"""


def fake_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> SparkJob:
    script = tmp_path / "spark-submit"
    script.write_text(text)
    script.chmod(0o755)
    monkeypatch.setattr(run, "spark_submit", lambda: script)
    return SparkJob("job.py", ["argument"], log=tmp_path / "job.log", cwd=tmp_path, clock=SystemClock())


def wait_for(job: SparkJob) -> None:
    while job.running():
        SystemClock().sleep_ms(5)


def test_kill_takes_children_that_left_the_process_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fake_submit(tmp_path, monkeypatch, FAMILY % sys.executable)
    clock = SystemClock()
    while not (tmp_path / "child.pid").exists():
        assert job.running()
        clock.sleep_ms(5)
    child = int((tmp_path / "child.pid").read_text())
    session = os.getsid(child)
    assert child in session_members(session)
    assert job.kill() >= 3
    assert not session_members(session)


def test_failed_job_shows_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = fake_submit(tmp_path, monkeypatch, "#!/bin/sh\necho no space left; exit 3\n")
    with pytest.raises(SparklogError, match=r"(?s)exit code 3.*no space left.*sparklog doctor"):
        wait_for(job)


def test_finished_job_is_not_running_and_may_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fake_submit(tmp_path, monkeypatch, "#!/bin/sh\nexit 0\n")
    wait_for(job)
    assert job.kill() == 0


def test_spark_gets_this_interpreter_and_no_other_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/old-spark")
    environment = spark_environment()
    assert environment["PYSPARK_PYTHON"] == worker_python()
    assert environment["PYSPARK_DRIVER_PYTHON"] == worker_python()
    assert "SPARK_HOME" not in environment
    assert spark_submit().is_file()
