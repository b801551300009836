"""A round of maintenance in a process of its own, beside whoever started it: at the lowest priority, and
ended with its parent.

What is asked for goes in by a pipe, so that no secret is among the arguments, and the pipe stays open as long
as the parent has it: its end is the parent's, however that came (a signal, kill -9, a crash), and the round
breaks off (round_main.py). A parent that Spark may end after each micro-batch names a guardian besides, the
process that it was forked by, which lives as long as the driver: then it is the end of both that ends the
round. What came of it comes out by another pipe, as one line.
Invariants: one round a process. The parent waits for nothing: `answer` says None until the process has ended.
    What the process writes fits into a pipe, so it never waits for the parent either.
Not here: when a round is due, and what it does (sparklog/maintenance).
Concurrency: one thread of the parent.
After a crash: see sparklog/maintenance/maintain.py.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from sparklog.maintenance import Budget, RoundReport, Terms
from sparklog.maintenance.budget import FILES_PER_SECOND
from sparklog.maintenance.choose_compactions import DEDUPE_BUFFER_BYTES

MODULE = "sparklog.client.round_main"
URGENT = "urgent"  # at the priority of its parent
MAX_MESSAGE = 4_000  # of a line that must fit into a pipe, 64 KiB


class RoundRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to maintain, and how.

    Fields:
        cluster_id: of the root that is meant: no other is touched, and none is made.
        steps: names of the steps; empty: all.
        topics: None: all.
        defaults, dedupe_buffer_bytes, but: see Terms.
        seconds, max_bytes, bytes_per_second, files_per_second: see Budget.
        usual_ms: between two looks, of who keeps the pace on the machine (round_state.py), and has the round
            tell what goes wrong; None: who asks does so.
        guardian: a descriptor of a process that the round may outlive its parent for; None: there is none.
    """

    root: str
    cluster_id: str
    storage_options: dict[str, Any] | None = None
    steps: tuple[str, ...] = ()
    topics: tuple[str, ...] | None = None
    defaults: dict[str, str] = {}
    seconds: float | None = None
    max_bytes: int | None = None
    bytes_per_second: int | None = None
    files_per_second: int | None = FILES_PER_SECOND
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
    but: tuple[tuple[str, int], ...] = ()
    usual_ms: int | None = None
    guardian: int | None = None

    @property
    def terms(self) -> Terms:
        return Terms(
            topics=self.topics,
            defaults=self.defaults,
            dedupe_buffer_bytes=self.dedupe_buffer_bytes,
            but=frozenset(self.but),
        )

    @property
    def budget(self) -> Budget:
        return Budget(
            seconds=self.seconds,
            max_bytes=self.max_bytes,
            bytes_per_second=self.bytes_per_second,
            files_per_second=self.files_per_second,
        )


class RoundAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: a report, or why there is none; `is_busy`: another process of this machine has rounds
    of this root, which is nobody's fault; `is_told`: people were told what went wrong.
    """

    report: RoundReport | None = None
    error: str = ""
    is_busy: bool = False
    is_told: bool = False

    @property
    def problem(self) -> str:
        """What went wrong, or is left undone for a reason that somebody should know; empty if nothing."""
        if self.report is None:
            return "" if self.is_busy else self.error
        return "; ".join(one.message for one in self.report.steps if one.message and one.outcome != "busy")


def command(*, is_urgent: bool = False) -> list[str]:
    """The process's command line: nothing in it says more than that it is one, and whether it may not wait.

    -P: a module that lies in the working directory is not ours, unless it is on our path, too.
    """
    return [sys.executable, "-P", "-m", MODULE, *([URGENT] if is_urgent else [])]


def environment() -> Mapping[str, str]:
    """As here, and the same modules: what Spark has sent to its workers is on their path only."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


def encode_request(request: RoundRequest) -> bytes:
    """One line."""
    return msgspec.json.encode(request) + b"\n"


def decode_answer(data: bytes, exit_code: int) -> RoundAnswer:
    """What a process has said until its end."""
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(data, type=RoundAnswer)
    return RoundAnswer(error=f"the process ended with exit code {exit_code}, and without a report")


@contextlib.contextmanager
def guardian() -> Iterator[int | None]:
    """A descriptor of this process's own parent; None where the system has none (Linux has)."""
    parent = os.getppid()
    try:
        descriptor = os.pidfd_open(parent)
    except (AttributeError, OSError):
        yield None
        return
    try:
        # It is ours still, so the number has not become somebody else's. That of init guards nobody.
        yield descriptor if parent > 1 and os.getppid() == parent else None
    finally:
        os.close(descriptor)


class RoundProcess:
    """See the module's docstring."""

    def __init__(self, request: RoundRequest, *, is_urgent: bool = False) -> None:
        """Start it. OSError: there can be no process."""
        self._process = subprocess.Popen(  # noqa: S603 - our own Python
            command(is_urgent=is_urgent),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            pass_fds=() if request.guardian is None else (request.guardian,),
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and will say so
            self._process.stdin.write(encode_request(request))
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def answer(self) -> RoundAnswer | None:
        """What came of it; None while it runs. It is gone, and its pipes are closed, once there is one."""
        return None if self._process.poll() is None else self.wait()

    def wait(self) -> RoundAnswer:
        """What came of it, once it has ended, and is gone."""
        assert self._process.stdout is not None
        data = self._process.stdout.read()
        exit_code = self._process.wait()
        self._process.stdout.close()
        self._close_stdin()
        return decode_answer(data, exit_code)

    @property
    def exit_code(self) -> int | None:
        """None: it runs, or nobody has looked."""
        return self._process.returncode

    def leave(self) -> None:
        """Say nothing more to it, as if we had ended."""
        self._close_stdin()

    def kill(self) -> None:
        """End it now, if it has not ended."""
        self._process.kill()

    def stop(self, timeout_seconds: float) -> None:
        """Let it break off, and end it if it does not in time."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"stop\n")
            self._process.stdin.flush()
        self._close_stdin()
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.answer()

    def _close_stdin(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
