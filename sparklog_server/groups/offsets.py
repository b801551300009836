"""The offsets of groups: what the log of one partition says of them, and what is about to change that.

An offset is in up to three states in one timeline: committed (applied from the log), appended (handed to the
log, not applied yet), and staged (by a transaction that may be about to commit it). What is planned counts
what is appended. Else it would delete a commit that it has not seen:
1. a group's offset 10 has expired, and its commit of 20 is on its way to the log;
2. the tombstone for the offset is planned by the 10, and appended after the 20;
3. the commit of 20 is acknowledged, and gone.
A client that asks for stable offsets waits for staged ones (KIP-447): the records up to an older offset may
be processed by a member that is about to commit that.

Offsets stay here, since only records change them. A group goes on by itself once it has been loaded: what
the log says of groups counts while it is loaded, and not when this broker's own records come back. Their
records stay as well: a consumer group (KIP-848) that could not write is made again from them, and it may have
been, or have become, a classic one. Values are the same objects as the groups' own, so they cost little.
Invariants: what was applied last counts. An appended offset is here from the call of `append` until it is
    applied, or known not to be; a staged one as often as it was staged and not unstaged. A group without any
    offset is not listed. `held_bytes` is about what all of them take, and by how much appended ones may let
    it grow.
Not here: when records are read and appended (coordination/state_log.py), when what is staged ends
    (coordination/staging.py), groups (group.py).
Concurrency: none; a state is owned by its log. `encode` and `decode` are pure.
Sources: FORMAT.md#consumer-offsets; Kafka OffsetMetadataManager, GroupMetadataManager.replay; KIP-211.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from sparklog.client.groups import partition_for_group
from sparklog.client.topic_plan import OFFSETS_TOPIC, OFFSETS_TOPIC_CONFIGS
from sparklog.format.consumer_group_records import (
    ConsumerGroupKey,
    ConsumerGroupValue,
    decode_consumer_group_key,
    decode_consumer_group_value,
    encode_consumer_group_key,
    encode_consumer_group_value,
    is_consumer_group_key,
)
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
from sparklog_server.groups.consumer_group import ConsumerGroup
from sparklog_server.groups.consumer_members import ConsumerRecord
from sparklog_server.groups.group import Group
from sparklog_server.groups.messages import CONSUMER_PROTOCOL_TYPE, GroupState

TopicPartition = tuple[str, int]
_OFFSET_BYTES: Final = 256  # as objects, without names and notes
_STAGED_BYTES: Final = 512  # as objects: the record, and its entry here
_GROUP_BYTES: Final = 256
_NOTHING: Final[Mapping[TopicPartition, OffsetValue]] = MappingProxyType({})

# --- records -----------------------------------------------------------------------------------------


class OffsetRecord(NamedTuple):
    """A group's offset in a partition; without a value it is deleted."""

    key: OffsetKey
    value: OffsetValue | None


class GroupRecord(NamedTuple):
    """A group's generation and members; without a value it is gone."""

    key: GroupKey
    value: GroupValue | None


Record = OffsetRecord | GroupRecord | ConsumerRecord

# --- timeline ----------------------------------------------------------------------------------------


class _Ahead(NamedTuple):
    """An offset that is appended or staged, and the bytes that count for it."""

    value: OffsetValue | None
    is_staged: bool
    held_bytes: int


