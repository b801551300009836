"""Retention: removes records past their topic's retention.ms or retention.bytes, with Kafka's arithmetic.

From the oldest extent on, without gaps:

    by time    an extent is removed when its largest timestamp is older than retention.ms before now. A
               timestamp in the future keeps its extent, and all after it, until that time has passed, too. So
               does an extent without timestamps.
    by size    an extent is removed while the remaining size would be at least retention.bytes.

An extent corresponds to Kafka's segment, and is mostly smaller. There is no active one that must stay, so a
partition without writers becomes empty, as in Kafka once its last segment has rolled.
Invariants: records are only removed by advancing the log start offset; topics whose cleanup.policy has no
    delete keep everything. The decision is made from the image that the commit is planned against.
Not here: removing the unreferenced files.
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
# If a removal by time is final, the earlier of two clocks counts: this machine's, and the store's.
#
# A machine whose clock is ahead, by a year or by a time zone, would remove records that are not past their
# retention, tombstones that readers have not seen, and abort transactions that are in progress.
# Invariants: on an object store, and a directory of another machine, nothing expires before both clocks are
#     past its time. A local directory has only this machine's clock, even if it is ahead. A clock that is
#     behind expires things late, which is harmless; but a time that it stores would look old to others, so
#     stored times are never before the newest commit's (Image.no_earlier_ms).
# Not here: the frequent check whether something is due, by the image and this machine's clock: a round that
#     begins too early does nothing.


def earlier_now_ms(store: Store, clock: Clock) -> int:
    """Return the earlier of this machine's time and the store's."""
    return both_now_ms(store, clock)[0]


def shown_now_ms(store: Store, clock: Clock) -> int:
    """Return the same for a dry run: the time of a directory comes from a new file in it, which fails in a
    read-only directory.
    """
    try:
        return earlier_now_ms(store, clock)
    except StorageError:
        return clock.now_ms()


def both_now_ms(store: Store, clock: Clock) -> tuple[int, int]:
    """Return the earlier and the later of both: a retention period begins at the later one.

    1. a store has times of whole seconds: it is up to a second behind, and has 5.0 at 5.9 s;
    2. a tombstone with a retention of one second is marked as of 5.0;
    3. at 6.0 s it is removed by both clocks, and a reader that began at 5.9 s does not see it.
    """
    here_ms = clock.now_ms()
    store_ms = store.storage_now_ms(here_ms)
    return min(here_ms, store_ms), max(here_ms, store_ms)


# --- left open ---------------------------------------------------------------------------------------
#
# Aborts transactions past their time-out, and fences their producers, in roots without a broker.
#
# The staged records of a dead process take space until its transactional id is used again, which may be
# never. Brokers abort within seconds (transaction.abort.timed.out.transaction.cleanup.interval.ms); roots
# that only Spark and Python use have rounds of maintenance.
#
# Invariants: no transaction is aborted before its time-out, from its start by the opener's clock to now by
#     the earlier of two clocks. If a root has a running broker, it is left to the broker for BROKERS_MS: a
#     killed broker looks the same. The transactions are chosen from the image that the commit is planned
#     against.
# Not here: the abort itself (sparklog/metadata/model/transactions.py), a broker's own sweep
# (sparklog_server).
# Concurrency: any process and machine; the second one finds nothing open.
# After a crash: due again.
# Sources: Kafka TransactionCoordinator.abortTimedOutTransactions.


BROKERS_MS: Final = 600_000  # far above their sweep interval, and the time to replace a broker


def choose_left_open(image: Image, now_ms: int) -> list[str]:
    """Return the transactional ids to abort, as many as fit into a commit. Pure."""
    is_served = any(not broker.is_fenced for broker in image.brokers.values())
    return timed_out(image, now_ms - BROKERS_MS if is_served else now_ms)


def abort_left_open(metadata: MetadataLog, clock: Clock, check: Callable[[], None]) -> list[Transaction]:
    """Abort the overdue transactions; return their state before the abort.

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
    """The removal from one partition: all records below `new_log_start_offset`.

    Fields:
        offsets: the number of removed offsets; that of records, unless compaction has left gaps.
        size_bytes: stored bytes of the removed extents.
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
    """Yield the removals that retention requires, by topic and partition.

    Args:
        topics: None: all.
        defaults: a broker's defaults of settings that neither the topic nor the root has.
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
            # Extents may be wholly below the log start, if compaction has split one that it cuts.
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
    """Return (number of expired extents, their stored bytes)."""
    columns = state.extents.columns()
    size = columns.column("size")
    count = 0
    if config.retention_ms >= 0:
        newest = columns.column("max_timestamp_ms")
        stays = (newest < 0) | (newest >= now_ms - config.retention_ms)
        count = int(stays.argmax()) if stays.any() else len(columns)
    if config.retention_bytes >= 0:
        left = int(size.sum()) - np.cumsum(size)  # the size after the removal of this one and those before it
        count = max(count, int((left >= config.retention_bytes).sum()))
    return count, int(size[:count].sum())


def _end_of(state: PartitionState, count: int) -> int:
    """Return the log start offset after the removal of the first `count` extents."""
    return state.log_end_offset if count == len(state.extents) else state.extents[count].base_offset


def expire(
    metadata: MetadataLog,
    now_ms: int,
    topics: Collection[str] | None = None,
    *,
    dry_run: bool = False,
    defaults: Mapping[str, str] = NO_DEFAULTS,
) -> list[Expiry]:
    """Remove records past their retention, or only report them; `defaults` as in choose_expired.

    Raises:
        UnknownTopicError: TOPIC_MISSING.
        InvalidRequestError: `topics` is a str.
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
    """Remove the records that fit into one commit, with at most MAX_ACTIONS; return the removals."""
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
