"""The states of share groups in a snapshot: by group, topic id and partition.

Not here: what a state means, and its rules (model/share_values.py).
Concurrency: pure functions.
Sources: FORMAT.md#share-groups.
"""

from collections.abc import Sequence

from sparklog.metadata.documents.document import corrupt
from sparklog.metadata.model.image import Topic
from sparklog.metadata.model.share_values import (
    Shares,
    ShareState,
    why_illegal_share,
    why_illegal_share_group,
)

CODE = "CORRUPT_METADATA_SNAPSHOT"
StoredShares = dict[str, dict[str, dict[int, ShareState]]]


def stored_shares(shares: Shares) -> StoredShares:
    """Return the states as a snapshot has them."""
    stored: StoredShares = {}
    for group, states in shares.items():
        for (topic_id, partition), state in states.items():
            stored.setdefault(group, {}).setdefault(topic_id, {})[partition] = state
    return stored


def shares_of(stored: StoredShares, topics: Sequence[Topic], where: str) -> Shares:
    """Return the states of a snapshot.

    Raises:
        CorruptLogError: CORRUPT_METADATA_SNAPSHOT.
    """
    if not stored:
        return {}
    ends = {
        (topic.topic_id, one.partition): one.log_end_offset for topic in topics for one in topic.partitions
    }
    same = {topic.topic_id: topic.topic_id for topic in topics}  # each id is kept in memory once
    found = {}
    for group, by_topic in stored.items():
        found[group] = {
            (same.get(topic_id, topic_id), partition): one
            for topic_id, partitions in by_topic.items()
            for partition, one in partitions.items()
        }
        reason = why_illegal_share_group(group)
        for place, one in found[group].items():
            end = ends.get(place)
            unknown = "no such partition" if end is None else None
            reason = reason or unknown or why_illegal_share(one, end or 0)
        if reason is not None:
            raise corrupt(CODE, where, f"found share group {group[:100]!r}: {reason}")
    return found
