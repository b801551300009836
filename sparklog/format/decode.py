"""Record batches to Arrow columns, without a loop over records.

Invariants: bytes are hostile: every count, length and position is checked before it is used, and memory is
    bounded by the size of the input and max_decompressed_bytes; the result owns its memory, so the buffer
    may be unmapped.
Not here: which byte ranges to read (log/reader.py).
Concurrency: pure functions.
Sources: FORMAT.md#record-batch, FORMAT.md#records; Kafka DefaultRecordBatch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import InvalidRequestError
from sparklog.format import kernels
from sparklog.format.batch_table import BatchTable, scan_batches, scan_valid_prefix
from sparklog.format.byte_views import Int64Array, cut_rows
from sparklog.format.codec import DEFAULT_MAX_DECOMPRESSED_BYTES, BytesLike, Codec, decompress
from sparklog.format.record_batch import HEADER, MAX_INT32, MAX_OFFSET, BatchHeader, corrupt
from sparklog.format.records import (
    MIN_RECORD_BYTES,
    Bodies,
    RecordFields,
    headers_column,
    parse_headers,
    parse_records,
)
from sparklog.format.schema import HEADERS_TYPE, TimestampType

# --- decoded records ---------------------------------------------------------------------------------
#
# Decoded records as columns.
#
# Invariants: columns have equal length, offsets ascend within a batch, and the columns own all of their
# memory.
# Concurrency: immutable values.
# Sources: Spark's Kafka source schema.


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRecords:
    """Records as columns, in the order of their batches.

    Args:
        offset: absolute. Gaps are legal.
        timestamp_type: TimestampType of each record, as Spark's int32.
        key, value: pa.binary(), nullable.
        headers: list<struct<key: string, value: binary>>, null where a record has none; None unless
            requested.
    """

    offset: Int64Array
    timestamp_ms: Int64Array
    timestamp_type: npt.NDArray[np.int32]
    key: pa.Array
    value: pa.Array
    headers: pa.Array | None

    @property
    def num_rows(self) -> int:
        return len(self.offset)

    def slice(self, start: int, end: int) -> "DecodedRecords":
        """Return rows start <= row < end, without a copy."""
        start, end, _ = slice(start, end).indices(self.num_rows)
        length = max(0, end - start)
        return DecodedRecords(
            offset=self.offset[start : start + length],
            timestamp_ms=self.timestamp_ms[start : start + length],
            timestamp_type=self.timestamp_type[start : start + length],
            key=self.key.slice(start, length),
            value=self.value.slice(start, length),
            headers=None if self.headers is None else self.headers.slice(start, length),
        )


def join_records(parts: Sequence[DecodedRecords], include_headers: bool) -> DecodedRecords:
    """Concatenate records; several parts are copied."""
    if not parts:
        return no_records(include_headers)
    if len(parts) == 1:
        return parts[0]
    if sum(part.value.nbytes + part.key.nbytes for part in parts) > MAX_INT32:
        raise read_too_large()
    return DecodedRecords(
        offset=np.concatenate([part.offset for part in parts]),
        timestamp_ms=np.concatenate([part.timestamp_ms for part in parts]),
        timestamp_type=np.concatenate([part.timestamp_type for part in parts]),
        key=pa.concat_arrays([part.key for part in parts]),
        value=pa.concat_arrays([part.value for part in parts]),
        headers=pa.concat_arrays([part.headers for part in parts]) if include_headers else None,
    )


def read_too_large() -> InvalidRequestError:
    """The error for more bytes than a binary column with 32-bit offsets can hold."""
    return InvalidRequestError(
        "READ_TOO_LARGE",
        f"one read: found more than {MAX_INT32} bytes of batches, expected at most that",
        fix="Read fewer batches per call",
    )


def no_records(include_headers: bool) -> DecodedRecords:
    """Return columns without rows."""
    none = np.zeros(0, np.int64)
    nothing = pa.array([], pa.binary())
    return DecodedRecords(
        offset=none,
        timestamp_ms=none,
        timestamp_type=np.zeros(0, np.int32),
        key=nothing,
        value=nothing,
        headers=pa.array([], HEADERS_TYPE) if include_headers else None,
    )


# --- decode ------------------------------------------------------------------------------------------


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
    """Decode the records of these batches with start_offset <= offset < end_offset, without control batches.

    Args:
        table: from scan_batches over `buf`.
        offset_delta: added to stored offsets; one number, or one per batch of the table.
        where: names the file in errors.
        position: of buf[0] in that file, for errors only.
        max_decompressed_bytes: limit for one batch.
        block_rows: the number of records up to which batches are decoded together.

    Raises:
        CorruptLogError: CORRUPT_BATCH, BATCH_TOO_LARGE.
        InvalidRequestError: READ_TOO_LARGE for more than 2 GiB uncompressed; decode fewer batches per call.
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
    """Check base offsets, which no CRC covers: they must be legal, and ascend if a range is to be cut out."""
    wrong = (deltas < 0) | (table.last_offset > MAX_OFFSET - deltas)
    if is_range and len(table) > 1:
        wrong[1:] |= table.base_offset[1:] + deltas[1:] <= table.last_offset[:-1] + deltas[:-1]
    if wrong.any():
        batch = int(np.argmax(wrong))
        raise corrupt(
            f"{where}{position + int(table.position[batch])}",
            f"offsets {table.base_offset[batch]} to {table.last_offset[batch]} + {deltas[batch]}",
            "legal ones, above those of the previous batch",
        )


