"""A column of bytes as Arrow binary views: 16 bytes a row, over any number of buffers.

Choosing rows, and putting columns one after the other, moves views only; the bytes themselves are copied
once, when rows are joined.

    view = size u32 | first 4 bytes, or nothing | buffer u32 | position u32      more than 12 bytes
    view = size u32 | up to 12 bytes                                             12 bytes or fewer

Invariants: a null has size 0; positions stay below 2^31; nobody changes the arrays.
Concurrency: immutable. A column keeps all of its buffers alive, also those that no row of it points to.
Sources: the Arrow columnar format, variable-size binary view layout.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.format import kernels
from sparklog.format.arrow_bytes import (
    INLINE_BYTES,
    LOW32,
    Inline,
    Int32Array,
    Int64Array,
    UInt8Array,
    UInt64Array,
    Words,
    binary_column,
    data_views,
    inline_views,
)

_EMPTY = np.zeros(0, np.uint8)
BoolArray = npt.NDArray[np.bool_]


class ByteViews(NamedTuple):
    """See the module's docstring."""

    views: UInt64Array  # (rows, 2)
    buffers: tuple[UInt8Array, ...]
    is_null: BoolArray | None  # None when nothing is

    @classmethod
    def of(cls, array: pa.Array) -> Self:
        """The views of a binary array; no bytes are copied but those of short values."""
        column = binary_column(array)
        return cls(_views(column.data, column.start, column.length), (column.data,), column.is_null)

    @classmethod
    def cut(cls, data: UInt8Array, bounds: Int32Array) -> Self:
        """Consecutive rows of a buffer, row i from bounds[i] to bounds[i + 1]."""
        return cls(_views(data, bounds[:-1], np.diff(bounds)), (data,), None)

    @classmethod
    def at(cls, data: UInt8Array, position: Int64Array, length: Int64Array) -> Self:
        """The rows data[position : position + length], null where the length is negative."""
        is_null = length < 0
        has_nulls = bool(is_null.any())
        size = np.maximum(length, 0) if has_nulls else length
        views = _views(data, position.astype(np.int32), size.astype(np.int32))
        return cls(views, (data,), is_null if has_nulls else None)

    @classmethod
    def nulls(cls, rows: int) -> Self:
        """Nothing but nulls."""
        return cls(np.zeros((rows, 2), np.uint64), (), np.ones(rows, np.bool_))

    @classmethod
    def concat(cls, columns: Sequence["ByteViews"]) -> "ByteViews":
        """The columns one after the other."""
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
        """How many."""
        return len(self.views)

    @property
    def length(self) -> npt.NDArray[np.int64]:
        """Bytes of each row; 0 for a null."""
        return (self.views[:, 0] & LOW32).view(np.int64)

    def all_null(self) -> bool:
        """Is there no value at all?"""
        return self.is_null is not None and bool(self.is_null.all())

    def slice(self, start: int, end: int) -> "ByteViews":
        """Some consecutive rows."""
        is_null = None if self.is_null is None else self.is_null[start:end]
        return ByteViews(self.views[start:end], self.buffers, is_null)

    def take(self, rows: npt.NDArray[np.int64]) -> "ByteViews":
        """Chosen rows; the bytes stay where they are."""
        is_null = None if self.is_null is None else self.is_null[rows]
        return ByteViews(as_pairs(as_wide(self.views)[rows]), self.buffers, is_null)


def _views(data: UInt8Array, start: Int32Array, length: Int32Array) -> UInt64Array:
    if kernels.are_loaded():
        return kernels.views(data, start, length)
    views = np.empty((len(start), 2), np.uint64)
    views[:, 0], views[:, 1] = data_views(Words(data), start.astype(np.int64), length.astype(np.int64), 0)
    return views


def join_rows(
    columns: Sequence[Inline | ByteViews], count: int, closing: bytes = b""
) -> tuple[UInt8Array, Int32Array]:
    """Lay rows out one after the other, each the concatenation of its columns, and `closing` at the end.

    Returns: the bytes, and where each row starts and the last one ends (count + 1 positions).
    Shape: fewer than 2^31 bytes; the caller sees to it.  Cost: one memcpy per column and row, in Arrow.
    """
    width = len(columns)
    views = np.empty((count * width + 1, 2), np.uint64)
    cells = views[:-1].reshape(count, width, 2)
    assert len(closing) <= 4
    views[-1] = (int.from_bytes(closing, "little") << 32) | len(closing), 0
    buffers: list[pa.Buffer] = []
    wide = as_wide(cells)
    for at, column in enumerate(columns):
        if isinstance(column, Inline):
            cells[:, at, 0], cells[:, at, 1] = inline_views(column)
        else:
            wide[:, at] = as_wide(column.views)
            if buffers:
                cells[:, at, 1] += is_long(column.views) * np.uint64(len(buffers))
            buffers += [pa.py_buffer(data) for data in column.buffers]
    joined = pa.Array.from_buffers(pa.binary_view(), len(views), [None, pa.py_buffer(views), *buffers]).cast(
        pa.binary()
    )
    _, offsets, data = joined.buffers()
    starts = np.frombuffer(offsets, np.int32)[::width][: count + 1] if width else np.zeros(1, np.int32)
    return (_EMPTY if data is None else np.frombuffer(data, np.uint8)), starts


def is_long(views: UInt64Array) -> BoolArray:
    """Which views point into a buffer."""
    return (views[:, 0] & LOW32) > INLINE_BYTES


# NumPy moves elements of 16 bytes in one go where it would loop over pairs of words: choosing rows takes 1.1
# instead of 2.5 ns a row. Nothing ever computes with these numbers.


def as_wide(views: UInt64Array) -> npt.NDArray[np.complex128]:
    """(..., 2) words as 16-byte elements, for moving only."""
    return views.view(np.complex128)[..., 0]


def as_pairs(wide: npt.NDArray[np.complex128]) -> UInt64Array:
    """The inverse of `as_wide`."""
    return wide.view(np.uint64).reshape(*wide.shape, 2)
