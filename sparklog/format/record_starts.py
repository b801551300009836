"""Where each record of many batch bodies starts.

A record's length is its first field, so finding the starts of a body is a chain that cannot be cut in
pieces. C does that best (kernels.py); where nothing is compiled, it is the one place where Python may loop
over records. `guess_starts` avoids or shortens that loop:

1. records of one length: an arithmetic series, if the size of the body fits;
2. many batches: all bodies walked in lockstep, one NumPy step for the k-th record of every batch;
3. otherwise a loop of two table look-ups, about 70 ns per record, where decoding a 100-byte record takes some
   150 ns in all (benchmarks/bench_format.py shows the shares).

Invariants: guesses are used only after the caller has seen that every record ends where the next one is said
    to start, so the result is always that of `walk_starts`, whose errors are the authoritative ones.
Not here: the other fields of records (record_fields.py).
Concurrency: pure functions.
Sources: FORMAT.md#records; Kafka DefaultRecordBatch's iterators.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class, whatever its name

import numpy as np
import numpy.typing as npt

from sparklog.errors import CorruptLogError
from sparklog.format.arrow_bytes import Int64Array, UInt8Array
from sparklog.format.record_batch import corrupt
from sparklog.format.varint import read_varint

MIN_RECORD_BYTES = (
    7  # length, attributes, timestamp delta, offset delta, key length, value length, header count
)
_LOCKSTEP_BATCHES = 16  # fewer than that, and a step of NumPy costs more than the steps of the loop
_LOCKSTEP_WASTE = 4  # batches of very different record counts leave most of the table of steps empty
_UNIFORM_LIMIT = 8000  # longer records have a length of 3 bytes; there are few of them in a batch


@dataclass(frozen=True, slots=True)
class Bodies:
    """Uncompressed batch bodies within one byte array, in ascending order."""

    data: UInt8Array
    start: Int64Array
    end: Int64Array
    record_count: Int64Array
    describe: Callable[[int], str]  # where batch i is, for errors

    @property
    def first_record(self) -> Int64Array:
        """Index of each batch's first record among all records."""
        first: Int64Array = np.cumsum(self.record_count) - self.record_count
        return first


def check_counts(bodies: Bodies) -> None:
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


def walk_starts(bodies: Bodies) -> Int64Array:
    """The positions of all records, by the plain loop.

    Raises: CorruptLogError when a body does not consist of exactly its record_count records.
    """
    starts = np.empty(int(bodies.record_count.sum()), np.int64)
    for batch, begin in enumerate(bodies.first_record.tolist()):
        starts[begin : begin + int(bodies.record_count[batch])] = _walk(bodies, batch)
    return starts


def guess_starts(bodies: Bodies) -> Int64Array:
    """The positions of all records, to be verified; batches that are certainly wrong are walked, with its
    errors.
    """
    starts = np.empty(int(bodies.record_count.sum()), np.int64)
    first = bodies.first_record
    pending = _fill_uniform(bodies, first, starts)
    if len(pending) >= _LOCKSTEP_BATCHES:
        pending = _fill_lockstep(bodies, first, starts, pending)
    for batch in pending.tolist():
        begin, count = int(first[batch]), int(bodies.record_count[batch])
        found = _hop(bodies, batch)
        starts[begin : begin + count] = _walk(bodies, batch) if found is None else found
    return starts


def _hops() -> npt.NDArray[np.int64]:
    """For the first two bytes of a record: its whole size, or 0 if the length is negative or takes 3
    bytes.
    """
    pair = np.arange(1 << 16)
    low, high = pair & 0xFF, pair >> 8
    one = np.where((low < 0x80) & (low & 1 == 0), 1 + (low >> 1), 0)
    two = np.where((low >= 0x80) & (high < 0x80) & (low & 1 == 0), 2 + (((low & 0x7F) | (high << 7)) >> 1), 0)
    return (one + two).astype(np.int64)


_HOPS = _hops()
HOP_LIST: list[int] = _HOPS.tolist()
# The same for lengths that take 2 bytes: what the first and the second byte contribute.
_HOP_LOW = [2 + ((byte & 0x7F) >> 1) for byte in range(256)]
_HOP_HIGH = [byte << 6 for byte in range(256)]
HOP_PAIR = Struct("<H").unpack_from


