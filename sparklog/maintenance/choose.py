"""Chooses the extents to merge, and the partitions to compact, with their end offsets.

Merging. `fan_in` extents of about the same size are merged, so that a byte is rewritten once each time its
extent becomes `fan_in` times as large: with 256, and segments of 1 GiB, at most twice from extents of 8 KiB
on. Extents of at least half of segment.bytes are done; smaller ones, down to a 256th of that, are a size
class; and so on. A run that fills half a segment is merged as well. Extents of an isolated topic outside its
directory, from before it was isolated, are always due.

Compaction. A partition's log is its clean part, which earlier rounds have compacted, and its dirty part. An
extent of the dirty part may be compacted if it

    - is older than min.compaction.lag.ms, by its largest timestamp, as are all extents before it;
    - when only due work is chosen: is not the newest extent, which corresponds to Kafka's active segment
      until it is older than segment.ms (or max.compaction.lag.ms) or has segment.bytes, when Kafka would
      roll. A manual compaction has no active segment;
    - is not of idempotent producers that the partition has no room to remember (mergeable), nor after such.

Compaction is due when that part is more than min.cleanable.dirty.ratio of both parts, or older than
max.compaction.lag.ms, or when all tombstones of the clean part have expired, which Kafka only checks when new
records arrive.

Invariants: pure; the same image, time and limits give the same works. A run that is merged has at least two
    extents. A work replaces MAX_EXTENTS at most, so that the commit that publishes it stays small. The
    extents of a compaction are all of its partition up to its end offset.
Sources: size-tiered compaction of log-structured merge trees; Kafka LogCleanerManager
    (grabFilthiestCompactedLog, cleanableOffsets, maxCompactionDelay).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

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
    isolated_prefix,
    mergeable,
)

# --- works -------------------------------------------------------------------------------------------
#
# Units of work, as values that can be pickled and run by any process with access to the store.
#
# A piece is consecutive extents of one partition in one image. The publish checks that they are still there
# (work_loop.py).

PartitionKey = tuple[str, int]  # topic id, partition
NO_PARTITIONS: frozenset[PartitionKey] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Extents of one partition to read and replace.

    Fields:
        born: the creation version of their replacement, by the image that has them.
        topic: its name, for the names of files and for messages.
        config: the topic's settings, as of the choice.
        is_shared: its batches are written to a segment that other pieces share.
    """

    born: int
    topic: str
    topic_id: str
    partition: int
    config: TopicConfig
    extents: ExtentColumns
    is_shared: bool

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition

    @property
    def size(self) -> int:
        """Stored bytes."""
        return int(self.extents.column("size").sum())

    @property
    def moves(self) -> bool:
        """True if its extents are outside the directory of its topic, which is isolated."""
        return bool(_misplaced(self.topic, self.config, self.extents).any())

    @property
    def start_offset(self) -> int:
        return int(self.extents.base_offset[0])

    @property
    def end_offset(self) -> int:
        """Exclusive."""
        return int(self.extents.end_offset[-1])


class Work(Protocol):
    """A unit that is rewritten and published as a whole."""

    @property
    def pieces(self) -> Sequence[Piece]:
        """Return all pieces to read."""

    @property
    def size(self) -> int:
        """Stored bytes that are read."""

    @property
    def reads(self) -> int:
        """Return how often each small extent is read."""

    @property
    def name(self) -> str:
        """Return a name for messages."""


