"""`sparklog groups`: which groups committed offsets, how far, and how far behind they are.

Headings are those of kafka-consumer-groups. Without a broker groups have no members, so the last
three columns are dashes, and left out on a terminal.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import click

from sparklog.cli.framework import Group, current, did_you_mean, dry_run_option, note, require_topics
from sparklog.cli.inputs import DURATION, parse_duration
from sparklog.cli.output import Row, show, show_json, show_rows
from sparklog.cli.topics import pattern_option, topics_of
from sparklog.errors import UnknownTopicError

if TYPE_CHECKING:
    from sparklog.client import SparkLog

# --- offsets -----------------------------------------------------------------------------------------
#
# `sparklog offsets get`: first, next and by-time offsets, as kafka-get-offsets prints them.


LATEST, EARLIEST = -1, -2


@click.group("offsets", cls=Group)
def offsets() -> None:
    """First, next and by-time offsets of partitions."""


def parse_time(_ctx: click.Context, _parameter: click.Parameter, value: str) -> int:
    """Callback of an option: -1, -2, their names, or milliseconds since 1970."""
    text = {"latest": "-1", "earliest": "-2"}.get(value, value)
    if not re.fullmatch(r"-[12]|\d{1,18}", text, re.ASCII):
        raise click.BadParameter(
            f"found {value!r}, expected -1 (latest), -2 (earliest) or milliseconds since 1970."
        )
    return int(text)


@offsets.command("get")
@click.option("--topic", "-t", "topics", multiple=True, metavar="NAME", help="A topic; default: all.")
@pattern_option
@click.option("--topic-partitions", metavar="T:P,...", help="Partitions, such as flights:0,flights:3.")
@click.option("--partitions", metavar="P,...", help="Only these partitions of the topics.")
@click.option(
    "--time", "time_ms", default="-1", callback=parse_time, help="-1 latest (default), -2 earliest, or ms."
)
@click.option("--exclude-internal-topics", is_flag=True, help="Leave out Kafka's own topics.")
def get(
    topics: tuple[str, ...],
    pattern: str | None,
    topic_partitions: str | None,
    partitions: str | None,
    time_ms: int,
    exclude_internal_topics: bool,
) -> None:
    """Print topic:partition:offset; no offset when no record is that new."""
    from sparklog.metadata import is_internal

    if pattern is not None and (topics or topic_partitions is not None):
        raise click.UsageError("--pattern excludes --topic and --topic-partitions.")
    log = current().open_log()
    if pattern is not None:
        topics = tuple(topics_of(log, pattern))
    rows: list[dict[str, object]] = []
    for topic, partition in _selected(log, topics, topic_partitions, partitions):
        if exclude_internal_topics and is_internal(topic):
            continue
        rows.append(
            {"topic": topic, "partition": partition, "offset": _offset_at(log, topic, partition, time_ms)}
        )
    offsets = ["" if row["offset"] is None else row["offset"] for row in rows]
    show(rows, *(f"{row['topic']}:{row['partition']}:{at}" for row, at in zip(rows, offsets, strict=True)))
    if not rows and (topics or partitions is not None):
        raise click.ClickException("no partition is among those that were asked for.")


def _offset_at(log: SparkLog, topic: str, partition: int, time_ms: int) -> int | None:
    """The offset that --time means; None when no record is that new."""
    if time_ms == LATEST:
        return log.log_end_offset(topic, partition)
    if time_ms == EARLIEST:
        return log.log_start_offset(topic, partition)
    return log.offset_for_time(topic, partition, time_ms)


def _selected(
    log: SparkLog, topics: tuple[str, ...], topic_partitions: str | None, partitions: str | None
) -> list[tuple[str, int]]:
    if topic_partitions is not None:
        if topics or partitions:
            raise click.UsageError("--topic-partitions excludes --topic and --partitions.")
        words = [text.rpartition(":") for text in topic_partitions.split(",")]
        pairs = [(topic, number) for topic, _, text in words for number in _numbers(text)]
        require_topics(log, [topic for topic, _ in pairs])
        return pairs
    require_topics(log, topics)
    wanted = None if partitions is None else _numbers(partitions)
    return [
        (topic, partition)
        for topic in topics or log.topics(include_internal=True)
        for partition in range(log.partition_count(topic))
        if wanted is None or partition in wanted
    ]


def _numbers(text: str) -> list[int]:
    """`0,3` as [0, 3]."""
    words = [word.strip() for word in text.split(",")]
    if not all(map(str.isdecimal, words)):
        raise click.UsageError(f"found partitions {text!r}, expected numbers separated by commas.")
    return list(map(int, words))


# --- groups ------------------------------------------------------------------------------------------


COLUMNS = "group topic partition current_offset log_end_offset lag consumer_id host client_id"
SILENT_COLUMNS = "group offsets committed_ms:LAST-COMMIT:time"


@click.group("groups", cls=Group)
def groups() -> None:
    """Consumer groups: committed offsets and lag."""


@groups.command("list")
def list_groups() -> None:
    """List the groups that have committed offsets."""
    found = sorted(current().open_log().groups())
    if not found:
        note("No group has committed offsets.")
    show([{"group": name} for name in found], *found)


@groups.command("describe")
@click.option("--group", "-g", "names", multiple=True, metavar="NAME", help="A group.")
@click.option("--all-groups", is_flag=True, help="Every group.")
@click.option("--offsets", "unused", is_flag=True, expose_value=False, hidden=True)  # Kafka's default, too
def describe(names: tuple[str, ...], all_groups: bool) -> None:
    """Show committed offsets, log end offsets and lag."""
    if bool(names) == all_groups:
        raise click.UsageError("give --group NAME (as often as needed) or --all-groups.")
    log = current().open_log()
    wanted = sorted(log.groups()) if all_groups else list(names)
    rows = [row for name in wanted for row in group_rows(log, name)]
    missing = [name for name in names if not any(row["group"] == name for row in rows)]
    if rows or not missing:
        show_rows(COLUMNS, rows)
    if missing:
        hint = did_you_mean(missing[0], sorted(log.groups())).removeprefix("; d")
        raise click.ClickException(
            f"Consumer group '{missing[0]}' does not exist: it has committed no offsets."
            + (f" D{hint}" if hint else "")
        )


@groups.command("expire")
@click.option(
    "--older-than",
    "retention_ms",
    callback=parse_duration,
    metavar=DURATION,
    required=True,
    help="Groups that have committed nothing for so long.",
)
@click.option("--group", "-g", "names", multiple=True, metavar="NAME", help="Only this group.")
@dry_run_option
@click.option("--force", is_flag=True, help="Also where a broker has served the root, and is gone for good.")
def expire(retention_ms: int, names: tuple[str, ...], dry_run: bool, force: bool) -> None:
    """Remove the offsets of groups that are silent: a consumer that comes back begins anew.

    A broker does that by itself, by offsets.retention.minutes.
    """
    from sparklog.client.group_expiry import expire_groups

    log = current().open_log()
    gone = expire_groups(log, retention_ms, names or None, force=force, dry_run=dry_run)
    rows = [dataclasses.asdict(one) for one in gone]
    if current().json:
        show_json({"dry_run": dry_run, "groups": rows})
    else:
        show_rows(SILENT_COLUMNS, rows, empty="No group is older than that.")


def group_rows(log: SparkLog, group: str) -> list[Row]:
    """One row for each partition that the group committed an offset of."""
    rows: list[Row] = []
    for (topic, partition), offset in sorted(log.committed_offsets(group).items()):
        try:
            end_offset: int | None = log.log_end_offset(topic, partition)
        except UnknownTopicError:  # deleted since; the group's offset stays
            end_offset = None
        rows.append(
            {
                "group": group,
                "topic": topic,
                "partition": partition,
                "current_offset": offset,
                "log_end_offset": end_offset,
                "lag": None if end_offset is None else max(0, end_offset - offset),
                "consumer_id": None,
                "host": None,
                "client_id": None,
            }
        )
    return rows
