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
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from sparklog.clock import Clock
from sparklog.maintenance import Budget, Remembered, RoundReport, Terms, remembered_after, still_remembered
from sparklog.maintenance.budget import FILES_PER_SECOND
from sparklog.maintenance.choose import DEDUPE_BUFFER_BYTES
from sparklog.storage.base import Hold
from sparklog.storage.local_files import hold_file, machine_directory, open_regular

# --- round state -------------------------------------------------------------------------------------
#
# What is known on this machine of a root's rounds, whoever runs them: a small file in the system's directory
# for temporary ones, by user and root.
#
# A streaming sink that looks after its root may be another process with each micro-batch
# (spark.python.worker.reuse=false), and one round may be ended by the end of whoever started it. So when to
# look again, what came of the last rounds, and which partitions cannot be rewritten, outlives them all.
#
# Invariants: nothing but the pace depends on it: a file that is lost, damaged, or cannot be had is as one of
#     nothing known, and so is a time that is further away than it can be (a clock was set back).
#     Only a directory and a file of our own are used, whatever somebody else has put in their place.
# Not here: one round at a time (`hold_round`, and.
# maintenance/budget.py).
# Concurrency: any number of processes of a user: each change is made under a lock on the file. A sink asks in
#     the midst of a commit, and the holder may have been stopped with it: so nobody waits for the lock who
#     has not said for how long, and who does not get it goes by what it knew last.
# After a crash in the midst of a write: nothing known.


PATIENCE_MS = 1_000  # of who waits; the lock is held for a small file's writing, by a niced process at worst
_TRY_MS = 5
_MAX_BYTES = 4 << 20


class RoundState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one root.

    Fields:
        in_vain: so many rounds, one after the other, came to nothing, or have not come back.
        look_ms: nobody looks before, in Unix time.
        expiry_ms: nobody looks before for what is only past its retention.
        told: what went wrong, as it was last reported.
        uncleanable: partitions that are left out.
    """

    in_vain: int = 0
    look_ms: int = 0
    expiry_ms: int = 0
    told: str = ""
    uncleanable: tuple[Remembered, ...] = ()


UNKNOWN = RoundState()
Change = Callable[[RoundState], RoundState]


class RoundStates:
    """The file of one root; where there can be none, this process's memory."""

    def __init__(self, url: str, cluster_id: str, *, patience: Clock | None = None) -> None:
        """`patience`: by this clock, others are waited for, for PATIENCE_MS; None: nobody is."""
        directory = machine_directory()
        name = hashlib.sha256(f"{url}\n{cluster_id}".encode()).hexdigest()[:32]
        self._path = None if directory is None else directory / f"{name}.json"
        self._patience = patience
        self._memory = UNKNOWN

    @property
    def outlives_us(self) -> bool:
        """Do other processes see it?"""
        return self._path is not None

    def read(self) -> RoundState:
        """As of now."""
        return self.change(lambda state: state)

    def change(self, change: Change) -> RoundState:
        """Replace it by what `change` makes of it; returns that."""
        if self._path is not None:
            with contextlib.suppress(OSError), _locked(self._path, self._patience) as descriptor:
                before = _decoded(os.pread(descriptor, _MAX_BYTES, 0))
                after = change(before)
                if after is not before:
                    data = msgspec.json.encode(after)
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, data, 0)
                self._memory = after
                return after
        self._memory = change(self._memory)
        return self._memory

    def hold_round(self) -> Hold:
        """One round of this root on this machine, on whatever store it is; `holder`: another has it."""
        if self._path is None:
            return Hold()
        return hold_file(str(self._path.with_suffix(".lock")), f"process {os.getpid()}".encode())


@contextlib.contextmanager
def _locked(path: Path, patience: Clock | None) -> Iterator[int]:
    """Raises: OSError, BlockingIOError if another has it."""
    descriptor = open_regular(str(path), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, patience)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, patience: Clock | None) -> None:
    tries = 0 if patience is None else PATIENCE_MS // _TRY_MS
    for _ in range(tries):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        assert patience is not None
        patience.sleep_ms(_TRY_MS)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _decoded(data: bytes) -> RoundState:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode(data, type=RoundState)
    return UNKNOWN