class GroupsState:
    """The offsets and groups of one partition of __consumer_offsets."""

    def __init__(self) -> None:
        self.held_bytes = 0  # of offsets
        self._committed: dict[str, dict[TopicPartition, OffsetValue]] = {}
        # In the order of the calls; of one offset there are few.
        self._ahead: dict[str, dict[TopicPartition, list[_Ahead]]] = {}
        self.unstaged_topics: set[str] = set()  # of staged offsets whose transactions have ended
        # As the log has them. Groups that have been taken go on by themselves.
        self.classic_groups: dict[str, GroupValue] = {}
        self._are_taken = False
        self.consumer_groups: dict[str, dict[ConsumerGroupKey, ConsumerGroupValue]] = {}
        # Groups whose records have changed otherwise than by what was appended here.
        self.disturbed: set[str] = set()
        self._expected: dict[ConsumerGroupKey, list[ConsumerGroupValue | None]] = {}

    # What the log says

    def apply(self, record: Record, /) -> None:
        """Take in a record of the log."""
        if isinstance(record, OffsetRecord):
            self._commit(*record)
        elif isinstance(record, ConsumerRecord):
            self._apply_consumer(*record)
        elif record.value is not None:
            self.classic_groups[record.key.group] = record.value
        else:
            self.classic_groups.pop(record.key.group, None)

    def clear(self) -> None:
        """Forget what was applied: all of it comes again."""
        self.disturbed.update(self.consumer_groups)
        self.consumer_groups = {}
        self._committed = {}
        self.held_bytes = sum(
            ahead.held_bytes
            for offsets in self._ahead.values()
            for entries in offsets.values()
            for ahead in entries
        )
        self.classic_groups = {}

    def take_groups(self) -> dict[str, GroupValue]:
        """Return the groups that are in the log; the caller goes on from there."""
        self._are_taken = True
        return dict(self.classic_groups)

    def _apply_consumer(self, key: ConsumerGroupKey, value: ConsumerGroupValue | None) -> None:
        values = self.consumer_groups.setdefault(key.group, {})
        if value is not None:
            values[key] = value
        else:
            values.pop(key, None)
            if not values:
                del self.consumer_groups[key.group]
        if self._are_taken and value not in self._expected.get(key, ()):
            self.disturbed.add(key.group)

    def _commit(self, key: OffsetKey, value: OffsetValue | None) -> None:
        place = key.topic, key.partition
        offsets = self._committed.get(key.group)
        if offsets is None:
            if value is None:
                return
            offsets = self._committed[key.group] = {}
            self.held_bytes += _group_bytes(key.group)
        before = offsets.get(place)
        self.held_bytes += _offset_bytes(key.topic, value) - _offset_bytes(key.topic, before)
        if value is not None:
            offsets[place] = value
        elif before is not None:
            del offsets[place]
        if not offsets:
            del self._committed[key.group]
            self.held_bytes -= _group_bytes(key.group)

    # What is about to change it

    def begin(self, record: Record, /) -> None:
        """A record was handed to the log, behind all that began before."""
        if isinstance(record, OffsetRecord):
            growth = 0 if record.value is None else max(0, self.growth([record]))
            self._add(record.key, _Ahead(record.value, False, growth))
        elif isinstance(record, ConsumerRecord):
            self._expected.setdefault(record.key, []).append(record.value)

    def end(self, record: Record, /) -> None:
        """It is applied, or not appended."""
        if isinstance(record, OffsetRecord):
            self._remove(*record, is_staged=False)
        elif isinstance(record, ConsumerRecord):
            expected = self._expected[record.key]
            expected.remove(record.value)
            if not expected:
                del self._expected[record.key]

    def stage(self, record: Record, /) -> None:
        """A transaction may be about to commit this."""
        if isinstance(record, OffsetRecord):
            self._add(record.key, _Ahead(record.value, True, staged_bytes(record)))

    def unstage(self, record: Record, /) -> None:
        """Its transaction has ended."""
        if isinstance(record, OffsetRecord):
            self._remove(*record, is_staged=True)
            self.unstaged_topics.add(record.key.topic)

    def _add(self, key: OffsetKey, ahead: _Ahead) -> None:
        offsets = self._ahead.setdefault(key.group, {})
        offsets.setdefault((key.topic, key.partition), []).append(ahead)
        self.held_bytes += ahead.held_bytes

    def _remove(self, key: OffsetKey, value: OffsetValue | None, *, is_staged: bool) -> None:
        place = key.topic, key.partition
        offsets = self._ahead[key.group]
        entries = offsets[place]
        number = 0  # as a rule
        while entries[number].value is not value or entries[number].is_staged is not is_staged:
            number += 1
        self.held_bytes -= entries.pop(number).held_bytes
        if not entries:
            del offsets[place]
        if not offsets:
            del self._ahead[key.group]

    # Offsets of one group

    def committed(self, group_id: str) -> Mapping[TopicPartition, OffsetValue]:
        """Return what a group has committed, as it is applied."""
        return self._committed.get(group_id, _NOTHING)

    def planned(self, group_id: str) -> Mapping[TopicPartition, OffsetValue]:
        """Return what a group has committed once all that is appended is applied."""
        committed = self.committed(group_id)
        ahead = self._ahead.get(group_id)
        if ahead is None:
            return committed
        latest: dict[TopicPartition, OffsetValue | None] = {**committed}
        for place, entries in ahead.items():
            latest[place] = _latest(entries, committed.get(place))
        return {place: value for place, value in latest.items() if value is not None}

    def planned_offset(self, key: OffsetKey) -> OffsetValue | None:
        """Return the same of one offset."""
        place = key.topic, key.partition
        committed = self.committed(key.group).get(place)
        ahead = self._ahead.get(key.group)
        return committed if ahead is None else _latest(ahead.get(place, ()), committed)

    def staged(self, group_id: str) -> frozenset[TopicPartition]:
        """Return the offsets of a group that transactions may be about to commit."""
        ahead = self._ahead.get(group_id)
        if ahead is None:
            return frozenset()
        return frozenset(
            place for place, entries in ahead.items() if any(entry.is_staged for entry in entries)
        )

    def has_offsets(self, group_id: str) -> bool:
        """True if a group has committed any, or is about to."""
        return group_id in self._committed or group_id in self._ahead

    # Offsets of all groups

    def groups(self) -> Collection[str]:
        """Return all groups that have committed offsets."""
        return self._committed.keys()

    def count_groups(self) -> int:
        """Return how many groups have committed any, or are about to."""
        return len(self._committed) + sum(group_id not in self._committed for group_id in self._ahead)

    @property
    def most_groups(self) -> int:
        """An upper bound of `count_groups` that takes no time."""
        return len(self._committed) + len(self._ahead)

    def topics(self) -> set[str]:
        """Return every topic for which any offset is committed."""
        return {topic for offsets in self._committed.values() for topic, _ in offsets}

    def committed_for(self, topics: Collection[str]) -> Iterator[tuple[OffsetKey, OffsetValue]]:
        """Yield what all groups have committed for these topics, as it is applied."""
        names = set(topics)
        for group_id, offsets in self._committed.items():
            for (topic, partition), value in offsets.items():
                if topic in names:
                    yield OffsetKey(group=group_id, topic=topic, partition=partition), value

    def appended_for(self, topics: Collection[str]) -> dict[OffsetKey, list[OffsetValue]]:
        """Return what is appended for these topics and not applied yet, in order, without tombstones."""
        names = set(topics)
        found: dict[OffsetKey, list[OffsetValue]] = {}
        for group_id, offsets in self._ahead.items():
            for (topic, partition), entries in offsets.items():
                appended = [entry.value for entry in entries if not entry.is_staged] if topic in names else ()
                if appended:
                    key = OffsetKey(group=group_id, topic=topic, partition=partition)
                    found[key] = [value for value in appended if value is not None]
        return found

    def growth(self, records: Iterable[OffsetRecord]) -> int:
        """Return by how many bytes `held_bytes` grows once these are applied."""
        growth, groups = 0, set()
        for key, value in records:
            growth += _offset_bytes(key.topic, value) - _offset_bytes(key.topic, self.planned_offset(key))
            groups.add(key.group)
        return growth + sum(_group_bytes(group_id) for group_id in groups if not self._is_counted(group_id))

    def _is_counted(self, group_id: str) -> bool:
        """True if what a group takes is in `held_bytes`, apart from its offsets."""
        if group_id in self._committed:
            return True
        ahead = self._ahead.get(group_id)
        return ahead is not None and any(
            not entry.is_staged for entries in ahead.values() for entry in entries
        )


