"""The compiled loops over records, of kernels.c.

    parse_records     the fields of all records of some bodies, as stored
    parse_headers     positions of the headers of records
    inspect_records   one body, as a producer must make it
    inspect_batch     one produced batch of the most frequent kind, its header included
    cut               rows of bytes to an Arrow column
    lay_out           rows of columns to records
    lay_out_headers   rows of columns to headers
    views             rows of bytes to Arrow binary views
    murmur2           Kafka's hash of keys

Wheels, and installations from source, include the library. It is required: a missing or foreign library
raises KERNELS_UNUSABLE at the first call, not at import, so that `sparklog doctor` can report it. A wheel on
the Python path (`--py-files`) works, too: the library is loaded from a temporary copy.

Not here: the messages for illegal records (records.py).
Concurrency: pure functions. Calls hold the interpreter's lock for some 0.8 ms at most; longer ones release
    it, and then may wait for milliseconds to get it back.
Sources: docs/adr/0012-compiled-loops.md.
"""

import contextlib
import ctypes
import functools
import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import SparklogError

Int64Array = npt.NDArray[np.int64]
UInt8Array = npt.NDArray[np.uint8]
UInt64Array = npt.NDArray[np.uint64]

VERSION = 6  # of the functions' arguments and meaning, as in kernels.c

LIBRARY = "_kernels.so"
PATH = Path(__file__).with_name(LIBRARY)
ROWS_WITH_LOCK = 8192  # some 0.2 ms
# In units of a row's time: headers are read at up to 3.2 ns a byte, so that 256 KiB of them take 0.8 ms;
# bytes are copied at 0.1 to 0.3.
_BYTES_READ_A_ROW, _BYTES_COPIED_A_ROW = 32, 128
_FIELDS = 9
MAX_RECORD_OVERHEAD = 5 + 1 + 10 + 5  # maximum of length, attributes, timestamp delta, offset delta
_SLACK = 16
_VARINT_BYTES = 5  # maximum for a length
_p, _i = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "parse_records": (_i, [_p, _i, _p, _p, _p, _p, _i, _p]),
    "parse_headers": (_i, [_p, _i, _p, _p, _p, _i, _p]),
    "inspect_records": (_i, [_p, _i, _i, _p, _p, _p]),
    "inspect_batch": (_i, [_p, _i, _p, _i, _p]),
    "cut": (_i, [_p, _i, _i, _p, _p, _p, _p, _p, _i]),
    "lay_out": (_i, [_i, _p, _p, _p, _p, _p, _p, _p, _p, _i, _p]),
    "lay_out_headers": (_i, [_i, _p, _p, _p, _i, _p]),
    "views": (None, [_p, _i, _p, _p, _p]),
    "murmur2": (None, [_p, _i, _p, _p, _p]),
}


class Column(Protocol):
    """The interface of byte_views.ByteViews, which is above this module."""

    @property
    def views(self) -> UInt64Array: ...
    @property
    def buffers(self) -> tuple[UInt8Array, ...]: ...
    @property
    def is_null(self) -> npt.NDArray[np.bool_] | None: ...


class _Views(ctypes.Structure):
    _fields_ = (
        ("views", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("buffer_sizes", ctypes.c_void_p),
        ("is_null", ctypes.c_void_p),
    )


class Library:
    """The functions, with and without the interpreter's lock held."""

    def __init__(self, path: Path) -> None:
        self._holding, self._freeing = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
        for library in (self._holding, self._freeing):
            if library.sparklog_version() != VERSION:
                raise OSError(f"{path} was built from other sources")
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, f"sparklog_{name}")
                function.restype, function.argtypes = result, arguments

    def call(self, name: str, rows: int, *arguments: object) -> int:
        """Call one function; releases the lock if `rows`, or equivalent work, is large."""
        library = self._holding if rows <= ROWS_WITH_LOCK else self._freeing
        return getattr(library, f"sparklog_{name}")(*arguments)  # type: ignore[no-any-return]


def load(path: Path = PATH) -> Library:
    """Load the library.

    Raises: SparklogError KERNELS_UNUSABLE.
    """
    try:
        if path.exists():
            return Library(path)
        with _unpacked(path) as copy:  # may be removed once it is loaded
            return Library(copy)
    except (OSError, AttributeError) as error:  # missing, of another platform, or of another version
        raise SparklogError(
            "KERNELS_UNUSABLE",
            f"{path}: found {error}, expected the compiled loops of this version of sparklog",
            fix="Install sparklog from a wheel, or with pip from its source; see sparklog doctor",
        ) from error


