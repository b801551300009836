"""Arrow binary columns as NumPy arrays, binary views of their bytes, and rows cut out by Arrow itself.

The trick of this module: an Arrow *binary view* is 16 bytes, (size, bytes) for up to 12 bytes and (size, 4
bytes, buffer, position) for more. NumPy builds such views for a whole column at once, and Arrow's cast from
binary view to binary is then one tight loop of memcpy. So encoding is a cast of interleaved views (prefix,
key, middle, value, ...: byte_views.py), and decoding is a cast of views that point into the batch.

Invariants: sliced arrays (offset != 0) are seen as their slice only; positions stay below 2^31.
Not here: casting other types to binary (schema.py).
Concurrency: pure functions; views keep their arrays alive.
Sources: the Arrow columnar format, variable-size binary and binary view layouts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.format import kernels
from sparklog.format.varint import Bytes8, add_sizes, append_bytes

UInt8Array = npt.NDArray[np.uint8]
UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

INLINE_BYTES = 12
_U = np.uint64
_32 = np.uint64(32)
LOW32 = np.uint64(0xFFFFFFFF)
_EMPTY = np.zeros(0, np.uint8)
_LITTLE_U64 = np.dtype("<u8")


class BinaryColumn(NamedTuple):
    """The buffers of a binary array, of its slice only; the length of a null is 0."""

    start: Int32Array
    length: Int32Array
    data: UInt8Array
    is_null: npt.NDArray[np.bool_] | None  # None when nothing is


class Inline(NamedTuple):
    """Up to 12 bytes for every row: 8 in `low`, the rest in `high` (None = at most 8)."""

    low: UInt64Array
    high: UInt64Array | None
    size: UInt64Array | int


def binary_column(array: pa.Array) -> BinaryColumn:
    """See a binary or string array as NumPy arrays."""
    _, offsets_buffer, data_buffer = array.buffers()
    count = len(array)
    if count == 0 or offsets_buffer is None:
        empty = np.zeros(count, np.int32)
        return BinaryColumn(empty, empty, _EMPTY, null_mask(array))
    offsets = np.frombuffer(offsets_buffer, np.int32)[array.offset : array.offset + count + 1]
    data = _EMPTY if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    length = offsets[1:] - offsets[:-1]
    is_null = null_mask(array)
    if is_null is not None:
        length[is_null] = 0
    return BinaryColumn(offsets[:-1], length, data, is_null)


def null_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """True where null; None when nothing is. Of an array that has a validity of its own (not a union)."""
    if array.null_count == 0:
        return None
    # Not is_null().to_numpy(), which would import pandas, 0.3 s in the middle of somebody's append.
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    first, skipped = divmod(array.offset, 8)
    is_there = np.unpackbits(bits[first:], count=skipped + len(array), bitorder="little")[skipped:]
    mask: npt.NDArray[np.bool_] = is_there == 0
    return mask


class Words:
    """8 bytes at any position of a byte array, for many positions at once; zeros follow the end."""

    def __init__(self, data: UInt8Array) -> None:
        size = len(data)
        self._size = size
        # An overlapping view: element i is the word that starts at byte i.
        self._words = (
            np.ndarray((size - 7,), _LITTLE_U64, data, strides=(1,)) if size >= 8 else np.zeros(0, np.uint64)
        )
        self._tail_start = max(0, size - 16)
        tail = np.zeros(size - self._tail_start + 24, np.uint8)
        tail[: size - self._tail_start] = data[self._tail_start :]
        self._tail = np.ndarray((len(tail) - 7,), _LITTLE_U64, tail, strides=(1,))

    def at(self, position: Int64Array) -> UInt64Array:
        """The words at these positions, 0 <= position <= size + 8."""
        last = self._size - 8
        if int(position.max(initial=0)) <= last:
            return self._words[position]
        in_tail = position > last
        words = np.empty(len(position), np.uint64)
        words[~in_tail] = self._words[position[~in_tail]]
        words[in_tail] = self._tail[position[in_tail] - self._tail_start]
        return words


def inline_views(column: Inline) -> tuple[UInt64Array, UInt64Array]:
    """Both halves of the binary views of short bytes; what follows `size` bytes is not read."""
    size = _U(column.size) if isinstance(column.size, int) else column.size
    second = column.low >> _32
    if column.high is not None:
        second |= column.high << _32
    return (column.low << _32) | size, second


def data_views(
    words: Words, position: Int64Array, length: Int64Array, buffer: int
) -> tuple[UInt64Array, UInt64Array]:
    """Both halves of the binary views of data[position : position + length] in the given buffer."""
    first = length.astype(np.uint64)
    second = (position.astype(np.uint64) << _32) | _U(buffer)
    if len(length) == 0 or int(length.min()) > INLINE_BYTES:
        return first, second
    longest = int(length.max())
    if longest <= INLINE_BYTES:
        low = words.at(position)
        high = words.at(position + 8) if longest > 8 else None
        return inline_views(Inline(low, high, first))
    rows = np.flatnonzero(length <= INLINE_BYTES)
    at = position[rows].astype(np.int64)
    first[rows], second[rows] = inline_views(Inline(words.at(at), words.at(at + 8), first[rows]))
    return first, second


def cut_rows(data: UInt8Array, position: Int64Array, length: Int64Array) -> pa.Array:
    """The binary array of data[position : position + length], null where the length is negative; one copy."""
    is_null = length < 0
    if is_null.all():
        return pa.nulls(len(length), pa.binary())
    if kernels.are_loaded():
        return kernels.cut(data, position, length)
    validity = pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
    views = np.empty((len(length), 2), np.uint64)
    views[:, 0], views[:, 1] = data_views(Words(data), position, np.maximum(length, 0), 0)
    return pa.Array.from_buffers(
        pa.binary_view(), len(length), [validity, pa.py_buffer(views), pa.py_buffer(data)]
    ).cast(pa.binary())


def pack_inline(components: Sequence[Bytes8], most: int = INLINE_BYTES) -> list[Inline]:
    """Merge neighbouring short components into as few columns of at most 12 bytes as is simple."""
    words: list[Bytes8] = []
    for component in components:
        if words and words[-1].max_size + component.max_size <= 8:
            words[-1] = append_bytes(words[-1], component)
        else:
            words.append(component)
    columns: list[Inline] = []
    at = 0
    while at < len(words):
        first = words[at]
        if at + 1 < len(words) and first.max_size <= 7 and first.max_size + words[at + 1].max_size <= most:
            second = words[at + 1]
            shift = _U(8 * first.size) if isinstance(first.size, int) else first.size << _U(3)
            # Shifting by 64 is undefined, hence in two steps: a first of 0 bytes moves nothing into `high`.
            high = (second.word >> _U(1)) >> (_U(63) - shift)
            size = add_sizes(first.size, second.size)
            columns.append(Inline(first.word | (second.word << shift), high, size))
            at += 2
        else:
            columns.append(Inline(first.word, None, first.size))
            at += 1
    return columns
