"""What a turn of reading needs of an object store, for all of its partitions, fetched at once.

A fetch names many partitions, and a consumer that is far behind needs many small extents of each. An object
store takes a round trip for each request, and the extents of one publish lie in one object: so they are asked
for by object, several at a time, the next ones of each partition first.

Invariants: what is here is what the objects hold (log/fetched.py); what is missing, or had no time, is not,
    and whoever reads goes on without it, or asks for it by itself, and is told what is wrong.
Memory: about what one turn of reading may have (rounds.py), and as much again while it is copied.
Not here: which pieces a partition needs, and checking them (reader.py).
Concurrency: one storage thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from sparklog.log.fetched import Fetched
from sparklog.log.span import Span
from sparklog.metadata import Extent
from sparklog.storage import Store


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of an extent: from the batch that holds the first wanted offset on."""

    extent: Extent
    span: Span
    position: int
    size: int

    @property
    def is_rest(self) -> bool:
        """Does it reach the extent's end?"""
        return self.position + self.size == self.span.end_position

    @property
    def bytes_span(self) -> Span:
        """Where its bytes lie."""
        span = self.span
        return Span(
            topic=span.topic,
            partition=span.partition,
            segment=span.segment,
            position=self.position,
            size=self.size,
        )


Plan = tuple[list[Piece], int]  # without pieces: the offset to go on at


class Gathered:
    """See the module's docstring."""

    def __init__(
        self, store: Store, plans: Sequence[Plan | None], *, is_time_over: Callable[[], bool]
    ) -> None:
        """`plans`: of each partition; None: not known."""
        self._plans = plans
        lists = [plan[0] for plan in plans if plan is not None]
        pieces = (piece for piece in chain.from_iterable(zip_longest(*lists)) if piece is not None)
        self._fetched = Fetched(store, (piece.bytes_span for piece in pieces), is_time_over=is_time_over)

    def plan_of(self, number: int, max_bytes: int) -> Plan | None:
        """As it was made, but for so many bytes at most."""
        plan = self._plans[number]
        if plan is None:
            return None
        pieces, next_offset = plan
        left, kept = max_bytes, []
        for piece in pieces:
            if left <= 0:
                break
            kept.append(Piece(piece.extent, piece.span, piece.position, min(piece.size, left)))
            left -= piece.size
        return kept, next_offset

    def has_any(self, number: int) -> bool:
        """Is there anything of a partition?"""
        plan = self._plans[number]
        return plan is not None and bool(plan[0]) and self.has(plan[0][0])

    def has(self, piece: Piece) -> bool:
        """Is all of it here?"""
        return self._fetched.has(piece.bytes_span)

    def read_into(self, piece: Piece, buffer: memoryview) -> bool:
        """Fill the buffer with it; False: it is not here."""
        return self._fetched.read_into(piece.bytes_span, buffer)
