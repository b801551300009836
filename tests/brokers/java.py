"""Kafka's Java client as a worker has it: a process that is told what to do by lines.

COMMAND, in the environment, is how it is started: tests/peers fetches the client, and has the program for it
(Working.java).
"""

import os
import queue
import shlex
import shutil
import subprocess
import threading
from collections.abc import Mapping

from tests.brokers.consuming import Assignment, Records
from tests.brokers.producing import Told
from tests.brokers.working import PATIENCE_SECONDS, REQUEST_TIMEOUT_MS, TOPIC

COMMAND = "SPARKLOG_JAVA_CLIENT"
_END_SECONDS = 30
_CONNECTIONS = {
    "request.timeout.ms": REQUEST_TIMEOUT_MS,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
}


def _run(role: str, settings: Mapping[str, object]) -> subprocess.Popen[str]:
    """It is not left behind when its worker is killed, and says what goes on on the worker's stderr."""
    die_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    words = [*die_with_us, *shlex.split(os.environ[COMMAND]), role, TOPIC]
    words += [f"{key}={value}" for key, value in settings.items()]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    code = process.wait(_END_SECONDS)
    if code != 0:
        raise RuntimeError(f"Java's client: exit {code}")


class JavaProducer:
    """A thread takes the answers, which come when they come."""

    def __init__(self, bootstrap: str) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": "true",
            "max.in.flight.requests.per.connection": 5,
            "linger.ms": 2,
            "batch.size": 4_096,  # several requests for what has gathered in an outage
            "compression.type": "lz4",
            "delivery.timeout.ms": PATIENCE_SECONDS * 1000,
            "max.block.ms": PATIENCE_SECONDS * 1000,
            **_CONNECTIONS,
        }
        self._process = _run("produce", settings)
        self._pending: dict[int, Told] = {}
        self._count = 0
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()  # "": there are no more
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def send(self, partition: int, value: bytes, told: Told) -> None:
        self._pending[self._count] = told
        self._count += 1
        _tell(self._process, f"{partition} {value.decode()}")

    def wait(self, seconds: float) -> None:
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            return
        if not line:
            raise RuntimeError("Java's client has ended")
        self._answered(line)

    def _answered(self, line: str) -> None:
        number, outcome, text = line.split(" ", 2)
        told = self._pending.pop(int(number))
        if outcome == "ok":
            told(None, int(text))
        else:
            told(RuntimeError(text), -1)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        while line := self._answers.get(timeout=PATIENCE_SECONDS):
            self._answered(line)
        _end(self._process)


class JavaConsumer:
    """With the classic protocol of groups: brokers do not serve the other one."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.assignment = Assignment()
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "classic",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "allow.auto.create.topics": "false",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500,
            "fetch.max.wait.ms": 100,
            "default.api.timeout.ms": 10_000,
            **_CONNECTIONS,
        }
        self._process = _run("consume", settings)

    def _ask(self, line: str) -> tuple[str, dict[int, tuple[list[bytes], list[int]]]]:
        """What it answers, and the records by then."""
        assert self._process.stdout is not None
        _tell(self._process, line)
        records: dict[int, tuple[list[bytes], list[int]]] = {}
        for answer in self._process.stdout:
            word, _, text = answer.rstrip("\n").partition(" ")
            if word == "given":
                self.assignment.change(map(int, text.split()))
            elif word == "taken":
                self.assignment.change()
            elif word == "record":
                partition, offset, value = text.split(" ", 2)
                values, offsets = records.setdefault(int(partition), ([], []))
                values.append(value.encode())
                offsets.append(int(offset))
            elif word == "ok":
                return text, records
            else:
                raise RuntimeError(text)
        raise RuntimeError("Java's client has ended")

    def poll(self) -> Records:
        return self._ask("poll")[1]

    def commit(self, positions: Mapping[int, int]) -> None:
        self._ask(" ".join(["commit", *(f"{one}:{offset}" for one, offset in positions.items())]))

    def committed(self, partition: int) -> int | None:
        text, _ = self._ask(f"committed {partition}")
        return int(text) if text else None

    def end(self) -> None:
        self._ask("end")
        _end(self._process)
