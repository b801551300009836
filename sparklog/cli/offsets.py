"""`sparklog offsets get`: first, next and by-time offsets, as kafka-get-offsets prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparklog.cli.group import LazyGroup
from sparklog.cli.near_names import require_topics
from sparklog.cli.output import show_json, tell
from sparklog.cli.settings import common_options, current
from sparklog.cli.topic_patterns import pattern_option, topics_of

if TYPE_CHECKING:
    from sparklog.client import SparkLog

LATEST, EARLIEST = -1, -2
TIME_WORDS = {"latest": LATEST, "earliest": EARLIEST}


@click.group("offsets", cls=LazyGroup)
def offsets() -> None:
    """First, next and by-time offsets of partitions."""


def parse_time(_ctx: click.Context, _parameter: click.Parameter, value: str) -> int:
    """-1, -2, their names, or milliseconds since 1970."""
    if value in TIME_WORDS:
        return TIME_WORDS[value]
    try:
        number = int(value)
    except ValueError:
        number = -99
    if number < EARLIEST:
        raise click.BadParameter(
            f"found {value!r}, expected -1 (latest), -2 (earliest) or milliseconds since 1970."
        )
    return number


@offsets.command("get")
@click.option("--topic", "-t", "topics", multiple=True, metavar="NAME", help="A topic; default: all.")
@pattern_option
@click.option("--topic-partitions", metavar="T:P,...", help="Partitions, such as flights:0,flights:3.")
@click.option("--partitions", metavar="P,...", help="Only these partitions of the topics.")
@click.option(
    "--time", "time_ms", default="-1", callback=parse_time, help="-1 latest (default), -2 earliest, or ms."
)
@click.option("--exclude-internal-topics", is_flag=True, help="Leave out Kafka's own topics.")
@common_options
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
            {"topic": topic, "partition": partition, "offset": offset_at(log, topic, partition, time_ms)}
        )
    if current().json:
        show_json(rows)
    else:
        for row in rows:
            offset = "" if row["offset"] is None else row["offset"]
            tell(f"{row['topic']}:{row['partition']}:{offset}")
    if not rows and (topics or partitions is not None):
        raise click.ClickException("no partition is among those that were asked for.")


def offset_at(log: SparkLog, topic: str, partition: int, time_ms: int) -> int | None:
    """The offset that Kafka's --time means."""
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
        pairs = [_parse_pair(text) for text in topic_partitions.split(",")]
        require_topics(log, [topic for topic, _ in pairs])
        return pairs
    require_topics(log, topics)
    wanted = None if partitions is None else parse_numbers(partitions)
    return [
        (topic, partition)
        for topic in topics or log.topics(include_internal=True)
        for partition in range(log.partition_count(topic))
        if wanted is None or partition in wanted
    ]


def _parse_pair(text: str) -> tuple[str, int]:
    topic, _, partition = text.rpartition(":")
    if not topic or not partition.isdecimal():
        raise click.UsageError(f"--topic-partitions: found {text!r}, expected TOPIC:PARTITION.")
    return topic, int(partition)


def parse_numbers(text: str) -> set[int]:
    """`0,3` as {0, 3}."""
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise click.UsageError(f"--partitions: found {text!r}, expected numbers separated by commas.")
    return {int(number) for number in numbers}
