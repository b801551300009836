"""`sparklog consume`: print records, partition by partition, and follow the log.

Follows until interrupted, unless `-e` (stop at the end as it was) or `-c N`.
Not here: formats (record_format.py).
"""

from __future__ import annotations

import enum
import errno
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

import click

from sparklog.cli.framework import OnceCommand, common_options, current, note, require_topics
from sparklog.cli.output import reader_left
from sparklog.cli.record_format import ConsumedRecord, FormatError, compile_format, json_line
from sparklog.clock import Clock, SystemClock
from sparklog.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.client import SparkLog
    from sparklog.metadata import Image

# --- start position ----------------------------------------------------------------------------------
#
# Where `consume` starts and ends: kcat's `-o` words, resolved against a partition's offsets.
#
# `beginning`, `end`, `N` (an offset), `-N` (the last N of each partition), `s@MS` (first record at
# or after a time), `e@MS` (stop before the first record at or after a time), `stored` (the group's).
# Pure: the caller brings the offsets.


class Anchor(enum.Enum):
    """What a position is counted from."""

    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    LAST = "last"
    TIMESTAMP = "timestamp"
    STORED = "stored"


@dataclass(frozen=True, slots=True)
class Position:
    """A start or an end, before it meets a partition."""

    anchor: Anchor
    number: int = 0


class PositionError(ValueError):
    """The text is not a position; the message lists what is."""


_WORDS = {
    "beginning": Anchor.BEGINNING,
    "earliest": Anchor.BEGINNING,
    "end": Anchor.END,
    "latest": Anchor.END,
    "stored": Anchor.STORED,
}


def parse_positions(texts: tuple[str, ...]) -> tuple[Position | None, Position | None]:
    """The start and the end named by the `-o` options; None where none was."""
    start: Position | None = None
    end: Position | None = None
    for text in texts:
        if text.startswith("e@"):
            end = Position(Anchor.TIMESTAMP, _milliseconds(text))
        elif start is not None:
            raise PositionError(f"two starts are named, the second is {text!r}; name one (and one e@MS).")
        elif text in _WORDS:
            start = Position(_WORDS[text])
        elif text.startswith("s@"):
            start = Position(Anchor.TIMESTAMP, _milliseconds(text))
        elif re.fullmatch(r"-?\d+", text):
            number = int(text)
            start = (
                Position(Anchor.LAST, -number) if text.startswith("-") else Position(Anchor.OFFSET, number)
            )
        else:
            raise PositionError(
                f"{text!r} is not a position; expected beginning, end, stored, an offset N, "
                "-N for the last N, s@MS or e@MS."
            )
    return start, end


def _milliseconds(text: str) -> int:
    if not re.fullmatch(r"\d+", text[2:]):
        raise PositionError(f"{text!r}: expected a time in milliseconds since 1970 after {text[:2]!r}.")
    return int(text[2:])


def resolve(
    position: Position,
    *,
    log_start_offset: int,
    log_end_offset: int,
    offset_for_time: Callable[[int], int | None],
    stored: int | None = None,
) -> int:
    """The offset that `position` means in one partition.

    Args:
        offset_for_time: the first offset at or after a time; None when there is none.
        stored: the group's committed offset, None when it has none (then: the beginning).
    """
    match position.anchor:
        case Anchor.BEGINNING:
            return log_start_offset
        case Anchor.END:
            return log_end_offset
        case Anchor.OFFSET:
            return position.number
        case Anchor.LAST:
            return max(log_start_offset, log_end_offset - position.number)
        case Anchor.TIMESTAMP:
            offset = offset_for_time(position.number)
            return log_end_offset if offset is None else offset
        case Anchor.STORED:
            return log_start_offset if stored is None else max(stored, log_start_offset)


# --- cursors -----------------------------------------------------------------------------------------
#
# Which partitions `sparklog consume` prints, and from which offset to which, as the topic comes to be.
#
# Invariants: offsets belong to a topic id, not to a name. Nothing of a topic that was made again is known
# from the one before it, so that it is begun at its beginning.


Stored = Mapping[tuple[str, int], int]
_BEGINNING = Position(Anchor.BEGINNING)


