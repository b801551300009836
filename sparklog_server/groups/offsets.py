"""Committed offsets in memory, and which of them have expired (KIP-211).

Invariants: what was applied last counts; a group without offsets is not listed; `held_bytes` is about what
    all of them take.
Concurrency: none; owned by one shard.
Sources: Kafka OffsetMetadataManager, GroupMetadata.removeExpiredOffsets; KIP-211.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from sparklog.client.groups import partition_for_group
from sparklog.client.topic_plan import OFFSETS_TOPIC, OFFSETS_TOPIC_CONFIGS
from sparklog.format.consumer_offsets import (
    NO_EXPIRY,
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from sparklog_server.coordination.internal_topic import InternalTopic
from sparklog_server.coordination.shards import Shards
from sparklog_server.coordination.state_log import StateLog
from sparklog_server.groups.group import Group
from sparklog_server.groups.messages import CONSUMER_PROTOCOL_TYPE, GroupState

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


# --- offsets on their way ----------------------------------------------------------------------------
#
# What is appended later is later in the log. So who plans what to delete by what is applied alone, deletes a
# commit that it has not seen:
# 1. a group's offset 10 has expired, and its commit of 20 is on its way to the log;
# 2. the tombstone for the offset is planned by the 10, and appended after the 20;
# 3. the commit of 20 is acknowledged, and gone.
#
# Invariants: one is here from the call of `append` on, until it is applied or known not to be; `held_bytes`
#     is by how much all of them may let what is held grow.
# Concurrency: none; owned by one shard.
# Sources: Kafka CoordinatorRuntime, where a write counts for those behind it before it is durable.


_Coming = list[
    tuple[OffsetValue | None, int]
]  # in the order of the calls, with the bytes that are kept for it

_NONE: Final[Mapping[TopicPartition, _Coming]] = MappingProxyType({})


class OffsetsOnTheirWay:
    """Offsets that were handed to the log and are not applied yet. What is planned next counts them."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, _Coming]] = {}
        self.held_bytes = 0

    def __len__(self) -> int:
        """Of how many groups there are any."""
        return len(self._groups)

    def __iter__(self) -> Iterator[str]:
        """The groups."""
        return iter(self._groups)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def add(self, key: OffsetKey, value: OffsetValue | None, growth: int) -> None:
        """One more, by which so many bytes more will be held."""
        kept = max(0, growth)
        of_group = self._groups.setdefault(key.group, {})
        of_group.setdefault((key.topic, key.partition), []).append((value, kept))
        self.held_bytes += kept

    def remove(self, key: OffsetKey, value: OffsetValue | None) -> None:
        """One that was added: it is applied, or not appended."""
        of_group = self._groups[key.group]
        coming = of_group[key.topic, key.partition]
        number = next(number for number, (one, _) in enumerate(coming) if one is value)
        self.held_bytes -= coming.pop(number)[1]
        if not coming:
            del of_group[key.topic, key.partition]
        if not of_group:
            del self._groups[key.group]

    def of_topics(self, topics: Iterable[str]) -> list[OffsetKey]:
        """The keys of those for these topics."""
        names = set(topics)
        return [
            OffsetKey(group=group_id, topic=topic, partition=partition)
            for group_id, of_group in self._groups.items()
            for topic, partition in of_group
            if topic in names
        ]

    def values(self, key: OffsetKey) -> list[OffsetValue]:
        """All of them, in their order, without tombstones."""
        coming = self._groups.get(key.group, _NONE).get((key.topic, key.partition), [])
        return [value for value, _ in coming if value is not None]

    def latest(self, key: OffsetKey, applied: OffsetValue | None) -> OffsetValue | None:
        """One of them, once all of these are applied, too."""
        coming = self._groups.get(key.group, _NONE).get((key.topic, key.partition))
        return coming[-1][0] if coming else applied

    def over(
        self, group_id: str, applied: Mapping[TopicPartition, OffsetValue]
    ) -> Mapping[TopicPartition, OffsetValue]:
        """What a group has committed once all of these are applied, too."""
        of_group = self._groups.get(group_id)
        if of_group is None:
            return applied
        latest = {**applied, **{one: coming[-1][0] for one, coming in of_group.items()}}
        return {one: value for one, value in latest.items() if value is not None}


# --- pending offsets ---------------------------------------------------------------------------------
#
# Who asks for stable offsets is to wait for these (KIP-447): the records up to which they tell may be
# processed by somebody who is about to commit that.
#
# Invariants: an offset is pending as often as it was added and not removed; a group without any is not
#     listed; `held_bytes` is about what all of them take.
# Not here: what is staged, and when that is over (coordination/staging.py).
# Concurrency: none; owned by one shard.
# Sources: Kafka OffsetMetadataManager.hasPendingTransactionalOffsets; KIP-447.


