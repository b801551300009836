"""Sequence numbers of idempotent producers: does a batch continue what the partition has?

Invariants: one (producer id, epoch, sequence) per partition is appended at most once (invariant 8).
Sequences run from 0 to 2^31-1 and then wrap to 0.
Sources: KIP-98; Kafka ProducerAppendInfo.checkSequence.
"""

import enum

from sparklog.metadata.extent_list import SEQUENCES
from sparklog.metadata.image import PartitionState, ProducerState


class SequenceCheck(enum.Enum):
    """What a batch's epoch and base sequence mean, given the producer's last batch."""

    NEXT = "continues"
    DUPLICATE = "was appended already"
    OUT_OF_ORDER = "leaves a gap or goes back"
    FENCED = "has an older epoch"


def check_sequence(state: ProducerState | None, producer_epoch: int, base_sequence: int) -> SequenceCheck:
    """Compare a batch with the last one; a producer that the partition does not know may start anywhere."""
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


def appended_offset(
    state: PartitionState, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int
) -> int | None:
    """Where a batch that was appended already has its first record; None if that cannot be told any more
    (retention has removed it, or it never was one batch's worth of consecutive records).
    """
    extent = state.extents.with_sequence(producer_id, producer_epoch, base_sequence)
    if extent is None:
        return None
    skipped = (base_sequence - extent.base_sequence) % SEQUENCES
    return extent.base_offset + skipped if skipped + record_count <= extent.record_count else None
