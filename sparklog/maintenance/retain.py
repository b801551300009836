"""Retention: which records are past their topic's retention.ms or retention.bytes, with Kafka's arithmetic.

From the oldest extent on, and without leaving one in between:

    by time    an extent goes when its largest timestamp is older than retention.ms before now. A timestamp in
               the future keeps its extent, and all after it, until that time has come and gone. So does an
               extent without timestamps.
    by size    an extent goes while what would be left is at least retention.bytes.

An extent is what Kafka's segment is there, and is mostly smaller; there is no active one that must stay, so
that a partition nobody writes to becomes empty, as Kafka's does once its last segment has rolled.
Invariants: records go by moving the log start offset up, never otherwise; topics whose cleanup.policy has no
    delete keep everything. What goes is decided from the image that the commit is planned against.
Not here: freeing the files (nothing refers to them then).
Concurrency: pure, but for publishing.
Sources: Kafka UnifiedLog.deleteRetentionMsBreachedSegments, deleteRetentionSizeBreachedSegments.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sparklog.log.config import TopicConfig
from sparklog.maintenance.choose_compactions import NO_DEFAULTS
from sparklog.maintenance.topic_names import named_topics
from sparklog.metadata import (
    Action,
    AdvanceLogStart,
    Image,
    MetadataLog,
    PartitionState,
    plan_advance_log_start,
)

MAX_ACTIONS = 10_000  # of a commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """What goes of one partition: everything below `new_log_start_offset`.

    Fields:
        offsets: how many; records, where compaction has left no gaps.
        size_bytes: stored bytes of the extents that go.
    """

    topic: str
    topic_id: str
    partition: int
    log_start_offset: int
    new_log_start_offset: int
    size_bytes: int

    @property
    def offsets(self) -> int:
        return self.new_log_start_offset - self.log_start_offset


def choose_expired(
    image: Image,
    now_ms: int,
    topics: Collection[str] | None = None,
    defaults: Mapping[str, str] = NO_DEFAULTS,
) -> Iterator[Expiry]:
    """What is past its topic's retention, by topic and partition.

    Args:
        topics: None: all.
        defaults: settings of topics where neither they nor the root say anything: a broker's.
    """
    for name in sorted(image.topics):
        if topics is not None and name not in topics:
            continue
        topic = image.topics[name]
        config = TopicConfig.parse(topic.configs, {**defaults, **image.configs})
        if "delete" not in config.cleanup_policy or (config.retention_ms < 0 and config.retention_bytes < 0):
            continue
        for state in topic.partitions:
            count, size = _expired(state, config, now_ms)
            start_offset = _end_of(state, count) if count else 0
            # Extents may lie wholly below the log start, where compaction has parted one that it cuts.
            if start_offset > state.log_start_offset:
                yield Expiry(
                    topic=name,
                    topic_id=topic.topic_id,
                    partition=state.partition,
                    log_start_offset=state.log_start_offset,
                    new_log_start_offset=start_offset,
                    size_bytes=size,
                )


def _expired(state: PartitionState, config: TopicConfig, now_ms: int) -> tuple[int, int]:
    """(extents, their stored bytes)"""
    columns = state.extents.columns()
    size = columns.column("size")
    count = 0
    if config.retention_ms >= 0:
        newest = columns.column("max_timestamp_ms")
        stays = (newest < 0) | (newest >= now_ms - config.retention_ms)
        count = int(stays.argmax()) if stays.any() else len(columns)
    if config.retention_bytes >= 0:
        left = int(size.sum()) - np.cumsum(size)  # after this one, and those before it, are gone
        count = max(count, int((left >= config.retention_bytes).sum()))
    return count, int(size[:count].sum())


def _end_of(state: PartitionState, count: int) -> int:
    """Where the log starts when the first `count` extents are gone."""
    return state.log_end_offset if count == len(state.extents) else state.extents[count].base_offset


def expire(
    metadata: MetadataLog,
    now_ms: int,
    topics: Collection[str] | None = None,
    *,
    dry_run: bool = False,
    defaults: Mapping[str, str] = NO_DEFAULTS,
) -> list[Expiry]:
    """Remove what is past its retention, or only say what would go; `defaults` as in choose_expired.

    Raises:
        UnknownTopicError: TOPIC_MISSING.
        InvalidRequestError: `topics` is a text.
        RetriableError, StorageError, FatalStorageError: see MetadataLog.publish; earlier commits stay.
    """
    image = metadata.refresh(force=True)
    names = None if topics is None else named_topics(image, topics)
    if dry_run:
        return list(choose_expired(image, now_ms, names, defaults))
    gone: list[Expiry] = []
    while True:
        some = _expire_some(metadata, now_ms, names, defaults)
        gone += some
        if len(some) < MAX_ACTIONS:
            return gone


def _expire_some(
    metadata: MetadataLog, now_ms: int, topics: Collection[str] | None, defaults: Mapping[str, str]
) -> list[Expiry]:
    """What goes in one commit; MAX_ACTIONS at most."""
    chosen: list[Expiry] = []

    def plan(image: Image) -> list[Action]:
        due = choose_expired(image, now_ms, topics, defaults)
        chosen[:] = itertools.islice(due, MAX_ACTIONS)
        return list(_actions(image, chosen))

    metadata.publish(plan)
    return chosen


def _actions(image: Image, chosen: Collection[Expiry]) -> Iterator[AdvanceLogStart]:
    for one in chosen:
        action = plan_advance_log_start(image, one.topic_id, one.partition, one.new_log_start_offset)
        if action is not None:
            yield action
