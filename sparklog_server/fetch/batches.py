"""Whole record batches of one partition, ready for a consumer, and what is known of each.

Invariants: `chunks` are whole batches with absolute base offsets, ascending; they may begin before the
    offset that was asked for, at the start of its batch.
Not here: where they come from (reader.py, cache.py).
Concurrency: immutable; chunks are never written to again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog_server.protocol.wire import Chunk

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatches:
    """Bytes of consecutive batches.

    Args:
        next_offset: where the next read goes on: after the last batch, or over a gap.
        release: give back what the chunks lie in, once they are sent; None: nothing to do.
        is_cut: more was asked for and exists, but not where these come from.
    """

    chunks: Sequence[Chunk]
    size: int
    next_offset: int
    release: Callable[[], None] | None = None
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBlock:
    """Batches in one buffer: position and absolute base offset of each, and where the last one ends."""

    data: memoryview
    position: Int64Array
    base_offset: Int64Array
    end_offset: int
