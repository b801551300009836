"""Pages of records: search in a topic, one record, the live tail.

Invariants: what is shown is masked, and cut to PREVIEW_BYTES in a list, to SHOWN_BYTES for one record. A page
    that searches by itself is bounded by MAX_SECONDS.
Not here: searches with progress, the stream of the tail, downloads (message_streams.py).
"""

import base64
import dataclasses
import datetime as dt
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.console.message_masks import MessageRules
from sparklog.console.message_values import FORMATS, Format, show
from sparklog.console.messages import (
    SHOWN_BYTES,
    Bytes,
    Filters,
    Limits,
    Message,
    Progress,
    Query,
    Start,
    StartKind,
    Step,
    Tail,
    messages,
    read_message,
    scan,
)
from sparklog.console.views import Console, MissingError, Parameter, View
from sparklog.console.views import Query as Given
from sparklog.errors import InvalidRequestError
from sparklog.format.schema import TimestampType
from sparklog.wording import shown_time

PREVIEW_BYTES: Final = 8 << 10
_PREVIEW_CHARACTERS: Final = 240
_PREVIEW_BASE64: Final = 64  # characters of 48 bytes
MAX_RECORDS: Final = 1000
MAX_SECONDS: Final = 60
DEFAULT_RECORDS: Final = 50
DEFAULT_SECONDS: Final = 10
DEFAULT_MB: Final = 256
DEFAULT_LATEST: Final = 1000
_STARTS: Final[tuple[StartKind, ...]] = ("latest", "beginning", "offset", "time")

# --- parameters --------------------------------------------------------------------------------------

