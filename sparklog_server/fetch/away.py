"""Segments that an object store has not given for as long as its patience lasted: minutes.

They are not asked for again for a while, but refused at once. Where only some objects are away (of a set of
disks that has lost its quorum), each fetch that names a partition which needs one would else take minutes,
with all of its others, and so would the next one: the consumer has given up long before.

Memory: a segment for each time that the patience was used up, for AWAY_SECONDS.
Concurrency: any storage thread.
"""

import contextlib
from collections.abc import Iterator
from time import monotonic

from sparklog.log.missing_segment import UnreadableSegmentError, took_patience

AWAY_SECONDS = 30.0


class StillAwayError(UnreadableSegmentError):
    """What was told of a segment lately; it was not asked for again."""


class AwaySegments:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._away: dict[str, tuple[float, UnreadableSegmentError]] = {}  # until when, and why

    def refuse(self, segment: str) -> None:
        """Raise StillAwayError if it was away lately."""
        until, why = self._away.get(segment, (0.0, None))
        if why is not None and monotonic() < until:
            raise StillAwayError(why.code, why.message, fix=why.fix)

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Remember whose bytes were asked for until the store's patience was at its end."""
        try:
            yield
        except UnreadableSegmentError as error:
            if took_patience(error) and not isinstance(error, StillAwayError):
                now = monotonic()
                kept = {segment: one for segment, one in self._away.items() if one[0] > now}
                self._away = {**kept, error.segment: (now + AWAY_SECONDS, error)}
            raise
