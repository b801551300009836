"""The threads that validate what was handed in to be appended.

Requests that are quick to validate, or may be, are left to the publisher: handing them to another thread,
and waiting for it, took longer than the work and often put them off to the next bundle (1,000 requests/s of
4 clients on two cores: p99 22 to 25 ms before, 13 to 20 after). What the publisher has tried in vain, and all
else, goes to the checkers in shares of SHARE_BYTES, so that a request of many small batches wakes one thread
once, and a large one several.

Invariants: every part of a submission is validated once; `unchecked` is 0 when all are, never before; one bad
    part fails alone, and a bug in validating, or a panic of a codec, neither stops a thread nor hits the
    parts beside it; an error that is kept holds nothing of the batch that it is about.
Not here: validation itself (produced_batches.py), what may be appended before it is done (publisher.py).
Concurrency: `submit` in the event loop, `check` in any thread.
"""

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence

from sparklog.errors import RetriableError, SparklogError, as_value
from sparklog_server.publish.at_once import Scratch
from sparklog_server.publish.backlog import REQUESTS_AT_LEAST, Backlog, Submission
from sparklog_server.publish.part_checks import QUICK_BYTES, check_together, checked_at_once
from sparklog_server.publish.parts import AppendPart, UncheckedPart

_log = logging.getLogger("sparklog_server.publish")
_MIN_CHECKERS, _MAX_CHECKERS = 2, 4  # they mostly run outside the interpreter's lock
_CHECKED_TOGETHER = 64  # parts that a checker takes at once, if so many wait, and not more than SHARE_BYTES
_GROWING_TOGETHER = 16  # parts that may grow, which are begun when there is room
_QUICK_PARTS = 16  # compressed ones are quick one by one, but not by the hundred
SHARE_BYTES = 256 << 10  # of a request, for one checker: waking another takes longer than validating these


_Job = tuple[Submission, int]  # a part, by its index