@dataclass(frozen=True, slots=True)
class MergeWork:
    """Pieces that are merged and published together: small ones share a segment."""

    pieces: tuple[Piece, ...]
    reads: ClassVar[int] = 1

    @property
    def size(self) -> int:
        """Stored bytes."""
        return sum(piece.size for piece in self.pieces)

    @property
    def extent_count(self) -> int:
        """Return the number of extents to replace."""
        return sum(len(piece.extents) for piece in self.pieces)

    @property
    def name(self) -> str:
        first, more = self.pieces[0], len(self.pieces) - 1
        return f"merging {first.topic}-{first.partition}" + (f" and {more} more partitions" if more else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionWork:
    """A compaction round of one partition.

    Fields:
        born, newest_ms: the creation version of new segments, and the newest commit's time, by the image of
            the choice.
        config: the topic's settings, as of the choice.
        extents: from the log start to the latest end of the round.
        cleaned: the compaction state of the partition, as of the choice.
        first_dirty_offset: the start of the dirty part; not below the log start.
        end_offset: exclusive; nothing from here on is read.
        clean_bytes, dirty_bytes: approximate stored bytes of both parts.
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
    reads: ClassVar[int] = 2

    @property
    def dirty_ratio(self) -> float:
        """Return the dirty ratio of the part that may be compacted."""
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    @property
    def size(self) -> int:
        """Return the stored bytes to read: the dirty part twice."""
        return int(self.extents.column("size").sum()) + self.dirty_bytes

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return (self.piece(self.extents),)

    def piece(self, extents: ExtentColumns) -> Piece:
        """Return a piece of some of its extents."""
        return Piece(
            born=self.born,
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            config=self.config,
            extents=extents,
            is_shared=False,
        )

    @property
    def name(self) -> str:
        return f"compacting {self.topic}-{self.partition}"


# --- topics ------------------------------------------------------------------------------------------


# Four times the number that makes a partition due: maintenance with any time at all stays below it, unless
# groups commit so often that they reach it within one interval (log.cleaner.backoff.ms).
MOST_EXTENTS = 1_024


def named_topics(image: Image, topics: Collection[str]) -> list[str]:
    """Return the names of these topics, in the caller's order.

    A str is a collection of letters: `expire(..., "ab")` would remove the records of the topics a and b.

    Raises:
        UnknownTopicError: TOPIC_MISSING.
        InvalidRequestError: INVALID_OPTION, a text instead of a list of names.
    """
    if isinstance(topics, str):
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"topics: found the text {topics!r}, expected a list of names",
            fix=f"pass [{topics!r}], or omit topics for all of them",
        )
    return [image.topic(name).name for name in topics]


def urgent_topics(image: Image) -> tuple[str, ...]:
    """Return the internal topics that have a partition of more than MOST_EXTENTS extents. Pure.

    A broker that becomes the coordinator of a group first reads all of its partition of `__consumer_offsets`.
    On an object store each extent is a request, of some 2 ms of a processor: 5,459 of them took 11 s on a
    quiet machine and 107 s on a busy one, where maintenance at the lowest priority had no time either.
    """
    return tuple(
        name
        for name, topic in image.topics.items()
        if is_internal(name) and any(len(state.extents) > MOST_EXTENTS for state in topic.partitions)
    )


def _chosen(image: Image, topics: Collection[str] | None) -> list[Topic]:
    return [image.topics[name] for name in sorted(image.topics) if topics is None or name in topics]


def _partitions(
    topic: Topic, skip: Collection[PartitionKey], since: Image, least_extents: int = 1
) -> Iterator[tuple[PartitionState, ExtentColumns]]:
    """Yield the partitions that are not skipped, with their extents up to their end in `since`."""
    known = since.topic_by_id.get(topic.topic_id)
    for state, old in zip(topic.partitions, known.partitions if known else (), strict=False):
        if len(state.extents) >= least_extents and (topic.topic_id, state.partition) not in skip:
            yield state, state.extents.columns_between(0, state.extents.index_from(old.log_end_offset))


# --- merges ------------------------------------------------------------------------------------------


MAX_EXTENTS = 16_384  # of a work; their checksum takes a millisecond
MAX_SHARED_BYTES = 64 << 20  # of the pieces that share a segment
_SMALLEST_CLASS_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeLimits:
    """Limits of merging.

    Fields:
        fan_in: the number of extents of a size class to merge. Smaller: fewer extents, more rewriting;
            larger: the reverse. None: merge all that can be merged, also two extents.
        target_bytes: the size of a segment; None: the topic's segment.bytes, which is always the maximum.
        shared_bytes: smaller pieces share a segment with others; larger ones get their own segments.
            Smaller: more files; larger: more rewriting, and a file is only removed when all its pieces are
            dead.
        skip: partitions that are not merged.
    """

    fan_in: int | None = 256
    target_bytes: int | None = None
    shared_bytes: int = 4 << 20
    skip: frozenset[PartitionKey] = NO_PARTITIONS


def choose_merges(
    image: Image,
    limits: MergeLimits,
    topics: Collection[str] | None = None,
    *,
    since: Image | None = None,
    segments: Collection[str] | None = None,
) -> Iterator[MergeWork]:
    """Yield the due works, by topic and partition.

    Args:
        topics: None: all.
        since: an older image; extents after its log ends are not merged. None: no such limit.
        segments: None: merges that reduce the extents are due, and those that move them into the directory
            of an isolated topic; else all replaceable extents in these segments.
    """
    wanted = None if segments is None else np.array(sorted(segments), object)
    return _in_works(
        piece
        for topic in _chosen(image, topics)
        for piece in (
            _pieces(image, topic, limits, since or image)
            if wanted is None
            else _pieces_within(image, topic, limits, wanted)
        )
    )


def _in_works(pieces: Iterable[Piece]) -> Iterator[MergeWork]:
    """Yield large pieces as works of their own, and small ones together."""
    shared: list[Piece] = []
    size = count = 0  # running totals: adding them up for each piece would be quadratic
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


def _pieces(image: Image, topic: Topic, limits: MergeLimits, since: Image) -> Iterator[Piece]:
    config = TopicConfig.parse(topic.configs, image.configs)
    target = min(limits.target_bytes or config.segment_bytes, config.segment_bytes, _indexed_bytes(config))
    least_extents = 1 if config.segment_isolation else limits.fan_in or 2
    for state, columns in _partitions(topic, limits.skip, since, least_extents):
        may_change = mergeable(state, columns)
        moves = _misplaced(topic.name, config, columns) & may_change
        # An extent that must not change separates its neighbours, as a done one does.
        size = np.where(may_change & ~moves, columns.column("size"), target)
        runs = [*runs_to_merge(size, target, limits.fan_in), *_marked_runs(moves, columns, config)]
        for start, stop in sorted(runs):
            yield _piece(image, topic, state, config, columns.slice(start, stop), limits)


def _pieces_within(
    image: Image, topic: Topic, limits: MergeLimits, segments: npt.NDArray[np.object_]
) -> Iterator[Piece]:
    config = TopicConfig.parse(topic.configs, image.configs)
    for state, columns in _partitions(topic, limits.skip, image):
        marked = np.isin(columns.segment, segments) & mergeable(state, columns)
        for start, stop in _marked_runs(marked, columns, config):
            yield _piece(image, topic, state, config, columns.slice(start, stop), limits)


def _misplaced(topic: str, config: TopicConfig, columns: ExtentColumns) -> npt.NDArray[np.bool_]:
    """Return which extents are outside the directory of their topic, if it is isolated."""
    if not config.segment_isolation:
        return np.zeros(len(columns), np.bool_)
    prefix = isolated_prefix(topic)
    return np.array([not segment.startswith(prefix) for segment in columns.segment.tolist()], np.bool_)


def _marked_runs(
    marked: npt.NDArray[np.bool_], columns: ExtentColumns, config: TopicConfig
) -> Iterator[tuple[int, int]]:
    """Yield all marked extents, in runs [start, stop) of at most segment.bytes."""
    edges = np.diff(marked, prepend=False, append=False)
    for start, stop in np.flatnonzero(edges).reshape(-1, 2).tolist():
        for low, high in cut(columns.column("size")[start:stop], config.segment_bytes):
            yield start + low, start + high


def _piece(
    image: Image,
    topic: Topic,
    state: PartitionState,
    config: TopicConfig,
    extents: ExtentColumns,
    limits: MergeLimits,
) -> Piece:
    # There may be no gaps in a segment that several partitions share.
    has_gaps = (extents.end_offset[:-1] != extents.base_offset[1:]).any()
    is_small = int(extents.column("size").sum()) < limits.shared_bytes
    return Piece(
        born=image.birth,
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=state.partition,
        config=config,
        extents=extents,
        is_shared=is_small and not has_gaps and all(map(is_dense, set(extents.segment.tolist()))),
    )


def _indexed_bytes(config: TopicConfig) -> int:
    """Return a size that always fits a segment's indexes; larger pieces may be cut (merging.py) into parts
    that would be chosen again and again.
    """
    entries = config.segment_index_bytes // TIME_ENTRY.size
    return max(1, entries * HEADER.size, (entries - 1) * config.index_interval_bytes)


def runs_to_merge(size: npt.NDArray[np.int64], target: int, fan_in: int | None) -> list[tuple[int, int]]:
    """Return runs [start, stop) of extents of these sizes; they do not overlap, and ascend.

    Small classes come first: larger extents are merged only with small ones next to them that were too few
    to be merged by themselves.
    """
    bounds = _class_bounds(target, fan_in)
    classes = np.searchsorted(bounds, size, side="right")
    taken = np.zeros(len(size), np.bool_)
    chosen: list[tuple[int, int]] = []
    for top in range(len(bounds)):
        for start, stop in _stretches((classes <= top) & ~taken):
            for low, high in cut(size[start:stop], target):
                run = slice(start + low, start + high)
                is_due = fan_in is None or int((classes[run] == top).sum()) >= fan_in
                if high - low >= 2 and (is_due or 2 * int(size[run].sum()) >= target):
                    chosen.append((run.start, run.stop))
                    taken[run] = True
    return sorted(chosen)


def _class_bounds(target: int, fan_in: int | None) -> npt.NDArray[np.int64]:
    """Return the upper bounds of the size classes; extents of at least the last bound are done."""
    bounds = [max(1, target // 2)]
    while fan_in is not None and bounds[0] > _SMALLEST_CLASS_BYTES:
        bounds.insert(0, bounds[0] // fan_in)
    return np.array(bounds, np.int64)


def _stretches(wanted: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the ranges of at least two consecutive true values."""
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
    pairs = edges.reshape(-1, 2)
    return [(start, stop) for start, stop in pairs[pairs[:, 1] - pairs[:, 0] >= 2].tolist()]


def cut(
    size: npt.NDArray[np.int64], target: int, most_extents: int = MAX_EXTENTS
) -> Iterator[tuple[int, int]]:
    """Cut a run of extents so that no part [start, stop) is larger than the target, unless one extent is, or
    has more than `most_extents`.
    """
    ends = np.cumsum(size)
    start = 0
    while start < len(size):
        done = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, done + target, side="right"))
        stop = min(max(stop, start + 1), start + most_extents)
        yield start, stop
        start = stop


