"""`sparklog-server` as a process, that may be killed, and started again on the same port."""

import contextlib
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from sparklog.testing import Broker

TELL_SECONDS = 2
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


class BrokerProcess(Broker):
    """One broker at a time on one root.

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
        self._words = words
        super().__init__(root, settings, environment=env)

    @property
    def bootstrap(self) -> str:
        """For bootstrap.servers."""
        return self.bootstrap_servers

    def program(self) -> Sequence[str]:
        return ("-P", str(_TOLD_BROKER))

    def command(self) -> list[str]:
        words = [*super().command(), *self._words]
        if "--listeners" in self._words:
            first = words.index("--listeners")
            del words[first : first + 2]
        return words

    def terminate(self) -> tuple[int, str]:
        """SIGTERM; the exit code, and what was written to stderr."""
        code = self.stop()
        return code, self.errors()

    def on_hanging(self) -> None:
        """One that does not end says where it stands: a test must not wait forever."""
        self.process.send_signal(STANDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(TELL_SECONDS)

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


@contextlib.contextmanager
def serving(root: Path | str, settings: dict[str, str] | None = None) -> Iterator[BrokerProcess]:
    """A broker for as long as the context lasts."""
    server = BrokerProcess(root, settings)
    try:
        yield server
    finally:
        server.close()
