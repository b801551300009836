"""The extents of a snapshot: one Arrow IPC file, one row per extent, in the order of topics and partitions.

Columns rather than JSON, since a root may hold a million extents: they load without a loop over extents. The
topic and partition of a row follow from the counts in the snapshot's state.

Invariants: any other bytes are CorruptLogError. No more is read than was stored: nothing is decompressed.
Sources: FORMAT.md#metadata-log; the Arrow IPC file format.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import InvalidRequestError
from sparklog.metadata.documents.document import corrupt
from sparklog.metadata.model.extent_list import NUMBER_COLUMNS, ExtentColumns, concat_columns

# --- arrow layout ------------------------------------------------------------------------------------
#
# The layout of an Arrow IPC file, checked before Arrow reads it, and allocates by it.
#
# Arrow decompresses a buffer into as many bytes as the buffer claims, and joins dictionaries as often as the
# footer names them: 20 KB can request gigabytes, and Arrow has no limit to set. So features that a part of a
# snapshot never uses are found here, in the file's own tables (flatbuffers), and refused.
#
# Invariants: nothing is allocated by the file's claims; a position outside the file is ValueError.
# Concurrency: pure functions.
# Sources: the Arrow columnar format, "IPC File Format", File.fbs and Message.fbs; FlatBuffers internals.


_MAGIC = b"ARROW1"
_CONTINUATION = 0xFFFFFFFF
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3  # of MessageHeader
_BLOCK_BYTES = 24
# Field numbers in the tables.
_FOOTER_DICTIONARIES, _FOOTER_RECORD_BATCHES = 2, 3
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER = 1, 2
_DICTIONARY_DATA = 1
_BATCH_COMPRESSION = 3


def why_not_plain(data: memoryview) -> str | None:
    """Return why this is not a file of one batch, one dictionary at most, and no compression, or None.

    Raises: ValueError, it is not an Arrow file.
    """
    end = len(data) - len(_MAGIC) - 4
    if end < 0 or bytes(data[end + 4 :]) != _MAGIC:
        raise ValueError("not an Arrow file")
    footer = _table(data, end - _number(data, end, "i"))
    blocks = [_blocks(data, footer, field) for field in (_FOOTER_DICTIONARIES, _FOOTER_RECORD_BATCHES)]
    (dictionaries, first_dictionary), (batches, first_batch) = blocks
    if dictionaries > 1 or batches != 1:
        return f"{batches} batches and {dictionaries} dictionaries, expected one batch and one dictionary"
    if dictionaries and _is_compressed(data, first_dictionary):
        return "a compressed dictionary, expected an uncompressed one"
    return "a compressed batch, expected an uncompressed one" if _is_compressed(data, first_batch) else None


def _blocks(data: memoryview, footer: int, field: int) -> tuple[int, int]:
    """Return the number of messages in the footer, and the position of the first one's entry."""
    at = _field(data, footer, field)
    if at is None:
        return 0, 0
    vector = at + _number(data, at, "I")
    return _number(data, vector, "I"), vector + 4


def _is_compressed(data: memoryview, block: int) -> bool:
    _number(data, block + _BLOCK_BYTES - 8, "q")  # checks that it is complete
    start = _number(data, block, "q")
    start += 8 if _number(data, start, "I") == _CONTINUATION else 4
    message = _table(data, start)
    kind, header = _field(data, message, _MESSAGE_HEADER_TYPE), _field(data, message, _MESSAGE_HEADER)
    if kind is None or header is None:
        raise ValueError("a message without a header")
    batch = header + _number(data, header, "I")
    if _number(data, kind, "B") == _DICTIONARY_BATCH:
        inner = _field(data, batch, _DICTIONARY_DATA)
        if inner is None:
            raise ValueError("a dictionary without data")
        batch = inner + _number(data, inner, "I")
    elif _number(data, kind, "B") != _RECORD_BATCH:
        raise ValueError("a message of another kind")
    return _field(data, batch, _BATCH_COMPRESSION) is not None


# --- flatbuffers -------------------------------------------------------------------------------------


def _table(data: memoryview, start: int) -> int:
    """Return the position of the root table of the buffer at `start`."""
    return start + _number(data, start, "I")


def _field(data: memoryview, table: int, field: int) -> int | None:
    """Return the position of a table's field; None if the table omits it."""
    names = table - _number(data, table, "i")
    slot = 4 + 2 * field
    if slot + 2 > _number(data, names, "H"):
        return None
    offset = _number(data, names + slot, "H")
    return table + offset if offset else None


def _number(data: memoryview, place: int, code: str) -> int:
    if not 0 <= place <= len(data) - struct.calcsize(code):
        raise ValueError(f"a number at byte {place} of {len(data)}")
    return int(struct.unpack_from(f"<{code}", data, place)[0])


# --- snapshot extents --------------------------------------------------------------------------------


_CODE = "CORRUPT_METADATA_SNAPSHOT"
_MAX_TEXT_BYTES = (1 << 31) - 1
_SCHEMA = pa.schema(
    [
        pa.field("segment", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in NUMBER_COLUMNS),
    ]
)


def encode_extents(blocks: Sequence[ExtentColumns]) -> bytes:
    """Encode the file."""
    columns = concat_columns(blocks)
    arrays = [_segment_array(columns.segment.tolist()), *map(_int64_array, columns.numbers)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_extents(data: memoryview, where: str) -> ExtentColumns:
    """Return the columns, zero-copy views of `data` where possible."""
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


# Arrays are created from and read as buffers: pa.array() and to_numpy() would import pandas, 0.3 s in the
# middle of a publish.


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
