"""Sequence numbers of idempotent producers: whether a batch continues, repeats or skips. Producer ids, and
the expiry of producers.

Invariants: one (producer id, epoch, sequence) per partition is appended at most once (invariant 8), for as
long as the partition keeps an extent of that producer: an image remembers MAX_PRODUCERS, and an evicted one
is looked up in the extents before it counts as new. An expired producer may have no extent left: a batch that
may be a repetition is UNKNOWN.
Sequences run from 0 to 2^31-1 and then wrap to 0.
Sources: KIP-98; Kafka ProducerAppendInfo.checkSequence.
"""

import enum
from collections.abc import Container, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from sparklog.metadata.model.action import (
    MAX_OFFSET,
    ActionBase,
    ActionRefusedError,
    Int64,
    invalid_plan,
    refuse,
)
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.extent_list import NO_PRODUCER_ID, SEQUENCES, Extent, ExtentColumns
from sparklog.metadata.model.image import (
    NEVER_MARKED_MS,
    Forgotten,
    Image,
    MergedBatch,
    PartitionState,
    ProducerState,
)

# --- producers ---------------------------------------------------------------------------------------
#
# Ids of idempotent producers: allocate_producer_ids.
#
# Invariants: an id is handed out once; blocks follow each other without gaps.
# Not here: giving single ids to producers (sparklog_server).


class AllocateProducerIds(ActionBase, tag="allocate_producer_ids", frozen=True, kw_only=True):
    """Allocate producer ids [first, first + count)."""

    first: Int64
    count: Int64


def why_illegal_producer_ids(ids: AllocateProducerIds) -> str | None:
    """Return why the block is empty or out of range, or None."""
    if not 0 <= ids.first <= MAX_OFFSET - 1 or not 1 <= ids.count <= MAX_OFFSET - ids.first:
        return f"{ids.count} producer ids from {ids.first}, expected at least one from 0 to {MAX_OFFSET - 1}"
    return None


def allocate_producer_ids(draft: ImageDraft, action: AllocateProducerIds) -> None:
    """Apply: the next block begins after this one."""
    refuse(why_illegal_producer_ids(action), "producer ids")
    if action.first != draft.next_producer_id:
        raise ActionRefusedError(f"producer ids from {action.first}, expected {draft.next_producer_id}")
    draft.next_producer_id = action.first + action.count


def plan_allocate_producer_ids(image: Image, count: int) -> AllocateProducerIds:
    """Allocate the next `count` producer ids."""
    action = AllocateProducerIds(first=image.next_producer_id, count=count)
    reason = why_illegal_producer_ids(action)
    if reason is not None:
        raise invalid_plan(reason)
    return action


# --- sequences ---------------------------------------------------------------------------------------


# Idempotent producers that an image remembers per partition; beyond that the least recent one is evicted.
MAX_PRODUCERS = 4096
# Batches of a producer that may be in flight, and so may be repeated; as many as Kafka remembers.
MAX_MERGED_BATCHES = 5


class SequenceCheck(enum.Enum):
    """The meaning of a batch's epoch and base sequence, given the producer's last batch."""

    NEXT = "continues"
    DUPLICATE = "was appended already"
    OUT_OF_ORDER = "leaves a gap or goes back"
    FENCED = "has an older epoch"
    UNKNOWN = "may have been appended by a producer that is forgotten"


def check_sequence(state: ProducerState | None, producer_epoch: int, base_sequence: int) -> SequenceCheck:
    """Compare a batch with the last one; a producer that has none in the partition may start anywhere."""
    if state is None:
        return SequenceCheck.NEXT
    if producer_epoch < state.producer_epoch:
        return SequenceCheck.FENCED
    if producer_epoch > state.producer_epoch:
        return SequenceCheck.NEXT if base_sequence == 0 else SequenceCheck.OUT_OF_ORDER
    if base_sequence == (state.last_sequence + 1) % SEQUENCES:
        return SequenceCheck.NEXT
    # Less than half of the range back is a repetition, also across the wrap; anything else is a gap.
    behind = (state.last_sequence + 1 - base_sequence) % SEQUENCES
    return SequenceCheck.DUPLICATE if behind < SEQUENCES // 2 else SequenceCheck.OUT_OF_ORDER


def last_sequence(base_sequence: int, record_count: int) -> int:
    """Return the sequence of the last record of `record_count`."""
    return (base_sequence + record_count - 1) % SEQUENCES


