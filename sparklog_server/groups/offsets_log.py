"""What a partition of __consumer_offsets says, and how: its records, and the state that they add up to.

Offsets stay here, since nothing but records changes them. A group goes on by itself once it has been taken
up: what the log says of groups counts while it is loaded, and not when this broker's own records come back.
Invariants: what was applied last counts.
Not here: when records are read and appended (coordination/state_log.py), groups (group.py).
Concurrency: `encode` and `decode` are pure; a state is owned by its log.
Sources: FORMAT.md#consumer-offsets; Kafka OffsetMetadataManager.replay, GroupMetadataManager.replay.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from sparklog.client.groups import partition_for_group
from sparklog.client.offsets_topic import OFFSETS_TOPIC, OFFSETS_TOPIC_CONFIGS
from sparklog.format.consumer_offsets import (
    GroupKey,
    OffsetKey,
    OffsetValue,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_offset_key,
    encode_offset_value,
)
from sparklog.format.group_metadata import GroupValue, decode_group_value, encode_group_value
from sparklog_server.coordination.internal_topic import InternalTopic
from sparklog_server.coordination.shards import Shards
from sparklog_server.coordination.state_log import StateLog
from sparklog_server.groups.committed_offsets import Offsets, TopicPartition, group_bytes, offset_bytes
from sparklog_server.groups.offsets_on_their_way import OffsetsOnTheirWay
from sparklog_server.groups.pending_offsets import PendingOffsets


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
