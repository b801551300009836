"""`sparklog-server` as a process, that may be killed, and started again on the same port."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.support.ports import lasting_port

END_SECONDS, TELL_SECONDS = 60, 2
_TOLD_BROKER = Path(__file__).with_name("told_broker.py")
STANDS = signal.SIGUSR2  # have it say where it stands (told_broker.py)


def until(
    condition: Callable[[], Any], seconds: float = 60, what: str = "", *, every_seconds: float = 0.02
) -> Any:
    """Ask until the answer is true, and return it. `every_seconds`: more, where asking is work for others."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < end, f"not within {seconds} s: {what or condition}"
        pause.wait(every_seconds)


class BrokerProcess:
    """One broker at a time on one root; errors go to a file, so that no pipe fills up.

    Args:
        words: more of the command line; with --listeners among them, the ready line tells where.
    """

    def __init__(
        self,
        root: Path | str,
        settings: dict[str, str] | None = None,
        *words: str,
        env: dict[str, str] | None = None,
    ) -> None:
        self.root = root
        self.settings = settings or {}
        self.host, self.port = "127.0.0.1", lasting_port()
        self._words = words
        self._env = {**os.environ, **(env or {})}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self.process: subprocess.Popen[str]
        self.ready_line = ""
        self.start()

    @property
    def bootstrap(self) -> str:
        """For bootstrap.servers."""
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        """Start, on the port of the last time."""
        words = [sys.executable, "-P", str(_TOLD_BROKER), "--root", str(self.root)]
        if "--listeners" not in self._words:
            words += ["--listeners", f"PLAINTEXT://{self.host}:{self.port}"]
        for key, value in self.settings.items():
            words += ["--override", f"{key}={value}"]
        words += self._words
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=self._env
        )
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline().strip()
        if not self.ready_line:
            code, errors = self._collect(), self.errors()
            self._errors.close()
            raise RuntimeError(f"the broker ended: exit {code}: {errors}")
        self.host, _, port = self.ready_line.rpartition("://")[2].rpartition(":")
        self.port = int(port)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self._collect()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self._collect()

    def terminate(self) -> tuple[int, str]:
        """SIGTERM; the exit code, and what was written to stderr."""
        code = self.stop()
        return code, self.errors()

    def wait(self) -> int:
        """The exit code, once it ends by itself."""
        return self._collect()

    def close(self) -> None:
        """End what is still running; may be called in any state."""
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()

    def errors(self) -> str:
        """What was written to stderr, by all runs; without moving where the next line goes."""
        descriptor = self._errors.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def descriptors(self) -> int:
        return int(psutil.Process(self.process.pid).num_fds())

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def connect(self, timeout_seconds: float = 30) -> socket.socket:
        """A plain connection."""
        return socket.create_connection((self.host, self.port), timeout=timeout_seconds)

    def _collect(self) -> int:
        """One that does not end says where it stands, and is killed: a test must not wait forever."""
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.send_signal(STANDS)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(TELL_SECONDS)
            self.process.kill()
            self.process.wait()
            raise AssertionError(
                f"the broker did not end in {END_SECONDS} s\n{self.errors()[-20_000:]}"
            ) from None
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()
        return code


@contextlib.contextmanager
def serving(root: Path | str, settings: dict[str, str] | None = None) -> Iterator[BrokerProcess]:
    """A broker for as long as the context lasts."""
    server = BrokerProcess(root, settings)
    try:
        yield server
    finally:
        server.close()
