"""Work of unequal pieces, so much of it in each turn of the event loop.

Concurrency: pure.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def in_turns(pieces: Iterable[T], weight: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Pieces in their order, in lists that weigh `most` at most, or hold one piece alone.

    A piece is weighed when the list before it has been taken: it may have changed meanwhile.
    """
    turn: list[T] = []
    weighs = 0
    for piece in pieces:
        its_weight = weight(piece)
        if turn and weighs + its_weight > most:
            yield turn
            turn, weighs = [], 0
        turn.append(piece)
        weighs += its_weight
    if turn:
        yield turn
