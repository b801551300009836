"""Encoded record batches, as chunks to write and as a table for the index.

Invariants: the chunks, one after the other, are whole batches; the table's rows are those batches.
Not here: encoding records (encode.py).
Concurrency: EncodedBatches is immutable; a BatchList belongs to one encoder.
Sources: FORMAT.md#record-batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from sparklog.format.codec import BytesLike
from sparklog.format.record_batch import HEADER, BatchHeader, encode_header


class EncodedBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Record batches, and what an index writer needs to know of each.

    Args:
        data: chunks to be written one after the other; views that stay valid as long as they are held.
        position: of each batch, from the start of `data`.
        base_offset: of each batch, as stored in it (counts from the base_offset given to the encoder).
    """

    data: list[BytesLike]
    size_bytes: int
    record_count: int
    max_timestamp_ms: int
    position: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    base_offset: npt.NDArray[np.int64]
    batch_record_count: npt.NDArray[np.int64]
    batch_max_timestamp_ms: npt.NDArray[np.int64]

    @property
    def batch_count(self) -> int:
        return len(self.position)

    def to_bytes(self) -> bytes:
        """All chunks in one object; a copy."""
        return b"".join(self.data)


def join_batches(parts: Sequence[EncodedBatches]) -> EncodedBatches:
    """One after the other; their bytes are not copied."""
    if len(parts) == 1:
        return parts[0]
    sizes = [part.size_bytes for part in parts]
    starts = np.cumsum([0, *sizes[:-1]])
    return EncodedBatches(
        data=[chunk for part in parts for chunk in part.data],
        size_bytes=sum(sizes),
        record_count=sum(part.record_count for part in parts),
        max_timestamp_ms=max(part.max_timestamp_ms for part in parts),
        position=np.concatenate([part.position + start for part, start in zip(parts, starts, strict=True)]),
        size=np.concatenate([part.size for part in parts]),
        base_offset=np.concatenate([part.base_offset for part in parts]),
        batch_record_count=np.concatenate([part.batch_record_count for part in parts]),
        batch_max_timestamp_ms=np.concatenate([part.batch_max_timestamp_ms for part in parts]),
    )


def parts_within(batches: EncodedBatches, most_offsets: int) -> Iterator[EncodedBatches]:
    """The same batches, parted where they would span more offsets than that; of one batch none is parted."""
    end_offset = batches.base_offset + batches.batch_record_count
    if int(end_offset[-1] - batches.base_offset[0]) <= most_offsets:
        yield batches
        return
    data = memoryview(batches.to_bytes())  # rare: nearly all of the records between were compacted away
    start = 0
    while start < batches.batch_count:
        near = int(batches.base_offset[start]) + most_offsets
        stop = max(start + 1, int(np.searchsorted(end_offset, near, side="right")))
        rows = slice(start, stop)
        first, last = int(batches.position[start]), int(batches.position[stop - 1] + batches.size[stop - 1])
        yield EncodedBatches(
            data=[data[first:last]],
            size_bytes=last - first,
            record_count=int(batches.batch_record_count[rows].sum()),
            max_timestamp_ms=int(batches.batch_max_timestamp_ms[rows].max()),
            position=batches.position[rows] - first,
            size=batches.size[rows],
            base_offset=batches.base_offset[rows],
            batch_record_count=batches.batch_record_count[rows],
            batch_max_timestamp_ms=batches.batch_max_timestamp_ms[rows],
        )
        start = stop


@dataclass(slots=True)
class BatchList:
    """Collects batches into one EncodedBatches."""

    data: list[BytesLike] = field(default_factory=list)
    size_bytes: int = 0
    batches: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def add(self, header: BatchHeader, body: BytesLike) -> None:
        size = HEADER.size + len(body)
        self.batches.append(
            (self.size_bytes, size, header.base_offset, header.record_count, header.max_timestamp_ms)
        )
        self.data += (encode_header(header, body), body)
        self.size_bytes += size

    def finished(self) -> EncodedBatches:
        columns = np.array(self.batches, np.int64).reshape(len(self.batches), 5).T.copy()
        return EncodedBatches(
            data=self.data,
            size_bytes=self.size_bytes,
            record_count=int(columns[3].sum()),
            max_timestamp_ms=int(columns[4].max()) if self.batches else -1,
            position=columns[0],
            size=columns[1],
            base_offset=columns[2],
            batch_record_count=columns[3],
            batch_max_timestamp_ms=columns[4],
        )
