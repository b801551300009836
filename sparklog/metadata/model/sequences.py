"""Sequence numbers of idempotent producers: does a batch continue what the partition has?

Invariants: one (producer id, epoch, sequence) per partition is appended at most once (invariant 8), for as
long as the partition keeps an extent of that producer: an image remembers MAX_PRODUCERS, and who was
forgotten is looked up in the extents before it is believed to be new. Who was forgotten for its silence
(sequences.py) may have none left: what cannot be told from a repetition of its batches is UNKNOWN.
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
# Not here: handing single ids out (sparklog_server).


class AllocateProducerIds(ActionBase, tag="allocate_producer_ids", frozen=True, kw_only=True):
    """Producer ids [first, first + count) are handed out, and never again."""

    first: Int64
    count: Int64


def why_illegal_producer_ids(ids: AllocateProducerIds) -> str | None:
    """A block is not empty and stays in the domain."""
    if not 0 <= ids.first <= MAX_OFFSET - 1 or not 1 <= ids.count <= MAX_OFFSET - ids.first:
        return f"{ids.count} producer ids from {ids.first}, expected at least one from 0 to {MAX_OFFSET - 1}"
    return None


def allocate_producer_ids(draft: ImageDraft, action: AllocateProducerIds) -> None:
    """The effect: the next block begins after this one."""
    refuse(why_illegal_producer_ids(action), "producer ids")
    if action.first != draft.next_producer_id:
        raise ActionRefusedError(f"producer ids from {action.first}, expected {draft.next_producer_id}")
    draft.next_producer_id = action.first + action.count


def plan_allocate_producer_ids(image: Image, count: int) -> AllocateProducerIds:
    """The next `count` producer ids that nobody ever had."""
    action = AllocateProducerIds(first=image.next_producer_id, count=count)
    reason = why_illegal_producer_ids(action)
    if reason is not None:
        raise invalid_plan(reason)
    return action


# --- sequences ---------------------------------------------------------------------------------------


# Idempotent producers that an image remembers of a partition; beyond that it forgets the one that has not
# written for the longest time, if none has been silent for long enough.
MAX_PRODUCERS = 4096
# Batches of a producer that may be in flight, and so may be repeated; as many as Kafka remembers.
MAX_MERGED_BATCHES = 5


class SequenceCheck(enum.Enum):
    """What a batch's epoch and base sequence mean, given the producer's last batch."""

    NEXT = "continues"
    DUPLICATE = "was appended already"
    OUT_OF_ORDER = "leaves a gap or goes back"
    FENCED = "has an older epoch"
    UNKNOWN = "may have been appended by a producer that was forgotten"


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
    # Half a turn back is a repetition, also across the wrap; anything else is a gap.
    behind = (state.last_sequence + 1 - base_sequence) % SEQUENCES
    return SequenceCheck.DUPLICATE if behind < SEQUENCES // 2 else SequenceCheck.OUT_OF_ORDER


def last_sequence(base_sequence: int, record_count: int) -> int:
    """The sequence of the last record of `record_count`."""
    return (base_sequence + record_count - 1) % SEQUENCES


def remember(
    producers: dict[int, ProducerState],
    producer_id: int,
    state: ProducerState,
    merged: Container[int] = (),
    staging: Container[int] = (),
) -> None:
    """Note a producer's last batch, as the most recent one of the partition.

    Args:
        merged, staging: producers that are not forgotten, since not all of their extents are there to be
            looked up: some were merged with others, some belong to a transaction that is open.
    """
    producers.pop(producer_id, None)
    producers[producer_id] = state
    if len(producers) > MAX_PRODUCERS:
        del producers[next(one for one in producers if one not in merged and one not in staging)]


def last_batch(state: PartitionState, producer_id: int) -> ProducerState | None:
    """What a producer has appended last; None if the partition holds nothing of it.

    Cost: a look-up, and for a producer that may have been forgotten a scan of the extents: a millisecond for
    a million, where 4,096 others have appended to the partition, or some were forgotten for their silence.
    """
    known = state.producers.get(producer_id)
    end_offset = state.forgotten.end_offset
    if known is not None or (len(state.producers) < MAX_PRODUCERS and not end_offset):
        return known  # nobody was ever forgotten
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
    """What the batch of a producer is of which `last_batch` finds nothing: NEXT, DUPLICATE or UNKNOWN.

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
    """Where a batch that was appended already has its first record; None if that cannot be told any more
    (retention has removed it, five later ones were merged with it, or it never was one batch's worth of
    consecutive records).
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
    """Which of these extents may be merged with others.

    A merged extent does not show whose batches it holds. A producer that has one must stay known: once it was
    forgotten, older extents of it would be found, and taken for its last. So what belongs to a producer that
    is forgotten already is not merged; and half of those that are known may have merged extents, so that
    there is always another to be forgotten. Below where silent producers were forgotten nobody need be known.
    """
    producer_ids = _remembered(state, extents)
    if not np.any(producer_ids != NO_PRODUCER_ID):
        return np.ones(len(extents), np.bool_)
    of_producers = {int(one) for one in np.unique(producer_ids)} - {NO_PRODUCER_ID}
    allowed = of_producers & state.producers.keys()
    if len(allowed | state.merged_batches.keys()) > MAX_PRODUCERS // 2:
        allowed &= state.merged_batches.keys()
    found: npt.NDArray[np.bool_] = np.isin(producer_ids, [NO_PRODUCER_ID, *allowed])
    return found


def _remembered(state: PartitionState, extents: ExtentColumns) -> npt.NDArray[np.int64]:
    """The producers of these extents, as far as the partition has to remember them; else NO_PRODUCER_ID."""
    producer_ids = extents.column("producer_id")
    if not state.forgotten.end_offset:
        return producer_ids
    return np.where(extents.end_offset <= state.forgotten.end_offset, NO_PRODUCER_ID, producer_ids)


def merged_above(
    merged: Mapping[int, tuple[MergedBatch, ...]], offset: int
) -> Mapping[int, tuple[MergedBatch, ...]]:
    """Without the batches that are wholly below an offset; their producers may be forgotten."""
    kept = {
        producer_id: tuple(one for one in batches if one.base_offset + one.record_count > offset)
        for producer_id, batches in merged.items()
    }
    return {producer_id: batches for producer_id, batches in kept.items() if batches}


def remember_merged(state: PartitionState, removed: ExtentColumns) -> Mapping[int, tuple[MergedBatch, ...]]:
    """What is to be remembered of producers once the extents `removed` are replaced.

    Of each producer that the partition knows, the newest MAX_MERGED_BATCHES of its epoch: more are never in
    flight, so no older ones are repeated. Without them a late repetition would be told apart from a new batch
    (its sequence is behind), and could not be answered with the offset that it got.
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
# Producers that are forgotten once they have been silent for long: expire_producers.
#
# A replay has no clock, and images of older snapshots do not say when a producer wrote last. So time comes in
# by marks. Each expire_producers notes where the partitions end, and when that was by the clock of whoever
# publishes it; the next one, an expiration later, makes each partition forget the producers whose last batch
# lies below its mark. Who has written in between lies above it. So a producer is forgotten when it has been
# silent for between one and two expirations, whatever the timestamps of its records say.
#
# What is forgotten must not come back as new. A batch of a producer that the partition does not know is new
# for certain if its producer id, its epoch or its largest timestamp is above all that was forgotten there,
# which is all that an image keeps of it (`Forgotten`). Else it may be a repetition, and is refused
# .
#
# Invariants: where a partition's forgotten part ends only goes up, and never beyond the log's end; nothing of
#     a producer that a partition knows lies above its last batch. Whose transaction is open is not forgotten.
# Not here: when it is due (maintenance/rounds.py).
# Sources: Kafka ProducerStateManager.removeExpiredProducers, isProducerExpired; adr/0025.


