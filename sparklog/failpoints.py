"""Failpoints: named places where tests kill, fail or pause a process; off unless SPARKLOG_FAIL is set.

    SPARKLOG_FAIL=put.linked:3                      SIGKILL on the third pass
    SPARKLOG_FAIL=file.sync:1:raise=EIO             an OSError with that errno, as from the kernel
    SPARKLOG_FAIL=publish.before:2:pause=/tmp/go    create /tmp/go.reached, and wait until /tmp/go exists
    SPARKLOG_FAIL=snapshot.parts:1,put.linked:9     several, separated by commas

Invariants: FAILPOINTS has the names and their purposes; a wrong setting fails at import, so that no test
    runs without its failpoint. A disabled failpoint is a call and a comparison (tests/test_failpoints.py).
Not here: what must hold afterwards (tests/crash).
Concurrency: passes are counted over all threads of a process; a forked child continues its parent's count.
Sources: FreeBSD fail(9). The numbers are the rows of the crash matrix (tests/crash/matrix.py).
"""

import errno
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sparklog.errors import InvalidRequestError

VARIABLE: Final = "SPARKLOG_FAIL"
_PAUSE_POLL_SECONDS: Final = 0.005

# Name -> (rows of the crash matrix, where it is). tests/test_failpoints.py compares it with the calls.
FAILPOINTS: Final[dict[str, tuple[tuple[int, ...], str]]] = {
    "file.write.middle": ((1, 5, 14), "part of the bytes of a segment, commit or snapshot are written"),
    "file.sync": ((2, 14), "before a segment's data is synced; EIO here must stop the process"),
    "segment.written": ((1, 2), "batches are appended, not synced"),
    "segment.synced": ((2,), "a segment is durable; no metadata refers to it yet"),
    "task.staged": ((3, 4), "a task has staged its rows; a paused one becomes a zombie"),
    "publish.before": ((4,), "all tasks have staged, nothing is committed"),
    "publish.after": ((7,), "committed; the caller has not been notified"),
    "transaction.begun": ((4,), "a transactional id is taken, nothing is staged"),
    "transaction.staged": ((4,), "rows of a transaction are staged, its end is not asked for"),
    "transaction.committed": ((7,), "a transaction is committed; the caller has not been notified"),
    "put.sync": ((5, 14), "before the temporary file of a put is synced"),
    "put.temporary_synced": ((5,), "the temporary file is durable"),
    "put.guard_passed": ((5, 9), "the last moment before a commit's name is created"),
    "put.linked": ((5, 6), "a commit's name exists, not durable"),
    "put.directory_synced": ((5, 7), "a commit is durable, and its temporary file is still there"),
    "s3.put.before": ((6,), "before a conditional PUT is sent"),
    "s3.put.answered": ((6, 7), "a conditional PUT has succeeded; the caller has not been notified"),
    "directory.sync": ((2, 5, 14), "before a directory is synced; EIO here must stop the process"),
    "commit.planned": ((4, 9), "a commit is computed against the newest image, not written"),
    "commit.created": ((6, 7), "a commit exists; this process still has the old image"),
    "request.posted": ((4, 6), "a request to publish is posted; no publisher has applied it"),
    "request.settled": ((7,), "a commit has settled a request; the request's file still exists"),
    "broker.registered": ((10,), "a broker is registered with a new epoch, and does not know it yet"),
    "broker.produce.written": ((8,), "produced parts are appended, not synced"),
    "broker.produce.synced": ((8, 9), "produced parts are durable, not committed"),
    "broker.produce.committed": ((8,), "produced parts are committed, not answered"),
    "broker.produce.answering": ((8,), "the event loop is about to answer produce requests"),
    "broker.state.durable": ((12,), "what a coordinator appended is durable, not in memory, not answered"),
    "snapshot.part": ((11,), "one part of a snapshot is written"),
    "snapshot.parts": ((11,), "all parts of a snapshot are written, the manifest is not"),
    "snapshot.written": ((11,), "a snapshot is complete, nothing is cleaned"),
    "merge.written": ((15,), "batches of a merged segment are written, not synced"),
    "merge.synced": ((15,), "a merged segment is durable, its indexes are not written"),
    "merge.indexed": ((15,), "a merged segment and its indexes exist; no metadata refers to them"),
    "merge.publishing": ((15,), "the segments of a task are merged, not published"),
    "vacuum.surveyed": ((16,), "what nothing refers to is listed; the sweep horizon is not moved"),
    "vacuum.moved": ((16,), "the sweep horizon is moved, nothing is removed"),
    "vacuum.removed": ((16,), "some of the dead files are removed"),
    "compact.publishing": ((15,), "a round of compaction is done, not published"),
    "cleaning.marked": ((11, 13), "the marker of cleaning is there, nothing is removed"),
    "cleaning.aborted": ((11, 13), "puts of a commit's number are aborted, it is not removed"),
    "cleaning.removed": ((11, 13), "a commit is removed"),
    "cleaning.manifest_removed": ((11, 13), "a snapshot's manifest is removed, its parts are not"),
    "sweep.temporary": ((13,), "before a temporary file is swept"),
}


