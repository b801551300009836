"""Appended extents: append_extents.

Invariants: an extent starts where its partition ends; a batch of an idempotent producer continues what the
partition has of it (invariant 8).
Not here: bounds of an extent's fields (extent.py), what a batch's sequence means (sequences.py), changing
extents that are there (rewriting.py).
"""

from collections.abc import Container, Sequence

from sparklog.errors import FencedError, InvalidRequestError, SparklogError
from sparklog.metadata.model.action import ActionBase, ActionRefusedError, invalid_plan
from sparklog.metadata.model.draft import ImageDraft, PartitionDraft
from sparklog.metadata.model.extent import NO_PRODUCER_ID, DraftExtent, Extent, why_illegal_extent
from sparklog.metadata.model.image import Image, PartitionState, ProducerState
from sparklog.metadata.model.sequences import (
    SequenceCheck,
    check_sequence,
    check_unknown,
    last_batch,
    last_sequence,
    remember,
)
from sparklog.metadata.model.sweeping import refuse_expired, validate_births


class AppendExtents(ActionBase, tag="append_extents", frozen=True, kw_only=True):
    """Each extent starts at the log end offset of its partition, in the order given."""

    extents: tuple[Extent, ...]

    @property
    def extent_count(self) -> int:
        """All of them."""
        return len(self.extents)


def count_extents(actions: Sequence[ActionBase]) -> int:
    """How many extents these append, or stage."""
    return sum(action.extent_count for action in actions)


def count_replayed(actions: Sequence[ActionBase]) -> int:
    """To apply these takes as long as to append so many extents, about."""
    return sum(action.replayed_extents for action in actions)


# --- effect ------------------------------------------------------------------------------------------


def append_extents(draft: ImageDraft, action: AppendExtents) -> None:
    """Each becomes the last of its partition."""
    refuse_expired(draft, (extent.segment for extent in action.extents))
    for extent in action.extents:
        _append(draft, extent)


def _append(draft: ImageDraft, extent: Extent) -> None:
    reason = why_illegal_extent(extent)
    if reason is not None:
        raise ActionRefusedError(f"{_where(extent)}: {reason}")
    partition = draft.partition(extent.topic_id, extent.partition)
    if draft.acting is not None:
        draft.acting.require_leadership(partition)
    if extent.base_offset != partition.log_end_offset:
        raise ActionRefusedError(
            f"{_where(extent)}: base offset {extent.base_offset}, "
            f"expected the log end {partition.log_end_offset}"
        )
    if extent.producer_id != NO_PRODUCER_ID:
        staging = draft.transactions.staging_in(extent.topic_id, extent.partition)
        _produce(partition, extent, staging)
    partition.pending.append(extent)
    partition.log_end_offset = extent.end_offset


def _where(extent: Extent) -> str:
    return f"partition {extent.partition} of topic {extent.topic_id}"


def _produce(partition: PartitionDraft, extent: Extent, staging: Container[int]) -> None:
    producers = partition.changing_producers()
    known = producers.get(extent.producer_id)
    check = check_sequence(known, extent.producer_epoch, extent.base_sequence)
    if check is not SequenceCheck.NEXT:
        raise ActionRefusedError(
            f"{_where(extent)}: producer {extent.producer_id} epoch {extent.producer_epoch} sequence "
            f"{extent.base_sequence} {check.value}, known is {known}"
        )
    last = last_sequence(extent.base_sequence, extent.record_count)
    known = ProducerState(extent.producer_epoch, last, extent.end_offset - 1)
    remember(producers, extent.producer_id, known, partition.state.merged_batches, staging)


# --- plan --------------------------------------------------------------------------------------------