SEARCH_PARAMETERS: Final = (
    Parameter(
        "from", "Where to begin: latest (the last records of each partition), beginning, offset, time."
    ),
    Parameter("at", "How many records of each partition, the offset, or the time: ISO 8601 in UTC, or ms."),
    Parameter("until", "The last timestamp, as a time."),
    Parameter("partition", "Numbers with commas; all without."),
    Parameter("key", "The key is this text."),
    Parameter("key_part", "The key contains this text."),
    Parameter("value", "The value contains this text."),
    Parameter("header", "There is a header of this name."),
    Parameter("header_value", "The header of this name has this value."),
    Parameter(
        "path", "The value is JSON, and has something at this path: $.user.id, items[0].name, $..name."
    ),
    Parameter("equals", "What is at the path is this text, or this JSON (5, true, null)."),
    Parameter("regex", "This expression (RE2) matches somewhere in the value."),
    Parameter("format", f"How to show keys and values: {', '.join(FORMATS)}."),
    Parameter("records", f"Show at most so many; {DEFAULT_RECORDS}, at most {MAX_RECORDS}."),
    Parameter("seconds", f"Search no longer; {DEFAULT_SECONDS}, at most {MAX_SECONDS}."),
    Parameter("mb", f"Read no more than so many MB; {DEFAULT_MB}."),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A search as the parameters ask for it; `records` are shown at most."""

    query: Query
    format: Format
    records: int

    @property
    def is_newest_first(self) -> bool:
        return self.query.start.kind == "latest"


def asked(topic: str, given: Given) -> Asked:
    """Read the parameters of a search.

    Raises:
        InvalidRequestError: INVALID_OPTION.
    """
    records = _bounded(given, "records", DEFAULT_RECORDS, MAX_RECORDS)
    wanted = filters(given)
    start = _start(given)
    if start.kind == "latest" and wanted == Filters():  # no more can be shown
        start = Start("latest", min(start.number, records))
    limits = Limits(
        # Of the latest, the newest of all partitions are shown, so all are searched.
        records=None if start.kind == "latest" else records,
        bytes=_bounded(given, "mb", DEFAULT_MB, 1_000_000) * 1_000_000,
        seconds=_bounded(given, "seconds", DEFAULT_SECONDS, MAX_SECONDS),
    )
    query = Query(topic=topic, partitions=partitions_of(given), start=start, filters=wanted, limits=limits)
    return Asked(query=query, format=format_of(given), records=records)


def filters(given: Given) -> Filters:
    """Read what a record must have."""
    until = given.text("until").strip()
    return Filters(
        key=given.text("key"),
        key_contains=given.text("key_part"),
        value_contains=given.text("value"),
        header=given.text("header").strip(),
        header_value=given.text("header_value"),
        json_path=given.text("path").strip(),
        json_equals=given.text("equals"),
        regex=given.text("regex"),
        end_time_ms=time_ms("until", until) if until else None,
    )


def format_of(given: Given) -> Format:
    """Read the format."""
    wanted = given.text("format", "auto")
    if wanted not in FORMATS:
        raise _wrong("format", wanted, f"one of {', '.join(FORMATS)}")
    return wanted


def _start(given: Given) -> Start:
    kind = given.text("from") or "latest"
    at = given.text("at").strip()
    if kind not in _STARTS:
        raise _wrong("from", kind, f"one of {', '.join(_STARTS)}")
    if kind == "beginning":
        return Start("beginning", 0)
    if kind == "time":
        return Start("time", time_ms("at", at))
    return Start(kind, given.number("at", DEFAULT_LATEST if kind == "latest" else 0))


def partitions_of(given: Given) -> tuple[int, ...]:
    """Read the numbers of partitions; empty: all."""
    text = given.text("partition").strip()
    numbers = [part.strip() for part in text.split(",")] if text else []
    if not all(number.isascii() and number.isdecimal() and len(number) < 10 for number in numbers):
        raise _wrong("partition", text, "numbers with commas, as in 0,2")
    return tuple(map(int, numbers))


def time_ms(name: str, text: str) -> int:
    """Read a time: ISO 8601, UTC without a zone, or milliseconds; InvalidRequestError INVALID_OPTION."""
    if text.isascii() and text.isdecimal() and len(text) <= 15:
        return int(text)
    try:
        when = dt.datetime.fromisoformat(text)
        return round((when if when.tzinfo else when.replace(tzinfo=dt.UTC)).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise _wrong(name, text, "a time as 2026-11-28T18:00 (UTC), or milliseconds since 1970") from error


def _bounded(given: Given, name: str, default: int, most: int) -> int:
    number = given.number(name, default)
    if not 1 <= number <= most:
        raise _wrong(name, str(number), f"1 to {most:,}")
    return number


def _wrong(name: str, found: str, expected: str) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_OPTION", f"{name}: found {found[:100]!r}, expected {expected}", fix=f"correct {name}"
    )


# --- records -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FieldView:
    """A key, a value or a header's value.

    Fields:
        format: of `text`: null, text, json, hex, Avro, Protobuf.
        text: control characters, and bytes that are not UTF-8, are escapes in it.
        notes: what is cut, and what is not as it was asked for.
        base64: the bytes, cut as the text is; null: no value.
    """

    size_bytes: int
    format: str
    text: str
    notes: tuple[str, ...]
    base64: str | None

    @property
    def preview(self) -> str:
        """One line for a list."""
        if self.format == "hex" and self.base64:
            return base64.b64decode(self.base64[:_PREVIEW_BASE64]).hex(" ")
        text = " ".join(self.text[: 2 * _PREVIEW_CHARACTERS].split())
        return text if len(text) <= _PREVIEW_CHARACTERS else f"{text[:_PREVIEW_CHARACTERS]}…"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeaderView:
    """A header."""

    name: str
    value: FieldView


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """A record. Of many headers the first are given; `header_count` counts all."""

    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: str
    key: FieldView
    value: FieldView
    headers: tuple[HeaderView, ...]
    header_count: int

    @property
    def time(self) -> str:
        """To the millisecond."""
        return shown_time(self.timestamp_ms).replace("T", " ").removesuffix("Z")


class Shower:
    """Shows the messages of a topic in a format; `is_indented` as in show()."""

    def __init__(self, rules: MessageRules, topic: str, wanted: Format, *, is_indented: bool = False) -> None:
        self._is_indented = is_indented
        self._decoders = rules.decoders_of(topic)
        self._wanted = wanted

    def view(self, message: Message) -> MessageView:
        """Return what a page or the API gives of a message."""
        is_create = message.timestamp_type == TimestampType.CREATE_TIME
        return MessageView(
            partition=message.partition,
            offset=message.offset,
            timestamp_ms=message.timestamp_ms,
            timestamp_type="CreateTime" if is_create else "LogAppendTime",
            key=self._field(message.key, "key"),
            value=self._field(message.value, "value"),
            headers=tuple(
                HeaderView(name=name, value=self._field(value, "header")) for name, value in message.headers
            ),
            header_count=message.header_count,
        )

    def _field(self, field: Bytes, name: str) -> FieldView:
        # Schemas are for keys and values.
        wanted: Format = "auto" if name == "header" and self._wanted == "schema" else self._wanted
        decoder = self._decoders.get(name)
        shown = show(field.data, field.size, wanted, decoder, is_indented=self._is_indented)
        return FieldView(
            size_bytes=field.size,
            format=shown.format,
            text=shown.text,
            notes=shown.notes,
            base64=None if field.data is None else base64.b64encode(field.data).decode(),
        )


class Found:
    """The messages to show of a scan: the newest, or the first `most`."""

    def __init__(self, wanted: Asked) -> None:
        self._wanted = wanted
        self._messages: list[Message] = []

    def add(self, step: Step) -> list[Message]:
        """Take what a step has found; return it."""
        rows = step.found
        if self._wanted.is_newest_first and rows.num_rows > self._wanted.records:
            rows = rows.take(_newest(rows, self._wanted.records))
        new = messages(rows, field_bytes=PREVIEW_BYTES)
        self._messages += new
        if len(self._messages) > 2 * self._wanted.records:
            self._messages = self.shown()
        return new

    def shown(self) -> list[Message]:
        """Return them in the order of their times."""
        reverse = self._wanted.is_newest_first
        ordered = sorted(self._messages, key=_time_and_place, reverse=reverse)
        return ordered[: self._wanted.records]


def _time_and_place(message: Message) -> tuple[int, int, int]:
    return message.timestamp_ms, message.partition, message.offset


def _newest(rows: pa.RecordBatch, most: int) -> pa.Array:
    """Return the indices of the newest rows, ascending."""
    newest = pc.sort_indices(rows, sort_keys=[("timestamp", "descending"), ("offset", "descending")])[:most]
    return newest.take(pc.sort_indices(newest))


# --- views -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MessageList:
    """What a search has found, and how far it came.

    Fields:
        partitions: of the topic.
        subjects: key, value, if a schema is given for it.
        is_masked: masking rules apply to the topic.
    """

    topic: str
    partitions: int
    messages: tuple[MessageView, ...]
    progress: Progress
    subjects: tuple[str, ...]
    is_masked: bool


def message_list(console: Console, given: Given) -> MessageList:
    """Search in a topic."""
    topic = given.name("topic")
    wanted = asked(topic, given)
    found = Found(wanted)
    progress = Progress()
    for step in scan(console.log, wanted.query, console.rules.masks_of(topic), image=console.image):
        progress = step.progress
        found.add(step)
    return listed(console, topic, wanted, found, progress)


def listed(console: Console, topic: str, wanted: Asked, found: Found, progress: Progress) -> MessageList:
    """Return the page's data for what was found so far."""
    shower = Shower(console.rules, topic, wanted.format)
    return MessageList(
        topic=topic,
        partitions=len(console.image.topic(topic).partitions),
        messages=tuple(map(shower.view, found.shown())),
        progress=progress,
        subjects=console.rules.subjects_of(topic),
        is_masked=console.rules.masks_of(topic).is_any,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OneMessage:
    """A record, and the offsets of the partition."""

    topic: str
    message: MessageView
    log_start_offset: int
    log_end_offset: int
    subjects: tuple[str, ...]
    is_masked: bool


def one_message(console: Console, given: Given) -> OneMessage:
    """Read one record."""
    topic = given.name("topic")
    rows = read_row(console, given)
    state = console.image.partition(topic, given.number("partition", 0))
    (message,) = messages(rows, field_bytes=SHOWN_BYTES)
    shower = Shower(console.rules, topic, format_of(given), is_indented=True)
    return OneMessage(
        topic=topic,
        message=shower.view(message),
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        subjects=console.rules.subjects_of(topic),
        is_masked=console.rules.masks_of(topic).is_any,
    )


def read_row(console: Console, given: Given) -> pa.RecordBatch:
    """Return the record that the path names, whole and masked.

    Raises:
        MissingError: there is none.
    """
    topic, partition, offset = given.name("topic"), given.number("partition", 0), given.number("offset", 0)
    masks = console.rules.masks_of(topic)
    rows = read_message(console.log, topic, partition, offset, masks, image=console.image)
    if rows is None:
        raise MissingError(f"{topic}-{partition} has no record at offset {offset}")
    return rows


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TailPage:
    """The topic that is followed."""

    topic: str
    partitions: int


def tail_page(console: Console, given: Given) -> TailPage:
    """Check what is to be followed; the records come by message_streams.py."""
    topic = given.name("topic")
    format_of(given)
    Tail(console.log, topic, partitions_of(given), filters(given), newest=lambda: console.image)
    return TailPage(topic=topic, partitions=len(console.image.topic(topic).partitions))


TOPIC_PATH: Final = "/topics/{topic}"
_FORMAT: Final = tuple(parameter for parameter in SEARCH_PARAMETERS if parameter.name == "format")
VIEWS: Final = (
    View(
        path=f"{TOPIC_PATH}/messages",
        template="messages.html",
        data=message_list,
        doc="Search the records of a topic.",
        parameters=SEARCH_PARAMETERS,
        is_slow=True,
    ),
    View(
        path=f"{TOPIC_PATH}/messages/{{partition}}/{{offset}}",
        template="message.html",
        data=one_message,
        doc="One record.",
        parameters=_FORMAT,
        is_slow=True,
    ),
    View(
        path=f"{TOPIC_PATH}/tail",
        template="tail.html",
        data=tail_page,
        doc="The topic that the live tail follows.",
    ),
)
