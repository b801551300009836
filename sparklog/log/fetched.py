"""Small spans of several partitions, fetched from an object store by as few requests as their objects allow.

A publish leaves an object that holds a little of each partition; who reads goes by partition. To ask for each
extent by itself would be a request for each partition of each publish, which costs more than the publish did.
So what a reader is going to need is announced all together, and fetched object by object, what lies close
together at once, several at a time, in the order in which it is needed first.

Invariants: what is read is what the objects hold. A range that cannot be fetched, or not all of it, is left
    out: whoever reads it by itself is told what is wrong, of the extent that it is wrong with. So is what
    there was no time for. But a store that does not answer is not asked twice.
Memory: all of it, and at most a quarter more, of what lies between; so only for what is bounded.
Concurrency: one thread fetches, and the store, in threads of its own, some ranges ahead; any reads.
"""

import bisect
import collections
import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from sparklog.errors import CorruptLogError, DataLossError
from sparklog.log.missing_segment import UnreadableSegmentError, took_patience
from sparklog.log.read_ahead import AHEAD_PIECES, PIECE_BYTES
from sparklog.log.segment_file import SegmentFiles
from sparklog.log.span import Span
from sparklog.storage import Store

_GAP_SHARE = 4  # a gap is fetched with what is before it, if that is so many times as large


def _never() -> bool:
    return False


class Fetched:
    """See the module's docstring."""

    def __init__(
        self, store: Store, spans: Iterable[Span], *, is_time_over: Callable[[], bool] = _never
    ) -> None:
        """`is_time_over`: nothing more is waited for then; asked after each request but the first."""
        self._starts: dict[str, list[int]] = {}
        self._buffers: dict[str, list[memoryview]] = {}
        ranges = joined_ranges(spans)
        announced: collections.deque[Span] = collections.deque()
        with SegmentFiles(store) as files:
            for number, one in enumerate([*ranges, *[None] * AHEAD_PIECES]):
                if one is not None:
                    with contextlib.suppress(DataLossError, UnreadableSegmentError):
                        files.open(one).will_need(one.position, one.size)
                    announced.append(one)
                if number >= AHEAD_PIECES - 1 and announced:
                    self._take(files, announced.popleft())
                    if is_time_over():
                        return

    def _take(self, files: SegmentFiles, one: Span) -> None:
        try:
            data = files.open(one).read_exactly(one, one.position, one.size)
        except (CorruptLogError, DataLossError):
            return
        except UnreadableSegmentError as error:
            if took_patience(error):
                raise
            return
        starts = self._starts.setdefault(one.segment, [])
        at = bisect.bisect_right(starts, one.position)
        starts.insert(at, one.position)
        self._buffers.setdefault(one.segment, []).insert(at, memoryview(data))

    def has(self, span: Span) -> bool:
        """Is all of the span here?"""
        return self._found(span) is not None

    def read_into(self, span: Span, buffer: memoryview) -> bool:
        """Fill the buffer with the span; False: it was not fetched."""
        found = self._found(span)
        if found is None:
            return False
        buffer[:] = found
        return True

    def read(self, span: Span) -> bytearray:
        """A copy of a span that is here."""
        found = self._found(span)
        assert found is not None
        return bytearray(found)

    def _found(self, span: Span) -> memoryview | None:
        starts = self._starts.get(span.segment, [])
        number = bisect.bisect_right(starts, span.position) - 1
        if number < 0:
            return None
        data, at = self._buffers[span.segment][number], span.position - starts[number]
        return data[at : at + span.size] if at + span.size <= len(data) else None


def joined_ranges(spans: Iterable[Span]) -> list[Span]:
    """What to ask for, none of the spans cut: the segments in the order in which they are given first, and
    of each the positions ascending, as files let go of what lies before a read.
    """
    ordered = sorted(enumerate(spans), key=lambda one: (one[1].segment, one[1].position))
    found: list[tuple[int, list[Span]]] = []
    for _, group in groupby(ordered, key=lambda one: one[1].segment):
        of_segment = list(group)
        found.append((min(number for number, _ in of_segment), list(_joined(one for _, one in of_segment))))
    return [span for _, joined in sorted(found, key=itemgetter(0)) for span in joined]


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Of one segment, ascending."""
    joined: Span | None = None
    wanted = 0
    for span in spans:
        if joined is not None and _is_near(joined, span, wanted):
            joined, wanted = _until(joined, span.end_position), wanted + span.size
            continue
        if joined is not None:
            yield joined
        joined, wanted = span, span.size
    if joined is not None:
        yield joined


def _is_near(joined: Span, span: Span, wanted: int) -> bool:
    """`wanted`: so much of what is joined already is no gap."""
    gaps = span.position - joined.position - wanted
    return gaps * _GAP_SHARE <= wanted and span.end_position - joined.position <= PIECE_BYTES


def _until(joined: Span, end_position: int) -> Span:
    return Span(
        topic=joined.topic,
        partition=joined.partition,
        segment=joined.segment,
        position=joined.position,
        size=max(joined.end_position, end_position) - joined.position,
    )
