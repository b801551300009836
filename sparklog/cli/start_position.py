"""Where `consume` starts and ends: kcat's `-o` words, resolved against a partition's offsets.

`beginning`, `end`, `N` (an offset), `-N` (the last N of each partition), `s@MS` (first record at
or after a time), `e@MS` (stop before the first record at or after a time), `stored` (the group's).
Pure: the caller brings the offsets.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass


class Anchor(enum.Enum):
    """What a position is counted from."""

    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    LAST = "last"
    TIMESTAMP = "timestamp"
    STORED = "stored"


@dataclass(frozen=True, slots=True)
class Position:
    """A start or an end, before it meets a partition."""

    anchor: Anchor
    number: int = 0


class PositionError(ValueError):
    """The text is not a position; the message lists what is."""


_WORDS = {
    "beginning": Anchor.BEGINNING,
    "earliest": Anchor.BEGINNING,
    "end": Anchor.END,
    "latest": Anchor.END,
    "stored": Anchor.STORED,
}


def parse_positions(texts: tuple[str, ...]) -> tuple[Position | None, Position | None]:
    """The start and the end named by the `-o` options; None where none was."""
    start: Position | None = None
    end: Position | None = None
    for text in texts:
        if text.startswith("e@"):
            end = Position(Anchor.TIMESTAMP, _milliseconds(text))
        elif start is not None:
            raise PositionError(f"two starts are named, the second is {text!r}; name one (and one e@MS).")
        elif text in _WORDS:
            start = Position(_WORDS[text])
        elif text.startswith("s@"):
            start = Position(Anchor.TIMESTAMP, _milliseconds(text))
        elif re.fullmatch(r"-?\d+", text):
            number = int(text)
            start = (
                Position(Anchor.LAST, -number) if text.startswith("-") else Position(Anchor.OFFSET, number)
            )
        else:
            raise PositionError(
                f"{text!r} is not a position; expected beginning, end, stored, an offset N, "
                "-N for the last N, s@MS or e@MS."
            )
    return start, end


def _milliseconds(text: str) -> int:
    if not re.fullmatch(r"\d+", text[2:]):
        raise PositionError(f"{text!r}: expected a time in milliseconds since 1970 after {text[:2]!r}.")
    return int(text[2:])


def resolve(
    position: Position,
    *,
    log_start_offset: int,
    log_end_offset: int,
    offset_for_time: Callable[[int], int | None],
    stored: int | None = None,
) -> int:
    """The offset that `position` means in one partition.

    Args:
        offset_for_time: the first offset at or after a time; None when there is none.
        stored: the group's committed offset, None when it has none (then: the beginning).
    """
    match position.anchor:
        case Anchor.BEGINNING:
            return log_start_offset
        case Anchor.END:
            return log_end_offset
        case Anchor.OFFSET:
            return position.number
        case Anchor.LAST:
            return max(log_start_offset, log_end_offset - position.number)
        case Anchor.TIMESTAMP:
            offset = offset_for_time(position.number)
            return log_end_offset if offset is None else offset
        case Anchor.STORED:
            return log_start_offset if stored is None else max(stored, log_start_offset)
