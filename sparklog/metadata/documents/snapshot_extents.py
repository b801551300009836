"""The extents of a snapshot: one Arrow IPC file, one row per extent, in the order of topics and partitions.

Columns rather than JSON, since a root may hold a million extents: they load without being looked at one
by one. The topic and partition of a row follow from the counts in the snapshot's state.

Invariants: bytes that are not exactly such a file are CorruptLogError. No more is read than was stored:
    nothing is decompressed (arrow_layout.py).
Sources: FORMAT.md#metadata-log; the Arrow IPC file format.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import InvalidRequestError
from sparklog.metadata.documents.arrow_layout import why_not_plain
from sparklog.metadata.documents.document import corrupt
from sparklog.metadata.model.extent_list import NUMBER_COLUMNS, ExtentColumns, concat_columns

_CODE = "CORRUPT_METADATA_SNAPSHOT"
_MAX_TEXT_BYTES = (1 << 31) - 1
_SCHEMA = pa.schema(
    [
        pa.field("segment", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in NUMBER_COLUMNS),
    ]
)


def encode_extents(blocks: Sequence[ExtentColumns]) -> bytes:
    """The file's bytes."""
    columns = concat_columns(blocks)
    arrays = [_segment_array(columns.segment.tolist()), *map(_int64_array, columns.numbers)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_extents(data: memoryview, where: str) -> ExtentColumns:
    """The columns, zero-copy views of `data` where possible."""
    try:
        refusal = why_not_plain(data)
        if refusal is not None:
            raise corrupt(_CODE, where, f"found {refusal}")
        reader = pa.ipc.open_file(pa.py_buffer(data))
        if not reader.schema.equals(_SCHEMA) or reader.num_record_batches != 1:
            raise corrupt(_CODE, where, f"found {reader.num_record_batches} batches of {reader.schema}")
        batch = reader.get_batch(0)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise corrupt(_CODE, where, f"cannot be decoded: {error}") from error
    segment: Any = batch.column(0)
    if any(column.null_count for column in (*batch.columns, segment.dictionary)):
        raise corrupt(_CODE, where, "found a null")
    names = np.array([*segment.dictionary.to_pylist(), None], dtype=object)[:-1]
    codes = _numbers(segment.indices, np.int32)
    columns = tuple(_numbers(batch.column(index + 1), np.int64) for index in range(len(NUMBER_COLUMNS)))
    return ExtentColumns(names[codes], columns)


# Arrays are made of buffers, and looked at as such: pa.array() and to_numpy() would import pandas, 0.3 s in
# the middle of somebody's publish.


def _numbers(array: Any, kind: type[np.int32 | np.int64]) -> npt.NDArray[Any]:
    if len(array) == 0:
        return np.empty(0, kind)
    return np.frombuffer(array.buffers()[1], kind, len(array), array.offset * np.dtype(kind).itemsize)


def _int64_array(numbers: npt.NDArray[np.int64]) -> Any:
    data = pa.py_buffer(np.ascontiguousarray(numbers, dtype=np.int64))
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, data])


def _segment_array(values: list[str]) -> Any:
    codes: dict[str, int] = {}
    indices = np.fromiter((codes.setdefault(value, len(codes)) for value in values), np.int32, len(values))
    encoded = [value.encode() for value in codes]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if int(ends[-1]) > _MAX_TEXT_BYTES:
        raise InvalidRequestError(
            "COMMIT_TOO_LARGE",
            f"segment names of {ends[-1]} bytes in one snapshot",
            fix="Merge small segments",
        )
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
    dictionary = pa.Array.from_buffers(pa.string(), len(encoded), buffers)
    index_array = pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(indices)])
    return pa.DictionaryArray.from_arrays(index_array, dictionary)
