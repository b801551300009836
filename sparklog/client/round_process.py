"""A round of maintenance in a process of its own, next to the broker or streaming sink that starts it.

The request goes in by a pipe, so that no secret is among the arguments; the answer comes out by another pipe,
as one line. The end of the first pipe cancels the round, and so does the end of the parent, whatever ended
it. A parent that lives shorter than its rounds names an owner instead: see RoundRequest.owner_pid.
Invariants: one round per process, at the lowest priority of the CPU, unless it is urgent. The parent never
    waits: `answer` returns None until the process has ended, and a request fits into a pipe (64 KiB). A
    cancelled round stops between two steps of some megabytes; if that takes too long, as on a storage that
    hangs, the process ends all the same, which is as good as a crash.
Not here: when a round is due, and what it does (sparklog/maintenance).
Concurrency: one thread of the parent; in the process one thread works, and one waits for the cancellation.
After a crash: see sparklog/maintenance/rounds.py.
"""

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from sparklog.client.log import open_log
from sparklog.errors import SparklogError
from sparklog.maintenance import (
    NO_LIMIT,
    ROUND,
    Budget,
    RoundReport,
    SkippedPartitions,
    Terms,
    alone,
    maintain,
)

# --- requests and answers ----------------------------------------------------------------------------


MAX_MESSAGE = 4_000


class RoundRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to maintain, and how.

    Fields:
        cluster_id: of the root that is meant: no other is touched, and none is made.
        steps: names of the steps; empty: all.
        owner_pid: the process whose end cancels the round; None: the parent. A streaming sink runs in a
            Python worker, which Spark may end after each micro-batch (spark.python.worker.reuse=false); its
            owner is the daemon that forks the workers, and ends with the driver.
    """

    root: str
    cluster_id: str
    storage_options: dict[str, Any] | None = None
    steps: tuple[str, ...] = ()
    terms: Terms = Terms()
    budget: Budget = NO_LIMIT
    owner_pid: int | None = None


class RoundAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A report, or why there is none; `is_busy`: since another process of this machine maintains the root."""

    report: RoundReport | None = None
    error: str = ""
    is_busy: bool = False

    @property
    def is_fruitless(self) -> bool:
        """True if the round failed, or did nothing of what was due."""
        return self.report is None or self.report.is_fruitless

    @property
    def problem(self) -> str:
        """Return what people should know; empty if nothing."""
        if self.report is None:
            return "" if self.is_busy else self.error
        return self.report.problem


# --- the parent's side -------------------------------------------------------------------------------


# Threads that are started later inherit the priority: it is set before the first import that starts any.
_CODE = "import os; os.nice({}); from sparklog.client.round_process import main; main()"
_LOWEST = 19


def command(*, is_urgent: bool = False) -> list[str]:
    """Return the process's command line. -P: no module of the working directory is imported, unless it is on
    our path, too.
    """
    return [sys.executable, "-P", "-c", _CODE.format(0 if is_urgent else _LOWEST)]


