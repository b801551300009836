"""Record batches to Arrow columns, without a loop over records.

Invariants: bytes are hostile: every count, length and position is checked before it is used, and memory is
    bounded by the size of the input and max_decompressed_bytes; the result owns its memory, the buffer may
    be unmapped.
Not here: which byte ranges to read (log/reader.py).
Concurrency: pure functions.
Sources: FORMAT.md#record-batch, FORMAT.md#records; Kafka DefaultRecordBatch.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.format import kernels
from sparklog.format.arrow_bytes import Int64Array, Words, cut_rows
from sparklog.format.batch_table import BatchTable, scan_batches, scan_valid_prefix
from sparklog.format.codec import DEFAULT_MAX_DECOMPRESSED_BYTES, BytesLike, Codec, decompress
from sparklog.format.decoded_records import DecodedRecords, join_records, no_records, read_too_large
from sparklog.format.record_batch import HEADER, MAX_INT32, MAX_OFFSET, corrupt
from sparklog.format.record_fields import BadRecordError, RecordFields, parse_fields
from sparklog.format.record_headers import decode_headers
from sparklog.format.record_starts import Bodies, check_counts, guess_starts, walk_starts
from sparklog.format.schema import TimestampType

__all__ = [
    "DEFAULT_MAX_DECOMPRESSED_BYTES",
    "BatchTable",
    "DecodedRecords",
    "ParsedBodies",
    "decode_bodies",
    "decode_records",
    "parse_bodies",
    "scan_batches",
    "scan_valid_prefix",
    "stored_timestamps",
]

BLOCK_ROWS = 64 * 1024


def decode_records(
    buf: BytesLike,
    table: BatchTable,
    *,
    offset_delta: int | Int64Array = 0,
    start_offset: int | None = None,
    end_offset: int | None = None,
    include_headers: bool = False,
    where: str,
    position: int = 0,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    block_rows: int = BLOCK_ROWS,
) -> DecodedRecords:
    """The records of these batches with start_offset <= offset < end_offset; control batches are left out.

    Args:
        table: from scan_batches over `buf`.
        offset_delta: added to stored offsets; one number, or one per batch of the table.
        where: names the file in errors.
        position: of buf[0] in that file; only errors use it.
        max_decompressed_bytes: limit for one batch.
        block_rows: batches are decoded together up to so many records.

    Raises:
        CorruptLogError: CORRUPT_BATCH, BATCH_TOO_LARGE.
        InvalidRequestError: READ_TOO_LARGE for more than 2 GiB uncompressed; decode fewer batches at once.
    """
    deltas = np.broadcast_to(np.asarray(offset_delta, np.int64), len(table))
    _check_offsets(table, deltas, f"{where}@", position, is_range=(start_offset, end_offset) != (None, None))
    wanted = ~table.is_control & (table.record_count > 0)
    if start_offset is not None:
        wanted &= table.last_offset + deltas >= start_offset
    if end_offset is not None:
        wanted &= table.base_offset + deltas < end_offset
    if not wanted.all():
        table, deltas = table.select(wanted), deltas[wanted]
    parts = []
    for block in _blocks(table, block_rows):
        part = decode_bodies(
            buf,
            table.select(block),
            offset_delta=deltas[block],
            include_headers=include_headers,
            where=where,
            position=position,
            max_decompressed_bytes=max_decompressed_bytes,
        )
        first = 0 if start_offset is None else int(np.searchsorted(part.offset, start_offset))
        last = part.num_rows if end_offset is None else int(np.searchsorted(part.offset, end_offset))
        parts.append(part if last - first == part.num_rows else part.slice(first, last))
    return join_records(parts, include_headers)


def _check_offsets(
    table: BatchTable, deltas: Int64Array, where: str, position: int, *, is_range: bool
) -> None:
    """No CRC covers base offsets: they must stay in the domain, and ascend if a range is to be cut out."""
    wrong = (deltas < 0) | (table.last_offset > MAX_OFFSET - deltas)
    if is_range and len(table) > 1:
        wrong[1:] |= table.base_offset[1:] + deltas[1:] <= table.last_offset[:-1] + deltas[:-1]
    if wrong.any():
        batch = int(np.argmax(wrong))
        raise corrupt(
            f"{where}{position + int(table.position[batch])}",
            f"offsets {table.base_offset[batch]} to {table.last_offset[batch]} + {deltas[batch]}",
            "legal ones, above those of the batch before",
        )


def _blocks(table: BatchTable, block_rows: int) -> list[slice]:
    """Consecutive batches that are decoded together, to bound the memory for intermediate columns."""
    rows = np.cumsum(table.record_count)
    bounds = [0]
    while bounds[-1] < len(table):
        done = int(rows[bounds[-1] - 1]) if bounds[-1] else 0
        bounds.append(max(int(np.searchsorted(rows, done + block_rows, side="right")), bounds[-1] + 1))
    return [slice(start, end) for start, end in pairwise(bounds)]


class ParsedBodies(NamedTuple):
    """The records of some batches, as positions in their uncompressed bodies; everything is checked."""

    bodies: Bodies
    fields: RecordFields
    batch_of: npt.NDArray[np.intp]
    headers: pa.Array | None  # None where no record has any


def parse_bodies(
    buf: BytesLike,
    table: BatchTable,
    *,
    where: str,
    position: int = 0,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    include_headers: bool = False,
) -> ParsedBodies:
    """Find and check all records of these batches; their timestamps are not compared with the batches'."""
    bodies = _bodies(buf, table, where, position, max_decompressed_bytes)
    check_counts(bodies)
    batch_of = np.repeat(np.arange(len(table)), bodies.record_count)
    fields = _parse_compiled(bodies, table)
    if fields is None:
        fields = _parse(bodies, Words(bodies.data), batch_of)
        _check_offset_deltas(bodies, table, batch_of, fields)
    headers = None
    if include_headers or fields.header_count.any():  # unwanted ones are validated all the same
        headers = _headers(bodies, fields, batch_of)
    return ParsedBodies(bodies, fields, batch_of, headers)