def remember(
    producers: dict[int, ProducerState],
    producer_id: int,
    state: ProducerState,
    merged: Container[int] = (),
    staging: Container[int] = (),
) -> None:
    """Record a producer's last batch, as the most recent one of the partition.

    Args:
        merged, staging: producers that are not evicted, since not all of their extents can be looked up: some
            were merged with others, some belong to an open transaction.
    """
    producers.pop(producer_id, None)
    producers[producer_id] = state
    if len(producers) > MAX_PRODUCERS:
        evictable = (known for known in producers if known not in merged and known not in staging)
        del producers[next(evictable)]


def last_batch(state: PartitionState, producer_id: int) -> ProducerState | None:
    """Return the last batch of a producer; None if the partition holds nothing of it.

    Cost: a lookup; and a scan of the extents, a millisecond for a million, for an unknown producer where
    4,096 others have appended to the partition, or some have expired.
    """
    known = state.producers.get(producer_id)
    end_offset = state.forgotten.end_offset
    if known is not None or (len(state.producers) < MAX_PRODUCERS and not end_offset):
        return known  # no producer was ever forgotten
    extent = state.extents.last_of_producer(producer_id)
    if extent is None or extent.end_offset <= end_offset:  # of those, later ones may have been merged
        return None
    last = last_sequence(extent.base_sequence, extent.record_count)
    return ProducerState(extent.producer_epoch, last, extent.end_offset - 1)


def check_unknown(
    state: PartitionState,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
    max_timestamp_ms: int | None,
) -> SequenceCheck:
    """Classify the batch of a producer of which `last_batch` finds nothing: NEXT, DUPLICATE or UNKNOWN.

    It is new if no forgotten batch has its producer id, epoch, or largest timestamp, and appended already if
    an extent holds it. Else it may be either.

    Args:
        max_timestamp_ms: as the producer has sent it; None if only the time of the append is known.
    """
    forgotten = state.forgotten
    if (
        producer_id > forgotten.producer_id
        or producer_epoch > forgotten.producer_epoch
        or (max_timestamp_ms is not None and max_timestamp_ms > forgotten.max_timestamp_ms)
    ):
        return SequenceCheck.NEXT
    offset = appended_offset(state, producer_id, producer_epoch, base_sequence, record_count)
    return SequenceCheck.UNKNOWN if offset is None else SequenceCheck.DUPLICATE


def appended_offset(
    state: PartitionState, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int
) -> int | None:
    """Return the base offset of a batch that was appended already; None if it cannot be found any more:
    retention has removed it, five later ones were merged, or its records were never consecutive.
    """
    extent = state.extents.with_sequence(producer_id, producer_epoch, base_sequence)
    if extent is not None:
        return _offset_within(extent, base_sequence, record_count)
    for batch in reversed(state.merged_batches.get(producer_id, ())):
        found = _offset_within(batch, base_sequence, record_count)
        if batch.producer_epoch == producer_epoch and found is not None:
            return found
    return None


def _offset_within(stored: Extent | MergedBatch, base_sequence: int, record_count: int) -> int | None:
    skipped = (base_sequence - stored.base_sequence) % SEQUENCES
    return stored.base_offset + skipped if skipped + record_count <= stored.record_count else None


def mergeable(state: PartitionState, extents: ExtentColumns) -> npt.NDArray[np.bool_]:
    """Return a mask of the extents that may be merged with others.

    A merged extent does not name the producers of its batches. A producer that has one must stay known:
    otherwise an older extent of it would be found, and taken for its last. So extents of forgotten producers
    are not merged; and at most half of the known producers may have merged extents, so that there is always
    another to be evicted. Below the offset of the last expiration no producer need be known.
    """
    producer_ids = _remembered(state, extents)
    if not np.any(producer_ids != NO_PRODUCER_ID):
        return np.ones(len(extents), np.bool_)
    of_producers = {int(producer_id) for producer_id in np.unique(producer_ids)} - {NO_PRODUCER_ID}
    allowed = of_producers & state.producers.keys()
    if len(allowed | state.merged_batches.keys()) > MAX_PRODUCERS // 2:
        allowed &= state.merged_batches.keys()
    found: npt.NDArray[np.bool_] = np.isin(producer_ids, [NO_PRODUCER_ID, *allowed])
    return found


def _remembered(state: PartitionState, extents: ExtentColumns) -> npt.NDArray[np.int64]:
    """Return the producers of these extents; NO_PRODUCER_ID if the partition need not remember them."""
    producer_ids = extents.column("producer_id")
    if not state.forgotten.end_offset:
        return producer_ids
    return np.where(extents.end_offset <= state.forgotten.end_offset, NO_PRODUCER_ID, producer_ids)


