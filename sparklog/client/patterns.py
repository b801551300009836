"""Patterns that clients send, to choose transactional ids by, or topics: in time that grows with the text,
not with powers of it.

An expression of a client is its program, run by us. The engine is RE2 (it comes with Arrow), which knows no
backtracking: of Kafka's, which is RE2 for Java, the syntax and the promises are the same. But what it has
compiled may be far larger than the text, and once its states do not fit in its memory, each character costs
as many steps as there are states.
Invariants: an id matches whole or not at all. What cannot be understood is refused, never guessed.
Bounds: MOST_CHARACTERS of a pattern, MOST_STATES of what it becomes; for those who search on behalf of
    others, CPU, since what a search takes depends on the ids as well. They search slice by slice, SLICE_STEPS
    each: 50 ms at worst, and a tenth of that where states fit in memory.
Memory: texts become Arrow's by our own hand. Its converter imports pandas for the first of a process, if it
    is installed: 40 MB, and a third of a second.
Concurrency: pure; with many ids in a storage thread.
Sources: KIP-1152 (which took RE2/J for it); https://github.com/google/re2/wiki/Syntax.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.client.pattern_size import compiled_size
from sparklog.errors import InvalidRequestError
from sparklog.utf8 import why_not_utf8

MOST_CHARACTERS: Final = 1_024
MOST_STATES: Final = MOST_CHARACTERS  # as many as a text without repetitions has
SLICE_STEPS: Final = 500_000  # states x characters
SECONDS_PER_TEXT: Final = 2e-6  # there and back again; to list it takes more
_IDS = "transactional ids"


class CpuBudget:
    """How much CPU a search may take in its thread."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def is_spent(self, searched: int) -> bool:
        """Has it taken as much, beside what so many texts take anyway? To be asked in the same thread."""
        return self._clock() > self._end + searched * SECONDS_PER_TEXT


def matching(
    pattern: str, texts: Sequence[str], *, of: str = _IDS, budget: CpuBudget | None = None
) -> list[bool]:
    """Which of these texts the pattern matches, each as a whole.

    Args:
        of: what they are, for a message.
        budget: None: whoever asks pays for it.

    Raises:
        InvalidRequestError: INVALID_PATTERN.
    """
    if (wrong := why_not_utf8(pattern)) is not None:
        raise _invalid(of, f"found {wrong}")
    if len(pattern) > MOST_CHARACTERS:
        raise _invalid(of, f"found {len(pattern)} characters, expected at most {MOST_CHARACTERS}")
    size = compiled_size(pattern)
    if size > MOST_STATES:
        raise _invalid(
            of,
            f"found some {size} states once its repetitions are written out, expected at most {MOST_STATES}",
            fix="repeat less, as in .* instead of .{0,1000}",
        )
    answers: list[bool] = []
    try:
        # By itself first: `a)|(b` is none, but would become one between our brackets.
        pc.match_substring_regex(_arrow([""]), pattern=pattern)
        for some in [texts] if budget is None else _slices(texts, max(1, SLICE_STEPS // max(1, size))):
            if budget is not None and budget.is_spent(len(answers)):
                raise _invalid(
                    of,
                    f"found what takes too long to look for in {len(texts)} of them",
                    fix="use a simpler one, or other filters beside it",
                )
            answers += pc.match_substring_regex(_arrow(some), pattern=rf"\A(?:{pattern})\z").to_pylist()
    except pa.ArrowInvalid as error:
        raise _invalid(of, str(error).partition("\n")[0]) from error
    return answers


def _slices(texts: Sequence[str], characters: int) -> Iterator[Sequence[str]]:
    """Of so many characters each, or of one text that has more."""
    start = size = 0
    for index, text in enumerate(texts):
        size += len(text)
        if size > characters and index > start:
            yield texts[start:index]
            start, size = index, len(text)
    yield texts[start:]


def _arrow(texts: Sequence[str]) -> pa.StringArray:
    """See the module's docstring, Memory."""
    encoded = [text.encode() for text in texts]
    ends = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(one) for one in encoded], out=ends[1:])
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


_SYNTAX = "write it in RE2's syntax, without look-around and references back"


def _invalid(of: str, problem: str, fix: str = _SYNTAX) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_PATTERN",
        f"a pattern of {of}: {problem}",
        fix=fix,
    )
