"""Share groups: begin_share, share_records, forget_share.

The leader of a partition gives its records to the members of a share group, and publishes what becomes of
them: acknowledged, archived, or available again with one more delivery. Acquisitions are in its memory.

Invariants: share_records is of the broker that leads the partition, in the epoch in which it gave the records
    out, and of the state that it gave them out from (`state_epoch`); a record ends once. So neither a deposed
    leader nor a leader that missed a reset ends a record that another member has got since. A dead letter is
    appended by the commit that archives its record.
Not here: who gets which records (sparklog_server/share).
Sources: FORMAT.md#share-groups; adr/0038; tests/models/sharing.py; KIP-932, KIP-1191.
"""

from collections.abc import Collection, Mapping, Sequence

from sparklog.errors import FencedError, InvalidRequestError, SparklogError
from sparklog.metadata.model.action import ActionBase, ActionRefusedError, Int64, invalid_plan, refuse
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.image import Image
from sparklog.metadata.model.registry import leadership_of, may_append
from sparklog.metadata.model.settings import RequireFeatures
from sparklog.metadata.model.share_values import (
    MAX_SHARE_RANGES,
    MAX_SHARE_STATES,
    SharePlace,
    ShareRange,
    ShareState,
    share_after,
    why_illegal_ranges,
    why_illegal_share_group,
)

FEATURE = "share-groups"
NAME_CHARACTERS = 200  # of groups' names take as much as a state


class BeginShare(ActionBase, tag="begin_share", frozen=True, kw_only=True):
    """A share group begins in a partition at this offset, or anew: nothing is known of its records."""

    group: str
    topic_id: str
    partition: Int64
    start_offset: Int64


class ShareRecords(ActionBase, tag="share_records", frozen=True, kw_only=True):
    """What became of records that the partition's leader gave to members of a share group.

    Fields:
        leader_epoch, state_epoch: as of when it gave them out.
    """

    group: str
    topic_id: str
    partition: Int64
    leader_epoch: Int64
    state_epoch: Int64
    ranges: tuple[ShareRange, ...]


class ForgetShare(ActionBase, tag="forget_share", frozen=True, kw_only=True):
    """The share group has no state any more, in these topics or (none) in all."""

    group: str
    topics: tuple[str, ...] = ()


# --- effects -----------------------------------------------------------------------------------------


def begin_share(draft: ImageDraft, action: BeginShare) -> None:
    """Apply; a state before is gone."""
    if FEATURE not in draft.reader_features:
        raise ActionRefusedError(f"the root does not need the feature {FEATURE}")
    refuse(why_illegal_share_group(action.group), "share group")
    end = draft.partition(action.topic_id, action.partition).log_end_offset
    if not 0 <= action.start_offset <= end:
        raise ActionRefusedError(f"start offset {action.start_offset}, expected 0 to {end}")
    place = action.topic_id, action.partition
    known = draft.shares.get(action.group, {})
    if place not in known and draft.share_count >= MAX_SHARE_STATES:
        raise ActionRefusedError(f"more than {MAX_SHARE_STATES:,} partitions of share groups")
    draft.set_share(action.group, place, ShareState(draft.commit, action.start_offset))


def share_records(draft: ImageDraft, action: ShareRecords) -> None:
    """Apply."""
    place = action.topic_id, action.partition
    where = f"share group {action.group!r} in {action.topic_id}-{action.partition}"
    partition = draft.partition(*place)
    node_id = None if draft.acting is None else draft.acting.node_id
    led = partition.leadership
    if (node_id, action.leader_epoch) != (led.leader, led.leader_epoch):
        raise ActionRefusedError(f"{where}: of broker {node_id} in epoch {action.leader_epoch}: {led}")
    state = draft.shares.get(action.group, {}).get(place)
    if state is None or state.state_epoch != action.state_epoch:
        raise ActionRefusedError(f"{where}: state epoch {action.state_epoch} is over")
    refuse(why_illegal_ranges(action.ranges) or why_beyond(action.ranges, partition.log_end_offset), where)
    try:
        after = share_after(state, action.ranges, log_start_offset=partition.state.log_start_offset)
    except ValueError as error:
        raise ActionRefusedError(f"{where}: {error}") from None
    refuse(_why_too_many(after), where)
    draft.set_share(action.group, place, after)