def merged_above(
    merged: Mapping[int, tuple[MergedBatch, ...]], offset: int
) -> Mapping[int, tuple[MergedBatch, ...]]:
    """Drop the batches that are wholly below an offset; their producers may be evicted."""
    kept = {
        producer_id: tuple(batch for batch in batches if batch.base_offset + batch.record_count > offset)
        for producer_id, batches in merged.items()
    }
    return {producer_id: batches for producer_id, batches in kept.items() if batches}


def remember_merged(state: PartitionState, removed: ExtentColumns) -> Mapping[int, tuple[MergedBatch, ...]]:
    """Return the merged batches to remember once the extents `removed` are replaced.

    Of each known producer the newest MAX_MERGED_BATCHES of its epoch: more are never in flight, so no older
    ones are repeated. Without them a late repetition would still be recognised by its sequence, but could not
    be answered with its offset.
    """
    found: dict[int, list[MergedBatch]] = {}
    producer_ids = _remembered(state, removed)
    for index in np.flatnonzero(producer_ids != NO_PRODUCER_ID)[::-1].tolist():
        producer_id = int(producer_ids[index])
        known = state.producers.get(producer_id)
        batches = found.setdefault(producer_id, [])
        if known is None or len(batches) == MAX_MERGED_BATCHES:
            continue
        if int(removed.column("producer_epoch")[index]) == known.producer_epoch:
            batches.append(
                MergedBatch(*(int(removed.column(field)[index]) for field in MergedBatch.__struct_fields__))
            )
    kept = dict(state.merged_batches)
    for producer_id, newer in found.items():
        both = sorted((*kept.get(producer_id, ()), *newer), key=lambda batch: batch.base_offset)
        if both:
            kept[producer_id] = tuple(both[-MAX_MERGED_BATCHES:])
    return kept


# --- expiring ----------------------------------------------------------------------------------------
#
# Expiring producers that have not written for long: expire_producers.
#
# A replay has no clock, and an image does not hold the time of a producer's last write. So time enters by
# marks. Each expire_producers records the ends of the partitions, and its time by the publisher's clock; the
# next one, an expiration later, makes each partition forget the producers whose last batch lies below its
# mark. So a producer expires when it has not written for between one and two expirations, whatever the
# timestamps of its records.
#
# A repeated batch of an expired producer must not be appended again. A batch of an unknown producer is new
# for certain if its producer id, its epoch or its largest timestamp is above those of all expired producers
# there, which an image keeps (`Forgotten`). Otherwise it may be a repetition, and is refused.
#
# Invariants: the end of the expired part of a partition only grows, and never beyond the log's end; no record
#     of a known producer lies above its last batch. A producer with an open transaction does not expire.
# Not here: when it is due (maintenance/rounds.py).
# Sources: Kafka ProducerStateManager.removeExpiredProducers, isProducerExpired; adr/0025.


class ExpireProducers(ActionBase, tag="expire_producers", frozen=True, kw_only=True):
    """Forget, in all partitions, the producers that have not written since the marks, and set new marks.

    Fields:
        time_ms: the time by the publisher's clock, or the newest commit's if that is later; the next one is
            planned by it.
        max_timestamp_ms: an upper bound of the timestamps of batches without extents that are forgotten.
        marks_only: nothing is forgotten, since there are no marks, or their age is unknown.
    """

    time_ms: Int64
    max_timestamp_ms: Int64 = -1
    marks_only: bool = False


# --- effect ------------------------------------------------------------------------------------------


def expire_producers(draft: ImageDraft, action: ExpireProducers) -> None:
    """Apply, to every partition that knows any producer."""
    reason = _why_illegal(action)
    if reason is not None:
        raise ActionRefusedError(reason)
    draft.producers_marked_ms = action.time_ms
    for state in list(draft.states()):
        if state.producers:
            partition = draft.partition(state.topic_id, state.partition)
            staging = draft.transactions.staging_in(state.topic_id, state.partition)
            partition.state = _marked(state) if action.marks_only else _expired(state, action, staging)


def forgetting_all(state: PartitionState, time_ms: int) -> PartitionState:
    """Forget every producer of a partition in which nothing is staged; the time is `time_ms`."""
    marked = _marked(state)
    return _expired(marked, ExpireProducers(time_ms=time_ms, max_timestamp_ms=time_ms), ())


def _why_illegal(action: ExpireProducers) -> str | None:
    for name, value in (("time", action.time_ms), ("largest timestamp", action.max_timestamp_ms)):
        if not NEVER_MARKED_MS <= value <= MAX_OFFSET:
            return f"{name} {value} is out of range"
    return None


