"""Searching the records of a topic: a bounded scan with filters, and a live tail.

    for step in scan(log, Query(topic="clicks", start=Start("latest", 1000)), masks):
        show(step.progress, messages(step.found))

Invariants: masks apply before filters and before a record leaves this module. A scan finds the records that a
    plain search over the same offsets finds, in the order of offsets within a partition. A partition that
    cannot be read is reported, and the others are searched.
Memory: one step of one partition (log/reader.py), and what was found in it.
Bounds: Limits. Between two steps, and between the slices of a regular expression, a scan can be cancelled.
Not here: formats (message_values.py), files (message_export.py), pages (message_pages.py).
Concurrency: a generator, and a Tail, belong to one thread at a time; NumPy and Arrow release the GIL.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.client.consumer import SCHEMA_WITH_HEADERS, partition_reader, to_arrow_batch
from sparklog.client.log import SparkLog
from sparklog.client.patterns import SLICE_STEPS, validated_size
from sparklog.console.message_masks import Masks
from sparklog.console.message_values import (
    MAX_JSON_BYTES,
    Anywhere,
    Decoder,
    TooDeepError,
    UndecodableError,
    checked,
    no_check,
    parse_json,
    parse_json_path,
    values_at,
)
from sparklog.errors import InvalidRequestError, SparklogError, UnknownTopicError
from sparklog.log.partition_reader import PartitionReader
from sparklog.log.read_plan import bytes_between, end_offset_for_bytes
from sparklog.metadata import Image

# --- query -------------------------------------------------------------------------------------------

StartKind = Literal["beginning", "latest", "offset", "time"]
MAX_REGEX_BYTES: Final = 256 << 10  # of a value are searched by a regular expression


@dataclass(frozen=True, slots=True)
class Start:
    """Where a scan begins in each partition: the last `number` offsets, an offset, or a time in ms."""

    kind: StartKind = "latest"
    number: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What a record must have; empty: anything. All must hold.

    Args:
        header: the name of a header; with `header_value`, a header of this name and value.
        json_path: of the value, as JSON or as its schema decodes it; with `json_equals`, one of its values
            there: a text, or JSON as in 5 or true.
        regex: RE2, found anywhere in the first MAX_REGEX_BYTES of the value.
        end_time_ms: the last timestamp.
    """

    key: str = ""
    key_contains: str = ""
    value_contains: str = ""
    header: str = ""
    header_value: str = ""
    json_path: str = ""
    json_equals: str = ""
    regex: str = ""
    end_time_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a scan stops. Bytes are stored bytes; None: no limit."""

    records: int | None = 100
    bytes: int | None = 256 << 20
    seconds: float | None = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to search, and how far. Without `partitions`: all of them."""

    topic: str
    partitions: tuple[int, ...] = ()
    start: Start = Start()
    filters: Filters = Filters()
    limits: Limits = Limits()


