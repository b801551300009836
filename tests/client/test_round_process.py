"""A round in a process of its own: what it is asked and says, its priority, and its end with its parent."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.client.round_process import RoundAnswer, RoundProcess, RoundRequest, command, environment
from sparklog.errors import RetriableError
from sparklog.maintenance import ROUND, Budget, Terms, alone
from tests.support.broker_process import until
from tests.support.prompt_rounds import hurry

pytestmark = pytest.mark.slow

DUE = 256  # small extents
SLOW = Budget(bytes_per_second=1)  # the first step never ends
# Starts a round that rests, says its number, and lives until it is killed.
PARENT = """
import sys, time
from sparklog.client.round_process import RoundProcess, RoundRequest
from sparklog.maintenance import Budget
slow = Budget(bytes_per_second=1)
process = RoundProcess(RoundRequest(root=sys.argv[1], cluster_id=sys.argv[2], budget=slow))
print(process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with enough small extents for a merge to be due."""
    root = tmp_path_factory.mktemp("filled") / "log"
    with sparklog.open(root) as log:
        log.create_topic("t", 1)
        log.create_topic("u", DUE)
        rows = pa.table({"value": [b"x" * 100] * DUE, "partition": pa.array(range(DUE), pa.int32())})
        for _ in range(2):
            log.append("u", rows)
        for number in range(DUE):
            log.append("t", pa.table({"value": [b"%d" % number]}), partition=0)
    return root


@pytest.fixture
def log(filled: Path, tmp_path: Path) -> Iterator[SparkLog]:
    """A copy of that root."""
    shutil.copytree(filled, tmp_path / "log")
    with sparklog.open(tmp_path / "log", create=False) as log:
        yield log


@pytest.fixture(autouse=True)
def prompt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rounds do not wait until nobody else has anything to do; but for the test that they would."""
    if request.function not in (
        test_its_priority_is_the_lowest,
        test_what_is_urgent_has_ours,
    ):
        (tmp_path / "prompt").mkdir()
        hurry(monkeypatch, tmp_path / "prompt")


def request(log: SparkLog, **named: object) -> RoundRequest:
    root = log.url.removeprefix("file://")
    return RoundRequest(root=root, cluster_id=log.cluster_id, **named)  # type: ignore[arg-type]


def answered(process: RoundProcess) -> RoundAnswer:
    answer: RoundAnswer = until(process.answer, seconds=60)
    return answer


def thread_nice(pid: int, thread: int) -> int:
    fields = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return int(fields[16])


def is_at_work(log: SparkLog) -> bool:
    """Has it the root's name?"""
    held = log.store.hold(ROUND, b"")
    held.release()
    return held.holder is not None


def test_a_round_is_done_and_told(log: SparkLog) -> None:
    answer = answered(RoundProcess(request(log)))
    assert answer.error == ""
    assert answer.problem == ""
    assert answer.report is not None
    assert [(one.step, one.outcome) for one in answer.report.steps] == [
        ("transactions", "nothing"),
        ("expire", "nothing"),
        ("producers", "nothing"),
        ("compact", "nothing"),
        ("optimize", "done"),
        ("retire", "nothing"),
        ("vacuum", "done"),
    ]
    assert len(log.refresh().partition("t", 0).extents) == 1


def test_another_root_than_the_one_that_is_meant_is_left_alone(log: SparkLog) -> None:
    process = RoundProcess(RoundRequest(root=log.url.removeprefix("file://"), cluster_id="A" * 22))
    assert "WRONG_ROOT" in answered(process).problem
    assert len(log.refresh().partition("t", 0).extents) == DUE


def test_who_comes_second_says_so_and_nobody_need_know(log: SparkLog) -> None:
    with alone(log.metadata, ROUND):
        answer = answered(RoundProcess(request(log)))
    assert "MAINTENANCE_RUNNING" in answer.error
    assert answer.is_busy
    assert answer.problem == ""


def test_modules_in_the_working_directory_are_not_its_own(
    log: SparkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is started in a directory of somebody's does not run what lies there."""
    (tmp_path / "platform.py").write_text("raise SystemExit('not ours')")
    with monkeypatch.context() as moved:
        moved.chdir(tmp_path)
        process = RoundProcess(request(log))
    assert answered(process).problem == ""


def test_an_interactive_parents_modules_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There '' stands for the working directory."""
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    monkeypatch.chdir(tmp_path)
    assert environment()["PYTHONPATH"] == f"{tmp_path}{os.pathsep}/elsewhere"


def test_no_secret_is_among_its_arguments(log: SparkLog) -> None:
    assert log.cluster_id not in " ".join(command())
    process = RoundProcess(request(log, storage_options={"secret": "s3cr3t"}))
    assert "s3cr3t" not in answered(process).error


def test_its_priority_is_the_lowest(log: SparkLog) -> None:
    process = RoundProcess(request(log, budget=SLOW))
    try:
        until(lambda: is_at_work(log))
        told = psutil.Process(process.pid)
        assert told.nice() == 19
        assert {thread_nice(told.pid, thread.id) for thread in told.threads()} == {19}
    finally:
        process.end(30)
    assert not psutil.pid_exists(process.pid)


def test_what_is_urgent_has_ours(log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklog.client.round_process.command", lambda **_: command(is_urgent=True))
    process = RoundProcess(request(log, budget=SLOW, terms=Terms(topics=("t",))))
    try:
        until(lambda: is_at_work(log))
        assert psutil.Process(process.pid).nice() == psutil.Process().nice()
    finally:
        process.end(30)


def test_it_does_the_topics_that_are_asked_for(log: SparkLog) -> None:
    log.create_topic("v", 1)
    for number in range(DUE):
        log.append("v", pa.table({"value": [str(number)]}))
    assert answered(RoundProcess(request(log, terms=Terms(topics=("v",))))).problem == ""
    image = log.refresh()
    assert (len(image.partition("t", 0).extents), len(image.partition("v", 0).extents)) == (DUE, 1)


def test_it_can_be_cancelled(log: SparkLog) -> None:
    process = RoundProcess(request(log, budget=SLOW))
    until(lambda: is_at_work(log))
    process.end(30)
    assert not is_at_work(log)
    assert len(log.refresh().partition("t", 0).extents) == DUE  # nothing of the work was published
    assert answered(RoundProcess(request(log))).problem == ""
    assert len(log.refresh().partition("t", 0).extents) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_parent(log: SparkLog, number: signal.Signals) -> None:
    """However that ends: the kernel closes the pipe."""
    root = log.url.removeprefix("file://")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, root, log.cluster_id], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        until(lambda: is_at_work(log))
    finally:
        os.kill(parent.pid, number)
        parent.communicate()
    _, alive = psutil.wait_procs([child], timeout=60)
    for one in alive:
        one.kill()
    assert not alive
    assert not is_at_work(log)


def test_a_round_that_hangs_ends_with_its_parent_too() -> None:
    """As on a storage that does not answer: nobody looks at the event."""
    hanging = (
        "import threading; from sparklog.client import round_process; round_process._END_SECONDS = 0.1; "
        "round_process.start_cancellation(threading.Event()); threading.Event().wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", hanging], stdin=subprocess.PIPE)
    try:
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1


def test_a_round_ends_with_its_owner_and_not_before(log: SparkLog) -> None:
    """Spark's Python worker may end before the round has begun."""
    owner = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        process = RoundProcess(request(log, budget=SLOW, owner_pid=owner.pid))
        process.cancel()
        until(lambda: is_at_work(log))
        assert process.answer() is None
    finally:
        owner.kill()
        owner.communicate()
    until(process.answer, seconds=30)
    assert not is_at_work(log)


def test_a_round_whose_owner_is_gone_already_is_cancelled(log: SparkLog) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    answer = answered(RoundProcess(request(log, budget=SLOW, owner_pid=gone.pid)))
    assert answer.report is not None
    assert answer.report.is_stopped


def test_what_goes_wrong_is_logged_where_no_parent_is_left(log: SparkLog) -> None:
    asked = msgspec.json.encode(RoundRequest(root=log.url.removeprefix("file://"), cluster_id="A" * 22))
    words = command(is_urgent=True)
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        _, problem = process.communicate(asked.decode() + "\n", timeout=60)
    assert "WRONG_ROOT" in problem


def test_one_at_a_time_on_a_machine_also_on_an_object_store(
    log: SparkLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which has no locks."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    metadata: Any = SimpleNamespace(store=SimpleNamespace(url="s3://bucket/log"), cluster_id=log.cluster_id)
    other: Any = SimpleNamespace(store=SimpleNamespace(url="s3://bucket/other"), cluster_id=log.cluster_id)
    refused = pytest.raises(RetriableError, match="MAINTENANCE_RUNNING")
    with alone(metadata, ROUND), alone(other, ROUND), refused, alone(metadata, ROUND):
        pass
    with alone(metadata, ROUND):
        pass
