"""Committed offsets in memory, and which of them have expired (KIP-211).

Invariants: what was applied last counts; a group without offsets is not listed.
Not here: reading and writing records (offsets_log.py, coordination/).
Concurrency: none; owned by one shard.
Sources: Kafka OffsetMetadataManager, GroupMetadata.removeExpiredOffsets; KIP-211.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from sparklog.format.consumer_offsets import NO_EXPIRY, OffsetKey, OffsetValue
from sparklog_server.groups.group import Group
from sparklog_server.groups.subscription import CONSUMER_PROTOCOL_TYPE
from sparklog_server.groups.transitions import GroupState

TopicPartition = tuple[str, int]
_NOTHING: Final[Mapping[TopicPartition, OffsetValue]] = MappingProxyType({})


class Offsets:
    """The latest offsets of all groups of one partition of __consumer_offsets."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, OffsetValue]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def groups(self) -> Iterable[str]:
        """All groups that have offsets."""
        return self._groups.keys()

    def of(self, group_id: str) -> Mapping[TopicPartition, OffsetValue]:
        """What a group has committed."""
        return self._groups.get(group_id, _NOTHING)

    def apply(self, key: OffsetKey, value: OffsetValue | None) -> None:
        """One record; without a value it is a tombstone."""
        topic_partition = (key.topic, key.partition)
        if value is not None:
            self._groups.setdefault(key.group, {})[topic_partition] = value
            return
        of_group = self._groups.get(key.group)
        if of_group is not None:
            of_group.pop(topic_partition, None)
            if not of_group:
                del self._groups[key.group]

    def of_topics(self, topics: Iterable[str]) -> list[OffsetKey]:
        """The keys of everything that is committed for these topics."""
        names = set(topics)
        return [
            OffsetKey(group=group_id, topic=topic, partition=partition)
            for group_id, offsets in self._groups.items()
            for topic, partition in offsets
            if topic in names
        ]

    def topics(self) -> set[str]:
        """Every topic for which anything is committed."""
        return {topic for offsets in self._groups.values() for topic, _ in offsets}


def expired_offsets(
    offsets: Mapping[TopicPartition, OffsetValue], group: Group | None, *, now_ms: int, retention_ms: int
) -> list[TopicPartition]:
    """Offsets that nobody can want any more.

    Of a group that empties: the retention after that, or after a later commit. Of a consumer group at work:
    only of topics to which no member subscribes. Without a coordinated group (assigned partitions, Spark):
    the retention after the commit. The client's own choice (OffsetCommit 2 to 4) wins over all of it.
    """
    may_expire_from_ms = 0
    kept: frozenset[str] = frozenset()
    keeps_all = False
    if group is not None and group.protocol_type is not None:
        if group.state is GroupState.EMPTY:
            may_expire_from_ms = group.state_since_ms
        else:
            subscribed = group.subscribed_topics()
            is_consumer = group.protocol_type == CONSUMER_PROTOCOL_TYPE
            keeps_all = subscribed is None or not is_consumer or group.state is not GroupState.STABLE
            kept = subscribed or frozenset()
    expired = []
    for (topic, partition), value in offsets.items():
        if value.expire_timestamp_ms != NO_EXPIRY:
            is_expired = now_ms >= value.expire_timestamp_ms
        else:
            since_ms = max(value.commit_timestamp_ms, may_expire_from_ms)
            is_expired = now_ms - since_ms >= retention_ms
        if is_expired and not keeps_all and topic not in kept:
            expired.append((topic, partition))
    return expired
