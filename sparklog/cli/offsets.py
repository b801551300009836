"""`sparklog offsets`: offsets of partitions, as kafka-get-offsets prints them.

Not here: what groups have committed (groups.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from sparklog.cli.framework import Group, current, require_topics
from sparklog.cli.inputs import parse_numbers
from sparklog.cli.output import show
from sparklog.cli.topics import pattern_option, topics_of

if TYPE_CHECKING:
    from sparklog.client import SparkLog

TopicPartition = tuple[str, int]
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
_TIMES = {
    "latest": LATEST,
    "earliest": EARLIEST,
    "max-timestamp": MAX_TIMESTAMP,
    "earliest-local": EARLIEST_LOCAL,
    "latest-tiered": LATEST_TIERED,
    "earliest-pending-upload": EARLIEST_PENDING_UPLOAD,
}


@click.group("offsets", cls=Group)
def offsets() -> None:
    """Offsets of partitions."""


def parse_time(_ctx: click.Context, _parameter: click.Parameter, value: str) -> int:
    """Callback of an option: -1 to -6, their names, or milliseconds since 1970."""
    if value in _TIMES:
        return _TIMES[value]
    if not re.fullmatch(r"-[1-6]|\d{1,18}", value, re.ASCII):
        names = ", ".join(f"{number} ({name})" for name, number in _TIMES.items())
        raise click.BadParameter(f"found {value!r}, expected {names} or milliseconds since 1970.")
    return int(value)


@offsets.command("get")
@click.option("--topic", "-t", "topics", multiple=True, metavar="NAME", help="A topic; default: all.")
@pattern_option
@click.option(
    "--topic-partitions",
    metavar="T:P,...",
    help="Topics, each perhaps with partitions: flights:3, flights:0-3 (without 3), flights:4-, :0.",
)
@click.option("--partitions", metavar="P,...", help="Only these partitions of the topics.")
@click.option(
    "--time",
    "time_ms",
    default="-1",
    callback=parse_time,
    metavar="MS|-1..-6",
    help="-1 latest (default), -2 earliest, -3 max-timestamp, or the first at or after a time in ms.",
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
    if not rows and (topics or topic_partitions is not None or partitions is not None):
        raise click.ClickException("no partition is among those that were asked for.")


def _offset_at(log: SparkLog, topic: str, partition: int, time_ms: int) -> int | None:
    """The offset that --time means; None when no record is that new, or nothing is tiered."""
    if time_ms == LATEST:
        return log.log_end_offset(topic, partition)
    if time_ms in {EARLIEST, EARLIEST_LOCAL}:
        return log.log_start_offset(topic, partition)
    if time_ms == MAX_TIMESTAMP:
        return log.offset_of_max_timestamp(topic, partition)
    return None if time_ms < 0 else log.offset_for_time(topic, partition, time_ms)


def _selected(
    log: SparkLog, topics: tuple[str, ...], topic_partitions: str | None, partitions: str | None
) -> list[TopicPartition]:
    if topic_partitions is not None:
        if topics or partitions:
            raise click.UsageError("--topic-partitions excludes --topic and --partitions.")
        found = [pair for text in topic_partitions.split(",") for pair in _matching(log, text.strip())]
        return list(dict.fromkeys(found))
    require_topics(log, topics)
    wanted = None if partitions is None else parse_numbers(partitions)
    return [
        (topic, partition)
        for topic in topics or log.topics(include_internal=True)
        for partition in range(log.partition_count(topic))
        if wanted is None or partition in wanted
    ]


def _matching(log: SparkLog, text: str) -> list[TopicPartition]:
    """The partitions of one of Kafka's patterns: TOPIC, TOPIC:2, TOPIC:0-3 (without 3), TOPIC:4-, :0.

    TOPIC is a name or a regular expression; without one, any topic.
    """
    from sparklog.metadata import why_illegal_topic_name

    match = re.fullmatch(r"([^:]*)(?::(?:(\d*)(-)(\d*)|(\d+)))?", text, re.ASCII)
    if match is None or not text:
        raise click.UsageError(
            f"found {text!r} among the topic partitions, expected topic:3, topic:0-3, topic:4-, topic:-3, "
            "topic or :3."
        )
    name, first, is_range, end, number = match.groups()
    if not name:
        topics = log.topics(include_internal=True)
    elif why_illegal_topic_name(name) is None:
        require_topics(log, [name])
        topics = [name]
    else:
        topics = topics_of(log, name)
    if number is not None and why_illegal_topic_name(name) is None:
        return [(name, int(number))]  # named exactly: an error if it does not exist
    low = int(number or first or 0)
    high = low + 1 if number else int(end) if is_range and end else None
    return [
        (topic, partition)
        for topic in topics
        for partition in range(log.partition_count(topic))
        if partition >= low and (high is None or partition < high)
    ]
