"""Regular expressions from clients, for transactional ids or topics, matched in linear time.

A client's expression is untrusted code. The engine is RE2 (part of Arrow), which does not backtrack; Kafka
uses RE2 for Java, with the same syntax and guarantees. But a compiled expression may be far larger than its
text, and once its states do not fit in RE2's memory, each character costs as many steps as there are states.
Invariants: a pattern matches a whole text or not at all. An invalid pattern is refused.
Bounds: MOST_CHARACTERS of a pattern, MOST_STATES of its compiled form; for servers, CPU time, since the cost
    of a search also depends on the texts. They search in slices of SLICE_STEPS: 50 ms at worst, and a tenth
    of that if the states fit in memory.
Memory: `_arrow` builds Arrow's strings directly. pyarrow's converter imports pandas, if it is installed, on
    its first use: 40 MB, and a third of a second.
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
# Estimates the compiled size of an expression without compiling it.
#
# RE2 expands `x{0,1000}` to a thousand copies of x: forty times `.{0,1000}` has 360 characters, and an
# automaton whose states do not fit in RE2's memory. A search with it took seconds for a few ids.
# Invariants: the estimate is at least RE2's own size; for an invalid expression it is arbitrary.
# Concurrency: pure, in linear time.
# Sources: https://github.com/google/re2/wiki/Syntax; RE2's parse.cc.


# \pL has hundreds of ranges: a millisecond to compile, as fifty negated classes take.
UNICODE_CLASS: Final = 50
MEMBERS: Final = 4  # of a class that count as a state
_COUNTED: Final = re.compile(r"\{(\d{0,9})(,(\d{0,9}))?\}", re.ASCII)


class _Sizes:
    """The sizes of the open groups so far, and of the last part of each, which may be repeated."""

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
        """Close a group. RE2 refuses an unbalanced one."""
        inner = self.size + 1
        if self._open:
            self.size, self._last = self._open.pop()
        self.add(inner)


def compiled_size(pattern: str) -> int:
    """Return about how many states a pattern takes: one for each character, class and operator, repeated."""
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
    """Count the escape sequence at this backslash; return its end."""
    kind = pattern[at + 1 : at + 2]
    if kind == "Q":  # literal up to \\E
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
    """Count the class at this bracket; return its end."""
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
SECONDS_PER_TEXT: Final = 2e-6  # conversion to and from Arrow; listing a text takes longer
_IDS = "transactional ids"


class CpuBudget:
    """A limit of the CPU time of a search in its thread."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def is_spent(self, searched: int) -> bool:
        """Return True if the search of so many texts exceeds the limit. Call it in the searching thread."""
        return self._clock() > self._end + searched * SECONDS_PER_TEXT


def matching(
    pattern: str, texts: Sequence[str], *, of: str = _IDS, budget: CpuBudget | None = None
) -> list[bool]:
    """Return for each text whether the pattern matches it as a whole.

    Args:
        of: the kind of texts, for messages.
        budget: None: no limit of CPU time.

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
                    f"it takes too much CPU time to search {len(texts)} of them",
                    fix="use a simpler pattern, or add other filters",
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
            f"found about {size} states after expanding its repetitions, expected at most {MOST_STATES}",
            fix="use smaller repetition counts, or .* instead of .{0,1000}",
        )
    try:
        # First without our brackets: `a)|(b` is invalid, but would be valid between them.
        pc.match_substring_regex(_arrow([""]), pattern=pattern)
    except pa.ArrowInvalid as error:
        raise _invalid(of, str(error).partition("\n")[0]) from error
    return size


def _slices(texts: Sequence[str], characters: int) -> Iterator[Sequence[str]]:
    """Yield slices of at most so many characters, or of one longer text."""
    start = size = 0
    for index, text in enumerate(texts):
        size += len(text)
        if size > characters and index > start:
            yield texts[start:index]
            start, size = index, len(text)
    yield texts[start:]


def _arrow(texts: Sequence[str]) -> pa.StringArray:
    """Convert without importing pandas (see the module's docstring)."""
    encoded = [text.encode() for text in texts]
    ends = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(data) for data in encoded], out=ends[1:])
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


_SYNTAX = "use RE2's syntax, without look-around and back-references"


def _invalid(of: str, problem: str, fix: str = _SYNTAX) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_PATTERN",
        f"a pattern of {of}: {problem}",
        fix=fix,
    )
