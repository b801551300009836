"""Work in the background: in steps, what is new before what is old, and over with its owner."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparklog.metadata import upkeep as background_module
from sparklog.metadata.upkeep import Background

Steps = Callable[[], Iterator[None]]


class Broken(Iterator[None]):
    def __next__(self) -> None:
        raise ValueError("broken")


class Told:
    """Work that says what it does, and waits where it is told to."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.gates: dict[str, threading.Event] = {}
        self.reached = threading.Event()

    def work(self, name: str, steps: int) -> Steps:
        def run() -> Iterator[None]:
            for step in range(steps):
                said = f"{name} {step}"
                self.said.append(said)
                if said in self.gates:
                    self.reached.set()
                    assert self.gates[said].wait(60)
                yield

        return run

    def stop_at(self, said: str) -> threading.Event:
        self.gates[said] = threading.Event()
        return self.gates[said]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background("test upkeep")
    yield made
    made.finish()


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "test upkeep"]


def test_there_is_a_thread_while_there_is_work(background: Background, told: Told) -> None:
    assert not running()
    gate = told.stop_at("a 0")
    background.run(told.work("a", 2))
    assert told.reached.wait(60)
    assert running() == ["test upkeep"]
    gate.set()
    background.finish()
    assert told.said == ["a 0", "a 1"]
    assert not running()


def test_what_is_new_goes_before_what_is_left(background: Background, told: Told) -> None:
    gate = told.stop_at("cleaning 0")
    background.run(told.work("cleaning", 2))
    assert told.reached.wait(60)
    background.run(told.work("forgotten", 1))
    background.run(told.work("snapshot", 1))
    gate.set()
    background.finish()
    assert told.said == ["cleaning 0", "snapshot 0", "cleaning 1"]


def test_the_end_lets_the_newest_begin_and_leaves_the_rest(
    background: Background, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_module, "END_SECONDS", 0.0)
    gate = told.stop_at("cleaning 0")
    background.run(told.work("cleaning", 3))
    assert told.reached.wait(60)
    background.run(told.work("snapshot", 3))
    ending = threading.Thread(target=background.finish)
    ending.start()
    gate.set()
    ending.join(60)
    assert not ending.is_alive()
    assert told.said == ["cleaning 0", "snapshot 0"]
    background.run(told.work("another", 1))  # whoever goes on may go on
    background.finish()
    assert told.said[-1] == "another 0"


def test_an_interrupted_end_leaves_whoever_goes_on_with_its_work(
    background: Background, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a log is being closed, and then the log is used again."""
    monkeypatch.setattr(background_module, "END_SECONDS", 0.0)
    gate = told.stop_at("a 0")
    background.run(told.work("a", 1))
    assert told.reached.wait(60)

    def interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            background.finish()
    last = told.stop_at("cleaning 2")
    background.run(told.work("cleaning", 3))
    told.reached.clear()
    gate.set()
    assert told.reached.wait(60)
    last.set()


def test_what_fails_is_told_and_stops_nothing(
    background: Background, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "sparklog"):
        background.run(Broken)
        background.finish()
    assert "test upkeep failed" in caplog.text
    background.run(told.work("a", 1))
    background.finish()
    assert told.said == ["a 0"]


FORKS = """
import os, threading
from sparklog.metadata.upkeep import Background
background, gate, reached = Background("x"), threading.Event(), threading.Event()
def stuck():
    reached.set()
    gate.wait()
    yield
background.run(stuck)
reached.wait()
if os.fork() == 0:
    background.start_anew()
    done = []
    background.run(lambda: iter([done.append(1)]))
    background.finish()
    os._exit(7 if done else 8)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
gate.set()
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_has_a_thread_of_its_own() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], check=True, timeout=60)


ONE_COMMIT = """
import sys
from sparklog.clock import SystemClock
from sparklog.metadata import Background, MetadataLog, MetadataSettings, SetConfigs
from sparklog.storage import open_store
settings = MetadataSettings(snapshot_bytes=4096)
store, upkeep = open_store(sys.argv[1], create=True), Background("x")
log = MetadataLog.open(store, SystemClock(), create=True, settings=settings, upkeep=upkeep)
log.publish(lambda image: [SetConfigs(configs={"a": "1"})])
"""


@pytest.mark.slow
def test_a_process_that_commits_once_waits_for_its_snapshot(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", ONE_COMMIT, str(tmp_path / "log")], check=True, timeout=60)
    assert [path.parent.name for path in (tmp_path / "log").rglob("manifest.json")] == [
        "00000000000000000000.snapshot"
    ]
