"""Appended extents: append_extents.

Invariants: an extent starts where its partition ends; a batch of an idempotent producer continues the
producer's last one in the partition (invariant 8).
Not here: bounds of an extent's fields (extent_list.py), the meaning of a batch's sequence (sequences.py).
"""

from collections.abc import Container, Sequence
from contextlib import suppress

from msgspec.structs import replace

from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError
from sparklog.metadata.model.action import (
    ActionBase,
    ActionRefusedError,
    Int64,
    invalid_plan,
    refuse,
)
from sparklog.metadata.model.draft import ImageDraft, PartitionDraft
from sparklog.metadata.model.extent_list import (
    NO_PRODUCER_ID,
    DraftExtent,
    Extent,
    ExtentColumns,
    ExtentList,
    checksum_of,
    why_illegal_extent,
)
from sparklog.metadata.model.image import Image, PartitionState, ProducerState
from sparklog.metadata.model.isolation import has_isolated, refuse_foreign
from sparklog.metadata.model.sequences import (
    SequenceCheck,
    check_sequence,
    check_unknown,
    last_batch,
    last_sequence,
    mergeable,
    merged_above,
    remember,
    remember_merged,
)
from sparklog.metadata.model.sweeping import refuse_expired, validate_births

# --- rewriting ---------------------------------------------------------------------------------------
#
# Changing existing extents: replace_extents and advance_log_start.
#
# Invariants: offsets do not change. Replaced extents fill the range that the action names, and added ones lie
# within it; the log start offset only goes up, and never beyond the log's end.
# Not here: which extents to replace, and the effect of retention (their callers).


_REPLAYED_EXTENTS = 16  # about half the time of a replacement
_FORGOTTEN = "an extent to be replaced is of an unknown producer, or there is no room to keep its batches"


class ReplaceExtents(ActionBase, tag="replace_extents", frozen=True, kw_only=True):
    """Replace the `removed_count` extents that cover [start_offset, end_offset) by `added`.

    Offsets do not change: `added` lies within the range, ascends, and may leave gaps.

    Fields:
        removed_crc32c: of every field of the removed extents (`checksum_of`), so that no others can be
            removed, also when the log is replayed.
    """

    topic_id: str
    partition: Int64
    start_offset: Int64
    end_offset: Int64
    removed_count: Int64
    removed_crc32c: Int64
    added: tuple[Extent, ...] = ()

    @property
    def replayed_extents(self) -> int:
        """The removed extents are checked in calls that cost more than the few extents that it adds."""
        return _REPLAYED_EXTENTS

    @property
    def isolates(self) -> bool:
        """True if an extent is in the segment of an isolated topic."""
        return has_isolated({extent.segment for extent in self.added})


class AdvanceLogStart(ActionBase, tag="advance_log_start", frozen=True, kw_only=True):
    """Records below log_start_offset are removed; extents wholly below it are dropped."""

    topic_id: str
    partition: Int64
    log_start_offset: Int64

    @property
    def frees_space(self) -> bool:
        """Always."""
        return True


# --- effects -----------------------------------------------------------------------------------------


def replace_extents(draft: ImageDraft, action: ReplaceExtents) -> None:
    """Apply: the added extents replace the others. A refused action has changed nothing."""
    partition = draft.partition(action.topic_id, action.partition)
    state = partition.flushed()
    start, removed = _replaced_range(state, action, _rewriting_where(action))
    _refuse_unordered(action, _rewriting_where(action))
    segments = {extent.segment for extent in action.added}
    refuse_expired(draft, segments)
    refuse_foreign(draft, action.added, segments)
    draft.count_removed(removed)
    added = ExtentList(action.topic_id, action.partition).appended(action.added)
    draft.count_removed(added.columns(), back=True)  # compaction may have split one: its bytes are still live
    partition.state = replace(
        state,
        extents=state.extents.replaced(start, start + len(removed), action.added),
        merged_batches=remember_merged(state, removed),
    )


