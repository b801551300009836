"""Which extents are worth merging.

Extents of about one size are merged when there are `fan_in` of them, so that a byte is rewritten once for
each time that its extent becomes `fan_in` times as large: with 256, and segments of 1 GiB, at most twice
from extents of 8 KiB on. Sizes are told apart in classes: from half of segment.bytes on an extent is done;
below that, down to a 256th of it, is a class; and so on. A run that fills half a segment is merged as well.

Invariants: pure; the same image gives the same works. A run that is chosen has at least two extents. What a
    work replaces is bounded: MAX_EXTENTS of them, so that the commit that publishes it stays small.
Sources: size-tiered compaction of log-structured merge trees.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparklog.errors import InvalidRequestError
from sparklog.format.index import TIME_ENTRY
from sparklog.format.record_batch import HEADER
from sparklog.log.config import TopicConfig
from sparklog.log.read_plan import bytes_between
from sparklog.log.segment_file import is_dense
from sparklog.metadata import (
    NO_DELETE_HORIZON_MS,
    Cleaned,
    ExtentColumns,
    Image,
    PartitionState,
    Topic,
    is_internal,
    mergeable,
)

# --- choose compactions ------------------------------------------------------------------------------
#
# Which partitions are to be compacted, and how far.
#
# A partition's log is its clean part, which earlier rounds have seen, and its dirty part. Of the dirty part
# may be compacted what
#
#     - is older than min.compaction.lag.ms, by the largest timestamps of extents, up to the first that is
#     not;
#     - when this is done by itself: is not in the newest extent, which plays Kafka's active segment until it
#       is older than segment.ms (or max.compaction.lag.ms) or has segment.bytes, when Kafka's would roll. By
#       hand there is none;
#     - is not of idempotent producers that the partition has no room to remember (mergeable), nor beyond
#     such.
#
# It is due when it is more than min.cleanable.dirty.ratio of both parts, or older than max.compaction.lag.ms,
# or when all tombstones of the clean part may go, which Kafka waits for new records to do.
# Invariants: pure; the same image, time and limits give the same works. A work's extents are all of its
#     partition up to where it ends.
# Sources: Kafka LogCleanerManager (grabFilthiestCompactedLog, cleanableOffsets, maxCompactionDelay).


COMPACT = "compact"
NO_DEFAULTS: Mapping[str, str] = {}
DEDUPE_BUFFER_BYTES = 128 << 20  # Kafka's log.cleaner.dedupe.buffer.size


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLimits:
    """When partitions are compacted.

    Fields:
        only_due: go by min.cleanable.dirty.ratio and max.compaction.lag.ms, and leave the newest extent
            alone, as Kafka's cleaner does by itself. Else whatever can be compacted is.
        min_extents: the dirty ratio counts where the dirty part has so many extents, or segment.bytes, or has
            waited for segment.ms. Smaller: less space; larger: partitions of a few small extents, of which a
            little is more than half, are not rewritten all the time.
        dedupe_buffer_bytes: memory for the keys of a round. Smaller: more rounds where there are many keys,
            each of which rewrites the partition; larger: more memory.
        but: (topic_id, partition) of what is left as it is.
        defaults: settings of topics where neither they nor the root say anything: a broker's.
    """

    only_due: bool = False
    min_extents: int = 1
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
    but: frozenset[tuple[str, int]] = frozenset()
    defaults: Mapping[str, str] = field(default_factory=lambda: NO_DEFAULTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionWork:
    """A round over one partition: a value that can be pickled, and done by whoever has the store.

    Fields:
        born, newest_ms: the birth of what is written, and the newest commit's time, by the image that it was
            chosen from.
        config: the topic's settings, as of the choice.
        extents: from the log start to where the round ends at the latest.
        cleaned: how far the partition was compacted, as of the choice.
        first_dirty_offset: where the dirty part begins; not below the log start.
        end_offset: nothing from here on is looked at.
        clean_bytes, dirty_bytes: stored bytes of both parts, about.
    """

    born: int
    newest_ms: int
    topic: str
    topic_id: str
    partition: int
    config: TopicConfig
    extents: ExtentColumns
    cleaned: Cleaned
    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    dedupe_buffer_bytes: int

    @property
    def dirty_ratio(self) -> float:
        """Of the part that may be compacted."""
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    @property
    def size(self) -> int:
        """Stored bytes that are read: the dirty part twice."""
        return int(self.extents.column("size").sum()) + self.dirty_bytes


def choose_compactions(
    image: Image,
    now_ms: int,
    limits: CompactionLimits,
    topics: Collection[str] | None = None,
    *,
    since: Image | None = None,
) -> list[CompactionWork]:
    """The works that are due, the filthiest first.

    Args:
        topics: None: all.
        since: an older image, beyond whose offsets nothing is looked at; None: everything is.
    """
    works = [
        work
        for name in sorted(image.topics)
        if topics is None or name in topics
        for work in _works(image, image.topics[name], now_ms, limits, since or image)
        if _is_due(work, now_ms, limits)
    ]
    return sorted(works, key=lambda work: -work.dirty_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirtiness:
    """How much there is to be compacted, due or not.

    Fields:
        ratio: the largest dirty ratio of a partition, of what may be compacted.
        overdue_ms: for how long a record is older than max.compaction.lag.ms already, at most.
    """

    ratio: float = 0.0
    overdue_ms: int = 0


def dirtiness(
    image: Image, now_ms: int, limits: CompactionLimits, topics: Collection[str] | None = None
) -> Dirtiness:
    """Over the partitions of these topics. Pure."""
    ratio, overdue_ms = 0.0, 0
    for name in image.topics if topics is None else topics:
        for work in _works(image, image.topics[name], now_ms, limits, image):
            ratio = max(ratio, work.dirty_ratio)
            newest = _dirty_times(work)
            if len(newest):
                overdue_ms = max(overdue_ms, now_ms - int(newest.min()) - work.config.max_compaction_lag_ms)
    return Dirtiness(ratio=ratio, overdue_ms=overdue_ms)


def why_not_due(image: Image, name: str, now_ms: int, limits: CompactionLimits) -> str:
    """For people: why nothing of a topic that is compacted is due; empty if something is. Pure."""
    topic = image.topics[name]
    states = [state for state in topic.partitions if len(state.extents)]
    if not states:
        return "no records"
    if all(state.cleaned.first_dirty_offset >= state.log_end_offset for state in states):
        return "nothing was written since the last compaction"
    works = [work for work in _works(image, topic, now_ms, limits, image) if work.dirty_bytes]
    if any(_is_due(work, now_ms, limits) for work in works):
        return ""
    if not works:
        newest = ", or in a partition's newest extent" if limits.only_due else ""
        return f"what is not compacted is younger than min.compaction.lag.ms{newest}"
    ratio = max(work.dirty_ratio for work in works)
    least = works[0].config.min_cleanable_dirty_ratio
    if ratio > least:
        return (
            f"the dirty part has fewer than {limits.min_extents} extents, less than segment.bytes, and is "
            "younger than segment.ms"
        )
    return f"dirty ratio {ratio:.2f}, of {least:g} (min.cleanable.dirty.ratio)"


def is_compacted(topic: Topic, image: Image) -> bool:
    """Does the topic's cleanup.policy ask for it?"""
    return COMPACT in TopicConfig.parse(topic.configs, image.configs).cleanup_policy