class ExpireProducers(ActionBase, tag="expire_producers", frozen=True, kw_only=True):
    """All partitions forget the producers that have not written since their marks, and are marked anew.

    Fields:
        time_ms: when that is, by the clock of whoever publishes it, or the newest commit's if that is later;
            the next one is planned by it.
        max_timestamp_ms: no batch that is forgotten has a later timestamp, as far as extents do not show it.
        marks_only: nothing is forgotten, since there are no marks, or nobody knows how old they are.
    """

    time_ms: Int64
    max_timestamp_ms: Int64 = -1
    marks_only: bool = False


# --- effect ------------------------------------------------------------------------------------------


def expire_producers(draft: ImageDraft, action: ExpireProducers) -> None:
    """Every partition that knows any producer."""
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
    """Every producer, however lately it wrote, and nothing of one is staged; it is `time_ms`."""
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
    """`staging`: producers whose transactions are open; what they have staged shows in no extent."""
    before = state.forgotten
    end = before.mark_offset
    kept = {
        number: one for number, one in state.producers.items() if one.last_offset >= end or number in staging
    }
    gone = [(number, one) for number, one in state.producers.items() if number not in kept]
    largest = _largest(state, kept, end)
    return replace(
        state,
        producers=kept,
        merged_batches=merged_above(state.merged_batches, end) if state.merged_batches else {},
        forgotten=Forgotten(
            mark_offset=state.log_end_offset,
            end_offset=end,
            producer_id=max(before.producer_id, largest.producer_id, *(number for number, _ in gone), -1),
            producer_epoch=max(
                before.producer_epoch, largest.producer_epoch, *(one.producer_epoch for _, one in gone), -1
            ),
            max_timestamp_ms=max(before.max_timestamp_ms, largest.max_timestamp_ms, action.max_timestamp_ms),
        ),
    )


