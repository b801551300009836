"""Offsets that consumer groups have committed: records in __consumer_offsets, and a table in memory.

Invariants: the topic is the truth, in Kafka's own schema; per (group, topic, partition) the latest record
    wins, and one without a value (a tombstone) deletes. All records of a group are in one partition.
Table: built from the records the first time, then kept up by reading only new ones.
Not here: membership and coordination (the broker); compaction of the topic (maintenance).
Concurrency: one lock around the table. A forked child builds its own if the parent was at work on it.
After a crash: the table is built again.
Sources: Kafka GroupMetadataManager, OffsetCommitValue; docs/design.md.
"""

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from sparklog.client.appender import PartitionedAppender, StagedAppend
from sparklog.client.consumer import read_batches
from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.clock import Clock
from sparklog.errors import (
    CorruptLogError,
    InvalidRequestError,
    RetriableError,
    SparklogError,
    UnsupportedVersionError,
    as_value,
    utf8_size,
    why_not_utf8,
)
from sparklog.forking import notify_after_fork
from sparklog.format.consumer_group_records import (
    ConsumerGroupKey,
    RecordKind,
    decode_consumer_group_key,
    is_consumer_group_key,
)
from sparklog.format.consumer_offsets import (
    OffsetKey,
    OffsetValue,
    decode_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from sparklog.log.segment_file import took_patience
from sparklog.maintenance.budget import UNREADABLE
from sparklog.metadata import Action, DraftExtent, Image, MetadataLog, plan_append, plan_delete_topic

_log = logging.getLogger(__name__)
MAX_METADATA_BYTES = 4096  # Kafka's offset.metadata.max.bytes
MAX_GROUP_BYTES = (1 << 15) - 1
MAX_OFFSET, MAX_PARTITION = (1 << 63) - 1, (1 << 31) - 1
_SHORT_NAME = 100  # characters, of which a loop takes less time than NumPy's calls
TopicPartition = tuple[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """The next offset to read, as a group committed it."""

    offset: int
    metadata: str
    commit_timestamp_ms: int


def partition_for_group(group: str, partitions: int) -> int:
    """Kafka's choice: abs(Java's String.hashCode) % partitions."""
    if len(group) <= _SHORT_NAME and group.isascii():
        code = 0
        for byte in group.encode():
            code = (31 * code + byte) & 0xFFFFFFFF
    else:
        code = _hash_code(group)
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def _hash_code(group: str) -> int:
    units = np.frombuffer(group.encode("utf-16-be", "surrogatepass"), ">u2").astype(np.uint32)
    powers = np.full(len(units), 31, np.uint32)
    powers[-1:] = 1
    # Wraps as Java's int does. A name may have 32,767 characters, which a loop takes 5 ms for.
    return int((units * np.cumprod(powers[::-1], dtype=np.uint32)[::-1]).sum(dtype=np.uint32))


def stage_offsets(
    appender: PartitionedAppender,
    group: str,
    offsets: Mapping[TopicPartition, int | None],
    *,
    metadata: str = "",
    now_ms: int,
) -> StagedAppend:
    """Write a group's offsets as records, durable and not yet visible; None deletes.

    Publish them together with records, and both happen or neither.
    """
    validate_group(group)
    validate_offsets(offsets, metadata)
    if not offsets:
        return StagedAppend()
    target = appender.topics.target(OFFSETS_TOPIC, state=True)
    target.keyed = True
    rows = offset_rows(group, offsets, target.partitions, metadata=metadata, now_ms=now_ms)
    appender.add(rows, OFFSETS_TOPIC, state=True)
    return appender.finish()


def offset_rows(
    group: str,
    offsets: Mapping[TopicPartition, int | None],
    partitions: int,
    *,
    metadata: str = "",
    now_ms: int,
) -> pa.RecordBatch:
    """The records that say so, for __consumer_offsets with so many partitions."""
    keys = [
        encode_offset_key(OffsetKey(group=group, topic=topic, partition=number)) for topic, number in offsets
    ]
    values = [
        None
        if offset is None
        else encode_offset_value(
            OffsetValue(offset=offset, leader_epoch=-1, metadata=metadata, commit_timestamp_ms=now_ms)
        )
        for offset in offsets.values()
    ]
    partition = partition_for_group(group, partitions)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([partition] * len(keys), pa.int32()),
        }
    )