def _works(
    image: Image, topic: Topic, now_ms: int, limits: CompactionLimits, since: Image
) -> list[CompactionWork]:
    known = since.topic_by_id.get(topic.topic_id)
    config = TopicConfig.parse(topic.configs, {**limits.defaults, **image.configs})
    if known is None or COMPACT not in config.cleanup_policy:
        return []
    works = []
    for state, old in zip(topic.partitions, known.partitions, strict=False):
        if not len(state.extents) or (topic.topic_id, state.partition) in limits.but:
            continue
        columns = state.extents.columns_between(0, state.extents.index_from(old.log_end_offset))
        columns = columns.slice(0, _cleanable(state, columns, config, now_ms, limits))
        first_dirty = max(state.log_start_offset, state.cleaned.first_dirty_offset)
        end = max(first_dirty, int(columns.end_offset[-1])) if len(columns) else first_dirty
        dirty_bytes = bytes_between(state, first_dirty, end)
        work = CompactionWork(
            born=image.birth,
            newest_ms=image.newest_ms,
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=state.partition,
            config=config,
            extents=columns,
            cleaned=state.cleaned,
            first_dirty_offset=first_dirty,
            end_offset=end,
            clean_bytes=bytes_between(state, state.log_start_offset, first_dirty),
            dirty_bytes=dirty_bytes,
            dedupe_buffer_bytes=limits.dedupe_buffer_bytes,
        )
        # A round sees all of the clean part, or none: what it notes is of all of it.
        sees_all = len(columns) >= state.extents.index_from(first_dirty)
        if len(columns) and sees_all:
            works.append(work)
    return works


def _cleanable(
    state: PartitionState, columns: ExtentColumns, config: TopicConfig, now_ms: int, limits: CompactionLimits
) -> int:
    """How many of the extents may be compacted, from the first on."""
    newest = columns.column("max_timestamp_ms")
    stays = ~mergeable(state, columns)
    if config.min_compaction_lag_ms > 0:
        stays |= newest > now_ms - config.min_compaction_lag_ms
    if limits.only_due and len(columns) == len(state.extents):
        rolls_after = min(config.segment_ms, config.max_compaction_lag_ms)
        is_active = (newest[-1:] >= now_ms - rolls_after) | (newest[-1:] < 0)
        stays[-1:] |= is_active & (columns.column("size")[-1:] < config.segment_bytes)
    return int(stays.argmax()) if stays.any() else len(columns)


