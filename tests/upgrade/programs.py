"""The programs of one version of sparklog: its command line, its broker, and Python code that uses it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparklog.testing import Broker

SECONDS = 120
QUICK = {
    "broker.heartbeat.interval.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
    "initial.broker.registration.timeout.ms": "0",
    "log.cleaner.enable": "false",
    "offsets.topic.num.partitions": "2",
    "sparklog.metadata.poll.ms": "10",
}


@dataclass(frozen=True, slots=True)
class Programs:
    """What is installed with one Python."""

    name: str
    python: str

    def sparklog(self, root: Path, *words: str, lines: Sequence[str] = ()) -> list[str]:
        """Run a command on a root, and return the lines that it prints."""
        done = self.attempt(root, *words, lines=lines)
        assert done.returncode == 0, f"{self.name}: {words}: {done.stderr}"
        return done.stdout.splitlines()

    def attempt(self, root: Path, *words: str, lines: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run a command that may fail."""
        text = "".join(f"{line}\n" for line in lines)
        return self._run(["-m", "sparklog", "--root", str(root), *words], text)

    def run_code(self, code: str, *words: str) -> str:
        """Run Python code, and return what it prints."""
        done = self._run(["-c", code, *words], "")
        assert done.returncode == 0, f"{self.name}: {done.stderr}"
        return done.stdout

    def produce(self, root: Path, topic: str, lines: Sequence[str]) -> None:
        """Append records with keys: lines are KEY:VALUE."""
        self.sparklog(root, "produce", "--topic", topic, "-K", ":", lines=lines)

    def records(self, root: Path, topic: str) -> list[str]:
        """Return PARTITION OFFSET KEY:VALUE of every record, sorted."""
        words = ("consume", "--topic", topic, "--from-beginning", "-e", "-f", r"%p %o %k:%s\n")
        return sorted(self.sparklog(root, *words))

    def _run(self, words: list[str], text: str) -> subprocess.CompletedProcess[str]:
        # -P: a checkout in the working directory is not what is installed.
        return subprocess.run(
            [self.python, "-P", *words],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env=self.environment(),
        )

    def environment(self) -> dict[str, str]:
        """Return the environment of its processes; only this tree's may see this tree."""
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return kept | ({"PYTHONPATH": str(TREE)} if self.python == sys.executable else {})


TREE = Path(__file__).resolve().parents[2]


class BrokerOf(Broker):
    """A broker of any version, which may become one of another version, on the same port."""

    def __init__(self, programs: Programs, root: Path, settings: dict[str, str] | None = None) -> None:
        self.programs = programs
        super().__init__(root, {**QUICK, **(settings or {})})

    def command(self) -> list[str]:
        self.environment = self.programs.environment()
        return [self.programs.python, *super().command()[1:]]

    def program(self) -> Sequence[str]:
        return ("-P", "-m", "sparklog_server")

    def become(self, programs: Programs, *, gracefully: bool = True) -> None:
        """Stop, or kill, this one, and start the other version."""
        if gracefully:
            assert self.stop() == 0, self.errors()
        else:
            self.kill()
        self.programs = programs
        self.start()
