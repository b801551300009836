"""The records of one small batch, by a plain loop.

NumPy takes a third of a millisecond to parse any batch (decode.parse_bodies), and this loop some two
microseconds a record: a broker that gets a thousand requests of a few records each wants the loop. It also
words what is wrong with a record that another way has found (record_inspection.py).

Invariants: it accepts exactly what parse_bodies accepts for a batch whose offsets are dense (a property
    test compares them); nothing is read outside the body.
Not here: when to use it (record_inspection.py).
Concurrency: a pure function.
Sources: FORMAT.md#records; Kafka DefaultRecord.readFrom.
"""

from sparklog.format.record_fields import BadRecordError

_VARINT_BYTES = 5
_VARLONG_BYTES = 10


class _TooLongError(Exception):
    """A varint of too many bytes."""


def walk_records(
    body: bytes | memoryview, count: int, *, row: int = 0, at: int = 0
) -> tuple[list[int], list[int]]:
    """Check all records of an uncompressed body whose offset deltas are 0, 1, 2, ...

    Args:
        row, at: begin with this record, which is there.
    Returns: the timestamp deltas, and the indices of the records without a key.
    Raises: BadRecordError.
    """
    deltas: list[int] = []
    keyless: list[int] = []
    first, row = row, max(0, row - 1)
    try:
        for row in range(first, count):
            at, delta, has_key = _walk_one(body, at, row)
            deltas.append(delta)
            if not has_key:
                keyless.append(row)
    except IndexError:
        raise BadRecordError(row, "a record that is cut off", f"{count} whole records") from None
    except _TooLongError:
        raise BadRecordError(row, "a varint of too many bytes", "a varint") from None
    if at != len(body):
        raise BadRecordError(row, f"{len(body) - at} bytes behind the last of {count} records", "none")
    return deltas, keyless


def _walk_one(body: bytes | memoryview, at: int, row: int) -> tuple[int, int, bool]:
    # The one-byte case of each varint is written out: it is nearly every case.
    byte = body[at]
    at += 1
    length = (byte >> 1) ^ -(byte & 1)
    if byte >= 0x80:
        length, at = _varint(body, at - 1)
    end = at + length
    if length < 0 or end > len(body):
        raise BadRecordError(row, f"length {length}", "one that fits into its batch")
    if body[at] != 0:
        raise BadRecordError(row, f"attributes {body[at]}", "0")
    at += 1
    byte = body[at]
    at += 1
    timestamp_delta = (byte >> 1) ^ -(byte & 1)
    if byte >= 0x80:
        timestamp_delta, at = _varint(body, at - 1, _VARLONG_BYTES)
    byte = body[at]
    at += 1
    offset_delta = (byte >> 1) ^ -(byte & 1)
    if byte >= 0x80:
        offset_delta, at = _varint(body, at - 1)
    if offset_delta != row:
        raise BadRecordError(row, f"offset delta {offset_delta}", str(row))
    key_length, at = _sized(body, at, end, row, "key")
    _, at = _sized(body, at, end, row, "value")
    if at >= end:
        raise BadRecordError(row, "no header count", "one within the record")
    if body[at] == 0:
        at += 1
    else:
        at = _walk_headers(body, at, end, row)
    if at != end:
        raise BadRecordError(row, f"{end - at} bytes behind the last field of the record", "none")
    return at, timestamp_delta, key_length >= 0


def _sized(
    body: bytes | memoryview, at: int, end: int, row: int, what: str, lowest: int = -1
) -> tuple[int, int]:
    """The length of bytes that are led by it, and the position behind them."""
    byte = body[at]
    at += 1
    length = (byte >> 1) ^ -(byte & 1)
    if byte >= 0x80:
        length, at = _varint(body, at - 1)
    if not lowest <= length <= end - at:
        raise BadRecordError(row, f"{what} length {length}", "one that fits into its record")
    return length, (at + length if length > 0 else at)


def _walk_headers(body: bytes | memoryview, at: int, end: int, row: int) -> int:
    count, at = _varint(body, at)
    if not 0 <= 2 * count <= end - at:
        raise BadRecordError(row, f"header count {count}", "one that fits into its record")
    for _ in range(count):
        _, at = _sized(body, at, end, row, "header key", 0)
        _, at = _sized(body, at, end, row, "header value")
    return at


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