def _is_due(work: CompactionWork, now_ms: int, limits: CompactionLimits) -> bool:
    if NO_DELETE_HORIZON_MS < work.cleaned.delete_horizon_ms <= now_ms:
        return True
    if not work.dirty_bytes:
        return False
    config = work.config
    if not limits.only_due:
        return True
    is_dirty = work.extents.end_offset > work.first_dirty_offset
    newest = _dirty_times(work)
    if work.dirty_ratio > config.min_cleanable_dirty_ratio and (
        np.count_nonzero(is_dirty) >= limits.min_extents
        or work.dirty_bytes >= config.segment_bytes
        or np.any(newest < now_ms - config.segment_ms)
    ):
        return True
    return bool(np.any(newest < now_ms - config.max_compaction_lag_ms))


def _dirty_times(work: CompactionWork) -> npt.NDArray[np.int64]:
    """The largest timestamps of dirty extents, of those that have one."""
    newest = work.extents.column("max_timestamp_ms")
    return newest[(work.extents.end_offset > work.first_dirty_offset) & (newest > 0)]


# --- topic names -------------------------------------------------------------------------------------
#
# The topics that an order is for, as its caller names them.
#
# A text is a collection of letters: `optimize(..., "ab")` would be an order for the topics a and b, and
# `expire(..., "ab")` would remove their records. So it is refused, wherever topics are named.


def named_topics(image: Image, topics: Collection[str]) -> list[str]:
    """Their names, in the caller's order.

    Raises:
        UnknownTopicError: TOPIC_MISSING.
        InvalidRequestError: INVALID_OPTION, a text instead of a list of names.
    """
    if isinstance(topics, str):
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"topics: found the text {topics!r}, expected a list of names",
            fix=f"write [{topics!r}], or leave topics out for all of them",
        )
    return [image.topic(name).name for name in topics]


# --- work --------------------------------------------------------------------------------------------
#
# What is to be done, as values: they can be pickled, and done by whoever has the store.
#
# Invariants: a piece is consecutive extents of one partition as one image has them. Whether they still are
#     there when the work is done is found out by who publishes (merge.py).


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Extents of one partition that are to become one, or as few as segment.bytes allows.

    Fields:
        born: the birth of what replaces them, by the image that they were found in.
        topic: its name, for the names of files and for messages.
        config: the topic's settings, as of the choice.
        is_shared: its batches go to a segment that others share.
    """

    born: int
    topic: str
    topic_id: str
    partition: int
    config: TopicConfig
    extents: ExtentColumns
    is_shared: bool

    @property
    def size(self) -> int:
        """Stored bytes."""
        return int(self.extents.column("size").sum())

    @property
    def start_offset(self) -> int:
        return int(self.extents.base_offset[0])

    @property
    def end_offset(self) -> int:
        """Exclusive."""
        return int(self.extents.end_offset[-1])


@dataclass(frozen=True, slots=True)
class MergeWork:
    """Pieces that are done together, and published together: small ones share a segment."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Stored bytes."""
        return sum(piece.size for piece in self.pieces)

    @property
    def extent_count(self) -> int:
        """How many are to be replaced."""
        return sum(len(piece.extents) for piece in self.pieces)


# --- urgent ------------------------------------------------------------------------------------------
#
# What maintenance cannot put off: internal topics of so many extents that groups stand still.
#
# Whoever becomes the coordinator of a group reads all of its partition of `__consumer_offsets` first. On an
# object store each extent is a request, of some 2 ms of a processor: 5,459 of them took 11 s on a quiet
# machine and 107 s on one that had no time to spare, where maintenance at the lowest priority had none
# either.
# Invariants: pure.
# Not here: who does it at once (sparklog_server/maintenance/service.py).


# Four times what makes a partition due: maintenance that is given any time at all never gets there, unless
# groups commit so often that an interval of it (log.cleaner.backoff.ms) is enough for as many.
MOST_EXTENTS = 1_024


def urgent_topics(image: Image) -> tuple[str, ...]:
    """The internal topics that have a partition of more than MOST_EXTENTS extents."""
    return tuple(
        name
        for name, topic in image.topics.items()
        if is_internal(name) and any(len(state.extents) > MOST_EXTENTS for state in topic.partitions)
    )


# --- choose ------------------------------------------------------------------------------------------


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
    """So large a segment's indexes surely have room; what is larger may be cut (merge.py), into
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
