"""What a partition of __consumer_offsets says, and how: its records, and the state that they add up to.

Offsets stay here, since nothing but records changes them. A group goes on by itself once it has been taken
up: what the log says of groups counts while it is loaded, and not when this broker's own records come back.
Invariants: what was applied last counts.
Not here: when records are read and appended (coordination/state_log.py), groups (group.py).
Concurrency: `encode` and `decode` are pure; a state is owned by its log.
Sources: FORMAT.md#consumer-offsets; Kafka OffsetMetadataManager.replay, GroupMetadataManager.replay.
"""

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
from sparklog_server.groups.committed_offsets import Offsets
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

    def stage(self, record: Record, /) -> None:
        """One that a transaction may be about to commit."""
        if isinstance(record, OffsetRecord):
            self.pending.add(record.key, record.value)

    def unstage(self, record: Record, /) -> None:
        """Its transaction is over."""
        if isinstance(record, OffsetRecord):
            self.pending.remove(record.key, record.value)

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