def environment() -> Mapping[str, str]:
    """Return ours, with the same modules: what Spark sends to its workers is on their path only."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


class RoundProcess:
    """See the module's docstring."""

    def __init__(self, request: RoundRequest, *, is_urgent: bool = False) -> None:
        """Start it, within a millisecond. OSError: there can be no process."""
        self._process = subprocess.Popen(  # noqa: S603 - our own Python
            command(is_urgent=is_urgent),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._data = b""
        self._answer: RoundAnswer | None = None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and its answer says so
            self._process.stdin.write(encode_request(request))

    @property
    def pid(self) -> int:
        return self._process.pid

    def answer(self) -> RoundAnswer | None:
        """Return what came of it; None while it runs."""
        if self._answer is None:
            exit_code = self._process.poll()
            assert self._process.stdout is not None
            self._data += self._process.stdout.read() or b""  # None: nothing yet
            if exit_code is not None:
                self._process.stdout.close()
                self.cancel()
                self._answer = decode_answer(self._data, exit_code)
        return self._answer

    def cancel(self) -> None:
        """Close the pipe, as if we had ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """End it now, if it has not ended."""
        self._process.kill()

    def end(self, timeout_seconds: float) -> RoundAnswer:
        """Cancel it, and kill it if it has not ended in time."""
        self.cancel()
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        answer = self.answer()
        assert answer is not None
        return answer


def encode_request(request: RoundRequest) -> bytes:
    """Return the request as one line."""
    return msgspec.json.encode(request) + b"\n"


def decode_answer(data: bytes, exit_code: int) -> RoundAnswer:
    """Return what a process has written until its end."""
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(data, type=RoundAnswer)
    return RoundAnswer(error=f"the process ended with exit code {exit_code}, and without a report")


# --- pace --------------------------------------------------------------------------------------------
#
# What is due stays due if a round fails: for a bucket that forbids DELETE it has been listed, and a machine
# on which another process maintains the root starts a Python for nothing. So the wait doubles with each
# fruitless round, up to MAX_WAIT_MS. A partition that cannot be read is skipped, and the others go on.


MAX_WAIT_MS = 600_000
_MAX_DOUBLINGS = 32


class Pace:
    """How often a process starts rounds for a root, and what they skip."""

    def __init__(self) -> None:
        self._fruitless = 0
        self.skipped = SkippedPartitions()

    def reset(self) -> None:
        """A round did something, or nothing was due."""
        self._fruitless = 0

    def slow_down(self) -> None:
        """A round failed, could not be started, or did nothing of what was due."""
        self._fruitless = min(self._fruitless + 1, _MAX_DOUBLINGS)

    def note(self, answer: RoundAnswer, now_ms: int) -> None:
        """Record what came of a round, at this Unix time."""
        if answer.is_fruitless:
            self.slow_down()
        else:
            self.reset()
        if answer.report is not None:
            self.skipped.add(answer.report.skipped, now_ms)

    def wait_ms(self, usual_ms: int) -> int:
        """Return how long to wait before the next look."""
        return max(usual_ms, min(usual_ms << self._fruitless, MAX_WAIT_MS))


# --- the process -------------------------------------------------------------------------------------


_END_SECONDS = 5.0


def main() -> None:
    """Do one round."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, which is meant for the parent
    request = msgspec.json.decode(_first_line(), type=RoundRequest)
    cancelled = threading.Event()
    start_cancellation(cancelled, request.owner_pid)
    answer = _answer(request, cancelled)
    try:
        os.write(1, msgspec.json.encode(answer) + b"\n")
    except BrokenPipeError:  # the parent has ended
        if answer.problem:
            logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
            logging.getLogger("sparklog.maintenance").warning("%s", answer.problem)


def start_cancellation(cancelled: threading.Event, owner_pid: int | None = None) -> None:
    """Set the event once the owner ends; and end this process soon after."""

    def wait() -> None:
        _wait_for_end(owner_pid)
        cancelled.set()
        threading.Event().wait(_END_SECONDS)
        os._exit(1)

    threading.Thread(target=wait, name="cancellation", daemon=True).start()


def _wait_for_end(owner_pid: int | None) -> None:
    if owner_pid is not None:
        try:
            select.select([os.pidfd_open(owner_pid)], [], [])
        except ProcessLookupError:
            return
        except (AttributeError, OSError):  # a system without it: the parent is the owner
            pass
        else:
            return
    while os.read(0, 4096):
        pass


def _answer(request: RoundRequest, cancelled: threading.Event) -> RoundAnswer:
    def rest(duration_ms: float) -> None:
        cancelled.wait(duration_ms / 1000)

    try:
        with (
            open_log(
                request.root,
                create=False,
                storage_options=request.storage_options,
                cluster_id=request.cluster_id,
            ) as log,
            alone(log.metadata, ROUND),
        ):
            report = maintain(
                log.metadata,
                log.clock,
                request.terms,
                steps=request.steps,
                budget=request.budget,
                is_stopped=cancelled.is_set,
                rest_ms=rest,
            )
    except Exception as error:  # noqa: BLE001 - the parent reports it
        is_busy = isinstance(error, SparklogError) and error.code == "MAINTENANCE_RUNNING"
        return RoundAnswer(error=str(error)[:MAX_MESSAGE], is_busy=is_busy)
    return RoundAnswer(report=report)


def _first_line() -> bytes:
    """Read no further: what comes next is the parent's end."""
    data = bytearray()
    while not data.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            raise SystemExit(1)  # the parent has ended before it has sent the request
        data += more
    return bytes(data)
