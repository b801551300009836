"""What was submitted and is not published yet, and how much memory that takes.

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
Not here: refusing for lack of room (publisher.py), waiting for it (checkers.py).
Concurrency: any thread.
"""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Iterator

from sparklog.errors import RetriableError
from sparklog_server.publish.parts import AppendPart, PartOutcome, SentAwayError
from sparklog_server.publish.produced_batches import UncheckedPart

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