@dataclass(slots=True)
class _Armed:
    """An enabled failpoint."""

    name: str
    nth: int
    act: Callable[[], None]
    passes: Iterator[int]


_armed: dict[str, _Armed] | None = None


def failpoint(name: str) -> None:
    """Fire if this failpoint is armed and the pass is the configured one; else a no-op."""
    if _armed is not None:
        _pass(name)


def torn(name: str, chunks: Sequence[memoryview]) -> Sequence[memoryview]:
    """Return the chunks of one write: all of them, or about half of their bytes if the failpoint fires."""
    if _armed is None or name not in _armed:
        return chunks
    left = max(1, sum(chunk.nbytes for chunk in chunks) // 2)
    first: list[memoryview] = []
    for chunk in chunks:
        first.append(chunk[:left])
        left -= first[-1].nbytes
        if left == 0:
            break
    return first


def arm(setting: str) -> None:
    """Enable failpoints as the environment variable does; replaces those that were enabled.

    Raises: InvalidRequestError INVALID_OPTION: no such failpoint, or no such action.
    """
    global _armed  # noqa: PLW0603 - a module-level switch is what makes the off state free
    found = [_parse(part.strip()) for part in setting.split(",") if part.strip()]
    _armed = {armed.name: armed for armed in found} or None


def disarm() -> None:
    """Disable all failpoints."""
    arm("")


def _pass(name: str) -> None:
    armed = _armed.get(name) if _armed is not None else None
    if armed is not None and next(armed.passes) == armed.nth:
        armed.act()


def _parse(text: str) -> _Armed:
    name, _, rest = text.partition(":")
    number, _, action = rest.partition(":")
    if name not in FAILPOINTS:
        raise _refused(text, f"the failpoint {name!r}", f"one of {', '.join(FAILPOINTS)}")
    if not (number.isascii() and number.isdecimal() and int(number[:9]) > 0):
        raise _refused(text, f"the pass {number!r}", "a positive number")
    return _Armed(name, int(number[:9]), _action(text, action or "kill"), itertools.count(1))


def _action(text: str, action: str) -> Callable[[], None]:
    kind, _, argument = action.partition("=")
    if action == "kill":
        return _kill
    if kind == "raise" and hasattr(errno, argument or "EIO"):
        number = getattr(errno, argument or "EIO")
        return lambda: _raise(number)
    if kind == "pause" and argument:
        return lambda: _pause(argument)
    raise _refused(text, f"the action {action!r}", "kill, raise[=ERRNO] or pause=FILE")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(number: int) -> None:
    raise OSError(number, os.strerror(number))


def _pause(path: str) -> None:
    os.close(os.open(f"{path}.reached", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
    while not os.path.exists(path):  # noqa: PTH110 - nothing but os below
        time.sleep(_PAUSE_POLL_SECONDS)


def _refused(text: str, found: str, expected: str) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_OPTION",
        f"{VARIABLE}: {text!r}: found {found}, expected {expected}",
        fix=f"Write POINT:PASS[:ACTION], or unset {VARIABLE}",
    )


arm(os.environ.get(VARIABLE, ""))