def _rewriting_where(action: ReplaceExtents) -> str:
    return f"partition {action.partition} of topic {action.topic_id}"


def _replaced_range(state: PartitionState, action: ReplaceExtents, where: str) -> tuple[int, ExtentColumns]:
    """Return the index of the first replaced extent, and the extents, which must fill the range exactly."""
    start = state.extents.index_after(action.start_offset)
    stop = state.extents.index_from(action.end_offset)
    if stop - start != action.removed_count or action.removed_count < 1:
        raise ActionRefusedError(
            f"{where}: offsets {action.start_offset} to {action.end_offset} hold {stop - start} extents, "
            f"expected {action.removed_count}"
        )
    there = state.extents.columns_between(start, stop)  # copies them, only once
    first, end = int(there.base_offset[0]), int(there.end_offset[-1])
    if first < action.start_offset or end > action.end_offset:
        raise ActionRefusedError(
            f"{where}: offsets {action.start_offset} to {action.end_offset} cut through extents that "
            f"cover {first} to {end}"
        )
    found = checksum_of(there)
    if found != action.removed_crc32c:
        raise ActionRefusedError(
            f"{where}: the extents at offsets {action.start_offset} to {action.end_offset} have CRC-32C "
            f"{found}, expected {action.removed_crc32c}"
        )
    if not mergeable(state, there).all():
        raise ActionRefusedError(f"{where}: {_FORGOTTEN}")
    return start, there


def _refuse_unordered(action: ReplaceExtents, where: str) -> None:
    """Refuse added extents unless they are of the partition, legal, ascending, and within the range."""
    next_offset = action.start_offset
    for extent in action.added:
        if (extent.topic_id, extent.partition) != (action.topic_id, action.partition):
            raise ActionRefusedError(f"{where}: an added extent is of another partition")
        refuse(why_illegal_extent(extent), where)
        if not next_offset <= extent.base_offset < extent.end_offset <= action.end_offset:
            raise ActionRefusedError(
                f"{where}: added extent {extent.base_offset} to {extent.end_offset}, expected one within "
                f"{next_offset} to {action.end_offset}"
            )
        next_offset = extent.end_offset


def advance_log_start(draft: ImageDraft, action: AdvanceLogStart) -> None:
    """Apply: drop the extents that are wholly below the offset."""
    where = f"partition {action.partition} of topic {action.topic_id}"
    partition = draft.partition(action.topic_id, action.partition)
    state = partition.flushed()
    if not state.log_start_offset < action.log_start_offset <= state.log_end_offset:
        raise ActionRefusedError(
            f"{where}: log start offset {action.log_start_offset}, expected above "
            f"{state.log_start_offset} and at most {state.log_end_offset}"
        )
    extents = state.extents.dropped_before(action.log_start_offset)
    draft.count_removed(state.extents.columns_between(0, len(state.extents) - len(extents)))
    partition.state = replace(
        state,
        log_start_offset=action.log_start_offset,
        extents=extents,
        merged_batches=merged_above(state.merged_batches, action.log_start_offset),
    )


# --- plans -------------------------------------------------------------------------------------------


def replacement(
    removed: ExtentColumns, added: Sequence[Extent], *, topic_id: str, partition: int
) -> ReplaceExtents:
    """Return the action that replaces `removed`, consecutive extents of one partition in an image."""
    if not len(removed):
        raise invalid_plan("nothing to replace")
    return ReplaceExtents(
        topic_id=topic_id,
        partition=partition,
        start_offset=int(removed.base_offset[0]),
        end_offset=int(removed.end_offset[-1]),
        removed_count=len(removed),
        added=tuple(added),
        removed_crc32c=checksum_of(removed),
    )


