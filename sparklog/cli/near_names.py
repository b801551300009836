"""Names of topics and groups that were meant: "did you mean".

Looked for here and not where a topic is missed, since the broker looks topics up for whoever asks, and
comparing a name with thousands of others takes long.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sparklog.errors import UnknownTopicError

if TYPE_CHECKING:
    from sparklog.client import SparkLog


def require_topics(log: SparkLog, names: Iterable[str]) -> None:
    """Refuse a topic that does not exist, with the name of one that does.

    Raises:
        UnknownTopicError: TOPIC_MISSING.
    """
    from sparklog.metadata import why_illegal_topic_name

    known = log.topics(include_internal=True)
    for name in names:
        if name not in known:
            fix = f"correct the name, or create it: sparklog topics create --topic {name}"
            if (why := why_illegal_topic_name(name)) is not None:
                fix = (
                    f"correct the name: {why}; `topics list`, `describe`, `delete` and `offsets get` take a "
                    "regular expression with --pattern"
                )
            raise UnknownTopicError(
                "TOPIC_MISSING", f"topic {name!r}: not found{did_you_mean(name, known)}", fix=fix
            )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'flights'?`, or nothing."""
    near = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