@dataclass(slots=True)
class Cursor:
    """The next offset to print of one partition, and where to stop (None: never)."""

    partition: int
    next_offset: int
    end_offset: int | None
    steps: Iterator[pa.RecordBatch] | None = field(default=None, repr=False)

    @property
    def done(self) -> bool:
        return self.end_offset is not None and self.next_offset >= self.end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What of a topic is asked for.

    Fields:
        partitions: in this order; empty: all, also those that are added while the topic is followed.
        start: None: what the group has stored, or the beginning.
        end: where to stop; None: with `exit_at_end` at the end as it is found, else never.
    """

    topic: str
    partitions: tuple[int, ...] = ()
    start: Position | None = None
    end: Position | None = None
    exit_at_end: bool = False
    group: str | None = None

    def stored(self, log: SparkLog) -> Stored:
        """What the group has committed. To be asked for before the image, which must not be older."""
        return log.committed_offsets(self.group) if self.group else {}

    def at_first(self, log: SparkLog, image: Image, stored: Stored) -> list[Cursor]:
        """Of the topic as the command finds it.

        Raises:
            OffsetOutOfRangeError: the start is not within a partition's offsets.
            UnknownTopicError: no such partition.
        """
        start = self.start or Position(Anchor.STORED)
        return [self._cursor(log, image, one, start, stored) for one in self._chosen(image)]

    def made_again(self, log: SparkLog, image: Image) -> list[Cursor]:
        """Of another topic of that name: all it has, however the first one was begun."""
        return [self._cursor(log, image, one, _BEGINNING) for one in self._chosen(image)]

    def added(self, log: SparkLog, image: Image, known: int, stored: Stored) -> list[Cursor]:
        """Of partitions beyond the first `known` ones, whose records all came after the start."""
        if self.partitions or self.exit_at_end or self.end is not None:
            return []
        start = Position(Anchor.STORED) if self.start in {None, Position(Anchor.STORED)} else _BEGINNING
        count = len(image.topic(self.topic).partitions)
        return [self._cursor(log, image, one, start, stored) for one in range(known, count)]

    def _chosen(self, image: Image) -> Iterable[int]:
        return dict.fromkeys(self.partitions) or range(len(image.topic(self.topic).partitions))

    def _cursor(
        self, log: SparkLog, image: Image, partition: int, start: Position, stored: Stored | None = None
    ) -> Cursor:
        state = image.partition(self.topic, partition)
        bounds = {"log_start_offset": state.log_start_offset, "log_end_offset": state.log_end_offset}

        def offset_for_time(timestamp_ms: int) -> int | None:
            from sparklog.client.consumer import partition_reader

            found = partition_reader(log.metadata, image, self.topic, partition).offset_for_time(timestamp_ms)
            return None if found is None else found[0]

        committed = (stored or {}).get((self.topic, partition))
        next_offset = resolve(start, **bounds, offset_for_time=offset_for_time, stored=committed)
        if start.anchor is Anchor.STORED and committed is not None and committed < next_offset:
            note(
                f"Warning: {self.topic}-{partition}: group {self.group} is at offset {committed}, and the "
                f"log starts at {next_offset}: the group has not read offsets {committed} to "
                f"{next_offset - 1}, which are gone. Reading goes on at {next_offset}. If retention removed "
                "them, let it keep more than the group is ever behind (retention.ms and retention.bytes of "
                "the topic)."
            )
        if not state.log_start_offset <= next_offset <= state.log_end_offset:
            raise OffsetOutOfRangeError(
                "OFFSET_OUT_OF_RANGE",
                f"{self.topic}-{partition}: found start offset {next_offset}, "
                f"expected {state.log_start_offset} to {state.log_end_offset}",
                fix="start from -o beginning or -o end",
            )
        end_offset = state.log_end_offset if self.exit_at_end else None
        if self.end is not None:
            end_offset = resolve(self.end, **bounds, offset_for_time=offset_for_time)
        return Cursor(partition, next_offset, end_offset)


# --- follower ----------------------------------------------------------------------------------------
#
# The loop behind `sparklog consume`: read a step of each partition in turn, print, follow, commit.
#
# Memory stays flat whatever the topic holds: one step of one partition is in memory at a time.
# Invariants: records of a partition are printed in offset order; a group's offsets are committed only
# for what has been flushed to the output, so a crash repeats records but never skips one; and only for the
# topic that was read: one that is made again under the name is begun anew, and so is the group in it.
# Not here: groups' membership: there is none without a broker, two.
# followers of one group both read everything.


POLL_MS = 100
COMMIT_INTERVAL_MS = 5_000


class Follower:
    """Goes round the partitions until every one is done, or enough is printed."""

    def __init__(
        self,
        log: SparkLog,
        selection: Selection,
        *,
        with_headers: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._log = log
        self._selection = selection
        self._topic = selection.topic
        self._group = selection.group
        self._with_headers = with_headers
        self._clock = clock or SystemClock()
        self._flushed: dict[tuple[str, int], int] = {}
        self._committed_ms = self._clock.monotonic_ms()
        stored = selection.stored(log)
        image = log.refresh()
        self._take(image, selection.at_first(log, image, stored))

    def run(
        self, render: Callable[[ConsumedRecord], bytes], stream: BinaryIO, max_messages: int | None = None
    ) -> None:
        """Print to `stream` until done; KeyboardInterrupt passes through, after the commit."""
        left = sys.maxsize if max_messages is None else min(max_messages, sys.maxsize)
        try:
            while left > 0 and not all(cursor.done for cursor in self._cursors):
                self._keep_up()
                printed = 0
                for cursor in [one for one in self._cursors if not one.done]:
                    count = self._print_step(cursor, render, stream, left - printed)
                    printed += count
                left -= printed
                stream.flush()
                self._note_flushed()
                if not printed:
                    self._commit()
                    _raise_if_reader_left(stream)
                    self._clock.sleep_ms(POLL_MS)
                elif self._clock.monotonic_ms() - self._committed_ms >= COMMIT_INTERVAL_MS:
                    self._commit()
        finally:
            self._commit()

    def _take(self, image: Image, cursors: list[Cursor]) -> None:
        topic = image.topic(self._topic)
        self._topic_id, self._partition_count = topic.topic_id, len(topic.partitions)
        self._cursors = cursors

    def _keep_up(self) -> None:
        """Follow the topic itself: partitions are added to it, or it is deleted and made again."""
        topic = self._log.refresh().topic(self._topic)
        if topic.topic_id != self._topic_id:
            self._begin_anew()
        elif len(topic.partitions) > self._partition_count:
            stored = self._selection.stored(self._log)
            image = self._log.image
            added = self._selection.added(self._log, image, self._partition_count, stored)
            self._partition_count = len(image.topic(self._topic).partitions)
            self._cursors += added

    def _begin_anew(self) -> None:
        self._flushed.clear()
        stored = self._selection.stored(self._log)
        image = self._log.image
        self._take(image, self._selection.made_again(self._log, image))
        note(
            f"Warning: topic {self._topic} was deleted and made again: "
            "what follows is the new one, from its beginning."
        )
        # At once: what the group has is of the old topic, and who starts from it skips records of this one.
        self._note_flushed()
        self._commit()
        gone = [where for where in stored if where[0] == self._topic and where[1] >= self._partition_count]
        if self._group and gone:
            self._log.commit_offsets(self._group, dict.fromkeys(gone))

    def _print_step(
        self, cursor: Cursor, render: Callable[[ConsumedRecord], bytes], stream: BinaryIO, left: int
    ) -> int:
        """Print at most one step of one partition; returns the number of records."""
        if left <= 0:
            return 0
        arrow_batch = self._next_step(cursor)
        if arrow_batch is None:
            return 0
        arrow_batch = arrow_batch.slice(0, left)
        stream.write(b"".join(map(render, to_records(self._topic, cursor.partition, arrow_batch))))
        cursor.next_offset = arrow_batch.column("offset")[-1].as_py() + 1
        return int(arrow_batch.num_rows)

    def _next_step(self, cursor: Cursor) -> pa.RecordBatch | None:
        if cursor.steps is None:
            cursor.steps = self._steps(cursor)
            if cursor.steps is None:
                return None
        for arrow_batch in cursor.steps:
            if arrow_batch.num_rows:
                return arrow_batch
        cursor.steps = None
        if cursor.end_offset is not None and self._exhausted(cursor):
            cursor.next_offset = cursor.end_offset  # the last offsets are a gap
        return None

    def _steps(self, cursor: Cursor) -> Iterator[pa.RecordBatch] | None:
        from sparklog.client.consumer import read_batches

        image = self._log.image
        if not self._is_ours(image):
            return None
        log_end_offset = image.partition(self._topic, cursor.partition).log_end_offset
        if cursor.next_offset > log_end_offset:
            self._flushed.pop((self._topic, cursor.partition), None)
            raise OffsetOutOfRangeError(
                "OFFSET_OUT_OF_RANGE",
                f"{self._topic}-{cursor.partition}: found next offset {cursor.next_offset}, "
                f"expected at most {log_end_offset}, the end of the log",
                fix="find out how the log came to be shorter; start from -o beginning or -o end",
            )
        end_offset = log_end_offset if cursor.end_offset is None else min(log_end_offset, cursor.end_offset)
        if cursor.next_offset >= end_offset:
            return None
        return read_batches(
            self._log.metadata,
            image,
            self._topic,
            cursor.partition,
            start_offset=cursor.next_offset,
            end_offset=end_offset,
            include_headers=self._with_headers,
        )

    def _is_ours(self, image: Image) -> bool:
        """Has the image the topic that is printed, and not another one of its name?"""
        topic = image.topics.get(self._topic)
        return topic is not None and topic.topic_id == self._topic_id

    def _exhausted(self, cursor: Cursor) -> bool:
        assert cursor.end_offset is not None
        image = self._log.image
        if not self._is_ours(image):
            return False
        return image.partition(self._topic, cursor.partition).log_end_offset >= cursor.end_offset

    def _note_flushed(self) -> None:
        for cursor in self._cursors:
            self._flushed[self._topic, cursor.partition] = cursor.next_offset

    def _commit(self) -> None:
        self._committed_ms = self._clock.monotonic_ms()
        if not self._group or not self._flushed or not self._is_ours(self._log.refresh()):
            return
        known = self._log.committed_offsets(self._group)
        news = {where: offset for where, offset in self._flushed.items() if known.get(where) != offset}
        if news:
            self._log.commit_offsets(self._group, news)


def _raise_if_reader_left(stream: BinaryIO) -> None:
    """An idle `consume | head` writes nothing that would tell it that nobody reads any more."""
    if reader_left(stream):
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output any more")


def to_records(topic: str, partition: int, arrow_batch: pa.RecordBatch) -> Iterator[ConsumedRecord]:
    """The rows of a step, one by one; printing is for people and pipes, not a hot path."""
    import pyarrow as pa

    rows = arrow_batch.num_rows
    names = arrow_batch.schema.names
    headers = arrow_batch.column("headers").to_pylist() if "headers" in names else [None] * rows
    columns = zip(
        arrow_batch.column("offset").to_pylist(),
        arrow_batch.column("timestamp").cast(pa.int64()).to_pylist(),
        arrow_batch.column("timestamp_type").to_pylist(),
        arrow_batch.column("key").to_pylist(),
        arrow_batch.column("value").to_pylist(),
        headers,
        strict=True,
    )
    for offset, timestamp_ms, timestamp_type, key, value, entries in columns:
        yield ConsumedRecord(
            topic=topic,
            partition=partition,
            offset=offset,
            timestamp_ms=timestamp_ms,
            timestamp_type=timestamp_type,
            key=key,
            value=value,
            headers=[(entry["key"], entry["value"]) for entry in entries or ()],
        )


# --- consume -----------------------------------------------------------------------------------------


LEVELS = ("read_committed", "read_uncommitted")  # what is not committed is seen by nobody here
PRINT_PROPERTIES = {  # kafka-console-consumer's print.* in its order, and our tokens for them
    "print.timestamp": "%T",
    "print.partition": "%p",
    "print.offset": "%o",
    "print.headers": "%h",
    "print.key": "%k",
    "print.value": "%s",
}


def refuse_timeout(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    """kafka-console-consumer's way to end needs no time here: the end of the log is known."""
    if value is not None:
        raise click.UsageError("--timeout-ms is not known here: give -e, which stops at the end of the log.")


