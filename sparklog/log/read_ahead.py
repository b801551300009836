"""Reading ahead of decoding, on stores where each read is a round trip.

The byte ranges that a reader will go through are announced piece by piece (ReadFile.will_need), as far ahead
as the budget allows; the store fetches them in parallel, in the background, while earlier ones are decoded.
Ranges that continue each other in a segment are fetched together.

Invariants: at most AHEAD_BYTES, and AHEAD_PIECES, are announced and not reached yet.
Not here: the fetching (storage).
Concurrency: one thread, the reader's.
"""

import collections
from collections.abc import Iterable, Iterator

from sparklog.log.segment_file import SegmentFiles
from sparklog.log.span import Span

AHEAD_BYTES = 32 << 20
AHEAD_PIECES = 32  # half of what SegmentFiles keeps open, so that no announced file is pushed out
PIECE_BYTES = 4 << 20


class ReadAhead:
    """Announces `spans`, piece by piece, which are then read in their order."""

    def __init__(self, files: SegmentFiles, spans: Iterable[Span]) -> None:
        self._files = files
        self._pieces = _pieces(spans)
        self._announced: collections.deque[Span] = collections.deque()
        self._announced_bytes = 0
        self._next = next(self._pieces, None)

    def reached(self, span: Span, position: int) -> None:
        """The reader is about to read at `position`; what was announced before it is done with."""
        while self._announced and not _lies_in(position, span, self._announced[0]):
            if not self._is_ahead(span, position):
                break
            self._announced_bytes -= self._announced.popleft().size
        while self._next is not None and self._has_room():
            piece = self._next
            self._files.open(piece).will_need(piece.position, piece.size)
            self._announced.append(piece)
            self._announced_bytes += piece.size
            self._next = next(self._pieces, None)

    def _has_room(self) -> bool:
        return not self._announced or (
            self._announced_bytes < AHEAD_BYTES and len(self._announced) < AHEAD_PIECES
        )

    def _is_ahead(self, span: Span, position: int) -> bool:
        """Is the position in a piece that is announced, or still to be?"""
        return any(_lies_in(position, span, piece) for piece in self._announced) or self._next is not None


def _lies_in(position: int, span: Span, piece: Span) -> bool:
    return piece.segment == span.segment and piece.position <= position < piece.end_position


def _pieces(spans: Iterable[Span]) -> Iterator[Span]:
    """The spans in pieces of at most PIECE_BYTES; those that continue each other are joined."""
    joined: Span | None = None
    for span in spans:
        if (
            joined is not None
            and joined.segment == span.segment
            and joined.end_position == span.position
            and joined.size + span.size <= PIECE_BYTES
        ):
            joined = _span(span, joined.position, joined.size + span.size)
            continue
        if joined is not None:
            yield joined
        position = span.position
        while span.end_position - position > PIECE_BYTES:
            yield _span(span, position, PIECE_BYTES)
            position += PIECE_BYTES
        joined = _span(span, position, span.end_position - position)
    if joined is not None:
        yield joined


def _span(span: Span, position: int, size: int) -> Span:
    return Span(
        topic=span.topic, partition=span.partition, segment=span.segment, position=position, size=size
    )