def validate_group(group: str) -> None:
    """Refuse names that Kafka's schema cannot hold."""
    if not 0 < (utf8_size(group) or 0) <= MAX_GROUP_BYTES:
        raise InvalidRequestError(
            "INVALID_GROUP",
            f"found group {group[:100]!a} of {len(group)} characters, expected 1 to {MAX_GROUP_BYTES} bytes "
            "of UTF-8",
            fix="give the consumer group a name",
        )


def validate_offsets(offsets: Mapping[TopicPartition, int | None], metadata: str) -> None:
    """Refuse what is no offset to read next, and too long a note."""
    for (topic, partition), offset in offsets.items():
        if (wrong := why_not_utf8(topic)) is not None:
            raise InvalidRequestError("INVALID_TOPIC_NAME", f"found topic {wrong}", fix="correct the name")
        if offset is not None and not 0 <= offset <= MAX_OFFSET:
            raise InvalidRequestError(
                "OFFSET_OUT_OF_RANGE",
                f"{topic}-{partition}: found offset {offset} to commit, expected at least 0, "
                f"at most {MAX_OFFSET}",
                fix="commit the next offset to read",
            )
        is_negative = partition < 0 and offset is not None  # one that was stored can be deleted
        if is_negative or not -1 - MAX_PARTITION <= partition <= MAX_PARTITION:
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"{topic}: found partition {partition} to commit for, expected 0 to {MAX_PARTITION}",
                fix="name partitions that the topic has",
            )
    if (wrong := why_not_utf8(metadata)) is not None:
        raise InvalidRequestError("INVALID_OPTION", f"found offset metadata {wrong}", fix="correct it")
    size = len(metadata.encode())
    if size > MAX_METADATA_BYTES:
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"offset metadata: found {size} bytes, expected at most {MAX_METADATA_BYTES}",
            fix="shorten the metadata",
        )