def _unpacked(path: Path) -> contextlib.AbstractContextManager[Path]:
    """Copy a library out of a zip of the Python path."""
    return importlib.resources.as_file(importlib.resources.files(__package__) / path.name)


@functools.cache
def _loaded() -> Library:
    return load()


def parse_records(
    data: UInt8Array, start: Int64Array, end: Int64Array, count: Int64Array, last_delta: Int64Array
) -> Int64Array | None:
    """Return the fields of all records of some bodies; None if anything is illegal, also offset deltas.

    Args:
        start, end: of each body within `data`.
        count, last_delta: the records of each body, and the largest legal offset delta.
    Shape: (9, records), the columns of records.RecordFields.
    """
    library = _loaded()
    rows = int(count.sum())
    fields = np.empty((_FIELDS, rows), np.int64)
    inputs = [np.ascontiguousarray(column, np.int64) for column in (start, end, count, last_delta)]
    code = library.call("parse_records", rows, _at(data), len(start), *map(_at, inputs), rows, _at(fields))
    return fields if code == 0 else None


def parse_headers(
    data: UInt8Array, count: Int64Array, position: Int64Array, end: Int64Array
) -> tuple[int, Int64Array]:
    """Return the positions of headers, `count` of each record from `position` to `end`.

    Returns: the number of legal records before the first illegal one, and the spans; len(count) if all are.
    Shape: (4, headers): position and length of the keys, then of the values.
    """
    library = _loaded()
    rows, total = len(count), int(count.sum())
    spans = np.empty((4, total), np.int64)
    inputs = [np.ascontiguousarray(column, np.int64) for column in (count, position, end)]
    right = library.call(
        "parse_headers", max(rows, total), _at(data), rows, *map(_at, inputs), total, _at(spans)
    )
    return right, spans


