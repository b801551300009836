"""The records of one produced batch: is each as a producer must make it, and what is to be known of it.

Three ways, which accept the same bodies and refuse the same records (tests/property): a plain loop for a few
records, the compiled one (kernels.py), and NumPy over slices of records where nothing is compiled.
Whoever sends a batch decides how many records it claims, and how late one of them is wrong. So the work ends
at the first wrong one, and memory goes by the record, not by NumPy's intermediate columns: a million records
cost 9 MB.

Invariants: the plain loop words all errors, from the wrong record on; nothing outside the body is read.
Not here: decompressing, and bounds on size and count (produced.py).
Concurrency: pure functions.
Sources: FORMAT.md#records; Kafka LogValidator.
"""

from itertools import repeat
from struct import error as StructError  # noqa: N812 - a class, whatever its name

import numpy as np
import numpy.typing as npt

from sparklog.errors import CorruptLogError
from sparklog.format import kernels
from sparklog.format.arrow_bytes import Int64Array, UInt8Array, Words
from sparklog.format.codec import BytesLike
from sparklog.format.record_fields import BadRecordError, parse_fields
from sparklog.format.record_headers import decode_headers
from sparklog.format.record_starts import HOP_LIST, HOP_PAIR
from sparklog.format.record_walk import walk_records
from sparklog.format.varint import read_varint

# Up to so many records a plain loop beats a call of NumPy's (0.3 ms for any batch, 1.5 us a record), or of
# the compiled loop (10 us).
WALK_RECORDS, WALK_RECORDS_COMPILED = 128, 6
WALK_BYTES = 16 << 10  # headers are walked one by one, and there may be many in a record
SLICE_RECORDS, _SLICE_BYTES = 8192, 1 << 20
Found = tuple[list[int] | Int64Array, list[int] | npt.NDArray[np.intp]]


def inspect_body(body: BytesLike, count: int) -> Found:
    """The timestamp deltas of all records, and the indices of those without a key.

    Raises: BadRecordError for the first record that is wrong.
    """
    compiled = kernels.are_loaded()
    if count <= (WALK_RECORDS_COMPILED if compiled else WALK_RECORDS) and len(body) <= WALK_BYTES:
        return walk_records(bytes(body), count)
    data = np.frombuffer(body, np.uint8)
    return _inspect_compiled(data, count) if compiled else inspect_slices(data, count)


def _inspect_compiled(data: UInt8Array, count: int) -> Found:
    right, stopped, deltas, keyless = kernels.inspect_records(data, count)
    if right < count or stopped < len(data):
        raise _what_is_wrong(data, count, right, stopped)
    return deltas, np.flatnonzero(keyless)


def inspect_slices(data: UInt8Array, count: int) -> Found:
    """The pure twin of the compiled loop: some thousand records at a time."""
    words = Words(data)
    deltas, keyless = np.empty(count, np.int64), np.zeros(count, np.bool_)
    row = at = 0
    while row < count:
        found = _inspect_slice(data, words, row, at, min(SLICE_RECORDS, count - row))
        if found is None:
            raise _what_is_wrong(data, count, row, at)
        slice_deltas, has_no_key, at = found
        end = row + len(slice_deltas)
        deltas[row:end], keyless[row:end] = slice_deltas, has_no_key
        row = end
    if at != len(data):
        raise _what_is_wrong(data, count, row, at)
    return deltas, np.flatnonzero(keyless)


def _inspect_slice(
    data: UInt8Array, words: Words, row: int, at: int, rows: int
) -> tuple[Int64Array, npt.NDArray[np.bool_], int] | None:
    """Of at most `rows` records from `at` on: deltas, which have no key, and where the next one starts.

    None: one of them is wrong.
    """
    try:
        starts, following = _starts(data.data, at, rows)
        fields = parse_fields(words, starts, len(data))
        is_right = (fields.end[:-1] == starts[1:]).all() and fields.end[-1] == following
        if not is_right or (fields.offset_delta != np.arange(row, row + len(starts))).any():
            return None
        if fields.header_count.any():
            decode_headers(data, fields.header_count, fields.header_position, fields.end)
    except (BadRecordError, CorruptLogError, IndexError, StructError):  # or a length led out of the body
        return None
    return fields.timestamp_delta, fields.key_length < 0, following


def _starts(body: memoryview, at: int, rows: int) -> tuple[Int64Array, int]:
    hops, pair = HOP_LIST, HOP_PAIR
    starts: list[int] = []
    stop = min(len(body), at + _SLICE_BYTES)
    for _ in repeat(None, rows):
        starts.append(at)
        size = hops[pair(body, at)[0]]
        if not size:
            length, width = read_varint(bytes(body[at : at + 5]), 0)
            if length < 0:
                raise IndexError
            size = width + length
        at += size
        if at >= stop:
            break
    return np.array(starts, np.int64), at


def _what_is_wrong(data: UInt8Array, count: int, row: int, at: int) -> Exception:
    try:
        walk_records(data.data, count, row=row, at=at)
    except BadRecordError as error:
        return error.with_traceback(None)
    return RuntimeError(f"record {row} at {at} was refused, and nothing is wrong with it")
