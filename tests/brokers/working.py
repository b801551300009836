"""What workers share: their end, their pace, and the process that a test has of each.

A worker is a script of this folder, with the arguments CLIENT BOOTSTRAP NAME HISTORY. It works until SIGTERM,
ends what it has begun, and writes its history (tests/history) into a file; an exit code other than 0 means
that its client gave something up.
"""

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

from tests.support.broker_process import until

TOPIC, PARTITIONS = "t", 6
RECORDS_PER_SECOND = 60  # of each producer: the load is there to be interrupted, not to be heavy
PATIENCE_SECONDS = 90  # within which a client that is not stuck has ended what it has begun
STEP_SECONDS = 20  # of a transaction, after which its process begins anew
REQUEST_TIMEOUT_MS = 3_000  # a broker that stands still says nothing, and clients wait as long as this
STACKS = "SPARKLOG_WORKER_STACKS"  # where a worker tells where it stands
_FOLDER = Path(__file__).parent


def key_of(partition: int) -> str:
    """As histories name a partition."""
    return f"{TOPIC}-{partition}"


def group_of(name: str) -> str:
    """Of a worker that is GROUP.NUMBER; of others the name."""
    return name.partition(".")[0]


def within(seconds: float, step: Callable[[], None]) -> None:
    """Do it in a thread, which is left behind if it takes longer, and may end the process when it likes.

    librdkafka 2.16 waits forever in send_offsets_to_transaction, whatever time-out it is given, when the
    group's coordinator has gone from the metadata (its issue 5511).
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            step()
        except BaseException as error:  # told to whoever waits
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"still at it after {seconds} s")
    if failed:
        raise failed[0]


def initialise(producer: confluent_kafka.Producer) -> None:
    """As long as a client may take: librdkafka asks again when a request was not answered in time, and where
    each commit takes longer than that, as on a store that is overloaded, again and again.
    """
    until_s = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return producer.init_transactions(STEP_SECONDS)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > until_s:
                raise


class Ending:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.now = False
        signal.signal(signal.SIGTERM, self._end)
        # Not on stderr: a client that is told to say all that it does would push it out of sight.
        path = Path(os.environ[STACKS])
        unready = path.with_suffix(".unready")
        self._stacks = unready.open("w")  # faulthandler's, to the end
        faulthandler.register(signal.SIGUSR1, file=self._stacks)
        unready.rename(path)  # from now on the signal does not end it

    def _end(self, *_: object) -> None:
        self.now = True

    def sleep(self, seconds: float) -> None:
        """Not longer than until it is set."""
        signal.sigtimedwait([], seconds)


class Pace:
    """Moments, evenly spaced; one who falls behind does not catch up by a rush."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1 / per_second
        self._due = time.monotonic()

    def left_seconds(self) -> float:
        """Until the next moment; asking for it after that moment takes it."""
        now = time.monotonic()
        if now < self._due:
            return self._due - now
        self._due = max(self._due + self._interval, now - self._interval)
        return 0


class Worker:
    """A worker's process, and its files."""

    def __init__(self, script: str, client: str, target: str, name: str, directory: Path) -> None:
        self.name = name
        self.script = script
        self.history = directory / f"{name}.jsonl"
        self._errors = directory / f"{name}.err"
        self._stacks = directory / f"{name}.stacks"
        self.history.touch()
        words = [sys.executable, "-W", "ignore", str(_FOLDER / f"{script}.py"), client, target, name]
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*words, str(self.history)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=_FOLDER.parents[1],
                env={**os.environ, "PYTHONPATH": str(_FOLDER.parents[1]), STACKS: str(self._stacks)},
            )

    def size(self) -> int:
        """Of its history, which grows with all that it gets done."""
        return self.history.stat().st_size

    def where(self) -> str:
        """Where its threads stand."""
        if not self._stacks.exists():
            return "it has not begun"
        sizes = [self._stacks.stat().st_size]
        self.process.send_signal(signal.SIGUSR1)

        def is_told() -> bool:
            """It writes word by word."""
            sizes.append(self._stacks.stat().st_size)
            return sizes[-1] == sizes[-2] > sizes[0]

        until(is_told, PATIENCE_SECONDS, f"{self.name} says where")
        return self._stacks.read_text()[sizes[0] :]

    def kill(self) -> None:
        """SIGKILL, whatever it has begun."""
        self.process.kill()
        self.process.wait()

    def ask_to_end(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Until all is done that it has begun."""
        try:
            code = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} is stuck\n{self.errors()}") from None
        assert code == 0, f"{self.name}: exit {code}\n{self.errors()}"

    def check(self) -> None:
        """It has not given up."""
        assert self.process.poll() is None, f"{self.name} ended: {self.process.returncode}\n{self.errors()}"

    def errors(self) -> str:
        return self._errors.read_text(errors="replace")[-4000:]


@contextmanager
def working(directory: Path, words: list[tuple[str, str, str, str]]) -> Iterator[list[Worker]]:
    """Workers (script, client, target, name) that are gone afterwards."""
    started: list[Worker] = []
    try:
        for script, client, target, name in words:
            started.append(Worker(script, client, target, name, directory))
        yield started
    finally:
        for one in started:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait()
