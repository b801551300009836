"""Small extents of many partitions, fetched from an object store by as few requests as their objects allow.

A publish leaves an object that holds a little of each partition; merging goes by partition. To ask for each
extent by itself would be a request for each partition of each publish, which costs more than the publish did.
So all that a work reads is fetched first, object by object, what lies close together at once.

Invariants: what is read is what the objects hold. A range that cannot be fetched, or not all of it, is left
    out: whoever reads it by itself is told what is wrong, of the extent that it is wrong with.
Memory: all of it, and at most a quarter more, of what lies between; so only for works whose size is bounded
    (choose.MAX_SHARED_BYTES).
Concurrency: one thread; the store fetches some ranges ahead.
"""

import bisect
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from sparklog.errors import CorruptLogError, DataLossError
from sparklog.log.read_ahead import AHEAD_PIECES, PIECE_BYTES
from sparklog.log.segment_file import SegmentFiles
from sparklog.log.span import Span

_GAP_SHARE = 4  # a gap is fetched with what is before it, if that is so many times as large


class Fetched:
    """See the module's docstring."""

    def __init__(self, files: SegmentFiles, spans: Iterable[Span]) -> None:
        self._starts: dict[str, list[int]] = {}
        self._buffers: dict[str, list[memoryview]] = {}
        ranges = list(joined_ranges(spans))
        for start in range(0, len(ranges), AHEAD_PIECES):
            self._fetch(files, ranges[start : start + AHEAD_PIECES])

    def _fetch(self, files: SegmentFiles, ranges: Sequence[Span]) -> None:
        for one in ranges:
            with contextlib.suppress(DataLossError):
                files.open(one).will_need(one.position, one.size)
        for one in ranges:
            try:
                data = files.open(one).read_exactly(one, one.position, one.size)
            except (CorruptLogError, DataLossError):
                continue
            self._starts.setdefault(one.segment, []).append(one.position)
            self._buffers.setdefault(one.segment, []).append(memoryview(data))

    def read_into(self, span: Span, buffer: memoryview) -> bool:
        """Fill the buffer with the span; False: it was not fetched."""
        starts = self._starts.get(span.segment, [])
        number = bisect.bisect_right(starts, span.position) - 1
        if number < 0:
            return False
        data, at = self._buffers[span.segment][number], span.position - starts[number]
        if at + span.size > len(data):
            return False
        buffer[:] = data[at : at + span.size]
        return True


def joined_ranges(spans: Iterable[Span]) -> Iterator[Span]:
    """What to ask for: by segment and position, none of the spans cut."""
    ordered = sorted(spans, key=lambda span: (span.segment, span.position))
    for _, of_segment in groupby(ordered, key=lambda span: span.segment):
        joined: Span | None = None
        wanted = 0
        for span in of_segment:
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