def _blocks(table: BatchTable, block_rows: int) -> list[slice]:
    """Group consecutive batches to decode together, to bound the memory for intermediate columns."""
    rows = np.cumsum(table.record_count)
    bounds = [0]
    while bounds[-1] < len(table):
        done = int(rows[bounds[-1] - 1]) if bounds[-1] else 0
        bounds.append(max(int(np.searchsorted(rows, done + block_rows, side="right")), bounds[-1] + 1))
    return [slice(start, end) for start, end in pairwise(bounds)]


class ParsedBodies(NamedTuple):
    """The records of some batches, as checked positions in their uncompressed bodies."""

    bodies: Bodies
    fields: RecordFields
    batch_of: npt.NDArray[np.intp]
    header_spans: Int64Array | None  # from records.parse_headers; None if no record has headers


def parse_bodies(
    buf: BytesLike,
    table: BatchTable,
    *,
    where: str,
    position: int = 0,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> ParsedBodies:
    """Find and check all records of these batches, except their timestamps against the batches'."""
    bodies = _bodies(buf, table, where, position, max_decompressed_bytes)
    fields = parse_records(bodies, table.last_offset - table.base_offset)
    batch_of = np.repeat(np.arange(len(table)), bodies.record_count)
    spans = parse_headers(bodies, fields) if fields.header_count.any() else None
    return ParsedBodies(bodies, fields, batch_of, spans)


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
    """Decode all records of these batches, control batches included."""
    if len(table) == 0:
        return no_records(include_headers)
    parsed = parse_bodies(
        buf,
        table,
        where=where,
        position=position,
        max_decompressed_bytes=max_decompressed_bytes,
    )
    bodies, fields, batch_of, spans = parsed
    timestamp_ms = stored_timestamps(parsed, table)
    deltas = offset_delta if isinstance(offset_delta, int) else offset_delta[batch_of]
    return DecodedRecords(
        offset=table.base_offset[batch_of] + fields.offset_delta + deltas,
        timestamp_ms=timestamp_ms,
        timestamp_type=table.timestamp_type.astype(np.int32)[batch_of],
        key=cut_rows(bodies.data, fields.key_position, fields.key_length),
        value=cut_rows(bodies.data, fields.value_position, fields.value_length),
        headers=_headers(bodies, fields, spans) if include_headers else None,
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


def stored_timestamps(parsed: ParsedBodies, table: BatchTable) -> Int64Array:
    """Return the times in ms since 1970, checked against the headers of their batches."""
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


def _headers(bodies: Bodies, fields: RecordFields, spans: Int64Array | None) -> pa.Array:
    if spans is None:
        return pa.nulls(len(fields.end), HEADERS_TYPE)
    return headers_column(bodies.data, fields.header_count, spans)


# --- record times ------------------------------------------------------------------------------------
#
# Offsets and timestamps of one batch's records, without their keys and values.
#
# A time lookup reads a whole batch for one record. The columns of keys and values, and the positions of all
# fields, took most of its time.
# Invariants: the result is that of decode_records for the same batch, errors included.
# Memory: 25 bytes a record; where compaction has removed some, some 90.
# Concurrency: pure functions.
# Sources: FORMAT.md#records; benchmarks/README.md (Requests for what was made before).


Times = tuple[Int64Array, Int64Array]


def record_times(
    batch: BytesLike,
    header: BatchHeader,
    *,
    where: str,
    position: int = 0,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Times:
    """Return stored offsets, and timestamps in ms since 1970, of the records of one batch.

    Args:
        header: that of `batch`.
        where, position, max_decompressed_bytes: as decode_records.

    Raises:
        CorruptLogError: CORRUPT_BATCH, BATCH_TOO_LARGE.
    """
    table = scan_batches(batch, where=where, position=position)
    if not header.record_count:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if header.record_count == header.last_offset_delta + 1:
        found = _times_of_whole(batch, header, f"{where}@{position}", max_decompressed_bytes)
        if found is not None:
            return found
    parsed = parse_bodies(
        batch, table, where=where, position=position, max_decompressed_bytes=max_decompressed_bytes
    )
    return header.base_offset + parsed.fields.offset_delta, stored_timestamps(parsed, table)


def _times_of_whole(batch: BytesLike, header: BatchHeader, where: str, max_bytes: int) -> Times | None:
    """Return None for a damaged batch; the caller raises the error."""
    packed = memoryview(batch).cast("B")[HEADER.size : header.size]
    body = decompress(header.codec, packed, max_bytes=max_bytes, where=where)
    count = header.record_count
    if count * MIN_RECORD_BYTES > len(body):  # a false claim: allocate nothing for it
        return None
    right, stopped, deltas, _ = kernels.inspect_records(np.frombuffer(body, np.uint8), count)
    if right < count or stopped < len(body):
        return None
    times = deltas + header.first_timestamp_ms
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        times[:] = header.max_timestamp_ms
    if np.any(times > header.max_timestamp_ms):
        return None
    return header.base_offset + np.arange(count), times
