"""`sparklog consume`: print records, partition by partition, and follow the log.

Memory stays flat: one step of one partition is held at a time. Records of a partition are printed in offset
order. A group's offsets are committed only for records that were flushed to the output, so a crash repeats
records but never skips any. Offsets belong to a topic id, not to a name: a topic that is made again under the
name is read from its beginning.
Not here: formats (record_format.py); membership of groups, which needs a broker: two followers of one group
both read everything.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import click

from sparklog.cli.framework import Command, current, force_option, is_terminal, note, require_topics
from sparklog.cli.inputs import until_signalled
from sparklog.cli.output import reader_left
from sparklog.cli.record_format import (
    ConsumedRecord,
    FormatError,
    Render,
    as_hex,
    as_is,
    compile_format,
    for_terminal,
    json_line,
)
from sparklog.clock import Clock, SystemClock
from sparklog.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.client import SparkLog
    from sparklog.metadata import Image

POLL_MS = 100
COMMIT_INTERVAL_MS = 5_000
COORDINATOR_MS = 30_000  # how long a coordinator is waited for
WRITE_BYTES = 64 << 10

# --- positions ---------------------------------------------------------------------------------------


class Position(NamedTuple):
    """A start or an end: `beginning`, `end`, `stored`, or with a number `offset`, `last`, `time` (in ms)."""

    kind: str
    number: int = 0


_WORDS = {
    "beginning": "beginning",
    "earliest": "beginning",
    "end": "end",
    "latest": "end",
    "stored": "stored",
}
_NUMBERS = {"": "offset", "-": "last", "s@": "time", "e@": "time"}


class PositionError(ValueError):
    """The text is not a position; the message lists what is."""


def parse_positions(texts: Sequence[str]) -> tuple[Position | None, Position | None]:
    """The start and the end that the `-o` options name; None where none does."""
    start: Position | None = None
    end: Position | None = None
    for text in texts:
        match = re.fullmatch(r"(-|s@|e@|)(\d+)", text)
        if text in _WORDS:
            found = Position(_WORDS[text])
        elif match is not None:
            found = Position(_NUMBERS[match[1]], int(match[2]))
        else:
            raise PositionError(
                f"{text!r} is not a position; expected beginning, end, stored, an offset N, "
                "-N for the last N, s@MS or e@MS."
            )
        if text.startswith("e@"):
            end = found
        elif start is not None:
            raise PositionError(f"two starts are named, the second is {text!r}; name one (and one e@MS).")
        else:
            start = found
    return start, end


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
        stored: the group's committed offset; None, and so the beginning, when it has none.
    """
    match position.kind:
        case "offset":
            return position.number
        case "last":
            return max(log_start_offset, log_end_offset - position.number)
        case "time":
            offset = offset_for_time(position.number)
            return log_end_offset if offset is None else offset
        case "stored":
            return log_start_offset if stored is None else max(stored, log_start_offset)
        case "end":
            return log_end_offset
    return log_start_offset


# --- follower ----------------------------------------------------------------------------------------

