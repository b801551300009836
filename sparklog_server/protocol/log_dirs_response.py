"""The response to DescribeLogDirs, without kio.

Who sends 20 bytes is told of all partitions. With kio's entities an answer about 100,000 of them took 700 ms,
and the event loop stood still for a third of it; as bytes it takes a few, and nothing where nothing has
changed (api/log_dir_listing.py).

Invariants: the same bytes as kio's, in every version (a test compares them).
Sources: Kafka DescribeLogDirsResponse.json.
"""

import struct
from collections.abc import Sequence

import numpy as np

from sparklog_server.protocol.varints import compact_length
from sparklog_server.protocol.wire import NOT_THROTTLED

FLEXIBLE_FROM = 2
PARTITION_BYTES = 22
_ERROR_FROM = 3
_SPACE_FROM = 4
_MOST_BYTES = (1 << 63) - 1
_ROW, _FLEXIBLE_ROW = struct.Struct(">iqqx"), struct.Struct(">iqqxx")
_FEW_ROWS = 16  # below that NumPy takes longer
_FIELDS = [("partition", ">i4"), ("size", ">i8"), ("lag", ">i8"), ("is_future", "u1")]
_ROWS, _FLEXIBLE_ROWS = np.dtype(_FIELDS), np.dtype([*_FIELDS, ("tags", "u1")])
_INT16, _INT32, _SPACE = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">qq")


def encode_log_dir(
    version: int, log_dir: str, topics: int, partitions: bytes, space: tuple[int, int]
) -> list[bytes]:
    """The body, of one directory.

    Args:
        topics: how many.
        partitions: of them, one after the other, as `encode_log_dir_topic` has made them.
        space: bytes that the storage has in all, and that may still be filled.
    """
    flexible = version >= FLEXIBLE_FROM
    before = [NOT_THROTTLED]
    if version >= _ERROR_FROM:
        before.append(_INT16.pack(0))
    before += [_count(1, flexible=flexible), _INT16.pack(0), _text(log_dir, flexible=flexible)]
    before.append(_count(topics, flexible=flexible))
    after = _SPACE.pack(*space) if version >= _SPACE_FROM else b""
    return [b"".join(before), partitions, after + (b"\0\0" if flexible else b"")]


def encode_log_dir_topic(name: str, numbers: Sequence[int], sizes: Sequence[int], *, flexible: bool) -> bytes:
    """One topic: partitions, and their stored bytes."""
    if max(sizes, default=0) > _MOST_BYTES:
        sizes = [min(size, _MOST_BYTES) for size in sizes]
    if len(sizes) < _FEW_ROWS:
        pack = (_FLEXIBLE_ROW if flexible else _ROW).pack
        rows = b"".join(pack(number, size, 0) for number, size in zip(numbers, sizes, strict=True))
    else:
        made = np.zeros(len(sizes), _FLEXIBLE_ROWS if flexible else _ROWS)
        made["partition"], made["size"] = numbers, sizes
        rows = made.tobytes()
    head = _text(name, flexible=flexible) + _count(len(sizes), flexible=flexible)
    return b"".join((head, rows, b"\0" if flexible else b""))


def _text(text: str, *, flexible: bool) -> bytes:
    data = text.encode()
    return (compact_length(len(data)) if flexible else _INT16.pack(len(data))) + data


def _count(count: int, *, flexible: bool) -> bytes:
    return compact_length(count) if flexible else _INT32.pack(count)
