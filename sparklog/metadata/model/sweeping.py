"""Creation versions of segments, and the sweep horizon: move_sweep_horizon, retire_segments. How
far a partition is compacted: note_cleaned.

A file without extents may be removed only if no extent can ever refer to it. A segment's creation version
(`born`) is the newest commit that its writer had seen when it created the file; the file's name has it. In a
restored root versions are ahead of commit numbers, so that they are above those of the lost commits
(restoring.py). The horizon is a version that only grows: a vacuum watermark. From the commit on that moves
it, no action applies that would make a dead segment with an older version live, whichever process publishes
it. So a dead segment before the horizon stays dead, without any dependence on clocks.

A segment that was live once and is dead need not wait for that: retire_segments names dead segments, which
stay dead (retired.py).

Invariants: a retired segment is dead, and stays dead. A segment that an action makes live has a version at or
    above the horizon, or is live already after the previous actions; the horizon is at most the version of
    the commit that moves it.
Not here: the names of segments (log/segment_file.py), removing files.
Sources: FORMAT.md#segments-and-extents; adr/0019; tests/models/sweeping.py.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import msgspec

from sparklog.errors import RetriableError
from sparklog.metadata.model.action import MAX_OFFSET, ActionBase, ActionRefusedError, Int64, invalid_plan
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.image import NO_DELETE_HORIZON_MS, NO_HORIZON, Cleaned, Image
from sparklog.metadata.model.retired import (
    MAX_RANGES,
    NO_BIRTH,
    Retired,
    RetiredRange,
    born_of,
    since_horizon,
    with_retired,
)

# --- compacting --------------------------------------------------------------------------------------
#
# The progress of a partition's compaction: note_cleaned.
#
# Invariants: the first dirty offset only goes up, never beyond the log's end. Below it no two records with a
# known key have the same key, unless one of them is in an extent that could not be rewritten.
# Not here: which records compaction removes (maintenance/), replacing extents (extents.py).
# Sources: FORMAT.md#metadata-log; Kafka's cleaner-offset-checkpoint.


class NoteCleaned(ActionBase, tag="note_cleaned", frozen=True, kw_only=True):
    """Offsets below `first_dirty_offset` are compacted.

    Fields:
        delete_horizon_ms: the latest time until which a tombstone among them is kept; -1: there are none.
    """

    topic_id: str
    partition: Int64
    first_dirty_offset: Int64
    delete_horizon_ms: Int64 = NO_DELETE_HORIZON_MS


# --- effect ------------------------------------------------------------------------------------------


def note_cleaned(draft: ImageDraft, action: NoteCleaned) -> None:
    """Apply: set the partition's first dirty offset."""
    partition = draft.partition(action.topic_id, action.partition)
    state = partition.flushed()
    reason = _why_illegal(action, state.cleaned, state.log_end_offset)
    if reason is not None:
        raise ActionRefusedError(reason)
    cleaned = Cleaned(action.first_dirty_offset, action.delete_horizon_ms)
    partition.state = msgspec.structs.replace(state, cleaned=cleaned)


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
    """Record how far a partition is compacted; None if that is known already.

    Raises:
        UnknownTopicError: the topic is deleted.
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


# --- sweeping ----------------------------------------------------------------------------------------


class MoveSweepHorizon(ActionBase, tag="move_sweep_horizon", frozen=True, kw_only=True):
    """Dead segments with a version before `horizon` stay dead."""

    horizon: Int64

    @property
    def frees_space(self) -> bool:
        """Always."""
        return True


class RetireSegments(ActionBase, tag="retire_segments", frozen=True, kw_only=True):
    """Dead segments stay dead.

    Fields:
        time_ms: when they were searched for, by that process's clock.
        segments: these are retired.
        left: segments with uncommitted bytes: no longer counted, removed once they are below the horizon.
        gone: segments retired before, whose files are removed.
    """

    time_ms: Int64
    segments: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def frees_space(self) -> bool:
        """Always."""
        return True


# --- effect ------------------------------------------------------------------------------------------


def move_sweep_horizon(draft: ImageDraft, action: MoveSweepHorizon) -> None:
    """Apply: dead segments before the horizon can no longer become live."""
    latest = draft.commit + draft.incarnation.births_ahead
    if not draft.sweep_horizon < action.horizon <= latest:
        raise ActionRefusedError(
            f"sweep horizon {action.horizon}, expected above {draft.sweep_horizon} and at most {latest}"
        )
    pass_horizon(draft, action.horizon)


def pass_horizon(draft: ImageDraft, horizon: int) -> None:
    """Move the horizon, and drop the state of segments before it, which stay dead without it."""
    draft.sweep_horizon = horizon
    retired = draft.retired.done()
    draft.retired.forget([segment for segment in retired.removed_bytes if born_of(segment) < horizon])
    pending = {segment: at_ms for segment, at_ms in retired.pending.items() if born_of(segment) >= horizon}
    ranges = since_horizon(retired.ranges, horizon)
    draft.retired.change(dataclasses.replace(retired, ranges=ranges, pending=pending))


def retire_segments(draft: ImageDraft, action: RetireSegments) -> None:
    """Apply: the retired segments can no longer become live."""
    if not 0 <= action.time_ms <= MAX_OFFSET:
        raise ActionRefusedError(f"time {action.time_ms} is out of range")
    live = draft.live_among(action.segments)
    if live:
        raise ActionRefusedError(f"{min(live)}: found a segment that is live, expected a dead one")
    retired = draft.retired.done()
    ranges = _with(retired, action.segments)
    pending = {**retired.pending, **dict.fromkeys(action.segments, action.time_ms)}
    for segment in action.gone:
        pending.pop(segment, None)
    draft.retired.forget((*action.segments, *action.left))
    draft.retired.change(
        dataclasses.replace(retired, ranges=ranges, pending=pending, checked_ms=action.time_ms)
    )


def _with(retired: Retired, segments: Sequence[str]) -> dict[str, tuple[RetiredRange, ...]]:
    for segment in segments:
        if born_of(segment) == NO_BIRTH:
            raise ActionRefusedError(f"{segment}: found a name without a version, expected one with it")
    ranges = with_retired(retired.ranges, {segment: born_of(segment) for segment in segments})
    count = sum(map(len, ranges.values()))
    if segments and count > MAX_RANGES:
        raise ActionRefusedError(f"{count} ranges of retired segments, expected at most {MAX_RANGES}")
    return ranges


def refuse_expired(draft: ImageDraft, segments: Iterable[str]) -> None:
    """Raise ActionRefusedError if an action with these segments would make a retired or too old one live."""
    for segment in sorted(set(segments)):
        if draft.retired.has(segment):
            raise ActionRefusedError(_retired(segment))
        if draft.sweep_horizon == NO_HORIZON:
            continue
        if born_of(segment) < draft.sweep_horizon and not draft.refers_to(segment):
            raise ActionRefusedError(_expired(segment, draft.sweep_horizon))


# --- plans -------------------------------------------------------------------------------------------


def plan_move_sweep_horizon(image: Image, horizon: int) -> MoveSweepHorizon | None:
    """Move the horizon; None if it is there already, or beyond."""
    latest = image.commit + 1 + image.incarnation.births_ahead
    if not 0 <= horizon <= latest:
        raise invalid_plan(f"sweep horizon {horizon}, expected 0 to {latest}")
    return MoveSweepHorizon(horizon=horizon) if horizon > image.sweep_horizon else None


def validate_births(image: Image, segments: Iterable[str]) -> None:
    """Raise RetriableError STAGING_EXPIRED if a segment is retired, or dead and before the horizon."""
    for segment in sorted(set(segments)):
        if image.retired.has(segment):
            raise _staging_expired(_retired(segment))
        if image.sweep_horizon == NO_HORIZON:
            continue
        if born_of(segment) < image.sweep_horizon and not image.refers_to(segment):
            raise _staging_expired(_expired(segment, image.sweep_horizon))


def plan_retire_segments(
    image: Image,
    time_ms: int,
    segments: Sequence[str] = (),
    *,
    left: Sequence[str] = (),
    gone: Sequence[str] = (),
) -> RetireSegments:
    """Retire the dead ones of the segments, as far as there is room."""
    live = ImageDraft(image).live_among(segments)
    chosen = [segment for segment in segments if segment not in live and born_of(segment) != NO_BIRTH]
    while chosen:
        ranges = with_retired(image.retired.ranges, {segment: born_of(segment) for segment in chosen})
        if sum(map(len, ranges.values())) <= MAX_RANGES:
            break
        chosen = chosen[: len(chosen) // 2]
    return RetireSegments(time_ms=time_ms, segments=tuple(chosen), left=tuple(left), gone=tuple(gone))


def _staging_expired(problem: str) -> RetriableError:
    return RetriableError(
        "STAGING_EXPIRED",
        problem,
        fix="Append the rows again, to a new segment; none of these rows are or will be published",
    )


def _retired(segment: str) -> str:
    return f"{segment}: found a retired segment, expected one that may become live"


def _expired(segment: str, horizon: int) -> str:
    return (
        f"{segment}: found a dead segment with version {born_of(segment)}, expected one from "
        f"{horizon}, the sweep horizon, or later: older ones may have been removed"
    )
