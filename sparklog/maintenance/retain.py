"""Retention: which records are past their topic's retention.ms or retention.bytes, with Kafka's arithmetic.

From the oldest extent on, and without leaving one in between:

    by time    an extent goes when its largest timestamp is older than retention.ms before now. A timestamp in
               the future keeps its extent, and all after it, until that time has come and gone. So does an
               extent without timestamps.
    by size    an extent goes while what would be left is at least retention.bytes.

An extent plays the part of Kafka's segment, and is mostly smaller; there is no active one that must stay, so
a partition without writers becomes empty, as Kafka's does once its last segment has rolled.
Invariants: records go by moving the log start offset up, never otherwise; topics whose cleanup.policy has no
    delete keep everything. What goes is decided from the image that the commit is planned against.
Not here: freeing the files (nothing refers to them then).
Concurrency: pure, but for publishing.
Sources: Kafka UnifiedLog.deleteRetentionMsBreachedSegments, deleteRetentionSizeBreachedSegments.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from sparklog.clock import Clock
from sparklog.errors import StorageError
from sparklog.log.config import TopicConfig
from sparklog.maintenance.choose import NO_DEFAULTS, named_topics
from sparklog.metadata import (
    Action,
    AdvanceLogStart,
    Image,
    MetadataLog,
    PartitionState,
    Transaction,
    plan_abort_transactions,
    plan_advance_log_start,
    timed_out,
)
from sparklog.storage import Store

# --- two clocks --------------------------------------------------------------------------------------
#
# Where time ends something for good, the earlier of two clocks counts: this machine's, and the store's.
#
# A machine whose clock is ahead, by a year or by a time zone, would remove records that are not past their
# retention, tombstones that readers have not seen, and abort transactions that are in progress.
# Invariants: on an object store, and a directory of another machine, nothing ends before both clocks say so.
#     A local directory has only this machine's clock: if that is ahead, it is believed. A clock that is
#     behind ends things late, which harms nothing; but a time that it stores would look old to others, so
#     that is never before the newest commit's (Image.no_earlier_ms).
# Not here: whether something is due at all, which is checked often, by the image and this machine's clock: a
#     round that begins too early does nothing.


def earlier_now_ms(store: Store, clock: Clock) -> int:
    """Return the time of this machine, or of the store if that is earlier."""
    return both_now_ms(store, clock)[0]


def shown_now_ms(store: Store, clock: Clock) -> int:
    """Return the same for a dry run: the time of a directory comes from a file that is made in it, which a
    read-only directory refuses.
    """
    try:
        return earlier_now_ms(store, clock)
    except StorageError:
        return clock.now_ms()


def both_now_ms(store: Store, clock: Clock) -> tuple[int, int]:
    """Return the earlier and the later of both: what is kept for a while is kept from the later one on.

    1. a store dates by whole seconds: it is up to a second behind, and says 5.0 at 5.9 s;
    2. a tombstone is to be kept for a second, and is marked as of 5.0;
    3. at 6.0 s both clocks say that it was, and a reader that began at 5.9 s does not see it.
    """
    here_ms = clock.now_ms()
    store_ms = store.storage_now_ms(here_ms)
    return min(here_ms, store_ms), max(here_ms, store_ms)


# --- left open ---------------------------------------------------------------------------------------
#
# Transactions that are past their time-out are aborted, and their producers fenced, where no broker does it.
#
# What a dead process has staged takes space until its transactional id is used again, which may be never.
# Brokers abort within seconds (transaction.abort.timed.out.transaction.cleanup.interval.ms); roots that only
# Spark and Python use have rounds of maintenance.
#
# Invariants: nothing is aborted before its time-out, from its start by the opener's clock, and now by the
#     earlier of two clocks. A root that names a running broker is left to it for BROKERS_MS: a broker that
#     was killed looks the same. The transactions are chosen from the image that the commit is planned
#     against.
# Not here: what an abort does (sparklog/metadata/model/transactions.py), a broker's own look
# (sparklog_server).
# Concurrency: any process and machine; the second one finds nothing open.
# After a crash: due again.
# Sources: Kafka TransactionCoordinator.abortTimedOutTransactions.


BROKERS_MS: Final = 600_000  # far above how often they look, and how long it takes to replace one


def choose_left_open(image: Image, now_ms: int) -> list[str]:
    """Return the transactional ids to abort, as many as go into a commit. Pure."""
    is_served = any(not broker.is_fenced for broker in image.brokers.values())
    return timed_out(image, now_ms - BROKERS_MS if is_served else now_ms)


def abort_left_open(metadata: MetadataLog, clock: Clock, check: Callable[[], None]) -> list[Transaction]:
    """Abort them; return them as they were.

    Args:
        check: called before each commit; may raise.

    Raises:
        RetriableError, StorageError, FatalStorageError: see MetadataLog.publish; earlier commits stay.
    """
    aborted: list[Transaction] = []
    while True:
        check()
        some = _abort_some(metadata, earlier_now_ms(metadata.store, clock))
        if not some:
            return aborted
        aborted += some


def _abort_some(metadata: MetadataLog, now_ms: int) -> list[Transaction]:
    chosen: list[Transaction] = []

    def plan(image: Image) -> list[Action]:
        late = choose_left_open(image, now_ms)
        chosen[:] = [image.transactions[name] for name in late]
        return [*plan_abort_transactions(image, late, now_ms=now_ms)]

    metadata.publish(plan)
    return chosen


# --- retain ------------------------------------------------------------------------------------------


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
    """Yield what is past its topic's retention, by topic and partition.

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
    """Return where the log starts when the first `count` extents are gone."""
    return state.log_end_offset if count == len(state.extents) else state.extents[count].base_offset


def expire(
    metadata: MetadataLog,
    now_ms: int,
    topics: Collection[str] | None = None,
    *,
    dry_run: bool = False,
    defaults: Mapping[str, str] = NO_DEFAULTS,
) -> list[Expiry]:
    """Remove what is past its retention, or only report what would go; `defaults` as in choose_expired.

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
    """Remove, and return, what goes in one commit; MAX_ACTIONS at most."""
    chosen: list[Expiry] = []

    def plan(image: Image) -> list[Action]:
        due = choose_expired(image, now_ms, topics, defaults)
        chosen[:] = itertools.islice(due, MAX_ACTIONS)
        return list(_actions(image, chosen))

    metadata.publish(plan)
    return chosen


def _actions(image: Image, chosen: Collection[Expiry]) -> Iterator[AdvanceLogStart]:
    for expiry in chosen:
        action = plan_advance_log_start(image, expiry.topic_id, expiry.partition, expiry.new_log_start_offset)
        if action is not None:
            yield action