class OffsetTable:
    """The latest committed offsets, kept up to date from images."""

    def __init__(self, metadata: MetadataLog) -> None:
        self._metadata = metadata
        self.skipped = 0  # records that say nothing
        self._start()
        notify_after_fork(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._topic_id: str | None = None
        self._next_offsets: dict[int, int] = {}
        self._groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._consumer_groups: set[str] = set()

    def after_fork_in_child(self) -> None:
        """Another thread of the parent may have had the lock, with the table half followed: begin again."""
        if self._lock.locked():
            self._start()

    def committed(self, image: Image, group: str) -> dict[TopicPartition, CommittedOffset]:
        """What `group` has committed as of `image`."""
        topic = image.topics.get(OFFSETS_TOPIC)
        with self._lock:
            if topic is None:
                return {}
            self._follow(image, [partition_for_group(group, len(topic.partitions))])
            return dict(self._groups.get(group, {}))

    def groups(self, image: Image) -> list[str]:
        """Names of all groups that have committed offsets."""
        topic = image.topics.get(OFFSETS_TOPIC)
        with self._lock:
            if topic is None:
                return []
            self._follow(image, range(len(topic.partitions)))
            return sorted(group for group, offsets in self._groups.items() if offsets)

    def consumer_groups(self, image: Image) -> frozenset[str]:
        """Names of all groups of the consumer protocol (KIP-848), with or without offsets."""
        self.groups(image)
        with self._lock:
            return frozenset(self._consumer_groups)

    def of_topic(
        self, image: Image, name: str
    ) -> tuple[dict[str, list[TopicPartition]], SparklogError | None]:
        """By group, for which partitions of a topic it has committed, as far as that can be read; and the
        first reason, if it cannot all be read.
        """
        topic = image.topics.get(OFFSETS_TOPIC)
        damage: SparklogError | None = None
        with self._lock:
            if topic is None:
                return {}, None
            for partition in range(len(topic.partitions)):
                try:
                    self._follow(image, [partition])
                except UNREADABLE as error:
                    if took_patience(error):
                        raise
                    damage = damage or as_value(error)
            found = {
                group: [at for at in offsets if at[0] == name] for group, offsets in self._groups.items()
            }
            return {group: keys for group, keys in found.items() if keys}, damage

    def _follow(self, image: Image, partitions: Iterable[int]) -> None:
        topic = image.topics[OFFSETS_TOPIC]
        if topic.topic_id != self._topic_id:
            self._topic_id = topic.topic_id
            self._next_offsets.clear()
            self._groups.clear()
            self._consumer_groups.clear()
        for partition in partitions:
            state = topic.partitions[partition]
            start = max(self._next_offsets.get(partition, 0), state.log_start_offset)
            if 0 < start < state.cleaned.first_dirty_offset:
                # Compacted before it was read: a tombstone may be gone with what it deleted.
                self._forget(partition, len(topic.partitions))
                start = state.log_start_offset
            if start >= state.log_end_offset:
                continue
            for arrow_batch in read_batches(
                self._metadata, image, OFFSETS_TOPIC, partition, start_offset=start, skip_expired=True
            ):
                keys = arrow_batch.column("key").to_pylist()
                values = arrow_batch.column("value").to_pylist()
                offsets = arrow_batch.column("offset").to_pylist()
                for offset, key, value in zip(offsets, keys, values, strict=True):
                    self._apply(key, value, f"{OFFSETS_TOPIC}-{partition}@{offset}")
            self._next_offsets[partition] = state.log_end_offset

    def _note_consumer_group(self, key: ConsumerGroupKey, value: bytes | None) -> None:
        """Remember that there is such a group; its members are the broker's."""
        if key.kind is RecordKind.GROUP and value is not None:
            self._consumer_groups.add(key.group)
        elif key.kind is RecordKind.GROUP:
            self._consumer_groups.discard(key.group)

    def _forget(self, partition: int, partitions: int) -> None:
        gone = [group for group in self._groups if partition_for_group(group, partitions) == partition]
        for group in gone:
            del self._groups[group]
        self._consumer_groups = {
            group for group in self._consumer_groups if partition_for_group(group, partitions) != partition
        }

    def _apply(self, key: bytes | None, value: bytes | None, where: str) -> None:
        if key is None:
            self.skipped += 1
            _log.warning("%s: skipped a record without a key", where)
            return
        try:
            if is_consumer_group_key(key):
                self._note_consumer_group(decode_consumer_group_key(key, where=where), value)
                return
            decoded = decode_key(key, where=where)
            if not isinstance(decoded, OffsetKey):
                return  # group metadata: the broker's
            stored = None if value is None else decode_offset_value(value, where=where)
        except (CorruptLogError, UnsupportedVersionError) as error:  # must not close it to all
            self.skipped += 1
            _log.warning("skipped a record: %s", error)
            return
        offsets = self._groups.setdefault(decoded.group, {})
        tp = (decoded.topic, decoded.partition)
        if stored is None or stored.offset < 0:  # as Kafka's clients read a negative one: none
            offsets.pop(tp, None)
            return
        offsets[tp] = CommittedOffset(
            offset=stored.offset, metadata=stored.metadata, commit_timestamp_ms=stored.commit_timestamp_ms
        )


# --- topic deletion ----------------------------------------------------------------------------------
#
# Deleting a topic, and what groups have committed for it: one metadata commit.
#
# A topic of the same name that is made later is another one. A group that found its old offsets there would
# leave out its first records, and that cannot be detected by then: offsets name their topic, not its id.
#
# Invariants: tombstones for all that is committed by then are in the commit that deletes the topic. For that,
#     nothing may have been committed since it was looked up; so it is looked up again, a few times. Where
#     others commit all the time, a partition for which a group commits for the first time between the last
#     look and the commit keeps its offset. What cannot be read of __consumer_offsets, since it is damaged,
#     keeps no topic: its offsets stay, with a warning.
# Not here: what is committed after the deletion, by readers that have not noticed, or by a transaction that
#     was open. A broker, where there is one, removes that as well.
# Concurrency: any process; the metadata log orders them. Brokers follow records that others append to groups.
# After a crash: both have happened, or neither.
# Sources: Kafka GroupCoordinator.handleDeletedPartitions.


_topic_deletion_log = logging.getLogger("sparklog.client")
ATTEMPTS: Final = 5  # while others commit
NewAppender = Callable[[], PartitionedAppender]
Seen = tuple[str, list[int]]  # __consumer_offsets: its id, and the ends of its partitions
Committed = Mapping[str, Sequence[TopicPartition]]


def delete_topic(
    metadata: MetadataLog, offsets: OffsetTable, new_appender: NewAppender, name: str, clock: Clock
) -> None:
    """Delete a topic, its records, and the offsets that groups have committed for it.

    Raises:
        UnknownTopicError: there is none.
        StorageError: nothing was deleted.
    """
    staged: Committed = {}
    drafts: Sequence[DraftExtent] = ()
    for attempt in range(ATTEMPTS):
        is_last = attempt == ATTEMPTS - 1
        image = metadata.refresh(force=True)
        plan_delete_topic(image, name)  # is it there?
        seen = _seen(image)
        committed, damage = ({}, None) if name == OFFSETS_TOPIC else offsets.of_topic(image, name)
        if not _covers(staged, committed):
            staged, drafts = committed, _stage(new_appender(), committed, now_ms=clock.now_ms())

        def plan(
            image: Image,
            seen: Seen | None = seen,
            drafts: Sequence[DraftExtent] = drafts,
            is_last: bool = is_last,
        ) -> list[Action]:
            found, deletion = _seen(image), plan_delete_topic(image, name)
            if found != seen and not is_last:
                return []
            is_same = found is not None and seen is not None and found[0] == seen[0]
            return [plan_append(image, drafts), deletion] if drafts and is_same else [deletion]

        try:
            if metadata.publish(plan).actions:
                if damage is not None:
                    _warn(name, damage)
                return
        except RetriableError as error:
            if error.code != "STAGING_EXPIRED" or is_last:
                raise
            staged, drafts = {}, ()


def _warn(name: str, damage: SparklogError) -> None:
    _topic_deletion_log.warning(
        "topic %r is deleted, but not all that groups have committed for it, since %s cannot be read: %s. "
        "Before a topic of this name is made again, restore the file, and take the offsets away "
        "(kafka-consumer-groups --delete-offsets, or commit_offsets with None): a group would leave out the "
        "first records of the new one",
        name,
        OFFSETS_TOPIC,
        damage,
    )


def _seen(image: Image) -> Seen | None:
    topic = image.topics.get(OFFSETS_TOPIC)
    return None if topic is None else (topic.topic_id, [one.log_end_offset for one in topic.partitions])


def _covers(staged: Committed, committed: Committed) -> bool:
    return all(set(keys) <= set(staged.get(group, ())) for group, keys in committed.items())


def _stage(appender: PartitionedAppender, committed: Committed, *, now_ms: int) -> Sequence[DraftExtent]:
    with appender:
        partitions = appender.topics.target(OFFSETS_TOPIC, state=True).partitions
        for group, keys in committed.items():
            rows = offset_rows(group, dict.fromkeys(keys), partitions, now_ms=now_ms)
            appender.add(rows, OFFSETS_TOPIC, state=True)
        return appender.finish().drafts
