"""How far a partition's log has been compacted: note_cleaned.

Invariants: the first dirty offset only goes up, never beyond the log's end. Below it no two records that a
key can be told of have the same key, unless one of them lies in an extent that could not be rewritten.
Not here: what compaction keeps and removes (maintenance/), replacing extents (rewriting.py).
Sources: FORMAT.md#metadata-log; Kafka's cleaner-offset-checkpoint.
"""

from msgspec.structs import replace

from sparklog.metadata.model.action import ActionBase, ActionRefusedError, invalid_plan
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.image import NO_DELETE_HORIZON_MS, Cleaned, Image
from sparklog.metadata.model.numbers import Int64


class NoteCleaned(ActionBase, tag="note_cleaned", frozen=True, kw_only=True):
    """Offsets below `first_dirty_offset` are compacted.

    Fields:
        delete_horizon_ms: the latest time until which a tombstone among them is kept; -1: there is none.
    """

    topic_id: str
    partition: Int64
    first_dirty_offset: Int64
    delete_horizon_ms: Int64 = NO_DELETE_HORIZON_MS


# --- effect ------------------------------------------------------------------------------------------


def note_cleaned(draft: ImageDraft, action: NoteCleaned) -> None:
    """The next round begins there."""
    partition = draft.partition(action.topic_id, action.partition)
    state = partition.flushed()
    reason = _why_illegal(action, state.cleaned, state.log_end_offset)
    if reason is not None:
        raise ActionRefusedError(reason)
    cleaned = Cleaned(action.first_dirty_offset, action.delete_horizon_ms)
    partition.state = replace(state, cleaned=cleaned)


def _why_illegal(action: NoteCleaned, cleaned: Cleaned, log_end_offset: int) -> str | None:
    where = f"partition {action.partition} of topic {action.topic_id}"
    if not cleaned.first_dirty_offset <= action.first_dirty_offset <= log_end_offset:
        return (
            f"{where}: first dirty offset {action.first_dirty_offset}, expected "
            f"{cleaned.first_dirty_offset} to {log_end_offset}"
        )
    if action.delete_horizon_ms < NO_DELETE_HORIZON_MS:
        return f"{where}: delete horizon {action.delete_horizon_ms}, expected -1 or a time"
    return None


# --- plan --------------------------------------------------------------------------------------------


def plan_note_cleaned(image: Image, topic_id: str, partition: int, cleaned: Cleaned) -> NoteCleaned | None:
    """Note how far a partition is compacted; None when that is known already.

    Raises:
        UnknownTopicError: the topic is gone.
        InvalidRequestError: INVALID_ACTIONS.
    """
    state = image.partition_of(topic_id, partition)
    action = NoteCleaned(
        topic_id=topic_id,
        partition=partition,
        first_dirty_offset=cleaned.first_dirty_offset,
        delete_horizon_ms=cleaned.delete_horizon_ms,
    )
    reason = _why_illegal(action, state.cleaned, state.log_end_offset)
    if reason is not None:
        raise invalid_plan(reason)
    return None if cleaned == state.cleaned else action