def plan_replace_extents(image: Image, action: ReplaceExtents) -> ReplaceExtents:
    """Return the replacement, if the extents that it removes have not changed.

    Raises:
        UnknownTopicError: the topic is deleted.
        RetriableError: EXTENTS_CHANGED, the partition has other extents there now.
            STAGING_EXPIRED, an added segment is too old to become live.
        InvalidRequestError: the action is malformed, and applies to no image.
    """
    _validate_made(action)
    state = image.partition_of(action.topic_id, action.partition)
    try:
        _replaced_range(state, action, _rewriting_where(action))
    except ActionRefusedError as error:
        raise RetriableError(
            "EXTENTS_CHANGED",
            f"the extents to be replaced have changed: {error}",
            fix="Read the extents again and redo the work; nothing was changed",
        ) from error
    validate_births(image, (extent.segment for extent in action.added))
    return action


def plan_replacements(image: Image, actions: Sequence[ReplaceExtents]) -> list[ReplaceExtents]:
    """Return the replacements that can be made in one commit, in this order.

    Those that no longer apply are left out, also if they would apply alone: each is tried after those before
    it, which remove extents, perhaps the last ones of a segment, and use some of the room for merged
    producers.

    Raises: InvalidRequestError, one is malformed, and applies to no image.
    """
    draft = ImageDraft(image)
    planned = []
    for action in actions:
        _validate_made(action)
        with suppress(ActionRefusedError):
            replace_extents(draft, action)
            planned.append(action)
    return planned


def _validate_made(action: ReplaceExtents) -> None:
    """Check the fields set by `replacement`; the added extents are the caller's."""
    try:
        _refuse_unordered(action, _rewriting_where(action))
    except ActionRefusedError as error:
        raise invalid_plan(str(error)) from error


def plan_advance_log_start(
    image: Image, topic_id: str, partition: int, log_start_offset: int
) -> AdvanceLogStart | None:
    """Drop records below an offset; None if they are dropped already. At most the log end offset."""
    state = image.partition_of(topic_id, partition)
    if not 0 <= log_start_offset <= state.log_end_offset:
        raise invalid_plan(
            f"partition {partition} of topic {topic_id}: log start offset {log_start_offset}, "
            f"expected 0 to {state.log_end_offset}"
        )
    if log_start_offset <= state.log_start_offset:
        return None
    return AdvanceLogStart(topic_id=topic_id, partition=partition, log_start_offset=log_start_offset)


# --- extents -----------------------------------------------------------------------------------------


class AppendExtents(ActionBase, tag="append_extents", frozen=True, kw_only=True):
    """Each extent starts at the log end offset of its partition, in the order given."""

    extents: tuple[Extent, ...]

    @property
    def isolates(self) -> bool:
        """True if an extent is in the segment of an isolated topic."""
        return has_isolated({extent.segment for extent in self.extents})

    @property
    def extent_count(self) -> int:
        """All of them."""
        return len(self.extents)


def count_extents(actions: Sequence[ActionBase]) -> int:
    """Return how many extents these actions append, or stage."""
    return sum(action.extent_count for action in actions)


def count_replayed(actions: Sequence[ActionBase]) -> int:
    """Return the cost of applying these actions, in appended extents."""
    return sum(action.replayed_extents for action in actions)


# --- effect ------------------------------------------------------------------------------------------


def append_extents(draft: ImageDraft, action: AppendExtents) -> None:
    """Apply: each extent becomes the last of its partition."""
    segments = {extent.segment for extent in action.extents}
    refuse_expired(draft, segments)
    refuse_foreign(draft, action.extents, segments)
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
        RetriableError: STAGING_EXPIRED, a segment is too old to become live.
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
    """Return the extent of a draft whose offsets begin at `base_offset`."""
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
    """Return the error for a batch with this result of the sequence check; None for the next batch."""
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
    """The error for a batch that may have been appended already, which is unknown."""
    return InvalidRequestError(
        "UNKNOWN_PRODUCER",
        found,
        fix="Nothing was appended. Send it with a higher epoch, or from a new producer, if it was never "
        "acknowledged or a duplicate does no harm; with a higher producer.id.expiration.ms the root "
        "remembers producers for longer",
    )