Stored = Mapping[tuple[str, int], int]
Commit = Callable[[Mapping[tuple[str, int], int | None]], None]
_BEGINNING, _STORED = Position("beginning"), Position("stored")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The records that are asked for.

    Fields:
        partitions: in this order; empty: all, also those that are added while the topic is followed.
        start: None: the group's offsets, or the beginning.
        end: where to stop; None: with `exit_at_end` at the end as it is found, else never.
    """

    topic: str
    partitions: tuple[int, ...] = ()
    start: Position | None = None
    end: Position | None = None
    exit_at_end: bool = False
    group: str | None = None


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


class Follower:
    """Reads a step of each partition in turn, until every one is done, or enough is printed."""

    def __init__(
        self,
        log: SparkLog,
        selection: Selection,
        *,
        with_headers: bool = False,
        clock: Clock | None = None,
        commit: Commit | None = None,
    ) -> None:
        """`commit` stores offsets of the group; None: the log does."""
        self._log = log
        self._store = commit or (lambda offsets: log.commit_offsets(selection.group or "", offsets))
        self._selection = selection
        self._topic = selection.topic
        self._group = selection.group
        self._with_headers = with_headers
        self._clock = clock or SystemClock()
        self._flushed: dict[tuple[str, int], int] = {}
        self._committed_ms = self._clock.monotonic_ms()
        stored = self._stored()  # before the image, which must not be older
        self._begin(log.refresh(), selection.start or _STORED, stored)

    def run(
        self,
        render: Render,
        stream: BinaryIO,
        max_messages: int | None = None,
        *,
        is_stopped: Callable[[], bool] = lambda: False,
        idle_timeout_ms: int | None = None,
    ) -> None:
        """Print to `stream` until done, or until no record has come for `idle_timeout_ms`.

        Records are printed whole, and committed whatever ends it.
        """
        printed_ms = self._clock.monotonic_ms()
        self._render, self._stream, self._is_stopped = render, stream, is_stopped
        self._left = sys.maxsize if max_messages is None else min(max_messages, sys.maxsize)
        try:
            while self._left > 0 and not is_stopped() and not all(one.done for one in self._cursors):
                self._follow_topic()
                left = self._left
                for cursor in [one for one in self._cursors if not one.done]:
                    self._print_step(cursor)
                stream.flush()
                self._note_flushed()
                if self._left == left:
                    self._commit()
                    if reader_left(stream):  # an idle `consume | head` writes nothing, and gets no EPIPE
                        raise BrokenPipeError(errno.EPIPE, "nobody reads the output any more")
                    if (
                        idle_timeout_ms is not None
                        and self._clock.monotonic_ms() - printed_ms >= idle_timeout_ms
                    ):
                        break
                    self._clock.sleep_ms(POLL_MS)
                    continue
                printed_ms = self._clock.monotonic_ms()
                if printed_ms - self._committed_ms >= COMMIT_INTERVAL_MS:
                    self._commit()
        finally:
            self._commit()

    # --- which partitions, from where to where

    def _stored(self) -> Stored:
        return self._log.committed_offsets(self._group) if self._group else {}

    def _begin(self, image: Image, start: Position, stored: Stored) -> None:
        """Take the topic as it is now.

        Raises:
            OffsetOutOfRangeError: the start is not within a partition's offsets.
            UnknownTopicError: no such partition.
        """
        topic = image.topic(self._topic)
        self._topic_id, self._partition_count = topic.topic_id, len(topic.partitions)
        chosen = dict.fromkeys(self._selection.partitions) or range(self._partition_count)
        self._cursors = [self._cursor(image, number, start, stored) for number in chosen]

    def _follow_topic(self) -> None:
        """Notice that partitions were added, or that the topic was deleted and made again."""
        topic = self._log.refresh().topic(self._topic)
        if topic.topic_id != self._topic_id:
            self._begin_again()
        elif len(topic.partitions) > self._partition_count:
            stored = self._stored()
            image, known = self._log.image, self._partition_count
            self._partition_count = len(image.topic(self._topic).partitions)
            asked = self._selection
            if not asked.partitions and not asked.exit_at_end and asked.end is None:
                start = _STORED if asked.start in {None, _STORED} else _BEGINNING
                added = range(known, self._partition_count)
                self._cursors += [self._cursor(image, number, start, stored) for number in added]

    def _begin_again(self) -> None:
        self._flushed.clear()
        stored = self._stored()
        self._begin(self._log.image, _BEGINNING, {})
        note(
            f"Warning: topic {self._topic} was deleted and made again: "
            "the records that follow are of the new one, from its beginning."
        )
        # Immediately: the group's offsets are of the old topic, and would skip records of this one.
        self._note_flushed()
        self._commit()
        gone = [where for where in stored if where[0] == self._topic and where[1] >= self._partition_count]
        if self._group and gone:
            self._store(dict.fromkeys(gone))

    def _cursor(self, image: Image, partition: int, start: Position, stored: Stored) -> Cursor:
        state = image.partition(self._topic, partition)
        first, last = state.log_start_offset, state.log_end_offset

        def offset_for_time(timestamp_ms: int) -> int | None:
            from sparklog.client.consumer import partition_reader

            reader = partition_reader(self._log.metadata, image, self._topic, partition)
            found = reader.offset_for_time(timestamp_ms)
            return None if found is None else found[0]

        def resolved(position: Position, stored: int | None = None) -> int:
            return resolve(
                position,
                log_start_offset=first,
                log_end_offset=last,
                offset_for_time=offset_for_time,
                stored=stored,
            )

        committed = stored.get((self._topic, partition))
        next_offset = resolved(start, committed)
        if start == _STORED and committed is not None and committed < next_offset:
            note(
                f"Warning: {self._topic}-{partition}: group {self._group} is at offset {committed}, and the "
                f"log starts at {next_offset}: the group has not read offsets {committed} to "
                f"{next_offset - 1}, which are gone. Reading goes on at {next_offset}. If retention removed "
                "them, raise retention.ms or retention.bytes of the topic."
            )
        if not first <= next_offset <= last:
            raise OffsetOutOfRangeError(
                "OFFSET_OUT_OF_RANGE",
                f"{self._topic}-{partition}: found start offset {next_offset}, expected {first} to {last}",
                fix="start from -o beginning or -o end",
            )
        asked = self._selection
        end_offset = last if asked.exit_at_end else None
        return Cursor(partition, next_offset, end_offset if asked.end is None else resolved(asked.end))

    # --- reading and printing

    def _print_step(self, cursor: Cursor) -> None:
        """Print at most one step of a partition, some records at a time; stop between them when asked."""
        arrow_batch = self._next_step(cursor) if self._left > 0 else None
        if arrow_batch is None:
            return
        arrow_batch = arrow_batch.slice(0, self._left)
        last_offset = arrow_batch.column("offset")[-1].as_py()
        pending = bytearray()
        for record in to_records(self._topic, cursor.partition, arrow_batch):
            pending += self._render(record)
            self._left -= 1
            if len(pending) >= WRITE_BYTES or record.offset == last_offset:
                self._stream.write(pending)
                pending.clear()
                cursor.next_offset = record.offset + 1
                if self._is_stopped():
                    return

    def _next_step(self, cursor: Cursor) -> pa.RecordBatch | None:
        if cursor.steps is None:
            cursor.steps = self._steps(cursor)
            if cursor.steps is None:
                return None
        for arrow_batch in cursor.steps:
            if arrow_batch.num_rows:
                return arrow_batch
        cursor.steps = None
        image, end_offset = self._log.image, cursor.end_offset
        if end_offset is None or not self._is_same_topic(image):
            return None
        if image.partition(self._topic, cursor.partition).log_end_offset >= end_offset:
            cursor.next_offset = end_offset  # the last offsets are a gap
        return None

    def _steps(self, cursor: Cursor) -> Iterator[pa.RecordBatch] | None:
        from sparklog.client.consumer import read_batches

        image = self._log.image
        if not self._is_same_topic(image):
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

    def _is_same_topic(self, image: Image) -> bool:
        topic = image.topics.get(self._topic)
        return topic is not None and topic.topic_id == self._topic_id

    # --- the group's offsets

    def _note_flushed(self) -> None:
        for cursor in self._cursors:
            self._flushed[self._topic, cursor.partition] = cursor.next_offset

    def _commit(self) -> None:
        self._committed_ms = self._clock.monotonic_ms()
        if not self._group or not self._flushed or not self._is_same_topic(self._log.refresh()):
            return
        known = self._log.committed_offsets(self._group)
        news = {where: offset for where, offset in self._flushed.items() if known.get(where) != offset}
        if news:
            self._store(news)


def group_committer(log: SparkLog, group: str, *, force: bool) -> Commit:
    """Return a function that commits offsets of a group without members.

    1. a member has read up to 950 and committed 110;
    2. somebody else commits 950 in its group, or 5;
    3. the member is killed: its successor leaves out 840 records, or repeats them.
    So a coordinator is asked, and refuses; without one, a root that a broker has served is refused.

    Raises:
        InvalidRequestError: BROKER_COORDINATES. ClickException: the group has members.
    """
    from sparklog.client.group_expiry import refuse_served_root

    coordinators = current().coordinators(log, timeout_ms=COORDINATOR_MS)
    if coordinators is None:
        refuse_served_root(log, force=force)
        return lambda offsets: log.commit_offsets(group, offsets)
    state = coordinators.describe([group])[group]
    if state.has_members:
        raise click.ClickException(
            f"group {group!r} has members, and its state is {state.state}: this command is no member, and "
            "would overwrite their offsets. Give another --group, or none."
        )

    def commit(offsets: Mapping[tuple[str, int], int | None]) -> None:
        kept = {at: offset for at, offset in offsets.items() if offset is not None}
        found = coordinators.commit_offsets(group, kept) if kept else {}
        failed = {f"{topic}-{partition}": error for (topic, partition), error in found.items() if error}
        if failed:
            first = next(iter(failed))
            raise click.ClickException(
                f"group {group!r}: the offsets of {len(failed)} partitions are not committed; {first}: "
                f"{failed[first]}. The records are printed again by the next run."
            )
        gone = [at for at in offsets if at not in kept]
        if gone:
            coordinators.delete_offsets(group, gone)

    return commit


def to_records(topic: str, partition: int, arrow_batch: pa.RecordBatch) -> Iterator[ConsumedRecord]:
    """The rows of a step."""
    import pyarrow as pa

    with_headers = "headers" in arrow_batch.schema.names
    rows = zip(
        arrow_batch.column("offset").to_pylist(),
        arrow_batch.column("timestamp").cast(pa.int64()).to_pylist(),
        arrow_batch.column("timestamp_type").to_pylist(),
        arrow_batch.column("key").to_pylist(),
        arrow_batch.column("value").to_pylist(),
        arrow_batch.column("headers").to_pylist() if with_headers else [None] * arrow_batch.num_rows,
        strict=True,
    )
    for offset, timestamp_ms, timestamp_type, key, value, entries in rows:
        headers = [(entry["key"], entry["value"]) for entry in entries or ()]
        yield ConsumedRecord(topic, partition, offset, timestamp_ms, timestamp_type, key, value, headers)


# --- consume -----------------------------------------------------------------------------------------

PRINT_PROPERTIES = {  # kafka-console-consumer's print.* in its order, and our tokens
    "print.timestamp": "%T",
    "print.partition": "%p",
    "print.offset": "%o",
    "print.headers": "%h",
    "print.key": "%k",
    "print.value": "%s",
}


@click.command("consume", cls=Command)
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
    help="As in Kafka: the beginning, unless the group has an offset. Always: -o beginning.",
)
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end of each partition.")
@click.option("-c", "--max-messages", type=click.IntRange(min=0), help="Stop after so many records.")
@click.option("--group", "-G", metavar="NAME", help="Start from, and commit to, this group's offsets.")
@force_option
@click.option(
    "-f", "--format", "text", metavar="FORMAT", help=r"%t %p %o %k %s %S %K %T %h, \n. Default: '%s\n'."
)
@click.option("-J", "--json", "as_json", is_flag=True, help="A JSON object a line (as --output json).")
@click.option("-x", "--hex", "as_hexadecimal", is_flag=True, help="Keys, values and headers in hexadecimal.")
@click.option("-Z", "--null", "show_null", is_flag=True, help="Print NULL for null keys and values.")
@click.option(
    "--timeout-ms", type=click.IntRange(min=1), help="Stop when no record has come for so long, as in Kafka."
)
@click.option("--formatter-property", "--property", "properties", multiple=True, hidden=True)
@click.option("--isolation-level", type=click.Choice(["read_committed", "read_uncommitted"]), hidden=True)
@click.option("-C", "unused", is_flag=True, expose_value=False, hidden=True)  # kcat's "consume"
def consume(
    topic: str,
    partitions: tuple[int, ...],
    positions: tuple[str, ...],
    from_beginning: bool,
    exit_at_end: bool,
    max_messages: int | None,
    group: str | None,
    force: bool,
    text: str | None,
    as_json: bool,
    as_hexadecimal: bool,
    show_null: bool,
    timeout_ms: int | None,
    properties: tuple[str, ...],
    isolation_level: str | None,  # noqa: ARG001 - uncommitted records are never visible
) -> None:
    """Print records, and follow the log until Ctrl-C.

    \b
    sparklog consume --topic flights -o -5 -e
    sparklog consume --topic flights -f '%p:%o %k %s\\n' -c 10
    sparklog consume --topic delays -J -o end | jq .payload
    """  # noqa: D301 - click looks for the character, not for a backslash and a b
    if current().output in {"csv", "yaml"}:
        raise click.UsageError("records are printed as --output json or jsonl, or in a format: -f FORMAT.")
    as_json = as_json or current().json
    if (text is not None) + as_json + bool(properties) > 1 or (as_json and as_hexadecimal):
        raise click.UsageError("-f, -J and --formatter-property name formats; give one. --hex excludes -J.")
    if group == "":
        raise click.UsageError("--group is empty: nothing would be committed; name it, or leave it out.")
    if text is None:
        text = _format_of(properties) if properties else "%s\\n"
    show = as_hex if as_hexadecimal else for_terminal if is_terminal(sys.stdout) else as_is
    try:
        start, end = parse_positions(positions)
        render = json_line if as_json else compile_format(text, null=b"NULL" * show_null, show=show)
    except (PositionError, FormatError) as error:
        raise click.UsageError(str(error)) from None
    if from_beginning and start is not None:
        raise click.UsageError("--from-beginning and -o name two starts; give one.")
    log = current().open_log()
    require_topics(log, [topic])
    selection = Selection(
        topic=topic, partitions=partitions, start=start, end=end, exit_at_end=exit_at_end, group=group
    )
    commit = None if group is None else group_committer(log, group, force=force)
    with until_signalled() as stop:
        follower = Follower(log, selection, with_headers=as_json or "%h" in text, commit=commit)
        follower.run(
            render, sys.stdout.buffer, max_messages, is_stopped=stop.is_asked, idle_timeout_ms=timeout_ms
        )
        if stop.is_asked():
            note("")  # after the ^C of a terminal


def _format_of(properties: Sequence[str]) -> str:
    """The format that kafka-console-consumer's properties mean."""
    chosen = {"print.value": "true", "key.separator": "\t"}
    for text in properties:
        key, _, value = text.partition("=")
        if key not in PRINT_PROPERTIES and key not in chosen:
            known = ", ".join([*PRINT_PROPERTIES, "key.separator"])
            raise click.UsageError(f"--formatter-property: found {key!r}, expected one of {known}.")
        chosen[key] = value
    separator = chosen["key.separator"].replace("%", "%%").replace("\\", "\\\\")
    tokens = [token for key, token in PRINT_PROPERTIES.items() if chosen.get(key, "").lower() == "true"]
    return separator.join(tokens) + "\\n"