_PENDING_OFFSETS_OFFSET_BYTES: Final = 512  # as objects: the record, and what is counted here
_PENDING_OFFSETS_NOTHING: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


class PendingOffsets:
    """Offsets that open transactions may be about to commit: which of a group's are not stable."""

    def __init__(self) -> None:
        self._groups: dict[str, Counter[TopicPartition]] = {}
        self.held_bytes = 0
        self.over_topics: set[str] = set()  # of which some were pending, for whoever looks after them

    def __len__(self) -> int:
        """How many groups have any."""
        return len(self._groups)

    def __iter__(self) -> Iterator[str]:
        """The groups."""
        return iter(self._groups)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def of(self, group_id: str) -> Mapping[TopicPartition, int]:
        """What is pending of a group, and how many times."""
        return self._groups.get(group_id, _PENDING_OFFSETS_NOTHING)

    def add(self, key: OffsetKey, value: OffsetValue | None) -> None:
        """One more."""
        self._groups.setdefault(key.group, Counter())[key.topic, key.partition] += 1
        self.held_bytes += pending_bytes(key, value)

    def remove(self, key: OffsetKey, value: OffsetValue | None) -> None:
        """One that was added: it is committed, or never will be."""
        of_group = self._groups[key.group]
        of_group[key.topic, key.partition] -= 1
        if not of_group[key.topic, key.partition]:
            del of_group[key.topic, key.partition]
        if not of_group:
            del self._groups[key.group]
        self.held_bytes -= pending_bytes(key, value)
        self.over_topics.add(key.topic)

    def take_over_topics(self) -> Iterable[str]:
        """The topics of those that are over, once."""
        topics, self.over_topics = self.over_topics, set()
        return topics


def pending_bytes(key: OffsetKey, value: OffsetValue | None) -> int:
    """About what one takes."""
    metadata = 0 if value is None else len(value.metadata)
    return _PENDING_OFFSETS_OFFSET_BYTES + len(key.group) + len(key.topic) + metadata


# --- offsets log -------------------------------------------------------------------------------------
#
# What a partition of __consumer_offsets says, and how: its records, and the state that they add up to.
#
# Offsets stay here, since nothing but records changes them. A group goes on by itself once it has been taken
# up: what the log says of groups counts while it is loaded, and not when this broker's own records come back.
# Invariants: what was applied last counts.
# Not here: when records are read and appended (coordination/state_log.py), groups (group.py).
# Concurrency: `encode` and `decode` are pure; a state is owned by its log.
# Sources: FORMAT.md#consumer-offsets; Kafka OffsetMetadataManager.replay, GroupMetadataManager.replay.


class OffsetRecord(NamedTuple):
    """A group's offset in a partition; without a value it is deleted."""

    key: OffsetKey
    value: OffsetValue | None


class GroupRecord(NamedTuple):
    """A group's generation and members; without a value it is gone."""

    key: GroupKey
    value: GroupValue | None


Record = OffsetRecord | GroupRecord