Stop = Literal["", "end", "records", "bytes", "time", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a scan is.

    Args:
        stopped: why it stopped; empty: it goes on. `end`: everything was searched.
        bytes_total: the stored bytes from the starts to the ends of the partitions.
        not_searched: values that were too large for a regular expression, or too large or too deeply nested
            for a JSON path.
        problems: (partition, why it cannot be read).
    """

    records_read: int = 0
    bytes_read: int = 0
    bytes_total: int = 0
    found: int = 0
    not_searched: int = 0
    stopped: Stop = ""
    problems: tuple[tuple[int, str], ...] = ()

    @property
    def percent(self) -> int:
        """Of the bytes; 100 only at the end."""
        if self.stopped == "end":
            return 100
        return min(99, 100 * self.bytes_read // self.bytes_total) if self.bytes_total else 0


@dataclass(frozen=True, slots=True)
class Step:
    """Records found, masked, with the columns of SCHEMA_WITH_HEADERS; may be empty."""

    progress: Progress
    found: pa.RecordBatch


# --- filters -----------------------------------------------------------------------------------------


_JSON_ROWS: Final = 256  # are Python objects at a time


class Cancelled(Exception):  # noqa: N818 - no error
    """The scan was cancelled, or its time is over."""


class Search:
    """Filters over whole Arrow batches. Python sees only the rows that may have the JSON value."""

    def __init__(self, filters: Filters, masks: Masks, check: Callable[[], None]) -> None:
        """`check` raises to end a search; it is called often.

        Raises:
            InvalidRequestError: INVALID_PATTERN, INVALID_OPTION.
        """
        self._filters, self._masks, self._check = filters, masks, check
        self._path = parse_json_path(filters.json_path) if filters.json_path else ()
        if filters.json_equals and not self._path:
            raise _invalid("a JSON value without a path", "give the JSON path, too")
        if filters.header_value and not filters.header:
            raise _invalid("a header's value without its name", "give the header's name, too")
        self._json_wanted: list[object] = [filters.json_equals]
        with contextlib.suppress(msgspec.DecodeError, RecursionError):  # it is text only
            self._json_wanted.append(msgspec.json.decode(filters.json_equals.encode(errors="replace")))
        self._regex_states = validated_size(filters.regex, of="values") if filters.regex else 0
        self.not_searched = 0

    def found(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that match, masked; cheap filters come first."""
        filters = self._filters
        if filters.end_time_ms is not None:
            times = rows.column("timestamp").cast(pa.int64())
            rows = rows.filter(pc.less_equal(times, filters.end_time_ms))
        if filters.key or filters.key_contains:
            rows = self._masked(rows, "key")
            key = rows.column("key")
            rows = rows.filter(self._key_matches(key))
        if filters.header:
            rows = self._masked(rows, "headers")
            rows = rows.filter(_has_header(rows.column("headers"), filters.header, filters.header_value))
        if filters.value_contains or self._path or filters.regex:
            rows = self._masked(rows, "value")
        if filters.value_contains:
            rows = rows.filter(pc.match_substring(rows.column("value"), _bytes(filters.value_contains)))
        if self._path:
            rows = rows.filter(self._json_matches(rows.column("value")))
        if filters.regex:
            rows = rows.filter(self._regex_matches(rows.column("value")))
        return self._masked_rest(rows)

    def _masked(self, rows: pa.RecordBatch, name: str) -> pa.RecordBatch:
        masked = self._masks.column(name, rows.column(name), self._check)
        return rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), masked)

    def _masked_rest(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Mask the columns that no filter has read."""
        filters = self._filters
        if not (filters.key or filters.key_contains):
            rows = self._masked(rows, "key")
        if not filters.header:
            rows = self._masked(rows, "headers")
        if not (filters.value_contains or self._path or filters.regex):
            rows = self._masked(rows, "value")
        return rows

    def _key_matches(self, key: pa.Array) -> pa.Array:
        filters = self._filters
        matches = pc.is_valid(key)
        if filters.key:
            matches = pc.and_(matches, pc.equal(key, pa.scalar(_bytes(filters.key), pa.binary())))
        if filters.key_contains:
            matches = pc.and_(matches, pc.match_substring(key, _bytes(filters.key_contains)))
        return matches.fill_null(False)

    def _json_matches(self, values: pa.Array) -> pa.Array:
        """Parse only the rows in which the names of the path, and the wanted text, can be at all."""
        decoder = self._masks.value_decoder
        may = pc.is_valid(values)
        escaped = pc.match_substring(values, b"\\").fill_null(False)
        for text in self._json_texts() if decoder is None else ():
            may = pc.and_(may, pc.or_(escaped, pc.match_substring(values, text.encode()).fill_null(False)))
        is_small = pc.less_equal(pc.binary_length(values), MAX_JSON_BYTES).fill_null(True)
        self.not_searched += pc.sum(pc.and_not(may, is_small)).as_py() or 0
        candidates = np.flatnonzero(pc.and_(may, is_small).to_numpy(zero_copy_only=False))
        matches = np.zeros(len(values), np.bool_)
        for start in range(0, len(candidates), _JSON_ROWS):
            rows = candidates[start : start + _JSON_ROWS]
            documents = checked(values.take(rows).to_pylist(), self._check)
            matches[rows] = [self._has_json(data, decoder) for data in documents]
        return pa.array(matches)

    def _json_texts(self) -> Iterator[str]:
        for step in self._path:
            name = step.name if isinstance(step, Anywhere) else step
            if isinstance(name, str):
                yield name
        if len(self._json_wanted) == 1:
            yield self._filters.json_equals

    def _has_json(self, data: bytes, decoder: Decoder | None) -> bool:
        if decoder is not None:
            with contextlib.suppress(UndecodableError):  # perhaps it is JSON
                data = decoder.decode(data)
        try:
            found = values_at(parse_json(data), self._path, self._check)
            if not self._filters.json_equals:
                return next(found, self) is not self
            return any(_is_same(value, wanted) for value in found for wanted in self._json_wanted)
        except TooDeepError:
            self.not_searched += 1
            return False
        except UndecodableError:
            return False

    def _regex_matches(self, values: pa.Array) -> pa.Array:
        """Search slices of so many bytes that each takes 50 ms at worst, and check between them.

        As text, though it may not be UTF-8: RE2 matches bytes, and `.` matches no invalid ones.
        """
        lengths = pc.binary_length(values).fill_null(0)
        cut = pc.greater(lengths, MAX_REGEX_BYTES)
        if large := pc.sum(cut).as_py():
            self.not_searched += large
            values = pc.binary_slice(values, 0, MAX_REGEX_BYTES)
        ends = np.cumsum(np.minimum(lengths.to_numpy(zero_copy_only=False), MAX_REGEX_BYTES))
        slice_bytes = max(1, SLICE_STEPS // self._regex_states)
        start, matches = 0, []
        while start < len(values):
            self._check()
            limit = (int(ends[start - 1]) if start else 0) + slice_bytes
            end = max(start + 1, int(ends.searchsorted(limit, "right")))
            texts = values.slice(start, end - start).view(pa.string())
            matches.append(pc.match_substring_regex(texts, pattern=self._filters.regex).fill_null(False))
            start = end
        return pa.concat_arrays(matches) if matches else pa.array([], pa.bool_())


def _is_same(value: object, wanted: object) -> bool:
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _has_header(headers: pa.Array, name: str, value: str) -> pa.Array:
    entries = headers.flatten()
    hits = pc.equal(entries.field("key"), name)
    if value:
        hits = pc.and_(hits, pc.equal(entries.field("value"), pa.scalar(_bytes(value), pa.binary())))
    rows = pc.list_parent_indices(headers).filter(hits.fill_null(False))
    matches = np.zeros(len(headers), np.bool_)
    matches[rows.to_numpy(zero_copy_only=False)] = True
    return pa.array(matches)


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _invalid(f"the text {text!a}, which is not Unicode", "correct the text") from error


def _invalid(found: str, fix: str) -> InvalidRequestError:
    return InvalidRequestError("INVALID_OPTION", f"a filter: found {found}", fix=fix)


# --- scan --------------------------------------------------------------------------------------------

_FIRST_WINDOW_BYTES: Final = 256 << 10
_MAX_WINDOW_BYTES: Final = 8 << 20


def _never() -> bool:
    return False


@dataclass(slots=True)
class _Cursor:
    partition: int
    reader: PartitionReader
    next_offset: int
    end_offset: int


def scan(
    log: SparkLog,
    query: Query,
    masks: Masks | None = None,
    *,
    image: Image | None = None,
    is_cancelled: Callable[[], bool] = _never,
) -> Iterator[Step]:
    """Search the records that the topic has now, or as of an image. The last step says why it stopped.

    The partitions are read in turn, in windows that grow.

    Raises:
        UnknownTopicError: no such topic or partition.
        InvalidRequestError: a filter is not correct.
    """
    image = log.refresh() if image is None else image
    return _Scan(log, image, query, masks or Masks((), query.topic), is_cancelled).steps()


class _Scan:
    def __init__(
        self,
        log: SparkLog,
        image: Image,
        query: Query,
        masks: Masks,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._clock = log.clock
        self._limits = query.limits
        self._topic = query.topic
        self._is_cancelled = is_cancelled
        self._started_ms = self._clock.monotonic_ms()
        self._search = Search(query.filters, masks, self._check)
        chosen = dict.fromkeys(query.partitions) or range(len(image.topic(query.topic).partitions))
        self._start = query.start
        self._readers = {
            partition: partition_reader(log.metadata, image, query.topic, partition, skip_expired=True)
            for partition in chosen
        }
        self._problems: dict[int, str] = {}
        self._cursors: list[_Cursor] = []
        self._progress = Progress()

    def _locate(self) -> None:
        """Find where each partition begins; a time needs the storage."""
        for partition, reader in self._readers.items():
            self._check()
            cursor = self._cursor(partition, reader, self._start)
            if cursor is not None:
                self._cursors.append(cursor)
        self._progress = Progress(bytes_total=sum(map(_bytes_left, self._cursors)))

    def _cursor(self, partition: int, reader: PartitionReader, start: Start) -> _Cursor | None:
        low, high = reader.state.log_start_offset, reader.state.log_end_offset
        offset = low
        if start.kind == "latest":
            offset = high - start.number
        elif start.kind == "offset":
            offset = start.number
        elif start.kind == "time":
            try:
                found = reader.offset_for_time(start.number)
            except SparklogError as error:
                self._problems[partition] = str(error)
                return None
            offset = high if found is None else found[0]
        return _Cursor(partition, reader, min(max(offset, low), high), high)

    def steps(self) -> Iterator[Step]:
        window_bytes = _FIRST_WINDOW_BYTES
        try:
            self._locate()
            while self._cursors:
                share = self._share()
                for cursor in tuple(self._cursors):
                    yield from self._window(cursor, window_bytes, share)
                    if cursor.next_offset >= cursor.end_offset and cursor in self._cursors:
                        self._cursors.remove(cursor)
                window_bytes = min(2 * window_bytes, _MAX_WINDOW_BYTES)
        except Cancelled:
            stopped: Stop = "cancelled" if self._is_cancelled() else "time"
        except _LimitReached as reached:
            stopped = reached.stop
        else:
            stopped = "end"
        yield Step(self._noted(stopped=stopped), _NOTHING)

    def _share(self) -> int | None:
        """Return how much each partition may find in a turn: the first leaves room for the others."""
        if self._limits.records is None:
            return None
        return -(-(self._limits.records - self._progress.found) // len(self._cursors))

    def _window(self, cursor: _Cursor, window_bytes: int, share: int | None) -> Iterator[Step]:
        """Search some bytes of a partition; an error ends this partition only."""
        limit, read = self._limits.bytes, self._progress.bytes_read
        if limit is not None:
            if read >= limit:
                raise _LimitReached("bytes")
            window_bytes = min(window_bytes, limit - read)
        state, start = cursor.reader.state, cursor.next_offset
        end = min(cursor.end_offset, end_offset_for_bytes(state, start, window_bytes))
        last = None if share is None else min(self._progress.found + share, self._limits.records or 0)
        try:
            for records in cursor.reader.read(start, end, include_headers=True):
                self._check()
                rows = to_arrow_batch(records, self._topic, cursor.partition, include_headers=True)
                del records
                found, cursor.next_offset = self._found(
                    rows, None if last is None else last - self._progress.found
                )
                offsets = rows.column("offset").to_numpy()
                progress = self._noted(
                    records_read=self._progress.records_read + int(offsets.searchsorted(cursor.next_offset)),
                    found=self._progress.found + found.num_rows,
                    bytes_read=read + bytes_between(state, start, cursor.next_offset),
                )
                yield Step(progress, found)
                if self._progress.found == self._limits.records:
                    raise _LimitReached("records")
                if self._progress.found == last:
                    return
                del rows, found
        except SparklogError as error:
            self._problems[cursor.partition] = str(error)
            self._cursors.remove(cursor)
        self._noted(bytes_read=read + bytes_between(state, start, end))
        cursor.next_offset = end

    def _found(self, rows: pa.RecordBatch, room: int | None) -> tuple[pa.RecordBatch, int]:
        """Return the first `room` rows that match, and the next offset to search."""
        found = self._search.found(rows)
        if room is None or found.num_rows <= room:
            return found, rows.column("offset")[-1].as_py() + 1
        return found.slice(0, room), found.column("offset")[room].as_py()

    def _noted(self, **changes: Any) -> Progress:
        self._progress = dataclasses.replace(
            self._progress,
            not_searched=self._search.not_searched,
            problems=tuple(sorted(self._problems.items())),
            **changes,
        )
        return self._progress

    def _check(self) -> None:
        if self._is_cancelled():
            raise Cancelled
        seconds = self._limits.seconds
        if seconds is not None and self._clock.monotonic_ms() - self._started_ms >= seconds * 1000:
            raise Cancelled


class _LimitReached(Exception):  # noqa: N818 - no error
    def __init__(self, stop: Stop) -> None:
        super().__init__(stop)
        self.stop = stop


_NOTHING: Final = pa.RecordBatch.from_pylist([], schema=SCHEMA_WITH_HEADERS)


def _bytes_left(cursor: _Cursor) -> int:
    return bytes_between(cursor.reader.state, cursor.next_offset, cursor.end_offset)


# --- messages ----------------------------------------------------------------------------------------

SHOWN_BYTES: Final = 64 << 10
SHOWN_HEADERS: Final = 100


@dataclass(frozen=True, slots=True)
class Bytes:
    """The first bytes of a field, and the size of the whole; None: null."""

    data: bytes | None
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A record to show: fields are cut, `header_count` counts all headers."""

    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: Bytes
    value: Bytes
    headers: tuple[tuple[str, Bytes], ...]
    header_count: int


def messages(rows: pa.RecordBatch, *, field_bytes: int = SHOWN_BYTES) -> list[Message]:
    """Return the rows of a Step, each field cut to `field_bytes`."""
    keys, values = (_cut(rows.column(name), field_bytes) for name in ("key", "value"))
    headers = rows.column("headers")
    times = rows.column("timestamp").cast(pa.int64())
    return [
        Message(
            partition=rows.column("partition")[row].as_py(),
            offset=rows.column("offset")[row].as_py(),
            timestamp_ms=times[row].as_py(),
            timestamp_type=rows.column("timestamp_type")[row].as_py(),
            key=keys[row],
            value=values[row],
            headers=_headers(headers[row], field_bytes),
            header_count=len(headers[row]) if headers[row].is_valid else 0,
        )
        for row in range(rows.num_rows)
    ]


def _cut(column: pa.Array, field_bytes: int) -> list[Bytes]:
    sizes = pc.binary_length(column).fill_null(0).to_pylist()
    cut = pc.binary_slice(column, 0, field_bytes).to_pylist() if len(column) else []
    return [Bytes(data, size) for data, size in zip(cut, sizes, strict=True)]


def _headers(entries: pa.ListScalar, field_bytes: int) -> tuple[tuple[str, Bytes], ...]:
    if not entries.is_valid:
        return ()
    shown = entries.values.slice(0, SHOWN_HEADERS)
    names = pc.utf8_slice_codeunits(shown.field("key"), 0, 1024).to_pylist()
    return tuple(zip(names, _cut(shown.field("value"), field_bytes), strict=True))


def read_message(
    log: SparkLog,
    topic: str,
    partition: int,
    offset: int,
    masks: Masks | None = None,
    *,
    image: Image | None = None,
) -> pa.RecordBatch | None:
    """Return one record, whole and masked; None if there is none at this offset."""
    image = log.refresh() if image is None else image
    reader = partition_reader(log.metadata, image, topic, partition)
    if not reader.state.log_start_offset <= offset < reader.state.log_end_offset:
        return None
    search = Search(Filters(), masks or Masks((), topic), no_check)
    for records in reader.read(offset, offset + 1, include_headers=True):
        return search.found(to_arrow_batch(records, topic, partition, include_headers=True))
    return None


# --- tail --------------------------------------------------------------------------------------------

TAIL_BYTES: Final = 8 << 20  # searched in one poll
TAIL_LAG_BYTES: Final = 32 << 20
TAIL_RECORDS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Offsets [start, end) of a partition that a tail did not look at."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TailStep:
    """What is new since the last poll.

    Args:
        problems: (partition, why new records cannot be read); they are dropped.
        is_behind: there is more already: poll again without a pause.
        ended: why the tail has ended (the topic was deleted); empty: it goes on.
    """

    found: list[Message]
    dropped: list[Dropped] = field(default_factory=list)
    problems: tuple[tuple[int, str], ...] = ()
    is_behind: bool = False
    ended: str = ""


class Tail:
    """Follows a topic from its end. The log is the buffer: a tail keeps an offset for each partition.

    A reader that polls too rarely falls behind. What is more than TAIL_LAG_BYTES behind the end is dropped,
    and reported, as is what expires before it is read.
    """

    def __init__(
        self,
        log: SparkLog,
        topic: str,
        partitions: Sequence[int] = (),
        filters: Filters | None = None,
        masks: Masks | None = None,
        *,
        newest: Callable[[], Image] | None = None,
        lag_bytes: int = TAIL_LAG_BYTES,
    ) -> None:
        """`newest` returns the newest image; by default the log is refreshed.

        Raises:
            UnknownTopicError, InvalidRequestError: as scan.
        """
        self._newest = newest or log.refresh
        self._log, self._topic, self._lag_bytes = log, topic, lag_bytes
        self._search = Search(filters or Filters(), masks or Masks((), topic), no_check)
        image = self._newest()
        self._topic_id = image.topic(topic).topic_id
        self._chosen = tuple(dict.fromkeys(partitions))
        chosen = self._chosen or range(len(image.topic(topic).partitions))
        self._next = {number: image.partition(topic, number).log_end_offset for number in chosen}

    def poll(self) -> TailStep:
        """Read what is new, up to TAIL_BYTES and TAIL_RECORDS."""
        image = self._newest()
        topic = image.topics.get(self._topic)
        if topic is None or topic.topic_id != self._topic_id:
            return TailStep(found=[], ended="the topic was deleted, or deleted and created again")
        if not self._chosen:
            for number in range(len(self._next), len(topic.partitions)):
                self._next[number] = 0
        found: list[Message] = []
        dropped: list[Dropped] = []
        problems: dict[int, str] = {}
        left = TAIL_BYTES
        is_behind = False
        # The partition that is the furthest behind comes first, so that none starves.
        lags = {number: self._lag(image, number, dropped) for number in self._next}
        for number in sorted((number for number in lags if lags[number]), key=lambda number: -lags[number]):
            if left <= 0 or len(found) >= TAIL_RECORDS:
                is_behind = True
                break
            try:
                left -= self._read(image, number, left, found, dropped)
            except UnknownTopicError as error:
                return TailStep(found=found, dropped=dropped, ended=str(error))
            except SparklogError as error:
                problems[number] = str(error)
                self._skip(number, image.partition(self._topic, number).log_end_offset, dropped)
            end_offset = image.partition(self._topic, number).log_end_offset
            is_behind = is_behind or self._next[number] < end_offset
        return TailStep(found=found, dropped=dropped, problems=tuple(problems.items()), is_behind=is_behind)

    def _lag(self, image: Image, number: int, dropped: list[Dropped]) -> int:
        """Return the bytes to the end, at most `lag_bytes`: what is further behind is dropped."""
        state, start = image.partition(self._topic, number), self._next[number]
        self._skip(number, state.log_start_offset, dropped)
        start = self._next[number]
        lag = bytes_between(state, start, state.log_end_offset)
        if lag > self._lag_bytes:
            excess = lag - self._lag_bytes // 2
            self._skip(number, end_offset_for_bytes(state, start, excess), dropped)
            lag = bytes_between(state, self._next[number], state.log_end_offset)
        return lag

    def _skip(self, number: int, offset: int, dropped: list[Dropped]) -> None:
        if offset > self._next[number]:
            dropped.append(Dropped(partition=number, start=self._next[number], end=offset))
            self._next[number] = offset

    def _read(
        self, image: Image, number: int, left: int, found: list[Message], dropped: list[Dropped]
    ) -> int:
        """Read a partition up to some bytes, or until enough is found; return the bytes."""
        reader = partition_reader(self._log.metadata, image, self._topic, number, skip_expired=True)
        start, state = self._next[number], reader.state
        end = min(state.log_end_offset, end_offset_for_bytes(state, start, left))
        for records in reader.read(start, end, include_headers=True):
            if int(records.offset[0]) > self._next[number] and reader.state.log_start_offset > start:
                self._skip(number, min(reader.state.log_start_offset, int(records.offset[0])), dropped)
            rows = to_arrow_batch(records, self._topic, number, include_headers=True)
            matching = self._search.found(rows)
            room = TAIL_RECORDS - len(found)
            if matching.num_rows > room:
                found += messages(matching.slice(0, room))
                self._next[number] = matching.column("offset")[room].as_py()
                return bytes_between(state, start, self._next[number])
            found += messages(matching)
            self._next[number] = int(records.offset[-1]) + 1
        self._next[number] = end
        return bytes_between(state, start, end)
