"""How many bytes the values of an Arrow column are, where rows may share them.

A dictionary, or a buffer of views, holds a value once for any number of rows. So a column of a megabyte may
be gigabytes of records; and beyond 2 GiB the 32-bit offsets of Arrow's cast from views to binary wrap, which
shows other bytes, or memory that is not the column's.

Invariants: nothing is copied but numbers.

Not here: casting (schema.py).
Concurrency: pure functions.
Sources: the Arrow columnar format, dictionary-encoded and variable-size binary view layouts.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.format.arrow_bytes import null_mask

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
    if pa.types.is_dictionary(kind) and _has_bytes(kind.value_type):
        rows = column.indices.drop_null().to_numpy(zero_copy_only=False)
        return int(_lengths(column.dictionary)[rows].sum())
    return int(_lengths(column).sum()) if _is_view(kind) else int(column.nbytes)


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """Bytes of each value; 0 for a null."""
    if not _is_view(column.type):
        lengths = pc.binary_length(column).fill_null(0)
        return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)
    if not len(column):
        return np.zeros(0, np.int64)
    first = _VIEW_WORDS * column.offset
    words = np.frombuffer(column.buffers()[1], np.uint32)
    sizes = words[first : first + _VIEW_WORDS * len(column) : _VIEW_WORDS].astype(np.int64)
    is_null = null_mask(column)
    if is_null is not None:
        sizes[is_null] = 0
    return sizes


def _may_share(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _may_share(kind.key_type) or _may_share(kind.item_type)
    if pa.types.is_struct(kind):
        return any(_may_share(field.type) for field in kind)
    if _is_list(kind):
        return _may_share(kind.value_type)
    return _is_view(kind) or pa.types.is_dictionary(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary_view(kind) or pa.types.is_string_view(kind))


def _has_bytes(kind: pa.DataType) -> bool:
    return (
        _is_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
