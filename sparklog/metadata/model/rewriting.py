"""Changing what a partition holds already: replace_extents and advance_log_start.

Invariants: offsets stay what they were. Replaced extents fill the range that the action names, and what is
added lies within it; the log start offset only goes up, and never beyond the log's end.
Not here: which extents to replace, and what retention removes (their callers).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sparklog.errors import RetriableError, UnknownTopicError
from sparklog.metadata.model.action import (
    FIRST_VERSION,
    ActionBase,
    ActionRefusedError,
    invalid_plan,
    refuse,
)
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.extent import Extent, why_illegal_extent
from sparklog.metadata.model.extent_list import ExtentColumns, checksum_of
from sparklog.metadata.model.image import Image, PartitionState
from sparklog.metadata.model.numbers import Int64
from sparklog.metadata.model.sequences import mergeable, merged_above, remember_merged
from sparklog.metadata.model.sweeping import refuse_expired, validate_births

REPLACEMENT_VERSION = 5
_REPLAYED_EXTENTS = 16  # about half the time that a replacement takes
# Why a replacement is left out, and the others are made.
_LEFT_OUT = frozenset({"EXTENTS_CHANGED", "STAGING_EXPIRED"})
_FORGOTTEN = (
    "an extent to be replaced is of a producer that the partition does not know, or has no room to keep"
)


class ReplaceExtents(ActionBase, tag="replace_extents", frozen=True, kw_only=True):
    """The `removed_count` extents that cover [start_offset, end_offset) make way for `added`.

    Offsets stay what they were: `added` lies within the range, ascends, and may leave gaps.

    Fields:
        removed_crc32c: of every field of the removed extents (`checksum_of`), so that they cannot be taken
            for others, not even by whoever replays the log; None in the first version.
    """

    topic_id: str
    partition: Int64
    start_offset: Int64
    end_offset: Int64
    removed_count: Int64
    added: tuple[Extent, ...] = ()
    removed_crc32c: Int64 | None = None

    @property
    def document_version(self) -> int:
        """Older sparklogs would not remember the producers of what was merged."""
        return FIRST_VERSION if self.removed_crc32c is None else REPLACEMENT_VERSION

    @property
    def replayed_extents(self) -> int:
        """Whatever it removes is looked at, in calls that cost more than the few extents that it adds."""
        return _REPLAYED_EXTENTS


class AdvanceLogStart(ActionBase, tag="advance_log_start", frozen=True, kw_only=True):
    """Records below log_start_offset are gone; extents wholly below it are dropped."""

    topic_id: str
    partition: Int64
    log_start_offset: Int64


# --- effects -----------------------------------------------------------------------------------------


def replace_extents(draft: ImageDraft, action: ReplaceExtents) -> None:
    """The added ones stand where the others were."""
    where = f"partition {action.partition} of topic {action.topic_id}"
    partition = draft.partition(action.topic_id, action.partition)
    state = partition.flushed()
    start, there = _replaced_range(state, action, where)
    _refuse_unordered(action, where)
    refuse_expired(draft, (extent.segment for extent in action.added))
    partition.state = _replaced(state, start, there, action)


def _replaced(
    state: PartitionState, start: int, removed: ExtentColumns, action: ReplaceExtents
) -> PartitionState:
    """`removed`: from the index `start` on."""
    return replace(
        state,
        extents=state.extents.replaced(start, start + len(removed), action.added),
        merged_batches=remember_merged(state, removed),
    )


def _replaced_range(state: PartitionState, action: ReplaceExtents, where: str) -> tuple[int, ExtentColumns]:
    """The extents that the action replaces, which must fill its range exactly, and the index of the first."""
    start = state.extents.index_after(action.start_offset)
    stop = state.extents.index_from(action.end_offset)
    if stop - start != action.removed_count or action.removed_count < 1:
        raise ActionRefusedError(
            f"{where}: offsets {action.start_offset} to {action.end_offset} hold {stop - start} extents, "
            f"expected {action.removed_count}"
        )
    there = state.extents.columns_between(start, stop)  # copies them: once
    first, end = int(there.base_offset[0]), int(there.end_offset[-1])
    if first < action.start_offset or end > action.end_offset:
        raise ActionRefusedError(
            f"{where}: offsets {action.start_offset} to {action.end_offset} cut through extents that "
            f"cover {first} to {end}"
        )
    if action.removed_crc32c is not None:
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
    """Added extents are of the partition, legal, ascend, and lie within the range."""
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
    """Drops the extents that hold nothing else."""
    where = f"partition {action.partition} of topic {action.topic_id}"
    partition = draft.partition(action.topic_id, action.partition)
    state = partition.flushed()
    if not state.log_start_offset < action.log_start_offset <= state.log_end_offset:
        raise ActionRefusedError(
            f"{where}: log start offset {action.log_start_offset}, expected above "
            f"{state.log_start_offset} and at most {state.log_end_offset}"
        )
    partition.state = replace(
        state,
        log_start_offset=action.log_start_offset,
        extents=state.extents.dropped_before(action.log_start_offset),
        merged_batches=merged_above(state.merged_batches, action.log_start_offset),
    )


# --- plans -------------------------------------------------------------------------------------------


def replacement(
    removed: ExtentColumns, added: Sequence[Extent], *, topic_id: str, partition: int
) -> ReplaceExtents:
    """Put `added` in the place of `removed`: consecutive extents of one partition, as found in an image."""
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
    """The replacement, if the extents that it removes are there as they were.

    Raises:
        UnknownTopicError: the topic is gone.
        RetriableError: EXTENTS_CHANGED, they are not what the partition holds there any more.
            STAGING_EXPIRED, a segment that it adds is too old to come to life.
    """
    _validate_replacement(image, image.partition_of(action.topic_id, action.partition), action)
    return action


def plan_replacements(image: Image, actions: Sequence[ReplaceExtents]) -> list[ReplaceExtents]:
    """Those of the replacements that can be made in one commit, in this order.

    What does not apply any more is left out, and so is what would apply alone: a partition with several is
    looked at as those before leave it. They remove extents, and use of the room for merged producers.
    """
    of_partition = Counter((action.topic_id, action.partition) for action in actions)
    changed: dict[tuple[str, int], PartitionState] = {}
    planned = []
    for action in actions:
        key = action.topic_id, action.partition
        try:
            state = changed.get(key) or image.partition_of(*key)
            start, there = _validate_replacement(image, state, action)
        except UnknownTopicError:
            continue
        except RetriableError as error:
            if error.code not in _LEFT_OUT:
                raise
            continue
        if of_partition[key] > 1:
            changed[key] = _replaced(state, start, there, action)
        planned.append(action)
    return planned


def _validate_replacement(
    image: Image, state: PartitionState, action: ReplaceExtents
) -> tuple[int, ExtentColumns]:
    """The extents that it removes, and the index of the first in the partition; see plan_replace_extents."""
    extents = state.extents
    start, stop = extents.index_after(action.start_offset), extents.index_from(action.end_offset)
    there = extents.columns_between(start, stop)
    if len(there) != action.removed_count or checksum_of(there) != action.removed_crc32c:
        raise RetriableError(
            "EXTENTS_CHANGED",
            f"partition {action.partition} of topic {action.topic_id}: offsets {action.start_offset} to "
            f"{action.end_offset} are in other extents now",
            fix="Read the extents again and redo the work; nothing was changed",
        )
    if not mergeable(state, there).all():
        raise RetriableError(
            "EXTENTS_CHANGED",
            f"partition {action.partition} of topic {action.topic_id}: {_FORGOTTEN}",
            fix="Choose the extents again; nothing was changed",
        )
    validate_births(image, (extent.segment for extent in action.added))
    return start, there


def plan_advance_log_start(
    image: Image, topic_id: str, partition: int, log_start_offset: int
) -> AdvanceLogStart | None:
    """Drop records below an offset; None when they are gone already. At most the log end offset."""
    state = image.partition_of(topic_id, partition)
    if not 0 <= log_start_offset <= state.log_end_offset:
        raise invalid_plan(
            f"partition {partition} of topic {topic_id}: log start offset {log_start_offset}, "
            f"expected 0 to {state.log_end_offset}"
        )
    if log_start_offset <= state.log_start_offset:
        return None
    return AdvanceLogStart(topic_id=topic_id, partition=partition, log_start_offset=log_start_offset)