# --- compactions -------------------------------------------------------------------------------------


COMPACT = "compact"
NO_DEFAULTS: Mapping[str, str] = {}
DEDUPE_BUFFER_BYTES = 128 << 20  # Kafka's log.cleaner.dedupe.buffer.size


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLimits:
    """Limits of compaction.

    Fields:
        only_due: apply min.cleanable.dirty.ratio and max.compaction.lag.ms, and skip the newest extent, as
            Kafka's cleaner does. Else compact all that can be compacted.
        min_extents: the dirty ratio only counts if the dirty part has this many extents, or segment.bytes, or
            has waited for segment.ms. Smaller: less space; larger: partitions of a few small extents, where a
            little is more than half, are rewritten less often.
        dedupe_buffer_bytes: memory for the keys of a round. Smaller: with many keys more rounds, each of
            which rewrites the partition; larger: more memory.
        skip: partitions that are not compacted.
        defaults: a broker's defaults of settings that neither the topic nor the root has.
    """

    only_due: bool = False
    min_extents: int = 1
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
    skip: frozenset[PartitionKey] = NO_PARTITIONS
    defaults: Mapping[str, str] = field(default_factory=lambda: NO_DEFAULTS)


def choose_compactions(
    image: Image,
    now_ms: int,
    limits: CompactionLimits,
    topics: Collection[str] | None = None,
    *,
    since: Image | None = None,
) -> list[CompactionWork]:
    """Return the due works, largest dirty ratio first.

    Args:
        topics: None: all.
        since: an older image; records after its log ends are not compacted. None: no such limit.
    """
    works = [
        work
        for topic in _chosen(image, topics)
        for work in _works(image, topic, now_ms, limits, since or image)
        if _is_due(work, now_ms, limits)
    ]
    return sorted(works, key=lambda work: -work.dirty_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirtiness:
    """The amount of compaction work, due or not.

    Fields:
        ratio: the largest dirty ratio of a partition's compactable part.
        overdue_ms: the longest time for which a record has exceeded max.compaction.lag.ms.
    """

    ratio: float = 0.0
    overdue_ms: int = 0


def dirtiness(
    image: Image, now_ms: int, limits: CompactionLimits, topics: Collection[str] | None = None
) -> Dirtiness:
    """Measure the partitions of these topics. Pure."""
    ratio, overdue_ms = 0.0, 0
    for topic in _chosen(image, topics):
        for work in _works(image, topic, now_ms, limits, image):
            ratio = max(ratio, work.dirty_ratio)
            newest = _dirty_times(work)
            if len(newest):
                overdue_ms = max(overdue_ms, now_ms - int(newest.min()) - work.config.max_compaction_lag_ms)
    return Dirtiness(ratio=ratio, overdue_ms=overdue_ms)


def why_not_due(image: Image, name: str, now_ms: int, limits: CompactionLimits) -> str:
    """Return a text why no compaction of the topic is due; empty if one is. Pure."""
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
    """True if the topic's cleanup.policy has compact."""
    return COMPACT in TopicConfig.parse(topic.configs, image.configs).cleanup_policy


def _works(
    image: Image, topic: Topic, now_ms: int, limits: CompactionLimits, since: Image
) -> Iterator[CompactionWork]:
    config = TopicConfig.parse(topic.configs, {**limits.defaults, **image.configs})
    if COMPACT not in config.cleanup_policy:
        return
    for state, all_columns in _partitions(topic, limits.skip, since):
        columns = all_columns.slice(0, _cleanable(state, all_columns, config, now_ms, limits))
        first_dirty = max(state.log_start_offset, state.cleaned.first_dirty_offset)
        # A round reads all of the clean part, or none: what it records holds for all of it.
        if not len(columns) or len(columns) < state.extents.index_from(first_dirty):
            continue
        end = max(first_dirty, int(columns.end_offset[-1]))
        yield CompactionWork(
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
            dirty_bytes=bytes_between(state, first_dirty, end),
            dedupe_buffer_bytes=limits.dedupe_buffer_bytes,
        )


def _cleanable(
    state: PartitionState, columns: ExtentColumns, config: TopicConfig, now_ms: int, limits: CompactionLimits
) -> int:
    """Return the number of leading extents that may be compacted."""
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
    """Return the largest timestamps of the dirty extents that have one."""
    newest = work.extents.column("max_timestamp_ms")
    return newest[(work.extents.end_offset > work.first_dirty_offset) & (newest > 0)]
