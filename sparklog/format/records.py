"""Parses and checks the records in the bodies of record batches, and describes errors.

    record  = length varint | attributes 00 | timestamp delta varint | offset delta varint
            | key length varint | key | value length varint | value | header count varint | headers
    header  = key length varint | key | value length varint | value

The compiled loops (kernels.py) decide whether a body is valid. After a refusal, `walk_records` reads the body
again in plain Python, from the first wrong record if it is known, and creates the error.

Invariants: on success every key, value and header section lies within its record, and every record is
    consumed to its last byte. For any bytes, nothing outside a body is read, and memory is proportional
    to the number of records that fit into it: 72 bytes per stored record, 9 per produced one.
    The plain loop accepts exactly what the compiled ones accept (tests/property/test_records.py).
Not here: decompression, and bounds on size and count (decode.py, produced.py).
Concurrency: pure functions.
Sources: FORMAT.md#records; Kafka DefaultRecord.readFrom, LogValidator.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.format import kernels
from sparklog.format.byte_views import Int64Array, UInt8Array, cut_rows
from sparklog.format.codec import BytesLike
from sparklog.format.record_batch import corrupt
from sparklog.format.schema import HEADERS_TYPE

# Length, attributes, timestamp delta, offset delta, key length, value length, header count.
MIN_RECORD_BYTES = 7
_VARINT_BYTES = 5
_VARLONG_BYTES = 10
_MAX_OFFSET_DELTA = 2**31 - 1


class BadRecordError(Exception):
    """Record `row` of a body breaks the format; the caller knows which batch that is."""

    def __init__(self, row: int, found: str, expected: str) -> None:
        super().__init__(row, found, expected)
        self.row, self.found, self.expected = row, found, expected


class _TooLongError(Exception):
    """A varint of too many bytes."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """Uncompressed batch bodies within one byte array, in ascending order."""

    data: UInt8Array
    start: Int64Array
    end: Int64Array
    record_count: Int64Array
    describe: Callable[[int], str]  # the place of batch i, for errors

    @property
    def first_record(self) -> Int64Array:
        """Index of each batch's first record among all records."""
        first: Int64Array = np.cumsum(self.record_count) - self.record_count
        return first

    def body(self, batch: int) -> memoryview:
        """Return the bytes of one body."""
        return self.data[int(self.start[batch]) : int(self.end[batch])].data


class RecordFields(NamedTuple):
    """One element per record; lengths are -1 for null; positions count from the start of the data."""

    timestamp_delta: Int64Array
    offset_delta: Int64Array
    key_position: Int64Array
    key_length: Int64Array
    value_position: Int64Array
    value_length: Int64Array
    header_count: Int64Array
    header_position: Int64Array  # of the first header
    end: Int64Array


def parse_records(bodies: Bodies, last_offset_delta: Int64Array) -> RecordFields:
    """Return the fields of all records of these bodies. The content of their headers is not checked.

    Args:
        last_offset_delta: of each batch; offset deltas ascend from 0 or more up to it.
    Raises: CorruptLogError for the first record that is wrong.
    """
    _check_counts(bodies)
    columns = (bodies.start, bodies.end, bodies.record_count)
    found = kernels.parse_records(bodies.data, *columns, last_offset_delta)
    if found is None:
        _raise_what_is_wrong(bodies, last_offset_delta)
    return RecordFields(*found)


def parse_headers(bodies: Bodies, fields: RecordFields) -> Int64Array:
    """Return the positions of these records' headers.

    Shape: (4, headers): position and length of the keys, then of the values; -1 for a null value.
    Raises: CorruptLogError for the first record whose headers are wrong.
    """
    count, position = fields.header_count, fields.header_position
    right, spans = kernels.parse_headers(bodies.data, count, position, fields.end)
    if right < len(count):
        _raise_what_is_wrong(bodies, None, right)
    return spans


def headers_column(data: UInt8Array, count: Int64Array, spans: Int64Array) -> pa.Array:
    """Return headers as list<struct<key, value>>; null if a record has none.

    Args:
        count: headers of each record.
        spans: from `parse_headers`.
    """
    keys, values = cut_rows(data, spans[0], spans[1]), cut_rows(data, spans[2], spans[3])
    entries = pa.StructArray.from_arrays([_as_strings(keys), values], fields=list(HEADERS_TYPE.value_type))
    offsets = np.zeros(len(count) + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), entries, type=HEADERS_TYPE, mask=pa.array(count == 0))


def inspect_body(body: BytesLike, count: int) -> tuple[Int64Array, npt.NDArray[np.intp]]:
    """Return the timestamp deltas of all records of a produced body, and the indices of records without a
    key.

    A hostile sender chooses the claimed number of records: so the work ends at the first wrong record.

    Raises: BadRecordError for the first record that is wrong.
    """
    data = np.frombuffer(body, np.uint8)
    right, stopped, deltas, keyless = kernels.inspect_records(data, count)
    if right < count or stopped < len(data):
        walk_records(data.data, count, row=right, at=stopped)
        raise RuntimeError(f"record {right} at {stopped} was refused, but is valid")
    return deltas, np.flatnonzero(keyless)