def decode_bodies(
    buf: BytesLike,
    table: BatchTable,
    *,
    offset_delta: int | Int64Array = 0,
    include_headers: bool = False,
    where: str,
    position: int = 0,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> DecodedRecords:
    """All records of these batches at once, control batches included."""
    if len(table) == 0:
        return no_records(include_headers)
    parsed = parse_bodies(
        buf,
        table,
        where=where,
        position=position,
        max_decompressed_bytes=max_decompressed_bytes,
        include_headers=include_headers,
    )
    bodies, fields, batch_of, headers = parsed
    timestamp_ms = stored_timestamps(parsed, table)
    deltas = offset_delta if isinstance(offset_delta, int) else offset_delta[batch_of]
    return DecodedRecords(
        offset=table.base_offset[batch_of] + fields.offset_delta + deltas,
        timestamp_ms=timestamp_ms,
        timestamp_type=table.timestamp_type.astype(np.int32)[batch_of],
        key=cut_rows(bodies.data, fields.key_position, fields.key_length),
        value=cut_rows(bodies.data, fields.value_position, fields.value_length),
        headers=headers if include_headers else None,
    )


def _bodies(buf: BytesLike, table: BatchTable, where: str, position: int, max_bytes: int) -> Bodies:
    def describe(batch: int) -> str:
        return f"{where}@{position + int(table.position[batch])}"

    view = memoryview(buf).cast("B")
    start, end = table.position + HEADER.size, table.position + table.size
    if not table.codec.any():
        first, last = int(start.min()), int(end.max())
        if last - first > MAX_INT32:
            raise read_too_large()
        data = np.frombuffer(view[first:last], np.uint8)
        return Bodies(data, start - first, end - first, table.record_count, describe)
    pieces = [
        decompress(Codec(codec), view[first:last], max_bytes=max_bytes, where=describe(batch))
        for batch, (codec, first, last) in enumerate(
            zip(table.codec.tolist(), start.tolist(), end.tolist(), strict=True)
        )
    ]
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    if int(sizes.sum()) > MAX_INT32:
        raise read_too_large()
    data = np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), np.uint8)
    ends = np.cumsum(sizes)
    return Bodies(data, ends - sizes, ends, table.record_count, describe)


