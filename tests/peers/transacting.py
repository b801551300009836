"""Transactional producers of other clients, each a process that does what it is told; and what came of it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.peers.fetching import Jars, cache
from benchmarks.peers.kafka_process import QUICK_START, java
from benchmarks.peers.kafka_tools import HEAP
from sparklog.client import SparkLog
from sparklog.closing import Closing
from sparklog.metadata import Transaction
from tests.compat.embedded import stored_records

PROGRAM = Path(__file__).with_name("Transacting.java")
FRANZ = Path(__file__).with_name("franz")
BUILD_SECONDS = 300


class Producer(Closing):
    """A process with another client, initialised; `tell` gives a step, and its answer."""

    def __init__(
        self, command: list[str], bootstrap: str, name: str, timeout_ms: int = 60_000, *more: str
    ) -> None:
        self.process = subprocess.Popen(
            [*command, bootstrap, name, str(timeout_ms), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert self.tell("init") == ""
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()

    def ask(self, *words: object) -> tuple[bool, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            outcome, _, text = line.strip().partition(" ")
            if outcome in {"ok", "error"}:
                return outcome == "ok", text
        pytest.fail("the client has ended")

    def tell(self, *words: object) -> str:
        went_well, text = self.ask(*words)
        assert went_well, text
        return text


def java_command(jars: Jars) -> list[str]:
    """Java's client."""
    return java(jars, str(PROGRAM), heap=HEAP, jvm=QUICK_START)


def franz_command(package: str = ".") -> list[str]:
    """A program with franz-go, built by Go, which fetches it."""
    if shutil.which("go") is None:
        pytest.skip("there is no Go here")
    program = cache() / f"franz-{'transacting' if package == '.' else package}"
    words = ["go", "build", "-o", str(program), f"./{package}"]
    done = subprocess.run(
        words, cwd=FRANZ, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"franz-go could not be built: {done.stderr[-300:]}")
    return [str(program)]


def values(log: SparkLog, topic: str, partition: int = 0) -> list[str]:
    log.refresh(force=True)
    return [(one.value or b"").decode() for one in stored_records(log, topic, partition)]


def state(log: SparkLog, name: str) -> Transaction:
    return log.refresh(force=True).transactions[name]
