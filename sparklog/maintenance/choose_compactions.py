"""Which partitions are to be compacted, and how far.

A partition's log is its clean part, which earlier rounds have seen, and its dirty part. Of the dirty part may
be compacted what

    - is older than min.compaction.lag.ms, by the largest timestamps of extents, up to the first that is not;
    - when this is done by itself: is not in the newest extent, which plays Kafka's active segment until it is
      older than segment.ms (or max.compaction.lag.ms) or has segment.bytes, when Kafka's would roll. By hand
      there is none;
    - is not of idempotent producers that the partition has no room to remember (mergeable), nor beyond such.

It is due when it is more than min.cleanable.dirty.ratio of both parts, or older than max.compaction.lag.ms,
or when all tombstones of the clean part may go, which Kafka waits for new records to do.
Invariants: pure; the same image, time and limits give the same works. A work's extents are all of its
    partition up to where it ends.
Sources: Kafka LogCleanerManager (grabFilthiestCompactedLog, cleanableOffsets, maxCompactionDelay).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparklog.log.config import TopicConfig
from sparklog.log.read_plan import bytes_between
from sparklog.metadata import (
    NO_DELETE_HORIZON_MS,
    Cleaned,
    ExtentColumns,
    Image,
    PartitionState,
    Topic,
    mergeable,
)

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