class _Largest(NamedTuple):
    """Of extents that are forgotten now; -1 if there is none."""

    producer_id: int = -1
    producer_epoch: int = -1
    max_timestamp_ms: int = -1


def _largest(state: PartitionState, kept: Mapping[int, ProducerState], end: int) -> _Largest:
    """Of the extents below `end` that were not below the last one.

    The timestamps are also of those who are kept: they may be forgotten later, and then by later extents.
    Who was forgotten by number before is known from extents only, which may be merged now.
    """
    start, stop = state.extents.index_after(state.forgotten.end_offset), state.extents.index_from(end)
    if start >= stop:
        return _Largest()
    columns = state.extents.columns_between(start, stop)
    newest = int(columns.column("max_timestamp_ms").max())
    producers = zip(
        columns.column("producer_id").tolist(), columns.column("producer_epoch").tolist(), strict=True
    )
    silent = {one for one in set(producers) if one[0] != NO_PRODUCER_ID and one[0] not in kept}
    if not silent:
        return _Largest(max_timestamp_ms=newest)
    return _Largest(max(number for number, _ in silent), max(epoch for _, epoch in silent), newest)


def _fields(forgotten: Forgotten) -> tuple[int, ...]:
    return tuple(getattr(forgotten, name) for name in Forgotten.__struct_fields__)


# --- plan --------------------------------------------------------------------------------------------


def plan_expire_producers(
    image: Image, now_ms: int, expiration_ms: int, *, latest_ms: int = 0
) -> ExpireProducers | None:
    """Forget who has been silent for `expiration_ms` at least, as far as marks tell; None: not yet.

    A mark is never set below the last one, nor below the newest commit. Else it would look old to the next
    clock that is right:

    1. a producer writes; a machine whose clock is two days behind marks partitions, as of two days ago;
    2. one whose clock is right, a minute later: that was two days ago. Who was silent for the minute goes.

    So a clock that is ahead delays what follows by as much as it is ahead.

    Args:
        latest_ms: what the clock says that is ahead, if several were asked; `now_ms` is the other's.

    Cost: a comparison, and once in an expiration a look at each partition until one has a producer.
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