# --- round process -----------------------------------------------------------------------------------


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
        usual_ms: between two looks, of who keeps the pace on the machine, and has the round
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


# --- round pace --------------------------------------------------------------------------------------
#
# How often rounds are started for a root: as usual, and less and less often while they come to nothing.
#
# What is due stays due if a round fails: for a bucket that forbids DELETE it has been listed, and a machine
# that has somebody else's round going on starts a Python for nothing. Each time twice the usual wait passes,
# up to MAX_WAIT_MS. A partition that cannot be read is another matter: it is left out
# (maintenance/budget.py), and the others go on as usual.
# Invariants: a round that did something and did not fail, or a look that found nothing due, and the usual
#     wait is back. A round that has not come back counts as one that came to nothing: its process was killed.
# Not here: what is due (sparklog/maintenance).
# Concurrency: one thread; the functions on states are pure.


MAX_WAIT_MS = 600_000
_MAX_DOUBLINGS = 32


class Pace:
    """Of one root, in one process that lives as long as it is maintained."""

    def __init__(self) -> None:
        self._in_vain = 0
        self._uncleanable: tuple[Remembered, ...] = ()

    def went_well(self) -> None:
        """Something was done, or nothing was due."""
        self._in_vain = 0

    def came_to_nothing(self) -> None:
        """A round failed, could not be started, or did nothing of what was due."""
        self._in_vain = min(self._in_vain + 1, _MAX_DOUBLINGS)

    def note(self, answer: RoundAnswer, now_ms: int) -> None:
        """What came of a round."""
        if is_in_vain(answer):
            self.came_to_nothing()
        else:
            self.went_well()
        if answer.report is not None:
            self._uncleanable = remembered_after(self._uncleanable, answer.report.uncleanable, now_ms)

    def uncleanable(self, now_ms: int) -> tuple[Remembered, ...]:
        """What is left out now."""
        self._uncleanable = still_remembered(self._uncleanable, now_ms)
        return self._uncleanable

    def wait_ms(self, usual_ms: int) -> int:
        """Until the next look."""
        return wait_after(self._in_vain, usual_ms)


def wait_after(in_vain: int, usual_ms: int) -> int:
    """How long nobody looks after so many rounds in vain."""
    return max(usual_ms, min(usual_ms << in_vain, MAX_WAIT_MS))


def is_in_vain(answer: RoundAnswer) -> bool:
    """Has the round failed, or done nothing of what was due?"""
    return answer.report is None or answer.report.is_in_vain


def may_look(state: RoundState, now_ms: int) -> bool:
    """Is it time to? Whatever the clock was set to meanwhile."""
    return not now_ms < state.look_ms <= now_ms + MAX_WAIT_MS


def found_nothing(state: RoundState, now_ms: int, usual_ms: int) -> RoundState:
    """A look has found nothing due."""
    return msgspec.structs.replace(state, in_vain=0, look_ms=now_ms + usual_ms)


def begun(state: RoundState, now_ms: int, usual_ms: int) -> RoundState:
    """A round begins: in vain, until it says otherwise."""
    in_vain = min(state.in_vain + 1, _MAX_DOUBLINGS)
    return msgspec.structs.replace(state, in_vain=in_vain, look_ms=now_ms + wait_after(in_vain, usual_ms))


def ended(state: RoundState, answer: RoundAnswer, now_ms: int, usual_ms: int) -> RoundState:
    """A round that was begun has come back."""
    in_vain = state.in_vain if is_in_vain(answer) else 0
    return msgspec.structs.replace(
        found_uncleanable(state, answer, now_ms),
        in_vain=in_vain,
        look_ms=now_ms + wait_after(in_vain, usual_ms),
    )


def found_uncleanable(state: RoundState, answer: RoundAnswer, now_ms: int) -> RoundState:
    """A round has come back that somebody else keeps the pace of."""
    found = () if answer.report is None else answer.report.uncleanable
    return msgspec.structs.replace(state, uncleanable=remembered_after(state.uncleanable, found, now_ms))
