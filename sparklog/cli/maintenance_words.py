"""What the commands of maintenance have in common: which topics they are for.

Not here: the commands (optimize.py, compact.py, expire.py, vacuum.py, maintain.py).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from sparklog.cli.near_names import require_topics

if TYPE_CHECKING:
    from sparklog.client import SparkLog

_WILD = frozenset("*?[")  # which no topic's name has
topics_argument = click.argument("topics", nargs=-1, metavar="[TOPIC]...")


def min_input_files_option(default: int | None, help_text: str) -> Callable[[Any], Any]:
    """How many small extents are worth a merge."""
    return click.option(
        "--min-input-files",
        "fan_in",
        type=click.IntRange(min=2),
        default=default,
        show_default=default is not None,
        metavar="N",
        help=help_text,
    )


def chosen_topics(
    log: SparkLog, words: Sequence[str], fits: Callable[[str], bool] = lambda _name: True
) -> list[str] | None:
    """The topics that a command was given, each once: names, lists with commas, patterns such as 'orders-*'.

    A pattern means users' topics, of those that `fits`; internal ones if it begins with an underscore.

    Returns: None if there are no words: all topics.

    Raises:
        UnknownTopicError: TOPIC_MISSING. click.UsageError: a pattern that means none.
    """
    found: dict[str, None] = {}
    for name in (part for word in words for part in word.split(",") if part):
        if not _WILD & set(name):
            require_topics(log, [name])
            found[name] = None
            continue
        known = log.topics(include_internal=name.startswith("_"))
        meant = [topic for topic in known if fnmatch.fnmatchcase(topic, name) and fits(topic)]
        if not meant:
            raise click.UsageError(
                f"found no topic for {name!r}, which is a pattern of the shell's kind (*, ?, [a-z]); "
                "`sparklog topics list` shows their names. Without TOPIC all are meant."
            )
        found |= dict.fromkeys(meant)
    if words and not found:
        raise click.UsageError(
            f"found {' '.join(words)!r}, expected names of topics; without any all are meant."
        )
    return list(found) or None
