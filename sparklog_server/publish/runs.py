"""Consecutive parts of one partition and one producer, as one append: one extent instead of many.

Invariants: a run keeps the order of its parts; its batches count from 0 over the whole run; sequences in
    it follow each other; a part that may be at one offset only is a run of its own. Bytes of batches are not
    copied, only the 8 bytes of each base offset change.
Not here: which parts may be written (bundle_plan.py).
Concurrency: pure functions.
"""

import struct
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from sparklog.format.codec import BytesLike
from sparklog.format.encoded_batches import EncodedBatches
from sparklog.metadata import SEQUENCES
from sparklog_server.publish.parts import NO_OFFSET, AppendPart

_BASE_OFFSET = struct.Struct(">q")


class Run(msgspec.Struct):
    """Parts, by their index in the bundle, and how many records come before each."""

    first: AppendPart
    indices: list[int] = []
    parts: list[AppendPart] = []
    skipped: list[int] = []
    record_count: int = 0
    size_bytes: int = 0

    def add(self, index: int, part: AppendPart) -> None:
        self.indices.append(index)
        self.parts.append(part)
        self.skipped.append(self.record_count)
        self.record_count += part.encoded.record_count
        self.size_bytes += part.encoded.size_bytes

    def continues(self, part: AppendPart, max_bytes: int) -> bool:
        """May this part be appended to the run?"""
        first = self.first
        return (
            (part.topic_id, part.partition, part.producer_id, part.producer_epoch)
            == (first.topic_id, first.partition, first.producer_id, first.producer_epoch)
            and _transaction(part) == _transaction(first)
            and part.at_offset == first.at_offset == NO_OFFSET
            and self.size_bytes + part.encoded.size_bytes <= max_bytes
            and (
                part.producer_id < 0
                or part.base_sequence == (first.base_sequence + self.record_count) % SEQUENCES
            )
        )

    def encoded(self) -> EncodedBatches:
        """All batches of the run, counting from 0."""
        if len(self.parts) == 1:
            return self.first.encoded
        return concat_batches([part.encoded for part in self.parts])


def _transaction(part: AppendPart) -> int | None:
    """What distinguishes those of one producer and epoch; None: it is of none."""
    return None if part.transaction is None else part.transaction.number


def make_runs(parts: Sequence[AppendPart], indices: Iterable[int], max_run_bytes: int) -> list[Run]:
    """The parts at `indices`, sorted by partition and otherwise in order, as runs."""
    ordered = sorted(indices, key=lambda index: (parts[index].topic_id, parts[index].partition))
    runs: list[Run] = []
    for index in ordered:
        part = parts[index]
        if not runs or not runs[-1].continues(part, max_run_bytes):
            runs.append(Run(part))
        runs[-1].add(index, part)
    return runs


def concat_batches(pieces: Sequence[EncodedBatches]) -> EncodedBatches:
    """Several, each counting from 0, as one that counts from 0 over all of them."""
    data: list[BytesLike] = []
    rows: list[tuple[int, ...]] = []  # Python's numbers: NumPy's price is per call, and batches are few
    size = count = 0
    for piece in pieces:
        data += shifted(piece, count)
        if piece.batch_count == 1:
            rows.append((size, piece.size_bytes, count, piece.record_count, piece.max_timestamp_ms))
        else:
            rows += zip(*_columns(piece, size, count), strict=True)
        size += piece.size_bytes
        count += piece.record_count
    position, sizes, base_offset, counts, newest = np.array(rows, np.int64).T
    return EncodedBatches(
        data=data,
        size_bytes=size,
        record_count=count,
        max_timestamp_ms=max([piece.max_timestamp_ms for piece in pieces]),
        position=position,
        size=sizes,
        base_offset=base_offset,
        batch_record_count=counts,
        batch_max_timestamp_ms=newest,
    )


def _columns(piece: EncodedBatches, position: int, records: int) -> Sequence[Sequence[int]]:
    return (
        (piece.position + position).tolist(),
        piece.size.tolist(),
        (piece.base_offset + records).tolist(),
        piece.batch_record_count.tolist(),
        piece.batch_max_timestamp_ms.tolist(),
    )


def shifted(encoded: EncodedBatches, delta: int) -> list[BytesLike]:
    """The chunks with `delta` added to every base offset; views of the old ones, but for those 8 bytes."""
    if delta == 0:
        return list(encoded.data)
    if encoded.batch_count == 1:
        starts = {0: 0}
    else:
        starts = dict(zip(encoded.position.tolist(), encoded.base_offset.tolist(), strict=True))
    chunks: list[BytesLike] = []
    at = 0
    for chunk in encoded.data:
        view = memoryview(chunk).cast("B")
        if at in starts:
            head = _BASE_OFFSET.pack(starts.pop(at) + delta)
            chunks.append(head + bytes(view[_BASE_OFFSET.size :]) if len(view) <= 64 else head)
            if len(view) > 64:
                chunks.append(view[_BASE_OFFSET.size :])
        else:
            chunks.append(view)
        at += len(view)
    assert not starts, "every batch begins a chunk"
    return chunks
