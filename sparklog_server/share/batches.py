"""The record batches that a share fetch has read: their offsets, and those that a member needs.

Concurrency: pure, but `joined` reads files.
Sources: FORMAT.md#record-batch.
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from sparklog_server.protocol.wire import Chunk, FileRegion
from sparklog_server.share.partition import Acquired

_HEADER = struct.Struct(">qi")  # base offset, batch length
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LENGTH_AT, _DELTA_AT = 12, 23  # the batch length counts from the first; of the last offset delta


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """A record batch: its offsets, `last` inclusive, and where its bytes are."""

    first: int
    last: int
    start: int
    end: int


def joined(chunks: Sequence[Chunk]) -> bytes:
    """Return the bytes of chunks, those of files included."""
    return b"".join(
        os.pread(one.descriptor, one.size, one.position) if isinstance(one, FileRegion) else one
        for one in chunks
    )


def spans_of(data: bytes, from_offset: int) -> list[BatchSpan]:
    """Return the batches of `data`, without gaps: a batch begins where the one before it ends.

    Compaction leaves gaps. Their offsets are acquired with the batch after them, and clients acknowledge them
    as gaps; else the start offset would stay below them.

    Args:
        from_offset: the offset that was read; earlier records of the first batch are no one's.
    """
    spans = []
    position, first = 0, from_offset
    while position + _DELTA_AT + _LAST_OFFSET_DELTA.size <= len(data):
        base_offset, length = _HEADER.unpack_from(data, position)
        end = position + _LENGTH_AT + length
        if end > len(data):
            break
        last = base_offset + _LAST_OFFSET_DELTA.unpack_from(data, position + _DELTA_AT)[0]
        if last >= first:
            spans.append(BatchSpan(first, last, position, end))
            first = last + 1
        position = end
    return spans


def needed(data: bytes, spans: Sequence[BatchSpan], acquired: Sequence[Acquired]) -> memoryview:
    """Return the bytes from the first to the last batch that has any of the acquired records."""
    if not acquired:
        return memoryview(b"")
    first, last = acquired[0].first, acquired[-1].last
    used = [one for one in spans if one.last >= first and one.first <= last]
    return memoryview(data)[used[0].start : used[-1].end]


def merged(acquired: Sequence[Acquired]) -> list[Acquired]:
    """Return the same with equal neighbours as one."""
    found: list[Acquired] = []
    for one in acquired:
        last = found[-1] if found else None
        if last is not None and (last.last + 1, last.deliveries) == (one.first, one.deliveries):
            found[-1] = Acquired(last.first, one.last, one.deliveries)
        else:
            found.append(one)
    return found
