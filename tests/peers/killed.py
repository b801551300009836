"""A process that works until it is killed."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from sparklog.closing import Closing
from tests.support.broker_process import until


class Killed(Closing):
    """Its end is always SIGKILL; what it prints is in a file."""

    def __init__(self, command: list[str], output: Path) -> None:
        self._output = output
        with output.open("w") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def until(self, condition: Callable[[], object], seconds: float) -> None:
        """Wait for what it is to do; it must not end before."""

        def is_done() -> bool:
            if condition():
                return True
            assert self.process.poll() is None, f"it ended by itself\n{self.output()}"
            return False

        try:
            until(is_done, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output()}") from None

    def output(self) -> str:
        """The end of what it has printed."""
        return self._output.read_text(errors="replace")[-4_000:]
