"""The headers of many records at once.

Invariants: headers keep their order, duplicate keys included; every header section is consumed to its last
    byte.
Not here: other fields (record_fields.py).
Concurrency: pure functions.
Sources: FORMAT.md#records; Kafka DefaultRecord.readHeaders.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.format.arrow_bytes import Int64Array, UInt8Array, Words, cut_rows
from sparklog.format.record_fields import BadRecordError, FieldCursor, require
from sparklog.format.schema import HEADERS_TYPE
from sparklog.format.varint import read_varint

_FEW_ROWS = 32  # fewer rows that still have headers are read by a Python loop over their headers


class _Spans(NamedTuple):
    key_position: Int64Array
    key_length: Int64Array
    value_position: Int64Array
    value_length: Int64Array


def decode_headers(data: UInt8Array, count: Int64Array, position: Int64Array, end: Int64Array) -> pa.Array:
    """The headers of every record as list<struct<key, value>>, null where a record has none.

    Args:
        count, position, end: of each record's headers, as parsed; 2 * count <= end - position holds.
    Raises: BadRecordError.
    """
    spans = _parse(data, Words(data), count, position, end)
    keys = cut_rows(data, spans.key_position, spans.key_length)
    values = cut_rows(data, spans.value_position, spans.value_length)
    entries = pa.StructArray.from_arrays([_as_strings(keys), values], fields=list(HEADERS_TYPE.value_type))
    offsets = np.zeros(len(count) + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    mask = pa.array(count == 0)
    return pa.ListArray.from_arrays(pa.array(offsets), entries, type=HEADERS_TYPE, mask=mask)


def _parse(
    data: UInt8Array, words: Words, count: Int64Array, position: Int64Array, end: Int64Array
) -> _Spans:
    total = int(count.sum())
    spans = _Spans(*(np.empty(total, np.int64) for _ in range(4)))
    target = np.cumsum(count) - count
    rows = np.flatnonzero(count)
    at = position[rows]
    step = 0
    while len(rows) >= _FEW_ROWS:
        cursor = FieldCursor(words, at, len(data))
        try:
            lengths_and_positions = (
                *cursor.sized(end[rows], "header key", 0),
                *cursor.sized(end[rows], "header value"),
            )
        except BadRecordError as error:
            raise BadRecordError(int(rows[error.row]), error.found, error.expected) from None
        for span, column in zip(spans, _reordered(lengths_and_positions), strict=True):
            span[target[rows] + step] = column
        at = cursor.position
        step += 1
        done = count[rows] == step
        if done.any():
            _check_ends(rows[done], at[done], end)
            rows, at = rows[~done], at[~done]
    for row, start in zip(rows.tolist(), at.tolist(), strict=True):
        _parse_one(
            data,
            spans,
            row,
            start,
            int(end[row]),
            range(int(target[row]) + step, int(target[row] + count[row])),
        )
    return spans


def _reordered(sized: tuple[Int64Array, Int64Array, Int64Array, Int64Array]) -> _Spans:
    key_length, key_position, value_length, value_position = sized
    return _Spans(key_position, key_length, value_position, value_length)


def _check_ends(rows: Int64Array, at: Int64Array, end: Int64Array) -> None:
    try:
        require(at == end[rows], "bytes behind the last header of the record", end[rows] - at)
    except BadRecordError as error:
        raise BadRecordError(int(rows[error.row]), error.found, error.expected) from None


def _parse_one(data: UInt8Array, spans: _Spans, row: int, start: int, end: int, targets: range) -> None:
    section = data[start:end].tobytes()
    at = 0
    for target in targets:
        for what, lowest, positions, lengths in (
            ("header key", 0, spans.key_position, spans.key_length),
            ("header value", -1, spans.value_position, spans.value_length),
        ):
            length, at = read_varint(section, at)
            if not lowest <= length <= len(section) - at:
                raise BadRecordError(row, f"{what} length {length}", "one that fits into its record")
            positions[target], lengths[target] = start + at, length
            at += max(length, 0)
    if at != len(section):
        raise BadRecordError(row, f"{len(section) - at} bytes behind the last header of the record", "none")


def _as_strings(keys: pa.Array) -> pa.Array:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8: replaced, as the Java client does; rare enough for a loop
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
