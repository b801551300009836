"""Patterns that clients send, to choose transactional ids by, or topics: in time that grows with the text,
not with powers of it.

An expression of a client is its program, run by us. The engine is RE2 (it comes with Arrow), which knows no
backtracking, and refuses what would make a large automaton of a short text: of Kafka's, which is RE2 for
Java, the syntax and the promises are the same.
Invariants: an id matches whole or not at all. What cannot be understood is refused, never guessed.
Bounds: MOST_CHARACTERS of a pattern; RE2's own for its memory.
Concurrency: pure; with many ids in a storage thread.
Sources: KIP-1152 (which took RE2/J for it); https://github.com/google/re2/wiki/Syntax.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import InvalidRequestError
from sparklog.utf8 import why_not_utf8

MOST_CHARACTERS: Final = 1_024


def matching(pattern: str, texts: Sequence[str], *, of: str = "transactional ids") -> list[bool]:
    """Which of these texts the pattern matches, each as a whole. `of`: what they are, for a message.

    Raises:
        InvalidRequestError: INVALID_PATTERN.
    """
    if (wrong := why_not_utf8(pattern)) is not None:
        raise _invalid(of, f"found {wrong}")
    if len(pattern) > MOST_CHARACTERS:
        raise _invalid(of, f"found {len(pattern)} characters, expected at most {MOST_CHARACTERS}")
    try:
        # By itself first: `a)|(b` is none, but would become one between our brackets.
        pc.match_substring_regex(pa.array([""]), pattern=pattern)
        found = pc.match_substring_regex(pa.array(texts, pa.string()), pattern=rf"\A(?:{pattern})\z")
    except pa.ArrowInvalid as error:
        raise _invalid(of, str(error).partition("\n")[0]) from error
    answers: list[bool] = found.to_pylist()
    return answers


def _invalid(of: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_PATTERN",
        f"a pattern of {of}: {problem}",
        fix="write it in RE2's syntax, without look-around and references back",
    )