class Checkers:
    """The threads.

    Args:
        on_ready: told, in a checker's thread, when a submission has been validated.
        backlog: where what parts have become is counted.
    """

    def __init__(self, on_ready: Callable[[], None], backlog: Backlog) -> None:
        self._on_ready = on_ready
        self._backlog = backlog
        self._shares: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._counting = threading.Lock()  # of `unchecked`, by whoever has validated a part
        self._threads: list[threading.Thread] = []
        self._scratch = Scratch()  # the publisher's

    def start(self) -> None:
        """Start the threads."""
        count = max(_MIN_CHECKERS, min(_MAX_CHECKERS, (os.cpu_count() or 1) - 1))
        self._threads = [
            threading.Thread(target=self._check_forever, name=f"checker-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Have the threads end when what was submitted is done."""
        for _ in self._threads:
            self._shares.put(None)

    def join(self) -> None:
        """Wait until they have."""
        for thread in self._threads:
            thread.join()

    def submit(self, submission: Submission) -> None:
        """Count what is to be validated, and have it done, unless it is left to the publisher."""
        unchecked = [part for part in submission.parts if isinstance(part, UncheckedPart)]
        submission.unchecked = len(unchecked)
        if (
            submission.size_bytes <= QUICK_BYTES
            and len(unchecked) <= _QUICK_PARTS
            and all(part.is_quick or part.is_tried for part in unchecked)
        ):
            return
        self._hand_over(submission, bool(unchecked))

    def check(self, submission: Submission) -> None:
        """Validate what is quick, here and now, and hand over the rest. The publisher's thread."""
        quick: list[_Job] = []
        found: dict[int, AppendPart] = {}
        is_all = True
        self._scratch.begin()
        for job in _jobs_of(submission):
            part = submission.parts[job[1]]
            assert isinstance(part, UncheckedPart)
            tried = _try(part, self._scratch)
            if tried is not None:
                found[job[1]] = tried
            elif part.is_quick:
                quick.append(job)
            else:
                is_all = False
        if quick:
            self._check(quick)
        for index, checked in found.items():
            submission.parts[index] = checked
        with self._counting:
            submission.unchecked -= len(found)
        if not is_all:
            self._hand_over(submission, True)

    def _hand_over(self, submission: Submission, is_some: bool) -> None:
        submission.in_checkers = is_some
        for share in shares_of(submission):
            self._shares.put(share)

    def _check_forever(self) -> None:
        scratch = Scratch()
        while (jobs := self._shares.get()) is not None:
            size = _size(jobs)
            with contextlib.suppress(queue.Empty):
                while len(jobs) < _CHECKED_TOGETHER and size < SHARE_BYTES:
                    more = self._shares.get_nowait()
                    if more is None:
                        self._shares.put(None)  # for whoever it is meant for, maybe this thread
                        break
                    jobs += more
                    size += _size(more)
            for some in self._with_room(jobs):
                self._check(some, scratch)
                if any(submission.unchecked == 0 for submission, _ in some):
                    self._on_ready()

    def _with_room(self, jobs: list[_Job]) -> Iterator[Sequence[_Job]]:
        """All at once, but for those that may grow: a few at a time, when there is room."""
        growing = [job for job in jobs if _may_grow(job)]
        if len(growing) < len(jobs):
            yield [job for job in jobs if not _may_grow(job)]
        for start in range(0, len(growing), _GROWING_TOGETHER):
            self._backlog.wait_for_room()
            yield growing[start : start + _GROWING_TOGETHER]

    def _check(self, jobs: Sequence[_Job], scratch: Scratch | None = None) -> None:
        self._validate([job for job in jobs if not self._is_refused(job)], scratch)
        with self._counting:
            for submission, _ in jobs:
                submission.unchecked -= 1

    def _is_refused(self, job: _Job) -> bool:
        """Has its request grown so much that it need not be looked at?"""
        submission, index = job
        if not submission.is_full or not _may_grow(job):
            return False
        submission.errors[index] = _no_room(submission.parts[index])
        return True

    def _validate(self, jobs: Sequence[_Job], scratch: Scratch | None) -> None:
        parts = [submission.parts[index] for submission, index in jobs]
        outcomes = check_all([part for part in parts if isinstance(part, UncheckedPart)], scratch)
        for (submission, index), part, outcome in zip(jobs, parts, outcomes, strict=True):
            if not isinstance(outcome, AppendPart):
                submission.errors[index] = outcome
            elif self._backlog.resize(submission, outcome.size_bytes - part.size_bytes):
                submission.parts[index] = outcome
            else:
                submission.errors[index] = _no_room(part)


def shares_of(submission: Submission) -> list[list[_Job]]:
    """What is to be validated, cut wherever a share has reached SHARE_BYTES."""
    shares: list[list[_Job]] = []
    size = SHARE_BYTES
    for job in _jobs_of(submission):
        if size >= SHARE_BYTES:
            shares.append([])
            size = 0
        shares[-1].append(job)
        size += submission.parts[job[1]].size_bytes
    return shares


def _jobs_of(submission: Submission) -> list[_Job]:
    """What is still to be validated: neither right nor wrong so far."""
    return [
        (submission, at)
        for at, part in enumerate(submission.parts)
        if isinstance(part, UncheckedPart) and at not in submission.errors
    ]


def _may_grow(job: _Job) -> bool:
    submission, index = job
    part = submission.parts[index]
    return isinstance(part, UncheckedPart) and part.may_grow


def _size(jobs: Sequence[_Job]) -> int:
    return sum(submission.parts[index].size_bytes for submission, index in jobs)


def _no_room(part: AppendPart | UncheckedPart) -> RetriableError:
    return RetriableError(
        "PUBLISH_BACKLOG_FULL",
        f"{part.topic}-{part.partition}: the request's batches, compressed as their topics' compression.type "
        f"has it, take more than a {REQUESTS_AT_LEAST}th of sparklog.publish.backlog.bytes",
        fix="send it again: some more of them fit each time. Fewer batches in a request, or "
        "compression.type=producer, avoid that",
    )


def _panic(error: BaseException) -> SparklogError:
    return SparklogError(
        "INTERNAL",
        f"validating a batch failed: {type(error).__name__}: {error}",
        fix="send it otherwise compressed; the broker's log has more",
    )


def _try(part: UncheckedPart, scratch: Scratch) -> AppendPart | None:
    try:
        return checked_at_once(part, scratch)
    except BaseException:  # noqa: BLE001 - a bug, or a panic of a codec: it happens again in `check_all`
        return None


def check_all(
    parts: Sequence[UncheckedPart], scratch: Scratch | None = None
) -> Sequence[AppendPart | Exception]:
    """What became of each; a bug must neither stop the thread nor hit the parts beside it."""
    try:
        return check_together(parts, scratch)
    except BaseException:  # noqa: BLE001 - see above; a panic of compiled code is no Exception
        _log.exception("validating %d batches together failed", len(parts))
    found: list[AppendPart | Exception] = []
    for part in parts:
        try:
            found.append(part.check())
        except BaseException as error:  # noqa: BLE001 - see above
            if not isinstance(error, SparklogError):
                _log.exception("validating a batch of %s-%d failed", part.topic, part.partition)
            found.append(as_value(error if isinstance(error, Exception) else _panic(error)))
    return found
