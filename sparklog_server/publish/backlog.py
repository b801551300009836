"""Submissions that are not published yet: their memory, and the threads that validate them.

Until it is validated, a part counts with its received size, and then with its stored size: if a topic
recompresses batches (compression.type), a hundred bytes may become a megabyte. The size is known only after
that. So validation of parts that may grow does not begin while there is no room. When one request has used up
its share, the client has to resend the rest of it.

A publish may hang while the storage cannot be reached, and a producer waits for its answer until its request
times out: half a minute by default, and blocks the next batches of the partition.
1. broker A is cut off from the storage; it validates produced batches, and does not publish them;
2. after a session timeout others consider A dead, and lead its partitions;
3. at the same time A knows that it may not lead any more (cluster/membership.py), and redirects its
   producers.

Invariants: what was added is removed once, with its final size. No part waits for room while the publisher
    is idle: the waiting part may be the next one to publish, and the room may be taken by parts after it.
Bounds: the limit, plus the share of one request, plus the parts that the checkers have begun. A request that
    is sent again makes progress: at least one of its parts may grow.
Not here: refusing for lack of room (publisher.py), validation itself (produced_batches.py).
Concurrency: any thread.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator

from sparklog.errors import RetriableError, SparklogError, as_value
from sparklog_server.publish.parts import AppendPart, PartOutcome, SentAwayError
from sparklog_server.publish.produced_batches import SMALL_BYTES, Scratch, UncheckedPart

REQUESTS_AT_LEAST = 8  # that share the limit, if they grow
PART_BYTES = 2000  # measured: objects of Python for a part, without its batch


@dataclasses.dataclass(slots=True, eq=False)
class Submission:
    """The parts of one call of Publisher.submit.

    Fields:
        size_bytes: of its batches; the stored size of those that are validated.
        is_for_producer: a client waits for it, and can find another leader.
        is_begun, is_sent_away: the publisher has begun to publish it; it never will.
        has_grown, is_full: a part has grown; growth of another part was refused.
    """

    parts: list[AppendPart | UncheckedPart]
    future: "asyncio.Future[list[PartOutcome]]"
    size_bytes: int
    errors: dict[int, Exception] = dataclasses.field(default_factory=dict)
    unchecked: int = 0  # parts that are still to be validated
    in_checkers: bool = False
    is_gone: bool = False  # published, or given up
    has_grown: bool = False
    is_full: bool = False
    is_for_producer: bool = False
    is_begun: bool = False
    is_sent_away: bool = False

    @property
    def held_bytes(self) -> int:
        """Return its memory, with its parts."""
        return self.size_bytes + PART_BYTES * len(self.parts)

    @property
    def partitions(self) -> set[tuple[str, int]]:
        """(topic id, partition) of each part."""
        return {(part.topic_id, part.partition) for part in self.parts}


class Backlog:
    """All submissions that are not published yet."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.submissions = 0
        self._changed = threading.Condition()
        self._is_idle = False
        self._of_producers: set[Submission] = set()

    def has_room(self, submission: Submission) -> bool:
        """True if it fits; a single one always fits."""
        return not self.submissions or self.used_bytes + submission.held_bytes <= self.limit_bytes

    def add(self, submission: Submission) -> None:
        """Add its memory."""
        with self._changed:
            self.used_bytes += submission.held_bytes
            self.submissions += 1
            if submission.is_for_producer:
                self._of_producers.add(submission)

    def remove(self, submission: Submission) -> None:
        """Subtract its memory, with its final size."""
        with self._changed:
            submission.is_gone = True
            self.used_bytes -= submission.held_bytes
            self.submissions -= 1
            self._of_producers.discard(submission)
            self._changed.notify_all()

    def begin(self, submission: Submission) -> bool:
        """Record that the publisher begins to publish it; return False if it was sent away."""
        with self._changed:
            submission.is_begun = not submission.is_sent_away
            return submission.is_begun

    def send_away(self) -> None:
        """Fail the submissions of producers: the storage is unreachable, and another broker may lead by now.

        Begun ones may still be published: to the client that is a request time-out. The others are never
        published, so that a retry to any leader stores them once. Concurrency: event loop.
        """
        with self._changed:
            all_of_them, self._of_producers = self._of_producers, set()
            for one in all_of_them:
                # Its client may have got a time-out, which does not require a retry.
                one.is_sent_away = not one.is_begun and not one.future.done()
        for one in all_of_them:
            if not one.future.done():
                one.future.set_exception(SentAwayError() if one.is_sent_away else _unresolved())

    def resize(self, submission: Submission, growth_bytes: int) -> bool:
        """Add the growth of a part; return False if its request would be too large: the part is refused."""
        with self._changed:
            size = submission.size_bytes + growth_bytes
            if growth_bytes > 0:
                if submission.has_grown and size > self.limit_bytes // REQUESTS_AT_LEAST:
                    submission.is_full = True
                    return False
                submission.has_grown = True
            if not submission.is_gone:
                submission.size_bytes = size
                self.used_bytes += growth_bytes
            return True

    def wait_for_room(self) -> None:
        """Wait until a part may grow."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_idle or self.used_bytes < self.limit_bytes)

    @contextlib.contextmanager
    def idle(self) -> Iterator[None]:
        """Mark the publisher as idle, within the with block."""
        with self._changed:
            self._is_idle = True
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._is_idle = False


def _unresolved() -> RetriableError:
    return RetriableError(
        "PUBLISH_UNRESOLVED",
        "found the storage unreachable for longer than broker.session.timeout.ms",
        fix="retry at the partition's leader: the batch may be published already, or may still be",
    )


# --- checkers ----------------------------------------------------------------------------------------
#
# The threads that validate produced batches.
#
# The publisher validates small requests itself: handing them to another thread, and waiting for it, took
# longer than the work and often delayed them to the next group commit (1,000 requests/s of 4 clients on two
# cores: p99 22 to 25 ms before, 13 to 20 after). The checkers get all other parts, in shares of SHARE_BYTES,
# so that a request of many small batches wakes one thread once, and a large one several.
#
# Invariants: every part of a submission is validated once; `unchecked` is 0 when all are, never before; one
#     bad part fails alone, and a bug in validating, or a panic of a codec, neither stops a thread nor fails
#     other parts; a stored error has no reference to its batch.
# Concurrency: `submit` in the event loop, `check` in the publisher's thread.


_log = logging.getLogger("sparklog_server.publish")
_MIN_CHECKERS, _MAX_CHECKERS = 2, 4  # they mostly run outside the interpreter's lock
_JOBS_AT_ONCE = 64  # parts that a checker takes from the queue, and not more than SHARE_BYTES
_GROWING_AT_ONCE = 16  # parts that may grow; they begin when there is room
_SMALL_PARTS = 16  # compressed ones are accepted quickly one by one, but not by the hundred
SHARE_BYTES = 256 << 10  # of a request, for one checker: waking another takes longer than validating these
_Job = tuple[Submission, int]  # a part, by its index


class Checkers:
    """The threads.

    Args:
        on_ready: called, in a checker's thread, when a submission has been validated.
        backlog: counts the final sizes of the parts.
    """

    def __init__(self, on_ready: Callable[[], None], backlog: Backlog) -> None:
        self._on_ready = on_ready
        self._backlog = backlog
        self._shares: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._counting = threading.Lock()  # of `unchecked`, by the thread that has validated a part
        self._threads: list[threading.Thread] = []
        self._scratch = Scratch()  # of the publisher's thread

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
        """Let the threads end after all submitted parts."""
        for _ in self._threads:
            self._shares.put(None)

    def join(self) -> None:
        """Wait for the end of the threads."""
        for thread in self._threads:
            thread.join()

    def submit(self, submission: Submission) -> None:
        """Count the parts to validate, and hand them to the threads, unless the publisher validates them."""
        unchecked = [part for part in submission.parts if isinstance(part, UncheckedPart)]
        submission.unchecked = len(unchecked)
        is_small = (
            submission.size_bytes <= SMALL_BYTES
            and len(unchecked) <= _SMALL_PARTS
            and all(part.is_small for part in unchecked)
        )
        if unchecked and not is_small:
            self._hand_over(submission)

    def check(self, submission: Submission) -> None:
        """Accept the parts that `accept` can decide, and hand the rest to the threads."""
        self._scratch.begin()
        left = 0
        for _, index in _jobs_of(submission):
            part = submission.parts[index]
            assert isinstance(part, UncheckedPart)
            accepted = _accepted(part, self._scratch)
            if accepted is None:
                left += 1
            else:
                submission.parts[index] = accepted
        submission.unchecked = left
        if left:
            self._hand_over(submission)

    def _hand_over(self, submission: Submission) -> None:
        submission.in_checkers = True
        for share in shares_of(submission):
            self._shares.put(share)

    def _check_forever(self) -> None:
        scratch = Scratch()
        while (jobs := self._shares.get()) is not None:
            self._take_more(jobs)
            for some in self._with_room(jobs):
                self._check(some, scratch)
                del some  # a waiting thread keeps no request in memory
            del jobs

    def _take_more(self, jobs: list[_Job]) -> None:
        size = _size(jobs)
        with contextlib.suppress(queue.Empty):
            while len(jobs) < _JOBS_AT_ONCE and size < SHARE_BYTES:
                more = self._shares.get_nowait()
                if more is None:
                    self._shares.put(None)  # for another thread, or this one later
                    return
                jobs += more
                size += _size(more)

    def _check(self, jobs: list[_Job], scratch: Scratch) -> None:
        for job in jobs:
            self._check_one(*job, scratch)
        with self._counting:
            for submission, _ in jobs:
                submission.unchecked -= 1
        if any(submission.unchecked == 0 for submission, _ in jobs):
            self._on_ready()

    def _with_room(self, jobs: list[_Job]) -> Iterator[list[_Job]]:
        """Yield all jobs together; those that may grow a few at a time, when there is room."""
        growing = [job for job in jobs if _may_grow(job)]
        if len(growing) < len(jobs):
            yield [job for job in jobs if not _may_grow(job)]
        for start in range(0, len(growing), _GROWING_AT_ONCE):
            self._backlog.wait_for_room()
            yield growing[start : start + _GROWING_AT_ONCE]

    def _check_one(self, submission: Submission, index: int, scratch: Scratch) -> None:
        part = submission.parts[index]
        assert isinstance(part, UncheckedPart)
        if part.may_grow and submission.is_full:  # its request is too large: it need not be validated
            submission.errors[index] = _no_room(part)
            return
        outcome = checked(part, scratch)
        if not isinstance(outcome, AppendPart):
            submission.errors[index] = outcome
        elif self._backlog.resize(submission, outcome.size_bytes - part.size_bytes):
            submission.parts[index] = outcome
        else:
            submission.errors[index] = _no_room(part)


def shares_of(submission: Submission) -> list[list[_Job]]:
    """Return the parts to validate, split into shares of about SHARE_BYTES."""
    shares: list[list[_Job]] = []
    size = SHARE_BYTES
    for job in _jobs_of(submission):
        if size >= SHARE_BYTES:
            shares.append([])
            size = 0
        shares[-1].append(job)
        size += submission.parts[job[1]].size_bytes
    return shares


def checked(part: UncheckedPart, scratch: Scratch) -> AppendPart | Exception:
    """Return the validated part, or its error; a bug, or a panic of a codec, is an error of the part."""
    scratch.begin()
    try:
        return part.check(scratch)
    except SparklogError as error:
        return as_value(error)
    except BaseException as error:  # noqa: BLE001 - a panic of compiled code is no Exception
        _log.exception("validating a batch of %s-%d failed", part.topic, part.partition)
        return as_value(error if isinstance(error, Exception) else _panic(error))


def _accepted(part: UncheckedPart, scratch: Scratch) -> AppendPart | None:
    try:
        return part.accept(scratch)
    except BaseException:  # noqa: BLE001 - a bug, or a panic of a codec: it happens again in `checked`
        return None


def _jobs_of(submission: Submission) -> list[_Job]:
    """Return the parts that are neither accepted nor refused yet."""
    return [
        (submission, at)
        for at, part in enumerate(submission.parts)
        if isinstance(part, UncheckedPart) and at not in submission.errors
    ]


def _may_grow(job: _Job) -> bool:
    submission, index = job
    part = submission.parts[index]
    return isinstance(part, UncheckedPart) and part.may_grow


def _size(jobs: list[_Job]) -> int:
    return sum(submission.parts[index].size_bytes for submission, index in jobs)


def _no_room(part: UncheckedPart) -> RetriableError:
    return RetriableError(
        "PUBLISH_BACKLOG_FULL",
        f"{part.topic}-{part.partition}: the request's batches, compressed with their topics' "
        f"compression.type, take more than a {REQUESTS_AT_LEAST}th of sparklog.publish.backlog.bytes",
        fix="retry: some more batches fit each time. Fewer batches in a request, or "
        "compression.type=producer, avoid this error",
    )


def _panic(error: BaseException) -> SparklogError:
    return SparklogError(
        "INTERNAL",
        f"validating a batch failed: {type(error).__name__}: {error}",
        fix="retry with another codec; see the broker's log",
    )
