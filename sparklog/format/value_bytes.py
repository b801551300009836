"""How many bytes the values of an Arrow column are, where rows may share them.

A dictionary, or a buffer of views, holds a value once for any number of rows. So a column of a megabyte may
be gigabytes of records; and beyond 2 GiB the 32-bit offsets of Arrow's cast from views to binary wrap, which
shows other bytes, or memory that is not the column's.

Invariants: nothing is copied but numbers.

Not here: casting (schema.py).
Concurrency: pure functions.
Sources: the Arrow columnar format, dictionary-encoded and variable-size binary view layouts.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.format.byte_views import null_mask

Rows: TypeAlias = slice | npt.NDArray[np.integer]
_VIEW_WORDS = 4  # of 32 bits; the first one is the size


def value_bytes(column: pa.Array) -> int:
    """Bytes of all values, each counted for every row that has it; of other columns, bytes of the column."""
    kind = column.type
    if not _may_share(kind):
        return int(column.nbytes)
    if pa.types.is_struct(kind):
        return sum(map(value_bytes, column.flatten()))
    if pa.types.is_map(kind):  # which Arrow does not flatten
        entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return value_bytes(column.cast(pa.list_(entry)))
    if _is_list(kind):
        return value_bytes(column.flatten())
    rows: Rows
    if pa.types.is_dictionary(kind) and _has_bytes(kind.value_type):
        rows = column.indices.drop_null().to_numpy(zero_copy_only=False)
        return int(_lengths(column.dictionary, rows).sum())
    if holds_views(kind):
        is_null = null_mask(column)
        rows = slice(None) if is_null is None else np.flatnonzero(~is_null)
        return int(_lengths(column, rows).sum())
    return int(column.nbytes)


def holds_views(kind: pa.DataType) -> bool:
    """Is it a column of views?"""
    return bool(pa.types.is_binary_view(kind) or pa.types.is_string_view(kind))


def _lengths(column: pa.Array, rows: Rows) -> npt.NDArray[np.int64]:
    """Bytes of some values. A dictionary may have many more than are asked for: none is looked at in vain."""
    kind, first = column.type, column.offset
    if pa.types.is_fixed_size_binary(kind):
        return np.full(len(column), kind.byte_width)[rows]
    if not len(column):
        return np.zeros(0, np.int64)
    if holds_views(kind):
        words = np.frombuffer(column.buffers()[1], np.uint32)[_VIEW_WORDS * first :: _VIEW_WORDS]
        return words[: len(column)][rows].astype(np.int64)
    is_large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    offsets = np.frombuffer(column.buffers()[1], "<i8" if is_large else "<i4")[first:]
    start, end = offsets[: len(column)], offsets[1 : len(column) + 1]
    lengths: npt.NDArray[np.int64] = np.subtract(end[rows], start[rows], dtype=np.int64)
    return lengths


def _may_share(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _may_share(kind.key_type) or _may_share(kind.item_type)
    if pa.types.is_struct(kind):
        return any(_may_share(field.type) for field in kind)
    if _is_list(kind):
        return _may_share(kind.value_type)
    return holds_views(kind) or pa.types.is_dictionary(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _has_bytes(kind: pa.DataType) -> bool:
    return (
        holds_views(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
