"""`sparklog-server` as a process of a test, that may be killed, and started again on the same port.

Concurrency: one thread of the test starts and stops it.
Not here: a broker inside of the test's process; clients. The server's package is not imported.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import sparklog
from sparklog.testing.ports import lasting_port

if TYPE_CHECKING:
    from sparklog.client import SparkLog

START_SECONDS = 120
END_SECONDS = 60
_CHILD = ("-m", "sparklog.testing.child")


class Broker:
    """A broker on a root and a port of its own. Its stderr goes to a file, so that no pipe fills up.

    Args:
        root: created if it does not exist.
        settings: of sparklog-server (docs/server-configs.md).
        environment: more variables, such as SPARKLOG_FAIL (docs/failpoints.md).
    """

    def __init__(
        self,
        root: Path | str,
        settings: Mapping[str, str] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.root = str(root)
        self.settings = dict(settings or {})
        self.host, self.port = "127.0.0.1", lasting_port()
        self.environment = dict(environment or {})
        self.process: subprocess.Popen[str]
        self.ready_line = ""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap_servers(self) -> str:
        """For bootstrap.servers."""
        return f"{self.host}:{self.port}"

    def open(self) -> "SparkLog":
        """Open the same root without the broker, as Spark does; close it."""
        return sparklog.open(self.root, create=False)

    def start(self) -> None:
        """Start, on the port of the last time, and return when clients are accepted.

        Raises: RuntimeError: it ended, or was killed after START_SECONDS; with what it wrote to stderr.
        """
        self.process = subprocess.Popen(  # noqa: S603 - our own words
            self.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **self.environment},
        )
        assert self.process.stdout is not None
        timer = threading.Timer(START_SECONDS, self.process.kill)  # one that hangs says nothing
        timer.daemon = True
        timer.start()
        self.ready_line = self.process.stdout.readline().strip()
        timer.cancel()
        if not self.ready_line:
            code = self.wait()
            raise RuntimeError(f"the broker ended: exit {code}: {self.errors()}")
        self.host, _, port = self.ready_line.rpartition("://")[2].rpartition(":")
        self.port = int(port)

    def command(self) -> list[str]:
        """Return the words that start it."""
        words = [sys.executable, *self.program(), "--root", self.root]
        words += ["--listeners", f"PLAINTEXT://{self.host}:{self.port}"]
        for key, value in self.settings.items():
            words += ["--override", f"{key}={value}"]
        return words

    def program(self) -> Sequence[str]:
        """Return what Python runs."""
        return _CHILD

    def stop(self) -> int:
        """Stop gracefully (SIGTERM); return the exit code, 0 if all went well."""
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        """End it as a crash does (SIGKILL)."""
        self.process.kill()
        self.wait()

    @contextlib.contextmanager
    def killed(self) -> Iterator[None]:
        """Kill it, and start it again afterwards."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    def wait(self) -> int:
        """Return the exit code, once it has ended by itself; one that does not is killed.

        Raises: AssertionError: it did not end within a minute.
        """
        try:
            return self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.on_hanging()
            self.process.kill()
            self.process.wait()
            raise AssertionError(
                f"the broker did not end in {END_SECONDS} s\n{self.errors()[-20_000:]}"
            ) from None
        finally:
            self._close_pipes()

    def on_hanging(self) -> None:
        """Ask a process that does not end for what it does; here nothing."""

    def is_running(self) -> bool:
        """True if it has not ended."""
        return self.process.poll() is None

    def errors(self) -> str:
        """Return what all its runs wrote to stderr."""
        descriptor = self._errors.fileno()  # without moving where the next line goes
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def close(self) -> None:
        """End what is still running; may be called in any state."""
        if hasattr(self, "process"):
            if self.is_running():
                self.kill()
            self._close_pipes()
        self._errors.close()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