def _check_counts(bodies: Bodies) -> None:
    """Refuse counts that the bodies cannot hold, before anything is allocated by them."""
    wrong = np.flatnonzero(bodies.record_count * MIN_RECORD_BYTES > bodies.end - bodies.start)
    if len(wrong):
        batch = int(wrong[0])
        size = int(bodies.end[batch] - bodies.start[batch])
        raise corrupt(
            bodies.describe(batch),
            f"{bodies.record_count[batch]} records in {size} bytes",
            f"at least {MIN_RECORD_BYTES} bytes for each",
        )


def _raise_what_is_wrong(
    bodies: Bodies, last_offset_delta: Int64Array | None, row: int | None = None
) -> NoReturn:
    """Raise CorruptLogError for the first wrong record of the first wrong body.

    Args:
        last_offset_delta: of each batch; None: the offset deltas are right.
        row: the index, among all records, of a record in the wrong body.
    """
    if row is not None:
        batch = int(np.searchsorted(bodies.first_record + bodies.record_count, row, side="right"))
    else:
        assert last_offset_delta is not None
        batch = _first_wrong(bodies, last_offset_delta)
    last = _MAX_OFFSET_DELTA if last_offset_delta is None else int(last_offset_delta[batch])
    try:
        walk_records(bodies.body(batch), int(bodies.record_count[batch]), last_offset_delta=last)
    except BadRecordError as error:
        where = f"{bodies.describe(batch)}, record {error.row}"
        raise corrupt(where, error.found, error.expected) from None
    raise RuntimeError(f"{bodies.describe(batch)} was refused, but is valid")


def _first_wrong(bodies: Bodies, last_offset_delta: Int64Array) -> int:
    columns = (bodies.start, bodies.end, bodies.record_count, last_offset_delta)
    for batch in range(len(bodies.start)):
        alone = [column[batch : batch + 1] for column in columns]
        if kernels.parse_records(bodies.data, *alone) is None:
            return batch
    raise RuntimeError(f"batches from {bodies.describe(0)} on were refused, but each alone is valid")


def _as_strings(keys: pa.Array) -> pa.Array:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8: replaced, as the Java client does; rare enough for a loop
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())


def walk_records(
    body: bytes | memoryview,
    count: int,
    *,
    row: int = 0,
    at: int = 0,
    last_offset_delta: int | None = None,
) -> None:
    """Check all records of an uncompressed body, from record `row` at position `at` on.

    Args:
        last_offset_delta: stored records: offset deltas ascend from 0 or more up to it. None: produced ones:
            they are 0, 1, 2, ...
    Raises: BadRecordError for the first record that is wrong.
    """
    first, row, previous = row, max(0, row - 1), row - 1
    try:
        for row in range(first, count):
            lowest, highest = (row, row) if last_offset_delta is None else (previous + 1, last_offset_delta)
            at, previous = _walk_one(body, at, row, lowest, highest)
    except IndexError:
        raise BadRecordError(row, "a record that is cut off", f"{count} whole records") from None
    except _TooLongError:
        raise BadRecordError(row, "a varint of too many bytes", "a varint") from None
    if at != len(body):
        raise BadRecordError(row, f"{len(body) - at} bytes behind the last of {count} records", "none")


def _walk_one(body: bytes | memoryview, at: int, row: int, lowest: int, highest: int) -> tuple[int, int]:
    """Return the position after a record, and its offset delta, which is from `lowest` to `highest`."""
    length, at = _varint(body, at)
    end = at + length
    if length < 0 or end > len(body):
        raise BadRecordError(row, f"length {length}", "one that fits into its batch")
    if body[at] != 0:
        raise BadRecordError(row, f"attributes {body[at]}", "0")
    _, at = _varint(body, at + 1, _VARLONG_BYTES)
    offset_delta, at = _varint(body, at)
    if not lowest <= offset_delta <= highest:
        expected = str(lowest) if lowest == highest else f"an ascending one, from {lowest} to {highest}"
        raise BadRecordError(row, f"offset delta {offset_delta}", expected)
    at = _walk_sized(body, at, end, row, "key")
    at = _walk_sized(body, at, end, row, "value")
    if at >= end:
        raise BadRecordError(row, "no header count", "one within the record")
    count, at = _varint(body, at)
    if not 0 <= 2 * count <= end - at:
        raise BadRecordError(row, f"header count {count}", "one that fits into its record")
    for _ in range(count):
        at = _walk_sized(body, at, end, row, "header key", lowest=0)
        at = _walk_sized(body, at, end, row, "header value")
    if at != end:
        raise BadRecordError(row, f"{end - at} bytes behind the last field of the record", "none")
    return at, offset_delta


def _walk_sized(body: bytes | memoryview, at: int, end: int, row: int, what: str, lowest: int = -1) -> int:
    """Return the position after bytes that are preceded by their length."""
    length, at = _varint(body, at)
    if not lowest <= length <= end - at:
        raise BadRecordError(row, f"{what} length {length}", "one that fits into its record")
    return at + max(length, 0)


def _varint(body: bytes | memoryview, at: int, most: int = _VARINT_BYTES) -> tuple[int, int]:
    coded = shift = 0
    for _ in range(most):
        byte = body[at]
        at += 1
        coded |= (byte & 0x7F) << shift
        if byte < 0x80:
            if coded >> 64:
                break
            return (coded >> 1) ^ -(coded & 1), at
        shift += 7
    raise _TooLongError
