"""Regular expressions that mean topics: `--pattern`, and Kafka's `--topic`, which is one in all its verbs.

Invariants: a name that a topic may have means that topic, and no other: Kafka's `my.topic` also means
    `my-topic`. A pattern matches whole names; internal topics are left out unless they are asked for.
Not here: patterns of the shell's kind, which commands of maintenance take (maintenance_words.py).
Sources: Kafka's TopicCommand, TopicFilter.IncludeList. Its expressions are Java's; these are RE2's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparklog.cli.notes import note
from sparklog.errors import UnknownTopicError

if TYPE_CHECKING:
    from sparklog.client import SparkLog

pattern_option = click.option(
    "--pattern",
    metavar="REGEX",
    help="Topics by a regular expression (RE2's) that matches the whole name; a comma is an or.",
)


def is_pattern(text: str) -> bool:
    """Is it no name that a topic may have, and so, to Kafka's tools, an expression?"""
    from sparklog.metadata import why_illegal_topic_name

    return why_illegal_topic_name(text) is not None


def topics_of(
    log: SparkLog, pattern: str, *, with_internal: bool = True, may_be_none: bool = False
) -> list[str]:
    """The topics that a pattern means, sorted. Which internal ones it would mean besides is noted.

    Raises:
        UnknownTopicError: TOPIC_MISSING, it means none, and may not.
        InvalidRequestError: INVALID_PATTERN.
    """
    from sparklog.client.patterns import matching
    from sparklog.metadata import is_internal

    known = log.topics(include_internal=True)
    expression = pattern.replace(" ", "").replace(",", "|").strip("\"'")
    matches = matching(expression, known, of="topics")
    found = [name for name, is_meant in zip(known, matches, strict=True) if is_meant]
    internal = [] if with_internal else list(filter(is_internal, found))
    if internal:
        note(f"Note: {', '.join(internal)} left out: internal.")
        found = [name for name in found if name not in internal]
    if not found and not may_be_none:
        raise UnknownTopicError(
            "TOPIC_MISSING",
            f"found no topic whose name matches {pattern!r}",
            fix="`sparklog topics list` shows their names; the expression must match a whole one",
        )
    return found