@click.command("consume", cls=OnceCommand)
@click.option("--topic", "-t", required=True, metavar="NAME", help="The topic.")
@click.option(
    "-p", "--partition", "partitions", multiple=True, type=click.IntRange(min=0), help="Default: all."
)
@click.option(
    "-o",
    "--offset",
    "positions",
    multiple=True,
    metavar="POS",
    help="Start: beginning, end, stored (default), N, -N (last N), s@MS; stop: e@MS.",
)
@click.option(
    "--from-beginning",
    is_flag=True,
    help="As in Kafka: the beginning, where the group has no offset; -o beginning: anyhow.",
)
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end of each partition.")
@click.option("-c", "--max-messages", type=click.IntRange(min=0), help="Stop after so many records.")
@click.option("--group", "-G", metavar="NAME", help="Start from, and commit to, this group's offsets.")
@click.option(
    "-f", "--format", "text", metavar="FORMAT", help=r"%t %p %o %k %s %S %K %T %h, \n. Default: '%s\n'."
)
@click.option("-J", "--json", "as_json", is_flag=True, help="A JSON object a line (as --output json).")
@click.option("-Z", "--null", "show_null", is_flag=True, help="Print NULL for null keys and values.")
@click.option("--formatter-property", "--property", "properties", multiple=True, hidden=True)
@click.option("--isolation-level", type=click.Choice(LEVELS), expose_value=False, hidden=True)
@click.option("--timeout-ms", expose_value=False, hidden=True, callback=refuse_timeout)
@click.option("-C", "unused", is_flag=True, expose_value=False, hidden=True)
@common_options
def consume(
    topic: str,
    partitions: tuple[int, ...],
    positions: tuple[str, ...],
    from_beginning: bool,
    exit_at_end: bool,
    max_messages: int | None,
    group: str | None,
    text: str | None,
    as_json: bool,
    show_null: bool,
    properties: tuple[str, ...],
) -> None:
    """Print records, and follow the log.

    \b
    sparklog consume --topic flights -o -5 -e
    sparklog consume --topic flights -f '%p:%o %k %s\\n' -c 10
    sparklog consume --topic delays -J -o end | jq .payload
    """  # noqa: D301 - click looks for the character, not for a backslash and a b
    try:
        start, end = parse_positions(positions)
        render = _renderer(
            text, as_json=as_json or current().json, show_null=show_null, properties=properties
        )
    except (PositionError, FormatError) as error:
        raise click.UsageError(str(error)) from None
    if properties and (text is not None or as_json or current().json):
        raise click.UsageError("--formatter-property, -f and -J name formats; give one.")
    if group == "":
        raise click.UsageError("--group is empty: nothing would be committed; name it, or leave it out.")
    if from_beginning and start is not None:
        raise click.UsageError("--from-beginning and -o name two starts; give one.")
    log = current().open_log()
    require_topics(log, [topic])
    selection = Selection(
        topic=topic, partitions=partitions, start=start, end=end, exit_at_end=exit_at_end, group=group
    )
    follower = Follower(log, selection, with_headers=render.needs_headers)
    try:
        follower.run(render.record, sys.stdout.buffer, max_messages)
    except KeyboardInterrupt:
        # The usual way to end a follow; what was printed is printed.
        note("")