class GroupsState:
    """The offsets and groups of one partition, as the log has them."""

    def __init__(self) -> None:
        self.offsets = Offsets()
        self.on_their_way = OffsetsOnTheirWay()
        self.pending = PendingOffsets()
        self._groups: dict[str, GroupValue] | None = {}  # None: they have been taken up

    def apply(self, record: Record, /) -> None:
        """One record."""
        if isinstance(record, OffsetRecord):
            self.offsets.apply(record.key, record.value)
        elif self._groups is not None and record.value is not None:
            self._groups[record.key.group] = record.value
        elif self._groups is not None:
            self._groups.pop(record.key.group, None)

    def clear(self) -> None:
        """All that was applied comes again. Groups that have been taken up go on by themselves."""
        self.offsets = Offsets()
        if self._groups is not None:
            self._groups = {}

    def begin(self, record: Record, /) -> None:
        """One that is on its way to the log, behind all that began before."""
        if isinstance(record, OffsetRecord):
            growth = 0 if record.value is None else self.growth([record])
            self.on_their_way.add(*record, growth)

    def end(self, record: Record, /) -> None:
        """It is applied, or not appended."""
        if isinstance(record, OffsetRecord):
            self.on_their_way.remove(*record)

    def stage(self, record: Record, /) -> None:
        """One that a transaction may be about to commit."""
        if isinstance(record, OffsetRecord):
            self.pending.add(record.key, record.value)

    def unstage(self, record: Record, /) -> None:
        """Its transaction is over."""
        if isinstance(record, OffsetRecord):
            self.pending.remove(record.key, record.value)

    def planned(self, group_id: str) -> Mapping[TopicPartition, OffsetValue]:
        """What a group has committed, as what is appended next will find it."""
        return self.on_their_way.over(group_id, self.offsets.of(group_id))

    def applied_of_topics(self, topics: Collection[str]) -> Iterator[tuple[OffsetKey, OffsetValue]]:
        """What all groups have committed for these topics, and is applied."""
        for key in self.offsets.of_topics(topics):
            yield key, self.offsets.of(key.group)[key.topic, key.partition]

    def coming_of_topics(self, topics: Collection[str]) -> dict[OffsetKey, list[OffsetValue]]:
        """And what is on its way to be."""
        keys = self.on_their_way.of_topics(topics)
        return {key: self.on_their_way.values(key) for key in keys}

    def has_offsets(self, group_id: str) -> bool:
        """Has a group committed any, or is it about to?"""
        return group_id in self.offsets or group_id in self.on_their_way or group_id in self.pending

    def count_groups(self) -> int:
        """How many have committed any, or are about to."""
        more = {
            one for coming in (self.on_their_way, self.pending) for one in coming if one not in self.offsets
        }
        return len(self.offsets) + len(more)

    @property
    def most_groups(self) -> int:
        """No fewer than these: quicker to say."""
        return len(self.offsets) + len(self.on_their_way) + len(self.pending)

    @property
    def offsets_bytes(self) -> int:
        """About what they all take."""
        return self.offsets.held_bytes + self.on_their_way.held_bytes + self.pending.held_bytes

    def growth(self, records: Iterable[OffsetRecord]) -> int:
        """By how many bytes more is held once these are applied."""
        growth, groups = 0, set()
        for key, value in records:
            before = self.planned_offset(key)
            growth += offset_bytes(key.topic, value) - offset_bytes(key.topic, before)
            if key.group not in self.offsets and key.group not in self.on_their_way:
                groups.add(key.group)
        return growth + sum(map(group_bytes, groups))

    def planned_offset(self, key: OffsetKey) -> OffsetValue | None:
        """The same, of one offset."""
        place = (key.topic, key.partition)
        return self.on_their_way.latest(key, self.offsets.of(key.group).get(place))

    def take_groups(self) -> dict[str, GroupValue]:
        """The groups that are in the log; whoever takes them goes on from there."""
        groups, self._groups = self._groups or {}, None
        return groups


Shard = StateLog[Record, GroupsState]
GroupShards = Shards[Record, GroupsState]


def _encode(record: Record) -> tuple[bytes, bytes | None]:
    if isinstance(record, OffsetRecord):
        value = None if record.value is None else encode_offset_value(record.value)
        return encode_offset_key(record.key), value
    value = None if record.value is None else encode_group_value(record.value)
    return encode_group_key(record.key), value


def _decode(key: bytes, value: bytes | None, where: str) -> Record:
    found = decode_key(key, where=where)
    if isinstance(found, OffsetKey):
        return OffsetRecord(found, None if value is None else decode_offset_value(value, where=where))
    where = f"{where}, {found.group!r}"
    return GroupRecord(found, None if value is None else decode_group_value(value, where=where))


OFFSETS_LOG: Final[InternalTopic[Record]] = InternalTopic(
    name=OFFSETS_TOPIC,
    partition_of=partition_for_group,
    partitions=lambda config: config.offsets_topic_num_partitions,
    configs=OFFSETS_TOPIC_CONFIGS,
    encode=_encode,
    decode=_decode,
    too_large_fix="use smaller subscriptions and assignments, or fewer members",
)


# --- offsets to commit -------------------------------------------------------------------------------
#
# Offsets that are asked to be committed, and the records that they make.
#
# Concurrency: immutable; a pure function.


LAST_MS: Final = (1 << 63) - 1  # that a record can say


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """One partition of an OffsetCommit, or TxnOffsetCommit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def records_of(
    group_id: str, offsets: Sequence[OffsetToCommit], now_ms: int, retention_ms: int = -1
) -> list[OffsetRecord]:
    """What the log is to say of them. `retention_ms`: the client's own; -1: as the broker's."""
    expire_ms = min(now_ms + retention_ms, LAST_MS) if retention_ms >= 0 else NO_EXPIRY
    return [
        OffsetRecord(
            OffsetKey(group=group_id, topic=one.topic, partition=one.partition),
            OffsetValue(
                offset=one.offset,
                leader_epoch=one.leader_epoch,
                metadata=one.metadata,
                commit_timestamp_ms=now_ms,
                expire_timestamp_ms=expire_ms,
            ),
        )
        for one in offsets
    ]
