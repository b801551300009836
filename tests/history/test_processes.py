"""Real processes on a directory, killed and stopped at random moments: their history has no anomaly.

SPARKLOG_HISTORY_SECONDS makes it longer; SPARKLOG_HISTORY_SEED repeats its dice (not its timing).
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sparklog
from sparklog.clock import SystemClock
from tests.history.checker import check
from tests.history.events import read_history
from tests.history.recorder import HistoryWriter
from tests.history.worker import PARTITIONS, TOPIC, key_of

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("SPARKLOG_HISTORY_SECONDS", "4"))
SEED = int(os.environ.get("SPARKLOG_HISTORY_SEED", "1"))
ROLES = {"w0": "writer", "w1": "writer", "w2": "writer", "r0": "reader", "r1": "reader"}
PROJECT = Path(__file__).parents[2]


class Crew:
    """The processes; a killed one is followed by its next life."""

    def __init__(self, root: str, directory: Path) -> None:
        self._root = root
        self._directory = directory
        self._lives = dict.fromkeys(ROLES, 0)
        self.processes = {name: self._start(name) for name in ROLES}
        self.strikes = 0

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        self._lives[name] += 1
        words = ["-m", "tests.history.worker", ROLES[name], self._root, name, str(self._lives[name])]
        return subprocess.Popen([sys.executable, *words, str(self._directory)], cwd=PROJECT)

    def at_work(self) -> list[str]:
        """Whose present life has begun to do something."""
        files = {name: self._directory / f"{name}-{life}.jsonl" for name, life in self._lives.items()}
        return [name for name, file in files.items() if file.exists() and file.stat().st_size > 2000]

    def kill(self, name: str) -> None:
        process = self.processes[name]
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, f"{name} ended by itself"
        self.processes[name] = self._start(name)
        self.strikes += 1

    def pause(self, name: str, clock: SystemClock, duration_ms: float) -> None:
        self.processes[name].send_signal(signal.SIGSTOP)
        clock.sleep_ms(duration_ms)
        self.processes[name].send_signal(signal.SIGCONT)
        self.strikes += 1

    def stop(self) -> list[int]:
        (self._directory / "STOP").touch()
        return [process.wait(timeout=60) for process in self.processes.values()]

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def read_everything(root: str, path: Path) -> None:
    log = sparklog.open(root, create=False)
    with HistoryWriter(path, "last") as history:
        for partition in range(PARTITIONS):
            polling = history.poll(final=True)
            values: list[str] = []
            offsets: list[int] = []
            for arrow_batch in log.read_batches(TOPIC, partition):
                values += [value.decode() for value in arrow_batch.column("value").to_pylist()]
                offsets += arrow_batch.column("offset").to_pylist()
            assert offsets == list(range(log.log_end_offset(TOPIC, partition)))
            polling.ok({key_of(partition): (values, offsets)})


@pytest.mark.timeout(300 + SECONDS)
def test_killed_and_stopped_processes_leave_no_anomaly(
    root: str, tmp_path: Path, report: Callable[[str], None]
) -> None:
    dice, clock = random.Random(SEED), SystemClock()
    sparklog.open(root).create_topic(TOPIC, PARTITIONS)
    directory = tmp_path / "histories"
    directory.mkdir()
    crew = Crew(root, directory)
    try:
        while len(crew.at_work()) < len(ROLES):
            clock.sleep_ms(20)
        end_ms = clock.monotonic_ms() + SECONDS * 1000
        while clock.monotonic_ms() < end_ms:
            clock.sleep_ms(dice.uniform(50, 500))
            names = crew.at_work()
            if not names:
                continue
            name = dice.choice(names)
            if dice.random() < 0.6:
                crew.kill(name)
            else:
                crew.pause(name, clock, dice.uniform(10, 600))
        codes = crew.stop()
    finally:
        crew.end()
    assert codes == [0] * len(ROLES)
    read_everything(root, directory / "last.jsonl")
    verdict = check(read_history(sorted(directory.glob("*.jsonl"))))
    report(f"SPARKLOG_HISTORY_SEED={SEED}: {crew.strikes} kills and pauses; {verdict}")
    assert not verdict.names, verdict
    assert verdict.acknowledged > 0
    assert verdict.read >= verdict.acknowledged
