"""What was submitted and is not published yet: how much memory it takes, and the threads that validate it.

A part counts as it came until it is validated, and then as it will be stored: where a topic compresses
batches anew (compression.type), a hundred bytes may become a megabyte. How much they become is known only
after that. So validation of parts that may grow does not begin while there is no room, and when one request
has its share, the rest of it has to come again.

A publish may hang while the storage cannot be reached, and a producer waits for its answer until its request
times out: half a minute by default, with all batches of a partition behind it.
1. broker A is cut off from the storage; what producers send to it is validated, and not published;
2. a session later others take A for dead, and lead its partitions;
3. A knows as early that it may not lead any more (cluster/membership.py), and sends its producers away.

Invariants: what was added is removed once, as large as it has become. No part waits for room while the
    publisher has nothing to do: what it needs next may be what waits, and what takes the room may be behind
    that.
Bounds: a request's share more than the limit, and what the checkers have begun. A request that comes again
    gets on: one of its parts at least may grow.
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
    """What one call of Publisher.submit handed in.

    Fields:
        size_bytes: of its batches, as far as they are validated those that will be stored.
        is_for_producer: a client waits for it, and can find another leader.
        is_begun, is_sent_away: the publisher has begun with it, or never will.
        has_grown, is_full: a part has become larger; one more would have become too large.
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
        """What it takes, with its parts."""
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
        """True if it fits; the only one always does."""
        return not self.submissions or self.used_bytes + submission.held_bytes <= self.limit_bytes

    def add(self, submission: Submission) -> None:
        """Count it in."""
        with self._changed:
            self.used_bytes += submission.held_bytes
            self.submissions += 1
            if submission.is_for_producer:
                self._of_producers.add(submission)

    def remove(self, submission: Submission) -> None:
        """Count it out, as large as it has become."""
        with self._changed:
            submission.is_gone = True
            self.used_bytes -= submission.held_bytes
            self.submissions -= 1
            self._of_producers.discard(submission)
            self._changed.notify_all()

    def begin(self, submission: Submission) -> bool:
        """Note that the publisher begins to publish it; False: it was sent away."""
        with self._changed:
            submission.is_begun = not submission.is_sent_away
            return submission.is_begun

    def send_away(self) -> None:
        """Fail what producers wait for: the storage cannot be reached, and another broker may lead by now.

        What is begun may be published all the same: so it is as if the request had timed out. Nothing of the
        rest is, so that it is there once, under any leader. Concurrency: event loop.
        """
        with self._changed:
            all_of_them, self._of_producers = self._of_producers, set()
            for one in all_of_them:
                # Its client may have got a time-out: that did not say that it must come again.
                one.is_sent_away = not one.is_begun and not one.future.done()
        for one in all_of_them:
            if not one.future.done():
                one.future.set_exception(SentAwayError() if one.is_sent_away else _unresolved())

    def resize(self, submission: Submission, growth_bytes: int) -> bool:
        """Count a part as so much larger; False: its request is too large then, and the part is refused."""
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
        """While the publisher waits for something to publish."""
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
        "found the storage away, and expected it back within broker.session.timeout.ms",
        fix="send it again, to the partition's leader: it may have been published, or may still be",
    )


# --- checkers ----------------------------------------------------------------------------------------
#
# The threads that validate produced batches.
#
# Small requests are left to the publisher, which tries to accept their batches by itself: handing them to
# another thread, and waiting for it, took longer than the work and often put them off to the next group
# commit (1,000 requests/s of 4 clients on two cores: p99 22 to 25 ms before, 13 to 20 after). What the
# publisher does not accept, and all else, goes to the checkers in shares of SHARE_BYTES, so that a request of
# many small batches wakes one thread once, and a large one several.
#
# Invariants: every part of a submission is validated once; `unchecked` is 0 when all are, never before; one
#     bad part fails alone, and a bug in validating, or a panic of a codec, neither stops a thread nor fails
#     other parts; an error that is kept holds nothing of the batch that it is about.
# Concurrency: `submit` in the event loop, `check` in the publisher's thread.


_log = logging.getLogger("sparklog_server.publish")
_MIN_CHECKERS, _MAX_CHECKERS = 2, 4  # they mostly run outside the interpreter's lock
_JOBS_AT_ONCE = 64  # parts that a checker takes from the queue, and not more than SHARE_BYTES
_GROWING_AT_ONCE = 16  # parts that may grow, which are begun when there is room
_SMALL_PARTS = 16  # compressed ones are accepted quickly one by one, but not by the hundred
SHARE_BYTES = 256 << 10  # of a request, for one checker: waking another takes longer than validating these
_Job = tuple[Submission, int]  # a part, by its index


class Checkers:
    """The threads.

    Args:
        on_ready: called, in a checker's thread, when a submission has been validated.
        backlog: where what parts have become is counted.
    """

    def __init__(self, on_ready: Callable[[], None], backlog: Backlog) -> None:
        self._on_ready = on_ready
        self._backlog = backlog
        self._shares: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._counting = threading.Lock()  # of `unchecked`, by the thread that has validated a part
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
        is_small = (
            submission.size_bytes <= SMALL_BYTES
            and len(unchecked) <= _SMALL_PARTS
            and all(part.is_small for part in unchecked)
        )
        if unchecked and not is_small:
            self._hand_over(submission)

    def check(self, submission: Submission) -> None:
        """Accept what can be accepted here and now, and hand over the rest."""
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
                del some  # a thread that waits keeps no request
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
        """All together, but for those that may grow: a few at a time, when there is room."""
        growing = [job for job in jobs if _may_grow(job)]
        if len(growing) < len(jobs):
            yield [job for job in jobs if not _may_grow(job)]
        for start in range(0, len(growing), _GROWING_AT_ONCE):
            self._backlog.wait_for_room()
            yield growing[start : start + _GROWING_AT_ONCE]

    def _check_one(self, submission: Submission, index: int, scratch: Scratch) -> None:
        part = submission.parts[index]
        assert isinstance(part, UncheckedPart)
        if (
            part.may_grow and submission.is_full
        ):  # its request has grown so much that it need not be validated
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


def checked(part: UncheckedPart, scratch: Scratch) -> AppendPart | Exception:
    """Return the part, or why it is refused; a bug, or a panic of a codec, refuses it."""
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


def _size(jobs: list[_Job]) -> int:
    return sum(submission.parts[index].size_bytes for submission, index in jobs)


def _no_room(part: UncheckedPart) -> RetriableError:
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
        fix="retry with another codec; see the broker's log",
    )
