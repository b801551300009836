"""Ids of idempotent producers: allocate_producer_ids.

Invariants: an id is handed out once; blocks follow each other without gaps.
Not here: what a producer's batches may continue (sequences.py), handing single ids out (sparklog_server).
"""

from sparklog.metadata.model.action import ActionBase, ActionRefusedError, invalid_plan, refuse
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.image import Image
from sparklog.metadata.model.numbers import MAX_OFFSET, Int64


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