def _parse_compiled(bodies: Bodies, table: BatchTable) -> RecordFields | None:
    """None: something is wrong, or nothing is compiled here."""
    if not kernels.are_loaded():
        return None
    found = kernels.parse_records(
        bodies.data, bodies.start, bodies.end, bodies.record_count, table.last_offset - table.base_offset
    )
    return None if found is None else RecordFields(*found)


def _parse(bodies: Bodies, words: Words, batch_of: npt.NDArray[np.intp]) -> RecordFields:
    """Parse by guessed starts; if they do not form a chain, by walked ones, whose errors count."""
    last_of_batch = np.cumsum(bodies.record_count) - 1
    for find_starts in (guess_starts, walk_starts):
        starts = find_starts(bodies)
        following = np.empty(len(starts), np.int64)
        following[:-1] = starts[1:]
        following[last_of_batch] = bodies.end
        try:
            fields = parse_fields(words, starts, len(bodies.data))
        except BadRecordError as error:
            if find_starts is walk_starts:
                raise _located(bodies, batch_of, error) from None
            continue
        if (fields.end == following).all():
            return fields
    raise AssertionError("walked starts form a chain")


def _check_offset_deltas(
    bodies: Bodies, table: BatchTable, batch_of: npt.NDArray[np.intp], fields: RecordFields
) -> None:
    delta = fields.offset_delta
    grows = np.empty(len(delta), np.bool_)
    grows[1:] = delta[1:] > delta[:-1]
    grows[bodies.first_record] = delta[bodies.first_record] >= 0
    _check(bodies, batch_of, grows, delta, "offset delta", "ascending ones")
    last = (table.last_offset - table.base_offset)[batch_of]
    _check(bodies, batch_of, delta <= last, delta, "offset delta", "at most last_offset_delta")


def stored_timestamps(parsed: ParsedBodies, table: BatchTable) -> Int64Array:
    """In ms since 1970, checked against the headers of their batches."""
    bodies, fields, batch_of, _ = parsed
    base_times, max_times = table.first_timestamp_ms[batch_of], table.max_timestamp_ms[batch_of]
    appended = table.timestamp_type[batch_of] == TimestampType.LOG_APPEND_TIME
    times = np.where(appended, max_times, base_times + fields.timestamp_delta)
    newer = times > max_times
    if newer.any():
        row = int(np.argmax(newer))
        raise corrupt(
            f"{bodies.describe(int(batch_of[row]))}",
            f"a record's timestamp {times[row]} > {max_times[row]}",
            "no timestamp above the batch's max_timestamp_ms",
        )
    return times


def _check(
    bodies: Bodies,
    batch_of: npt.NDArray[np.intp],
    holds: npt.NDArray[np.bool_],
    value: Int64Array,
    what: str,
    expected: str,
) -> None:
    if not holds.all():
        row = int(np.argmin(holds))
        raise _located(bodies, batch_of, BadRecordError(row, f"{what} {value[row]}", expected))


def _located(bodies: Bodies, batch_of: npt.NDArray[np.intp], error: BadRecordError) -> Exception:
    batch = int(batch_of[error.row])
    record = error.row - int(bodies.first_record[batch])
    return corrupt(f"{bodies.describe(batch)}, record {record}", error.found, error.expected)


def _headers(bodies: Bodies, fields: RecordFields, batch_of: npt.NDArray[np.intp]) -> pa.Array:
    try:
        return decode_headers(bodies.data, fields.header_count, fields.header_position, fields.end)
    except BadRecordError as error:
        raise _located(bodies, batch_of, error) from None