@dataclass(frozen=True, slots=True)
class Renderer:
    """How a record is printed, and whether its headers are needed for it."""

    record: Callable[[ConsumedRecord], bytes]
    needs_headers: bool


def _renderer(text: str | None, *, as_json: bool, show_null: bool, properties: tuple[str, ...]) -> Renderer:
    if as_json:
        if text is not None:
            raise click.UsageError("-f and -J name two formats; give one.")
        return Renderer(json_line, needs_headers=True)
    if text is None:
        text = _format_of_properties(properties) if properties else "%s\\n"
    return Renderer(compile_format(text, null=b"NULL" if show_null else b""), needs_headers="%h" in text)


def _format_of_properties(properties: tuple[str, ...]) -> str:
    chosen = {"print.value": "true"}
    for text in properties:
        key, _, value = text.partition("=")
        if key not in PRINT_PROPERTIES and key != "key.separator":
            known = ", ".join([*PRINT_PROPERTIES, "key.separator"])
            raise click.UsageError(f"--formatter-property: found {key!r}, expected one of {known}.")
        chosen[key] = value
    separator = chosen.get("key.separator", "\t").replace("%", "%%").replace("\\", "\\\\")
    tokens = [token for key, token in PRINT_PROPERTIES.items() if chosen.get(key, "").lower() == "true"]
    return separator.join(tokens) + "\\n"