def _latest(entries: Sequence[_Ahead], committed: OffsetValue | None) -> OffsetValue | None:
    """Return what an offset is once all that is appended is applied."""
    return next((entry.value for entry in reversed(entries) if not entry.is_staged), committed)


def _offset_bytes(topic: str, value: OffsetValue | None) -> int:
    return 0 if value is None else _OFFSET_BYTES + len(topic) + len(value.metadata)


def _group_bytes(group_id: str) -> int:
    return _GROUP_BYTES + len(group_id)


def staged_bytes(record: OffsetRecord) -> int:
    """Return about what a staged offset takes."""
    metadata = 0 if record.value is None else len(record.value.metadata)
    return _STAGED_BYTES + len(record.key.group) + len(record.key.topic) + metadata


# --- expiry ------------------------------------------------------------------------------------------


def expired_offsets(
    offsets: Mapping[TopicPartition, OffsetValue],
    group: Group | ConsumerGroup | None,
    *,
    now_ms: int,
    retention_ms: int,
) -> list[TopicPartition]:
    """Return the offsets of a group that have expired (KIP-211).

    Those of an empty group expire when the retention is over since it became empty, or since a later commit.
    Those of an active consumer group expire only for topics to which no member subscribes. Without a
    coordinated group (assigned partitions, Python, Spark) they expire together, when the retention is over
    since the last commit of any partition; so do those of an empty group of KIP-848, whose records do not
    say since when it is empty. Kafka lets each partition expire by itself there: a running
    consumer loses its position in a quiet partition, and reads that again from its start. The expiry that a
    client chose itself (OffsetCommit 2 to 4) takes precedence.
    """
    may_expire_from_ms = max((value.commit_timestamp_ms for value in offsets.values()), default=0)
    is_at_work = False
    if isinstance(group, ConsumerGroup):
        may_expire_from_ms = 0 if group.members else max(may_expire_from_ms, group.empty_since_ms)
        is_at_work = bool(group.members)
    elif group is not None and group.protocol_type is not None:
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
    return [] if kept is None else [place for place in expired if place[0] not in kept]


# --- log ---------------------------------------------------------------------------------------------


Shard = StateLog[Record, GroupsState]
GroupShards = Shards[Record, GroupsState]


def _encode(record: Record) -> tuple[bytes, bytes | None]:
    if isinstance(record, OffsetRecord):
        value = None if record.value is None else encode_offset_value(record.value)
        return encode_offset_key(record.key), value
    if isinstance(record, ConsumerRecord):
        stored = None if record.value is None else encode_consumer_group_value(record.value)
        return encode_consumer_group_key(record.key), stored
    value = None if record.value is None else encode_group_value(record.value)
    return encode_group_key(record.key), value


def _decode(key: bytes, value: bytes | None, where: str) -> Record:
    if is_consumer_group_key(key):
        of_group = decode_consumer_group_key(key, where=where)
        if value is None:
            return ConsumerRecord(of_group, None)
        where = f"{where}, {of_group.group!r}"
        return ConsumerRecord(of_group, decode_consumer_group_value(of_group.kind, value, where=where))
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
            OffsetKey(group=group_id, topic=offset.topic, partition=offset.partition),
            OffsetValue(
                offset=offset.offset,
                leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                commit_timestamp_ms=now_ms,
                expire_timestamp_ms=expire_ms,
            ),
        )
        for offset in offsets
    ]
