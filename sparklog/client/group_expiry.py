"""Remove consumer groups where no broker does: those that have committed nothing for long, or by name.

A broker removes the offsets of empty groups by itself (offsets.retention.minutes). Without a broker it is not
known whether a consumer will come back, and then begin anew; so nothing goes unless a user says so, and then
whole groups, never single partitions of a group that still commits.

Invariants: a group goes only if, in the commit that removes it, its partition of __consumer_offsets is as it
    was when the group was read: a group that has committed in between keeps everything.
Not here: compaction, which removes what the tombstones have superseded, and at last themselves.
Concurrency: any process; the metadata log orders them.
After a crash: groups that are gone stay gone, the others are still there.
Sources: KIP-211; Kafka ConsumerGroupCommand --delete.
"""

import dataclasses
from collections.abc import Collection, Sequence

from sparklog.client.groups import MAX_OFFSET, partition_for_group
from sparklog.client.log import SparkLog
from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.errors import InvalidRequestError
from sparklog.maintenance.retain import earlier_now_ms
from sparklog.metadata import Action, DraftExtent, Image, PartitionState, plan_append

_ATTEMPTS = 5  # at a group whose partition is written to meanwhile
NEVER_MS = -1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SilentGroup:
    """A group that has gone, or would go.

    Fields:
        offsets: how many partitions it had committed for.
        committed_ms: when it did so last; -1: not known.
    """

    group: str
    offsets: int
    committed_ms: int


def expire_groups(
    log: SparkLog,
    retention_ms: int,
    groups: Collection[str] | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
) -> list[SilentGroup]:
    """Remove the groups that have committed nothing for so long, or only report which; by name.

    Args:
        groups: names of those to check; None: all.
        force: also in a root that a broker has served, which knows better which groups have members.

    Raises:
        InvalidRequestError: BROKER_COORDINATES.
        RetriableError, StorageError: some may be gone, the others are not.
    """
    refuse_served_root(log, force=force)
    before_ms = earlier_now_ms(log.store, log.clock) - retention_ms
    gone = []
    for group in log.groups() if groups is None else sorted(set(groups)):
        found = _silent(log, group, before_ms)
        if found is not None and (dry_run or _forget(log, group, before_ms)):
            gone.append(found)
    return gone


def delete_groups(log: SparkLog, groups: Collection[str], *, force: bool = False) -> dict[str, str | None]:
    """Remove groups whenever they committed last: by name, why one is still there, or None.

    Raises:
        InvalidRequestError: BROKER_COORDINATES; `force` as for `expire_groups`.
        RetriableError, StorageError: some may be gone, the others are not.
    """
    refuse_served_root(log, force=force)
    found: dict[str, str | None] = {}
    for group in sorted(set(groups)):
        if not log.committed_offsets(group):
            found[group] = "GROUP_ID_NOT_FOUND"
        else:
            found[group] = None if _forget(log, group, MAX_OFFSET) else "NON_EMPTY_GROUP: it still commits"
    return found


def refuse_served_root(log: SparkLog, *, force: bool) -> None:
    """Refuse a root that a broker has served (BROKER_COORDINATES): that one knows which groups have members.

    Otherwise offsets would change under a member, which overwrites them or leaves records out.
    """
    brokers = sorted(log.refresh(force=True).brokers)
    if brokers and not force:
        raise InvalidRequestError(
            "BROKER_COORDINATES",
            f"{log.url}: broker {brokers[0]} coordinates its groups, and knows which have members",
            fix="ask it: --bootstrap-server HOST:PORT with `groups delete` or `groups reset-offsets`; silent "
            "groups go by its offsets.retention.minutes; --force if there is no broker any more",
        )


def _silent(log: SparkLog, group: str, before_ms: int) -> SilentGroup | None:
    offsets = log.describe_offsets(group)
    last_ms = max((offset.commit_timestamp_ms for offset in offsets.values()), default=NEVER_MS)
    if not offsets or last_ms > before_ms:
        return None
    return SilentGroup(group=group, offsets=len(offsets), committed_ms=last_ms)


def _forget(log: SparkLog, group: str, before_ms: int) -> bool:
    """Write tombstones for all that it has committed. False: it, or its partition, still changes."""
    for _ in range(_ATTEMPTS):
        seen = _partition_of(log.refresh(force=True), group)
        if seen is None or _silent(log, group, before_ms) is None:
            return False
        drafts = log.stage_offsets(group, dict.fromkeys(log.committed_offsets(group))).drafts

        def plan(
            image: Image, seen: PartitionState = seen, drafts: Sequence[DraftExtent] = drafts
        ) -> list[Action]:
            found = _partition_of(image, group)
            is_same = found is not None and found.topic_id == seen.topic_id
            if not is_same or found is None or found.log_end_offset != seen.log_end_offset:
                return []
            return [plan_append(image, drafts)]

        if log.metadata.publish(plan).actions:
            return True
    return False


def _partition_of(image: Image, group: str) -> PartitionState | None:
    topic = image.topics.get(OFFSETS_TOPIC)
    return None if topic is None else topic.partitions[partition_for_group(group, len(topic.partitions))]