def _fill_uniform(bodies: Bodies, first: Int64Array, starts: Int64Array) -> npt.NDArray[np.intp]:
    """Fill in the batches whose size fits records of the first one's length; return the others."""
    data, begin, count = bodies.data, bodies.start, bodies.record_count
    size = _sizes_at(data, begin)
    # The offset delta grows by a byte at record 64 and at record 8192, and with it the record.
    predicted = count * size + np.maximum(count - 64, 0) + np.maximum(count - 8192, 0)
    fits = (predicted == bodies.end - begin) & (size > 0) & (size < _UNIFORM_LIMIT)
    # Sizes may add up by chance: look at a few more records before believing it.
    for share in (2, 3, 5, 7):
        record = count // share
        at = begin + record * size + np.maximum(record - 64, 0) + np.maximum(record - 8192, 0)
        grown = size + (record >= 64) + (record >= 8192)
        fits &= _sizes_at(data, np.where(fits, at, begin)) == np.where(fits, grown, size)
    for batch in np.flatnonzero(fits).tolist():
        series = np.arange(int(count[batch]))
        guess = series * int(size[batch]) + int(begin[batch])
        guess[64:] += series[: max(0, len(series) - 64)]
        guess[8192:] += series[: max(0, len(series) - 8192)]
        starts[int(first[batch]) : int(first[batch]) + len(series)] = guess
    return np.flatnonzero(~fits)


def _sizes_at(data: UInt8Array, position: Int64Array) -> Int64Array:
    return _HOPS.take(data.take(position) | (data.take(position + 1).astype(np.intp) << 8))


def _fill_lockstep(
    bodies: Bodies, first: Int64Array, starts: Int64Array, pending: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Walk all pending batches at once; return those that did not end where their body does."""
    order = pending[np.argsort(-bodies.record_count[pending], kind="stable")]
    counts = bodies.record_count[order]
    steps = int(counts[0])
    if steps * len(order) > _LOCKSTEP_WASTE * int(counts.sum()):
        return pending
    pairs = np.ndarray((len(bodies.data) - 1,), np.dtype("<u2"), bodies.data, strides=(1,))
    active = np.searchsorted(
        -counts, -np.arange(steps), side="left"
    ).tolist()  # batches with more than k records
    table = np.empty((steps, len(order)), np.int64)
    position = bodies.start[order]
    ends = np.empty(len(order), np.int64)
    try:
        for step, width in enumerate(active):
            if width < len(position):
                ends[width : len(position)] = position[width:]
                position = position[:width]
            table[step, :width] = position
            position = position + _HOPS.take(pairs[position])
    except IndexError:  # a damaged length led out of the buffer
        return pending
    ends[: len(position)] = position
    is_whole = ends == bodies.end[order]
    for column in np.flatnonzero(is_whole).tolist():
        begin, count = int(first[order[column]]), int(counts[column])
        starts[begin : begin + count] = table[:count, column]
    rest: npt.NDArray[np.intp] = order[~is_whole]
    return rest


def _hop(bodies: Bodies, batch: int) -> Int64Array | None:
    """Loop over one body as if all lengths took one or two bytes; None if that does not lead to its end."""
    base, end = int(bodies.start[batch]), int(bodies.end[batch])
    body, count = bodies.data[base:end].tobytes(), int(bodies.record_count[batch])
    for loop in (_hop_two, _hop_any) if body[0] >= 0x80 else (_hop_any,):
        try:
            starts, stop = loop(body, count)
        except (IndexError, StructError):  # a wrong length led out of the body
            continue
        if stop == len(body):
            return np.array(starts, np.int64) + base
    return None


def _hop_two(body: bytes, count: int) -> tuple[list[int], int]:
    low, high, at = _HOP_LOW, _HOP_HIGH, 0
    starts: list[int] = []
    append = starts.append
    for _ in repeat(None, count):
        append(at)
        at += low[body[at]] + high[body[at + 1]]
    return starts, at


def _hop_any(body: bytes, count: int) -> tuple[list[int], int]:
    hops, pair, at = HOP_LIST, HOP_PAIR, 0
    starts: list[int] = []
    append = starts.append
    for _ in repeat(None, count):
        append(at)
        at += hops[pair(body, at)[0]]
    return starts, at


def _walk(bodies: Bodies, batch: int) -> list[int]:
    base, size = int(bodies.start[batch]), int(bodies.end[batch] - bodies.start[batch])
    body = bodies.data[base : base + size].tobytes()
    starts: list[int] = []
    at = 0
    for _ in range(int(bodies.record_count[batch])):
        starts.append(base + at)
        length, at = read_varint(body, at)
        if not 0 <= length <= size - at:
            raise _bad_length(bodies, batch, len(starts) - 1, f"length {length}", f"0 to {max(0, size - at)}")
        at += length
    if at != size:
        raise corrupt(
            bodies.describe(batch), f"{size - at} bytes behind the last of {len(starts)} records", "none"
        )
    return starts


def _bad_length(bodies: Bodies, batch: int, record: int, found: str, expected: str) -> CorruptLogError:
    return corrupt(f"{bodies.describe(batch)}, record {record}", found, expected)
