"""A few stored batches, checked one by one: what stored_batches.py does with arrays, for small reads.

Arrays cost the same for one batch as for a hundred, 0.4 ms: more than all else that a small read takes, and a
consumer that comes late makes thousands of them in one fetch.
Invariants: the rules are those of stored_batches.py. What breaks one, or is more than MOST, is not answered
    here; its answer, or its error, comes from there.
Concurrency: pure; the buffer's base offsets and leader epochs are written in place.
Sources: FORMAT.md#segments-and-extents.
"""

from typing import NamedTuple

from sparklog.format.record_batch import HEADER, BatchHeader, header_error, set_base_offset
from sparklog.log.names import is_dense
from sparklog.log.stored_batches import Stretches

MOST = 16  # by then arrays are cheaper


class _Walked(NamedTuple):
    header: BatchHeader
    position: int
    base: int  # as consumers see it
    last: int


class FewBatches(NamedTuple):
    """Position and absolute base offset of each, and where the last one ends."""

    position: list[int]
    base_offset: list[int]
    end_offset: int


def sequence_few(data: memoryview, stretches: Stretches, leader_epoch: int) -> FewBatches | None:
    """Check the batches, but for CRCs, and give them their absolute offsets and their leader's epoch.

    None: nothing was done, and stored_batches.py is to say what is there, or what is wrong.
    """
    walked = _walk(data, stretches)
    if walked is None:
        return None
    for header, position, base, _ in walked:
        if base != header.base_offset or header.partition_leader_epoch != leader_epoch:
            set_base_offset(data, position, base, leader_epoch)
    return FewBatches([one.position for one in walked], [one.base for one in walked], walked[-1].last + 1)


def _walk(data: memoryview, stretches: Stretches) -> list[_Walked] | None:
    if stretches.is_cut:
        return None
    walked: list[_Walked] = []
    at = end = 0
    before = -1  # the last offset so far
    for index, size in enumerate(stretches.size):
        end += size
        dense = is_dense(stretches.segment[index])
        start, stop = stretches.start_offset[index], stretches.end_offset[index]
        expected = stretches.begins_at if index == 0 else start
        while at < end:
            one = _batch_at(data, at, end, stretches.offset_delta[index])
            if one is None or len(walked) == MOST or one.base < start or one.last >= stop:
                return None
            follows = expected is None or (one.base == expected if dense else one.base >= expected)
            if not follows or one.base <= before:
                return None
            walked.append(one)
            at += one.header.size
            before, expected = one.last, one.last + 1
        is_whole = stretches.reaches_end or index + 1 < len(stretches.size)
        if dense and is_whole and before + 1 < stop:
            return None
    return walked if walked and at == len(data) else None


def _batch_at(data: memoryview, at: int, end: int, delta: int) -> _Walked | None:
    if at + HEADER.size > end:
        return None
    header = BatchHeader(*HEADER.unpack_from(data, at))
    if header_error(header, "") is not None or at + header.size > end:
        return None
    return _Walked(header, at, header.base_offset + delta, header.last_offset + delta)
