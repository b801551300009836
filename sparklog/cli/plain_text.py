"""Text of others as a line of ours: names of groups, values of settings, answers of brokers.

Whoever may commit an offset chooses a name, and its characters: a line feed would make a row of it in
somebody's table, an escape sequence drive his terminal, an override of direction turn the rest of the line.
Invariants: what is printed in a line stays in it, and what cannot be seen is seen, as an escape. JSON says
    the same text exactly, and has in it no character that a terminal obeys.
Not here: the records of `consume`, which are bytes for whoever asked for them.
Concurrency: pure.
Sources: https://trojansource.codes; ECMA-48 (C1, as which U+009B begins a sequence like ESC [ does).
"""

from __future__ import annotations

import json
import re

# What JSON does not escape by itself: DEL and C1, marks and overrides of direction, separators of lines,
# halves of pairs (as which Python has the bytes of names that are not UTF-8).
OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def plain(text: str, *, keep: str = "") -> str:
    r"""The text in one line: `\n`, `\u001b`, `\u202e` for what is not to be printed.

    Args:
        keep: characters that are meant.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else _escape(one) for one in text)


def json_text(
    document: object, *, indent: int | None = None, separators: tuple[str, str] | None = None
) -> str:
    """A document as JSON, in UTF-8 where that is harmless."""
    text = json.dumps(document, indent=indent, ensure_ascii=False, separators=separators)
    return OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(character: str) -> str:
    """As in JSON, so that a text which is JSON stays it."""
    escaped = json.dumps(character)[1:-1]
    return escaped if escaped != character else f"\\u{ord(character):04x}"
