"""Arrow binary columns as NumPy arrays, and columns of bytes as Arrow binary views: 16 bytes a row, over any
number of buffers.

Selecting rows and concatenating columns move only views; the bytes are copied once, when rows are laid out.

    view = size u32 | first 4 bytes, or nothing | buffer u32 | position u32      more than 12 bytes
    view = size u32 | up to 12 bytes                                             12 bytes or fewer

Invariants: of sliced arrays (offset != 0) only the slice is visible; a null has size 0; positions stay below
    2^31; the arrays are never changed.
Not here: casting other types to binary (schema.py).
Concurrency: immutable. A column keeps all of its buffers alive, also those that no row refers to.
Sources: the Arrow columnar format, variable-size binary and binary view layouts.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.format import kernels

BoolArray = npt.NDArray[np.bool_]
UInt8Array = npt.NDArray[np.uint8]
UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

INLINE_BYTES = 12
LOW32 = np.uint64(0xFFFFFFFF)
_EMPTY = np.zeros(0, np.uint8)


class BinaryColumn(NamedTuple):
    """The buffers of a binary array, restricted to its slice; the length of a null is 0."""

    start: Int32Array
    length: Int32Array
    data: UInt8Array
    is_null: npt.NDArray[np.bool_] | None  # None if there are no nulls


def binary_column(array: pa.Array) -> BinaryColumn:
    """View a binary or string array as NumPy arrays."""
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
    """Return a mask of nulls, or None if there are none. For arrays with a validity buffer (not a union)."""
    if array.null_count == 0:
        return None
    # Not is_null().to_numpy(), which would import pandas: 0.3 s, in the middle of an append.
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    first, skipped = divmod(array.offset, 8)
    is_there = np.unpackbits(bits[first:], count=skipped + len(array), bitorder="little")[skipped:]
    mask: npt.NDArray[np.bool_] = is_there == 0
    return mask


def cut_rows(data: UInt8Array, position: Int64Array, length: Int64Array) -> pa.Array:
    """Return the binary array of data[position : position + length]; a negative length is null. One copy."""
    if (length < 0).all():
        return pa.nulls(len(length), pa.binary())
    return kernels.cut(data, position, length)


class ByteViews(NamedTuple):
    """A column of bytes."""

    views: UInt64Array  # (rows, 2)
    buffers: tuple[UInt8Array, ...]
    is_null: BoolArray | None  # None if there are no nulls

    @classmethod
    def of(cls, array: pa.Array) -> Self:
        """Return the views of a binary array; copies only the bytes of short values."""
        column = binary_column(array)
        return cls(kernels.views(column.data, column.start, column.length), (column.data,), column.is_null)

    @classmethod
    def cut(cls, data: UInt8Array, bounds: Int32Array) -> Self:
        """Return consecutive rows of a buffer, row i from bounds[i] to bounds[i + 1]."""
        return cls(kernels.views(data, bounds[:-1], np.diff(bounds)), (data,), None)

    @classmethod
    def at(cls, data: UInt8Array, position: Int64Array, length: Int64Array) -> Self:
        """Return the rows data[position : position + length]; a negative length is null."""
        is_null = length < 0
        has_nulls = bool(is_null.any())
        size = np.maximum(length, 0) if has_nulls else length
        views = kernels.views(data, position.astype(np.int32), size.astype(np.int32))
        return cls(views, (data,), is_null if has_nulls else None)

    @classmethod
    def nulls(cls, rows: int) -> Self:
        """Return a column of nulls."""
        return cls(np.zeros((rows, 2), np.uint64), (), np.ones(rows, np.bool_))

    @classmethod
    def concat(cls, columns: Sequence["ByteViews"]) -> "ByteViews":
        """Concatenate columns."""
        if len(columns) == 1:
            return columns[0]
        views = np.concatenate([column.views for column in columns])
        buffers: list[UInt8Array] = []
        start = 0
        for column in columns:
            end = start + column.rows
            if buffers and column.buffers:
                part = views[start:end]
                part[:, 1] += is_long(part) * np.uint64(len(buffers))
            buffers += column.buffers
            start = end
        is_null = None
        if any(column.is_null is not None for column in columns):
            is_null = np.concatenate(
                [np.zeros(one.rows, np.bool_) if one.is_null is None else one.is_null for one in columns]
            )
        return cls(views, tuple(buffers), is_null)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.views)

    @property
    def length(self) -> npt.NDArray[np.int64]:
        """The bytes of each row; 0 for a null."""
        return (self.views[:, 0] & LOW32).view(np.int64)

    def all_null(self) -> bool:
        """True if every row is null."""
        return self.is_null is not None and bool(self.is_null.all())

    def slice(self, start: int, end: int) -> "ByteViews":
        """Return consecutive rows."""
        is_null = None if self.is_null is None else self.is_null[start:end]
        return ByteViews(self.views[start:end], self.buffers, is_null)

    def take(self, rows: npt.NDArray[np.int64]) -> "ByteViews":
        """Return the rows of these indices, without copying bytes."""
        is_null = None if self.is_null is None else self.is_null[rows]
        return ByteViews(as_pairs(as_wide(self.views)[rows]), self.buffers, is_null)


def is_long(views: UInt64Array) -> BoolArray:
    """Return a mask of the views that point into a buffer."""
    return (views[:, 0] & LOW32) > INLINE_BYTES


# NumPy moves elements of 16 bytes at a time where it would loop over pairs of words: selecting rows takes 1.1
# instead of 2.5 ns a row. These numbers are never used in arithmetic.


def as_wide(views: UInt64Array) -> npt.NDArray[np.complex128]:
    """(..., 2) words as 16-byte elements, for moving only."""
    return views.view(np.complex128)[..., 0]


def as_pairs(wide: npt.NDArray[np.complex128]) -> UInt64Array:
    """The inverse of `as_wide`."""
    return wide.view(np.uint64).reshape(*wide.shape, 2)
