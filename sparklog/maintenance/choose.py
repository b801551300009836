"""Which extents are worth merging.

Extents of about one size are merged when there are `fan_in` of them, so that a byte is rewritten once for
each time that its extent becomes `fan_in` times as large: with 256, and segments of 1 GiB, at most twice
from extents of 8 KiB on. Sizes are told apart in classes: from half of segment.bytes on an extent is done;
below that, down to a 256th of it, is a class; and so on. A run that fills half a segment is merged as well.

Invariants: pure; the same image gives the same works. A run that is chosen has at least two extents. What a
    work replaces is bounded: MAX_EXTENTS of them, so that the commit that publishes it stays small.
Sources: size-tiered compaction of log-structured merge trees.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.format.index import TIME_ENTRY
from sparklog.format.record_batch import HEADER
from sparklog.log.config import TopicConfig
from sparklog.log.names import is_dense
from sparklog.maintenance.work import MergeWork, Piece
from sparklog.metadata import ExtentColumns, Image, Topic, mergeable

MAX_EXTENTS = 16_384  # of a work; their checksum takes a millisecond
MAX_SHARED_BYTES = 64 << 20  # of the pieces that share a segment
_SMALLEST_CLASS_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeLimits:
    """When extents are merged.

    Fields:
        fan_in: so many of one size class. Smaller: fewer extents, more rewriting; larger: the other way
            round. None: whatever can be merged is, also two of them.
        target_bytes: of a segment; None: the topic's segment.bytes, which is the most in any case.
        shared_bytes: pieces below this share a segment with others; what is larger gets segments of its own.
            Smaller: more files; larger: more is written once more, and a file goes only when all in it have.
        but: (topic_id, partition) of what is left as it is.
    """

    fan_in: int | None = 256
    target_bytes: int | None = None
    shared_bytes: int = 4 << 20
    but: frozenset[tuple[str, int]] = frozenset()


def choose_merges(
    image: Image,
    limits: MergeLimits,
    topics: Collection[str] | None = None,
    *,
    since: Image | None = None,
) -> Iterator[MergeWork]:
    """The works that are due, by topic and partition.

    Args:
        topics: None: all.
        since: an older image, beyond whose offsets nothing is looked at; None: everything is.
    """
    for_all = (
        piece
        for name in sorted(image.topics)
        if topics is None or name in topics
        for piece in _pieces(image, image.topics[name], limits, since or image)
    )
    return _in_works(for_all)


def _in_works(pieces: Iterable[Piece]) -> Iterator[MergeWork]:
    """Large pieces by themselves, small ones together."""
    shared: list[Piece] = []
    size = count = 0  # of them: to add them up for each piece would cost the square of their number
    for piece in pieces:
        if not piece.is_shared:
            yield MergeWork((piece,))
            continue
        size += piece.size
        count += len(piece.extents)
        if shared and (size > MAX_SHARED_BYTES or count > MAX_EXTENTS):
            yield MergeWork(tuple(shared))
            shared, size, count = [], piece.size, len(piece.extents)
        shared.append(piece)
    if shared:
        yield MergeWork(tuple(shared))


def choose_rewrites(
    image: Image,
    limits: MergeLimits,
    topics: Collection[str] | None = None,
    *,
    since: Image | None = None,  # noqa: ARG001 - what is named was there
    segments: Collection[str],
) -> Iterator[MergeWork]:
    """The works that move all extents out of these segments, as far as they may be replaced."""
    wanted = np.array(sorted(segments), object)
    chosen = [image.topics[name] for name in sorted(image.topics) if topics is None or name in topics]
    return _in_works(piece for topic in chosen for piece in _lying_in(image, topic, limits, wanted))


def _lying_in(
    image: Image, topic: Topic, limits: MergeLimits, segments: npt.NDArray[np.object_]
) -> Iterator[Piece]:
    config = TopicConfig.parse(topic.configs, image.configs)
    for state in topic.partitions:
        if (topic.topic_id, state.partition) in limits.but:
            continue
        columns = state.extents.columns()
        edges = np.diff(
            np.isin(columns.segment, segments) & mergeable(state, columns), prepend=False, append=False
        )
        for start, stop in np.flatnonzero(edges).reshape(-1, 2).tolist():
            for low, high in _cut(columns.column("size")[start:stop], config.segment_bytes):
                extents = columns.slice(start + low, start + high)
                yield Piece(
                    born=image.commit,
                    topic=topic.name,
                    topic_id=topic.topic_id,
                    partition=state.partition,
                    config=config,
                    extents=extents,
                    is_shared=int(extents.column("size").sum()) < limits.shared_bytes and _is_dense(extents),
                )


def _pieces(image: Image, topic: Topic, limits: MergeLimits, since: Image) -> Iterator[Piece]:
    known = since.topic_by_id.get(topic.topic_id)
    if known is None:
        return
    config = TopicConfig.parse(topic.configs, image.configs)
    target = min(limits.target_bytes or config.segment_bytes, config.segment_bytes, _indexed_bytes(config))
    for state, old in zip(topic.partitions, known.partitions, strict=False):
        if len(state.extents) < (limits.fan_in or 2) or (topic.topic_id, state.partition) in limits.but:
            continue
        columns = state.extents.columns_between(0, state.extents.index_from(old.log_end_offset))
        # What must stay as it is parts what lies about it, as an extent does that is done.
        size = np.where(mergeable(state, columns), columns.column("size"), target)
        for start, stop in runs_to_merge(size, target, limits.fan_in):
            extents = columns.slice(start, stop)
            yield Piece(
                born=image.birth,
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=state.partition,
                config=config,
                extents=extents,
                is_shared=int(extents.column("size").sum()) < limits.shared_bytes and _is_dense(extents),
            )


def _indexed_bytes(config: TopicConfig) -> int:
    """So large a segment's indexes surely have room; what is larger may be cut (merged_segment.py), into
    parts that would be chosen again and again.
    """
    entries = config.segment_index_bytes // TIME_ENTRY.size
    return max(1, entries * HEADER.size, (entries - 1) * config.index_interval_bytes)


def _is_dense(extents: ExtentColumns) -> bool:
    """No gaps: there may be none in a segment that several partitions share."""
    return bool((extents.end_offset[:-1] == extents.base_offset[1:]).all()) and all(
        is_dense(name) for name in set(extents.segment.tolist())
    )


def runs_to_merge(size: npt.NDArray[np.int64], target: int, fan_in: int | None) -> list[tuple[int, int]]:
    """Runs [start, stop) of extents of these sizes; they do not overlap, and ascend.

    Small classes come first: larger extents are looked at only with small ones beside them that were too few
    to be merged by themselves.
    """
    bounds = _class_bounds(target, fan_in)
    classes = np.searchsorted(bounds, size, side="right")
    taken = np.zeros(len(size), np.bool_)
    chosen: list[tuple[int, int]] = []
    for top in range(len(bounds)):
        for start, stop in _stretches((classes <= top) & ~taken):
            for low, high in _cut(size[start:stop], target):
                run = slice(start + low, start + high)
                is_due = fan_in is None or int((classes[run] == top).sum()) >= fan_in
                if high - low >= 2 and (is_due or 2 * int(size[run].sum()) >= target):
                    chosen.append((run.start, run.stop))
                    taken[run] = True
    return sorted(chosen)


def _class_bounds(target: int, fan_in: int | None) -> npt.NDArray[np.int64]:
    """Extents below the first are of class 0, and so on; those of at least the last bound are done."""
    bounds = [max(1, target // 2)]
    while fan_in is not None and bounds[0] > _SMALLEST_CLASS_BYTES:
        bounds.insert(0, bounds[0] // fan_in)
    return np.array(bounds, np.int64)


def _stretches(wanted: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where `wanted` is true without a break, for two at least."""
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
    pairs = edges.reshape(-1, 2)
    return [(start, stop) for start, stop in pairs[pairs[:, 1] - pairs[:, 0] >= 2].tolist()]


def _cut(size: npt.NDArray[np.int64], target: int) -> Iterator[tuple[int, int]]:
    """Cut a stretch so that no part is larger than the target, or has more than MAX_EXTENTS."""
    ends = np.cumsum(size)
    start = 0
    while start < len(size):
        done = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, done + target, side="right"))
        stop = min(max(stop, start + 1), start + MAX_EXTENTS)
        yield start, stop
        start = stop