def forget_share(draft: ImageDraft, action: ForgetShare) -> None:
    """Apply; what is unknown is forgotten already."""
    topics = set(action.topics)
    for place in list(draft.shares.get(action.group, ())):
        if not topics or place[0] in topics:
            draft.set_share(action.group, place, None)


def _why_too_many(state: ShareState) -> str | None:
    count = len(state.ranges)
    return f"{count} ranges, expected at most {MAX_SHARE_RANGES:,}" if count > MAX_SHARE_RANGES else None


def why_beyond(ranges: Sequence[ShareRange], log_end_offset: int) -> str | None:
    """Return why ranges are not of records in the log, or None."""
    if not ranges:
        return "no ranges"
    last = ranges[-1].last
    return f"records up to {last}, of {log_end_offset}" if last >= log_end_offset else None


# --- plans -------------------------------------------------------------------------------------------


def plan_begin_share(
    image: Image, group: str, starts: Mapping[SharePlace, int], *, is_reset: bool
) -> list[RequireFeatures | BeginShare]:
    """Begin in these partitions at these offsets, which are brought within the log.

    Args:
        is_reset: also where the group has a state; else those are left alone.

    Long names of groups count as states do: any client may invent them.

    Raises:
        InvalidRequestError: INVALID_GROUP; SHARE_GROUPS_FULL.
        UnknownTopicError: a partition is gone.
    """
    reason = why_illegal_share_group(group)
    if reason is not None:
        raise InvalidRequestError("INVALID_GROUP", reason, fix="choose another name for the group")
    known = image.shares.get(group, {})
    begun = []
    for (topic_id, partition), start_offset in starts.items():
        state = image.partition_of(topic_id, partition)
        if is_reset or (topic_id, partition) not in known:
            start = min(max(start_offset, state.log_start_offset), state.log_end_offset)
            begun.append(BeginShare(group=group, topic_id=topic_id, partition=partition, start_offset=start))
    added = sum((one.topic_id, one.partition) not in known for one in begun)
    names = image.shares.keys() | {group}
    held = sum(map(len, image.shares.values())) + sum(map(len, names)) // NAME_CHARACTERS
    if added and held + added > MAX_SHARE_STATES:
        raise InvalidRequestError(
            "SHARE_GROUPS_FULL",
            f"cluster {image.cluster_id}: share groups have a state in {MAX_SHARE_STATES:,} partitions, or "
            "as much with their names, expected no more",
            fix="delete share groups that are not needed (sparklog groups delete)",
        )
    if begun and FEATURE not in image.reader_features:
        return [RequireFeatures(readers=(FEATURE,)), *begun]
    return [*begun]


def plan_forget_share(image: Image, group: str, topics: Collection[str] = ()) -> ForgetShare | None:
    """Forget a share group in topics (ids), or altogether; None if it is unknown there."""
    known = {topic_id for topic_id, _ in image.shares.get(group, ())}
    forgotten = sorted(known.intersection(topics)) if topics else ()
    if not known or (topics and not forgotten):
        return None
    return ForgetShare(group=group, topics=tuple(forgotten))


def share_refusal(image: Image, action: ShareRecords, *, node_id: int) -> SparklogError | None:
    """Return why a broker's share_records does not apply to the image; None if it does."""
    place = action.topic_id, action.partition
    where = f"share group {action.group!r} in {action.topic_id}-{action.partition}"
    if leadership_of(image, *place) is None or not may_append(image, node_id, *place, action.leader_epoch):
        return FencedError(
            "NOT_LEADER",
            f"{where}: this broker does not lead the partition in epoch {action.leader_epoch}",
            fix="acknowledge at the leader; nothing was acknowledged",
        )
    state = image.shares.get(action.group, {}).get(place)
    if state is None or state.state_epoch != action.state_epoch:
        return FencedError(
            "SHARE_STATE_CHANGED",
            f"{where}: the group was deleted or its offsets were reset, state epoch {action.state_epoch}",
            fix="fetch again; nothing was acknowledged",
        )
    partition = image.partition_of(*place)
    wrong = why_illegal_ranges(action.ranges) or why_beyond(action.ranges, partition.log_end_offset)
    try:
        after = share_after(state, action.ranges, log_start_offset=partition.log_start_offset)
    except ValueError as error:
        wrong = wrong or str(error)
    else:
        wrong = wrong or _why_too_many(after)
    return None if wrong is None else invalid_plan(f"{where}: {wrong}")