def inspect_records(data: UInt8Array, rows: int) -> tuple[int, int, Int64Array, UInt8Array]:
    """Check one body's records by the rules for producers, up to the first illegal one.

    Returns: the number of legal records, the position after them, and for all `rows` the timestamp delta
        and whether the key is null; undefined after the legal ones.
    Cost: 9 bytes of memory for a record.
    """
    library = _loaded()
    timestamp_delta, keyless = np.empty(rows, np.int64), np.zeros(rows, np.uint8)
    stopped = np.zeros(1, np.int64)
    right = library.call(
        "inspect_records",
        max(rows, len(data) // _BYTES_READ_A_ROW),
        *(_at(data), len(data), rows, _at(timestamp_delta), _at(keyless), _at(stopped)),
    )
    return right, int(stopped[0]), timestamp_delta, keyless


class PlainBatch(NamedTuple):
    """The result of `inspect_batch`: times of the records in ms, and the number of null keys."""

    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    keyless: int


_Found = ctypes.c_int64 * len(PlainBatch._fields)


def inspect_batch(data: bytes | UInt8Array, plain: UInt8Array | None = None) -> PlainBatch | None:
    """Check one batch of the most frequent kind, without its CRC; None for any other, legal or not.

    Args:
        plain: its decompressed records, if it is compressed.
    """
    found = _Found()
    size, plain_size = len(data), 0 if plain is None else len(plain)
    start = data if isinstance(data, bytes) else _at(data)  # ctypes accepts bytes directly: 2 us less
    effort = max(size, plain_size) // _BYTES_READ_A_ROW
    code = _loaded().call("inspect_batch", effort, start, size, _at(plain), plain_size, found)
    return PlainBatch(*found[:]) if code == 0 else None


def cut(data: UInt8Array, position: Int64Array, length: Int64Array) -> pa.Array:
    """Return the binary column of data[position : position + length]; a negative length is null.

    Cost: one copy of the bytes.
    """
    library = _loaded()
    rows = len(length)
    is_null = length < 0
    has_nulls = bool(is_null.any())
    size = int(np.where(is_null, 0, length).sum() if has_nulls else length.sum())
    offsets, out = np.empty(rows + 1, np.int32), np.empty(size, np.uint8)
    validity = np.zeros((rows + 7) // 8, np.uint8) if has_nulls else None
    position, length = (np.ascontiguousarray(column, np.int64) for column in (position, length))
    code = library.call(
        "cut",
        max(rows, size // _BYTES_COPIED_A_ROW),
        *(_at(data), len(data), rows, _at(position), _at(length)),
        *(_at(offsets), _at(validity), _at(out), size),
    )
    if code != 0:  # then `out` is not filled
        raise RuntimeError("the sum of the lengths is not the size")
    buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def lay_out(
    timestamp_delta: Int64Array,
    offset_delta: Int64Array,
    rest: Int64Array,
    columns: Sequence[Column | None],
    header_counts: Int64Array | None,
) -> tuple[UInt8Array, npt.NDArray[np.int32]]:
    """Encode consecutive records; return their bytes, and each start and the last end.

    Args:
        rest: the size of each row from its key length on.
        columns: keys, values and encoded headers; None: all null.
        header_counts: of each row; None: no row has any.
    Shape: bytes, and rows + 1 positions in them; fewer than 2^31 bytes, which the caller ensures.
    """
    library = _loaded()
    rows = len(rest)
    size = int(rest.sum()) + MAX_RECORD_OVERHEAD * rows + _SLACK
    out, starts = np.empty(size, np.uint8), np.empty(rows + 1, np.int32)
    numbers = [np.ascontiguousarray(column, np.int64) for column in (timestamp_delta, offset_delta, rest)]
    counts = None if header_counts is None else np.ascontiguousarray(header_counts, np.int64)
    kept: list[object] = []
    key, value, headers = (ctypes.byref(_views_of(column, kept)) for column in columns)
    written = library.call(
        "lay_out",
        max(rows, size // _BYTES_COPIED_A_ROW),
        *(rows, *map(_at, numbers), key, value, _at(counts), headers, _at(out), size, _at(starts)),
    )
    if written < 0:  # then `out` is not filled
        raise RuntimeError("rest is not the size of the encoded rows")
    return out[:written], starts


def lay_out_headers(key: Column, value: Column, size: int) -> tuple[UInt8Array, npt.NDArray[np.int32]]:
    """Encode consecutive headers; return their bytes, and each start and the last end.

    Args:
        size: bytes of all keys and values, without their lengths.
    Shape: bytes, and rows + 1 positions in them; fewer than 2^31 bytes, which the caller ensures.
    """
    library = _loaded()
    rows = len(key.views)
    size += 2 * _VARINT_BYTES * rows
    out, starts = np.empty(size, np.uint8), np.empty(rows + 1, np.int32)
    kept: list[object] = []
    columns = [ctypes.byref(_views_of(column, kept)) for column in (key, value)]
    written = library.call(
        "lay_out_headers",
        max(rows, size // _BYTES_COPIED_A_ROW),
        *(rows, *columns, _at(out), size, _at(starts)),
    )
    if written < 0:  # then `out` is not filled
        raise RuntimeError("size is not that of the keys and values")
    return out[:written], starts


def views(data: UInt8Array, start: npt.NDArray[np.int32], length: npt.NDArray[np.int32]) -> UInt64Array:
    """Return the binary views of data[start[i] :][: length[i]], as (rows, 2) words; see byte_views.py."""
    library = _loaded()
    found = np.empty((len(start), 2), np.uint64)
    start, length = np.ascontiguousarray(start, np.int32), np.ascontiguousarray(length, np.int32)
    library.call("views", len(start), _at(data), len(start), _at(start), _at(length), _at(found))
    return found


def murmur2(
    data: UInt8Array, start: npt.NDArray[np.int32], length: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """Return Java's murmur2 of data[start[i] :][: length[i]]."""
    library = _loaded()
    hashes = np.empty(len(start), np.int32)
    start, length = np.ascontiguousarray(start, np.int32), np.ascontiguousarray(length, np.int32)
    library.call("murmur2", len(start), _at(data), len(start), _at(start), _at(length), _at(hashes))
    return hashes


def _views_of(column: Column | None, kept: list[object]) -> _Views:
    """Return the column as C's struct; `kept` keeps its buffers alive."""
    if column is None:
        return _Views(None, None, None, None)
    cells = np.ascontiguousarray(column.views)
    buffers = np.array([_at(buffer) for buffer in column.buffers], np.uint64)
    sizes = np.array([len(buffer) for buffer in column.buffers], np.uint64)
    is_null = None if column.is_null is None else np.ascontiguousarray(column.is_null)
    kept += [cells, buffers, sizes, is_null]
    return _Views(_at(cells), _at(buffers), _at(sizes), _at(is_null))


def _at(array: npt.NDArray[np.generic] | None) -> int | None:
    """Return its address."""
    return None if array is None else array.__array_interface__["data"][0]
