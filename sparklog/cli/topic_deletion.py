"""What `topics delete` would destroy, and whether that is meant.

Invariants: an internal topic goes only where it is named so (`--internal`), whatever else is answered: a loop
    over all topics that says `--yes` means its own. A pattern deletes nothing that has not been shown and
    confirmed, by a person or by `--yes`.
Not here: the deletion itself (sparklog/client/topic_deletion.py); which topics a pattern means
    (topic_patterns.py).
Sources: Kafka's TopicCommand, which refused internal topics as long as it went to ZooKeeper. Its brokers
    delete them for whoever may; ours do not delete __consumer_offsets.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sparklog.cli.notes import is_terminal
from sparklog.errors import InvalidRequestError, SparklogError

if TYPE_CHECKING:
    from sparklog.client import SparkLog

MOST_NAMED = 5  # groups, in a message


def refuse_internal(log: SparkLog, names: Sequence[str]) -> None:
    """Refuse topics in which brokers and groups keep their own state.

    Raises:
        InvalidRequestError: INTERNAL_TOPIC, with what would be lost.
    """
    from sparklog.metadata import is_internal

    for name in filter(is_internal, names):
        raise InvalidRequestError(
            "INTERNAL_TOPIC",
            f"topic {name} is internal; with it would go {what_is_lost(log, name)}",
            fix="leave it; if that is meant, stop what reads and writes here, and say so with --internal",
        )


def confirm(log: SparkLog, names: Sequence[str], *, by_pattern: bool) -> None:
    """Ask whoever sits at the terminal; a pattern wants somebody to be there.

    Raises:
        click.Abort: the answer is no. click.UsageError: nobody can be asked.
    """
    from sparklog.metadata import is_internal

    what = f"topic {names[0]}" if len(names) == 1 else f"{len(names)} topics: {', '.join(names)}"
    if is_terminal(sys.stdin):
        lost = [f"\nLost with {name}: {what_is_lost(log, name)}." for name in filter(is_internal, names)]
        records = "all its records" if len(names) == 1 else "all their records"
        click.confirm(f"Delete {what}, and {records}?{''.join(lost)}", abort=True, err=True)
    elif by_pattern:
        raise click.UsageError(
            f"the pattern means {what}. Nobody can be asked without a terminal: give --yes, if so."
        )


def what_is_lost(log: SparkLog, name: str) -> str:
    """What an internal topic holds, in words."""
    from sparklog.client.offsets_topic import OFFSETS_TOPIC

    if name != OFFSETS_TOPIC:
        count = sum(one.log_end_offset - one.log_start_offset for one in log.describe_topic(name).partitions)
        return f"{count:,} records of brokers' own state"
    try:
        groups = log.groups()
        positions = sum(len(log.committed_offsets(group, image=log.image)) for group in groups)
    except SparklogError as error:
        return f"the positions of all groups (which could not be read: {error.message})"
    if not groups:
        return "no group's positions: none has committed any"
    named = ", ".join(map(repr, groups[:MOST_NAMED]))
    more = f" and {len(groups) - MOST_NAMED:,} more" if len(groups) > MOST_NAMED else ""
    each = "the group begins" if len(groups) == 1 else "each begins"
    return (
        f"the positions of {_count(len(groups), 'group')} in {_count(positions, 'partition')} "
        f"({named}{more}): {each} again where its auto.offset.reset says"
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
