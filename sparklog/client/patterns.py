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

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import InvalidRequestError, why_not_utf8

# --- pattern size ------------------------------------------------------------------------------------
#
# How large an expression becomes when RE2 compiles it, before it does.
#
# `x{0,1000}` is a thousand copies of x, and RE2 writes them all down: forty times `.{0,1000}` are 360
# characters, and an automaton whose states do not fit in its memory any more. What it costs to search with
# that grows with the states for each character, and took seconds for a few ids.
# Invariants: what RE2 expands is counted at least as often as it does; what it refuses may get any size.
# Concurrency: pure; time that grows with the text.
# Sources: https://github.com/google/re2/wiki/Syntax; RE2's parse.cc.


# \pL has hundreds of ranges: a millisecond to compile, as fifty negated classes take.
UNICODE_CLASS: Final = 50
MEMBERS: Final = 4  # of a class: they are ways into a state
_COUNTED: Final = re.compile(r"\{(\d{0,9})(,(\d{0,9}))?\}", re.ASCII)


class _Sizes:
    """Of the groups that are open: how large each is yet, and its last part, which may be repeated."""

    def __init__(self) -> None:
        self._open: list[tuple[int, int]] = []
        self.size = self._last = 0

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def add(self, size: int) -> None:
        self.size += size
        self._last = size

    def repeat(self, times: int) -> None:
        self.size += self._last * (times - 1)
        self._last *= times

    def begin(self) -> None:
        self._open.append((self.size, self._last))
        self.size = self._last = 0

    def end(self) -> None:
        """One that was never begun is RE2's to refuse."""
        inner = self.size + 1
        if self._open:
            self.size, self._last = self._open.pop()
        self.add(inner)


def compiled_size(pattern: str) -> int:
    """About how many states it takes: one for each character, class and operator, as often as is repeated."""
    sizes = _Sizes()
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at = _escaped(pattern, at, sizes)
        elif char == "[":
            at = _bracketed(pattern, at, sizes)
        elif char == "{" and (counted := _COUNTED.match(pattern, at)) is not None:
            sizes.repeat(max(1, int(counted[1] or 0) + (counted[2] == ","), int(counted[3] or 0)))
            at = counted.end()
        else:
            if char == "(":
                sizes.begin()
            elif char == ")":
                sizes.end()
            elif char in "*+?":
                sizes.size += 1  # belongs to what it follows, and is repeated with the group only
            else:
                sizes.add(1)
            at += 1
    while sizes.is_open:
        sizes.end()
    return sizes.size


def _escaped(pattern: str, at: int, sizes: _Sizes) -> int:
    """Count in what begins with this backslash; where it ends."""
    kind = pattern[at + 1 : at + 2]
    if kind == "Q":  # up to \\E nothing has a meaning
        end = pattern.find("\\E", at + 2)
        end = len(pattern) if end < 0 else end
        quoted = end - at - 2
        sizes.size += max(0, quoted - 1)
        sizes.add(1)
        return end + 2
    is_unicode = kind in {"p", "P"}
    sizes.add(UNICODE_CLASS if is_unicode else 1)
    if pattern.startswith("{", at + 2) and (is_unicode or kind == "x"):
        end = pattern.find("}", at)
        return len(pattern) if end < 0 else end + 1
    return at + 2 + is_unicode  # a class of one letter


def _bracketed(pattern: str, at: int, sizes: _Sizes) -> int:
    """Count in the class that begins with this bracket; where it ends."""
    members = classes = 0
    start = at + 1 + pattern.startswith("^", at + 1)
    at = start
    while at < len(pattern):
        if pattern[at] == "]" and at > start:
            at += 1
            break
        if pattern.startswith("[:", at) and (end := pattern.find(":]", at + 2)) >= 0:
            at = end + 2
        elif pattern[at] == "\\":
            classes += pattern[at + 1 : at + 2] in {"p", "P"}
            at += 2
        else:
            at += 1
        members += 1
    sizes.add(1 + members // MEMBERS + classes * UNICODE_CLASS)
    return at


# --- patterns ----------------------------------------------------------------------------------------


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
    size = validated_size(pattern, of=of)
    answers: list[bool] = []
    try:
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


def validated_size(pattern: str, *, of: str = _IDS) -> int:
    """Return `compiled_size` of a pattern that RE2 accepts, and that is within the bounds.

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
    try:
        # By itself first: `a)|(b` is none, but would become one between our brackets.
        pc.match_substring_regex(_arrow([""]), pattern=pattern)
    except pa.ArrowInvalid as error:
        raise _invalid(of, str(error).partition("\n")[0]) from error
    return size


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
