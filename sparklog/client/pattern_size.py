"""How large an expression becomes when RE2 compiles it, before it does.

`x{0,1000}` is a thousand copies of x, and RE2 writes them all down: forty times `.{0,1000}` are 360
characters, and an automaton whose states do not fit in its memory any more. What it costs to search with that
grows with the states for each character, and took seconds for a few ids.
Invariants: what RE2 expands is counted at least as often as it does; what it refuses may get any size.
Not here: whether it is an expression at all, and what it matches (patterns.py).
Concurrency: pure; time that grows with the text.
Sources: https://github.com/google/re2/wiki/Syntax; RE2's parse.cc.
"""

import re
from typing import Final

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
