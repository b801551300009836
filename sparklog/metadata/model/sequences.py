"""Sequence numbers of idempotent producers: does a batch continue what the partition has?

Invariants: one (producer id, epoch, sequence) per partition is appended at most once (invariant 8), for as
long as the partition keeps an extent of that producer: an image remembers MAX_PRODUCERS, and who was
forgotten is looked up in the extents before it is believed to be new. Who was forgotten for its silence
(expiring.py) may have none left: what cannot be told from a repetition of its batches is UNKNOWN.
Sequences run from 0 to 2^31-1 and then wrap to 0.
Sources: KIP-98; Kafka ProducerAppendInfo.checkSequence.
"""

import enum
from collections.abc import Container, Mapping

import numpy as np
import numpy.typing as npt

from sparklog.metadata.model.extent import NO_PRODUCER_ID, Extent
from sparklog.metadata.model.extent_list import SEQUENCES, ExtentColumns
from sparklog.metadata.model.image import MergedBatch, PartitionState, ProducerState

# Idempotent producers that an image remembers of a partition; beyond that it forgets the one that has not
# written for the longest time, if none has been silent for long enough (expiring.py).
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
