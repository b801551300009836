"""Committed offsets in memory, and which of them have expired (KIP-211).

Invariants: what was applied last counts; a group without offsets is not listed; `held_bytes` is about what
    all of them take.
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
_OFFSET_BYTES: Final = 256  # as objects, without names and notes
_GROUP_BYTES: Final = 256
_NOTHING: Final[Mapping[TopicPartition, OffsetValue]] = MappingProxyType({})


class Offsets:
    """The latest offsets of all groups of one partition of __consumer_offsets."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, OffsetValue]] = {}
        self.held_bytes = 0

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
        of_group = self._groups.get(key.group)
        if of_group is None:
            if value is None:
                return
            of_group = self._groups[key.group] = {}
            self.held_bytes += group_bytes(key.group)
        before = of_group.get(topic_partition)
        if value is not None:
            of_group[topic_partition] = value
            if before is not None:
                self.held_bytes += len(value.metadata) - len(before.metadata)
                return
        elif before is not None:
            del of_group[topic_partition]
        self.held_bytes += offset_bytes(key.topic, value) - offset_bytes(key.topic, before)
        if not of_group:
            del self._groups[key.group]
            self.held_bytes -= group_bytes(key.group)

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


def offset_bytes(topic: str, value: OffsetValue | None) -> int:
    """About what an offset takes."""
    return 0 if value is None else _OFFSET_BYTES + len(topic) + len(value.metadata)


def group_bytes(group_id: str) -> int:
    """About what a group takes, beside its offsets."""
    return _GROUP_BYTES + len(group_id)


def expired_offsets(
    offsets: Mapping[TopicPartition, OffsetValue], group: Group | None, *, now_ms: int, retention_ms: int
) -> list[TopicPartition]:
    """Offsets that nobody can want any more.

    Of a group that empties: the retention after that, or after a later commit. Of a consumer group at work:
    only of topics to which no member subscribes. Without a coordinated group (assigned partitions, Python,
    Spark): the retention after its last commit of any partition. Kafka forgets each partition by itself
    there, so that a consumer at work loses the position of one that is quiet, and reads it again from its
    start. The client's own choice (OffsetCommit 2 to 4) wins over all of it.
    """
    may_expire_from_ms = max((one.commit_timestamp_ms for one in offsets.values()), default=0)
    is_at_work = False
    if group is not None and group.protocol_type is not None:
        may_expire_from_ms = 0
        if group.state is GroupState.EMPTY:
            may_expire_from_ms = group.state_since_ms
        elif group.protocol_type != CONSUMER_PROTOCOL_TYPE or group.state is not GroupState.STABLE:
            return []
        else:
            is_at_work = True
    expired = []
    for (topic, partition), value in offsets.items():
        if value.expire_timestamp_ms != NO_EXPIRY:
            is_expired = now_ms >= value.expire_timestamp_ms
        else:
            since_ms = max(value.commit_timestamp_ms, may_expire_from_ms)
            is_expired = now_ms - since_ms >= retention_ms
        if is_expired:
            expired.append((topic, partition))
    if not expired or group is None or not is_at_work:
        return expired
    kept = group.subscribed_among({topic for topic, _ in expired})
    return [] if kept is None else [one for one in expired if one[0] not in kept]
