"""Compressed batches, decompressed a part at a time: nothing in a batch's header says how far it will expand.

Invariants: a part is as large as the caller wants it to be, or is one batch, of at most
    DEFAULT_MAX_DECOMPRESSED_BYTES.
Not here: which bytes (reader.py, maintenance/), decoding the records (format/decode.py).
Concurrency: a generator belongs to one thread.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from sparklog.format.batch_table import BatchTable
from sparklog.format.codec import BytesLike, Codec, decompress
from sparklog.format.decode import DEFAULT_MAX_DECOMPRESSED_BYTES
from sparklog.format.record_batch import CODEC_MASK, HEADER

_NO_HEADER = bytes(HEADER.size)


def plain_parts(
    data: BytesLike, table: BatchTable, step_bytes: int, where: str
) -> Iterator[tuple[BytesLike, BatchTable, slice]]:
    """What is decoded together: (buffer, its batches, their indices in `table`).

    Batches are decompressed one by one until a part is full. The parts hold plain batches then, without their
    headers' bytes; without compressed ones there is one part, and nothing is copied.
    """
    if not table.codec.any():
        yield data, table, slice(0, len(table))
        return
    view = memoryview(data).cast("B")
    chunks: list[BytesLike] = []
    sizes: list[int] = []
    start, size = 0, 0
    for batch, codec in enumerate(table.codec.tolist()):
        first, last = int(table.position[batch]), int(table.position[batch] + table.size[batch])
        body = decompress(
            Codec(codec),
            view[first + HEADER.size : last],
            max_bytes=DEFAULT_MAX_DECOMPRESSED_BYTES,
            where=f"{where}, batch@{first}",
        )
        chunks += (_NO_HEADER, body)
        sizes.append(HEADER.size + len(body))
        size += sizes[-1]
        if size >= step_bytes or batch == len(table) - 1:
            ends = np.cumsum(sizes, dtype=np.int64)
            indices = slice(start, batch + 1)
            part = dataclasses.replace(
                table.select(indices),
                position=ends - sizes,
                size=np.array(sizes, np.int64),
                attributes=table.attributes[indices] & ~CODEC_MASK,
            )
            del body
            joined = b"".join(chunks)
            chunks, sizes, start, size = [], [], batch + 1, 0
            yield joined, part, indices
            del joined