def plan_append(image: Image, drafts: Sequence[DraftExtent]) -> AppendExtents:
    """Give the drafts their offsets, per partition in the order given.

    Raises:
        UnknownTopicError: no topic has this id (any more), or no such partition.
        RetriableError: STAGING_EXPIRED, a segment is too old to come to life.
        FencedError: a newer epoch of the producer has written.
        InvalidRequestError: DUPLICATE_SEQUENCE, OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER, or a malformed
            draft.
    """
    validate_births(image, (draft.segment for draft in drafts))
    ends: dict[tuple[str, int], int] = {}
    producers: dict[tuple[str, int, int], ProducerState] = {}
    extents = []
    for draft in drafts:
        state = image.partition_of(draft.topic_id, draft.partition)
        key = (draft.topic_id, draft.partition)
        base_offset = ends.get(key, state.log_end_offset)
        extent = sequenced(draft, base_offset)
        reason = why_illegal_extent(extent)
        if reason is not None:
            raise invalid_plan(f"extent of partition {draft.partition} of topic {draft.topic_id}: {reason}")
        if draft.producer_id != NO_PRODUCER_ID:
            producer = (*key, draft.producer_id)
            _check_producer(draft, state, producers.get(producer) or last_batch(state, draft.producer_id))
            producers[producer] = ProducerState(
                draft.producer_epoch,
                last_sequence(draft.base_sequence, draft.record_count),
                extent.end_offset - 1,
            )
        ends[key] = extent.end_offset
        extents.append(extent)
    return AppendExtents(extents=tuple(extents))


def sequenced(draft: DraftExtent, base_offset: int) -> Extent:
    """The extent that a draft is once it has its offsets, from `base_offset` on."""
    return Extent(
        topic_id=draft.topic_id,
        partition=draft.partition,
        segment=draft.segment,
        position=draft.position,
        size=draft.size,
        base_offset=base_offset,
        record_count=draft.record_count,
        max_timestamp_ms=draft.max_timestamp_ms,
        offset_delta=base_offset,
        producer_id=draft.producer_id,
        producer_epoch=draft.producer_epoch,
        base_sequence=draft.base_sequence,
    )


def _check_producer(draft: DraftExtent, state: PartitionState, known: ProducerState | None) -> None:
    batch = draft.producer_epoch, draft.base_sequence
    if known is None:
        check = check_unknown(state, draft.producer_id, *batch, draft.record_count, draft.max_timestamp_ms)
    else:
        check = check_sequence(known, *batch)
    refusal = sequence_refusal(draft, known, check)
    if refusal is not None:
        raise refusal


def sequence_refusal(
    draft: DraftExtent, known: ProducerState | None, check: SequenceCheck
) -> SparklogError | None:
    """The error for a batch whose sequence is this; None for the next one."""
    if check is SequenceCheck.NEXT:
        return None
    found = (
        f"partition {draft.partition} of topic {draft.topic_id}: producer {draft.producer_id} epoch "
        f"{draft.producer_epoch} sequence {draft.base_sequence} {check.value}; last is {known}"
    )
    match check:
        case SequenceCheck.FENCED:
            return FencedError(
                "PRODUCER_FENCED", found, fix="Close this producer; a newer one has taken over"
            )
        case SequenceCheck.DUPLICATE:
            return InvalidRequestError(
                "DUPLICATE_SEQUENCE", found, fix="Treat the batch as appended; do not repeat it"
            )
        case SequenceCheck.OUT_OF_ORDER:
            return InvalidRequestError("OUT_OF_ORDER_SEQUENCE", found, fix="Send the missing batches first")
        case SequenceCheck.UNKNOWN:
            return unknown_producer(found)


def unknown_producer(found: str) -> InvalidRequestError:
    """The error for a batch of which nobody can tell whether it was appended already."""
    return InvalidRequestError(
        "UNKNOWN_PRODUCER",
        found,
        fix="nothing was appended. Send it with a higher epoch, or from a new producer, if it was never "
        "acknowledged or that does no harm; a higher producer.id.expiration.ms on the root remembers "
        "producers for longer",
    )