def _marked(state: PartitionState) -> PartitionState:
    forgotten = Forgotten(state.log_end_offset, *_fields(state.forgotten)[1:])
    return state if forgotten == state.forgotten else replace(state, forgotten=forgotten)


def _expired(state: PartitionState, action: ExpireProducers, staging: Container[int]) -> PartitionState:
    """`staging`: producers with open transactions, whose staged extents are not in the partition's."""
    before = state.forgotten
    end = before.mark_offset
    kept = {
        producer_id: known
        for producer_id, known in state.producers.items()
        if known.last_offset >= end or producer_id in staging
    }
    gone = {producer_id: known for producer_id, known in state.producers.items() if producer_id not in kept}
    largest = _largest(state, kept, end)
    return replace(
        state,
        producers=kept,
        merged_batches=merged_above(state.merged_batches, end) if state.merged_batches else {},
        forgotten=Forgotten(
            mark_offset=state.log_end_offset,
            end_offset=end,
            producer_id=max(before.producer_id, largest.producer_id, *gone, -1),
            producer_epoch=max(
                before.producer_epoch,
                largest.producer_epoch,
                *(known.producer_epoch for known in gone.values()),
                -1,
            ),
            max_timestamp_ms=max(before.max_timestamp_ms, largest.max_timestamp_ms, action.max_timestamp_ms),
        ),
    )


class _Largest(NamedTuple):
    """The largest values of the extents that expire now; -1 if there are none."""

    producer_id: int = -1
    producer_epoch: int = -1
    max_timestamp_ms: int = -1


def _largest(state: PartitionState, kept: Mapping[int, ProducerState], end: int) -> _Largest:
    """Return the largest values of the extents between the last end and `end`.

    The timestamps include those of producers that are kept: they may expire later, by later extents. Evicted
    producers are known from extents only, which may be merged later.
    """
    start, stop = state.extents.index_after(state.forgotten.end_offset), state.extents.index_from(end)
    if start >= stop:
        return _Largest()
    columns = state.extents.columns_between(start, stop)
    newest = int(columns.column("max_timestamp_ms").max())
    producers = zip(
        columns.column("producer_id").tolist(), columns.column("producer_epoch").tolist(), strict=True
    )
    silent = {pair for pair in set(producers) if pair[0] != NO_PRODUCER_ID and pair[0] not in kept}
    if not silent:
        return _Largest(max_timestamp_ms=newest)
    return _Largest(max(number for number, _ in silent), max(epoch for _, epoch in silent), newest)


def _fields(forgotten: Forgotten) -> tuple[int, ...]:
    return tuple(getattr(forgotten, name) for name in Forgotten.__struct_fields__)


# --- plan --------------------------------------------------------------------------------------------


def plan_expire_producers(
    image: Image, now_ms: int, expiration_ms: int, *, latest_ms: int = 0
) -> ExpireProducers | None:
    """Forget producers that have not written for at least `expiration_ms`, by the marks; None if not due.

    The time of a mark is never below that of the last one, nor below the newest commit's. Otherwise it would
    seem old to a process whose clock is right:

    1. a producer writes; a machine whose clock is two days behind marks partitions, as of two days ago;
    2. a minute later, for one whose clock is right, the marks are two days old: the producer expires.

    So a clock that is ahead delays expirations by as much as it is ahead.

    Args:
        latest_ms: the time by the clock that is ahead, if several were read; `now_ms` is the other's.

    Cost: a comparison; once per expiration, a scan of the partitions until one has a producer.
    """
    if not 0 <= now_ms <= MAX_OFFSET or not 0 <= latest_ms <= MAX_OFFSET or expiration_ms < 1:
        raise invalid_plan(f"times {now_ms}, {latest_ms} and expiration {expiration_ms}, expected times")
    marked_ms = image.producers_marked_ms
    is_marked = marked_ms != NEVER_MARKED_MS
    if is_marked and now_ms - marked_ms < expiration_ms:
        return None
    if not any(state.producers for topic in image.topics.values() for state in topic.partitions):
        return None
    time_ms = max(image.no_earlier_ms(now_ms), latest_ms)
    if not is_marked:
        return ExpireProducers(time_ms=time_ms, marks_only=True)
    # What was appended before the mark is of that time or earlier, give or take clocks and what a topic
    # allows (message.timestamp.after.max.ms, an hour); and what comes from now on is later by a half.
    latest = min(MAX_OFFSET, marked_ms + expiration_ms // 2)
    return ExpireProducers(time_ms=time_ms, max_timestamp_ms=latest)
