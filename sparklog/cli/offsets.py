"""`sparklog offsets`: offsets of partitions, and a group's committed offsets to and from a file.

`get` prints what kafka-get-offsets prints. `export` writes, and `import` reads, the file of
kafka-consumer-groups --export and --from-file: `topic,partition,offset`, a line for each partition.
Invariants: `import` changes nothing without --execute, and a group's offsets are one commit.
Not here: what groups are (groups.py).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, NamedTuple

import click

from sparklog.cli.framework import Group, current, note, require_topics
from sparklog.cli.inputs import parse_numbers
from sparklog.cli.output import show, show_json, show_rows, tell
from sparklog.cli.topics import pattern_option, topics_of
from sparklog.errors import InvalidRequestError

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
    """Offsets of partitions; a group's offsets to and from a file."""


# --- get ---------------------------------------------------------------------------------------------


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


# --- export and import -------------------------------------------------------------------------------

COLUMNS = "group topic partition current_offset new_offset"


class Line(NamedTuple):
    """A line of a file of offsets."""

    group: str
    topic: str
    partition: int
    offset: int


@offsets.command("export")
@click.option("--group", "-g", "names", multiple=True, required=True, metavar="NAME", help="A group.")
@click.option("--topic", "-t", "topics", multiple=True, metavar="NAME", help="Only of this topic.")
def export(names: tuple[str, ...], topics: tuple[str, ...]) -> None:
    """Print a group's committed offsets: topic,partition,offset; of several groups, the group first."""
    log = current().open_log()
    rows: list[dict[str, object]] = []
    for group in dict.fromkeys(names):
        committed = log.committed_offsets(group)
        if not committed:
            raise click.ClickException(f"Consumer group '{group}' has committed no offsets.")
        rows += [
            {"group": group, "topic": topic, "partition": partition, "offset": offset}
            for (topic, partition), offset in sorted(committed.items())
            if not topics or topic in topics
        ]
    if current().json:
        show_json(rows)
        return
    fields = ["group", "topic", "partition", "offset"][len(set(names)) == 1 :]
    for row in rows:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow([row[field] for field in fields])
        tell(line.getvalue())


@offsets.command("import")
@click.option("--group", "-g", "group", metavar="NAME", help="The group, if the file does not name groups.")
@click.option(
    "--file",
    "--from-file",
    "file",
    type=click.File("r"),
    required=True,
    help="What `export` wrote; - is stdin.",
)
@click.option("--execute", is_flag=True, help="Commit the offsets; without it they are only shown.")
@click.option("--force", is_flag=True, help="Also where a broker has served the root, and is gone for good.")
def import_offsets(group: str | None, file: IO[str], execute: bool, force: bool) -> None:
    """Commit the offsets of a file for a group; without --execute, show what would be committed.

    Stop the group's consumers first: a running one commits its own offsets again.
    """
    lines = parse_lines(file, group)
    log = current().open_log()
    _refuse_brokers(log, force=force or not execute)
    new = {line.group: _within(log, lines, line.group) for line in lines}
    rows = [
        {
            "group": name,
            "topic": topic,
            "partition": partition,
            "current_offset": log.committed_offsets(name).get((topic, partition)),
            "new_offset": offset,
        }
        for name, found in new.items()
        for (topic, partition), offset in sorted(found.items())
    ]
    if execute:
        for name, found in new.items():
            log.commit_offsets(name, found)
    if current().json:
        show_json({"executed": execute, "offsets": rows})
        return
    show_rows(COLUMNS, rows)
    if not execute:
        note("Nothing was changed: --execute commits these offsets.")


def parse_lines(file: Iterable[str], group: str | None) -> list[Line]:
    """The lines of a file: topic,partition,offset, or with the group before them.

    Raises:
        click.ClickException: not such a file; a partition twice; no group.
    """
    found: dict[tuple[str, str, int], Line] = {}
    for number, fields in enumerate(csv.reader(file), 1):
        if not fields:
            continue
        line = _parse_line(fields, group)
        if line is None:
            raise click.ClickException(
                f"line {number}: found {','.join(fields)!r}, expected topic,partition,offset"
                + (" or group,topic,partition,offset." if group is None else f" (of group {group}).")
            )
        key = line.group, line.topic, line.partition
        if key in found:
            raise click.ClickException(f"line {number}: {line.topic}-{line.partition} is there twice.")
        found[key] = line
    if not found:
        raise click.ClickException("the file has no offsets.")
    return list(found.values())


def _parse_line(fields: Sequence[str], group: str | None) -> Line | None:
    """None: this is no such line; a line that names another group is none, either."""
    fields = [field.strip() for field in fields]
    if len(fields) == 4 and group in {None, fields[0]}:
        group, *fields = fields
    if group is None or len(fields) != 3 or not all(map(_is_number, fields[1:])):
        return None
    return Line(group, fields[0], int(fields[1]), int(fields[2]))


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d{1,18}", text, re.ASCII) is not None


def _refuse_brokers(log: SparkLog, *, force: bool) -> None:
    """A broker knows which groups have members; their next commit would undo an import silently."""
    brokers = sorted(log.refresh(force=True).brokers)
    if brokers and not force:
        raise InvalidRequestError(
            "BROKER_COORDINATES",
            f"{log.url}: broker {brokers[0]} coordinates its groups, and knows which have members",
            fix="have it reset them (kafka-consumer-groups --reset-offsets --from-file FILE); "
            "--force if there is no broker any more",
        )


def _within(log: SparkLog, lines: Sequence[Line], group: str) -> dict[TopicPartition, int]:
    """A group's new offsets; as in Kafka, one outside of the log becomes its start or end, with a warning."""
    mine = [line for line in lines if line.group == group]
    require_topics(log, [line.topic for line in mine])
    found: dict[TopicPartition, int] = {}
    for line in mine:
        start = log.log_start_offset(line.topic, line.partition)
        end = log.log_end_offset(line.topic, line.partition)
        offset = min(max(line.offset, start), end)
        if offset != line.offset:
            note(
                f"Warning: {line.topic}-{line.partition}: found offset {line.offset}, and the log has "
                f"{start} to {end}: {offset} is taken."
            )
        found[line.topic, line.partition] = offset
    return found
