"""Deleting a topic, and what groups have committed for it: one metadata commit.

A topic of the same name that is made later is another one. A group that found its old offsets there would
leave out the first records of it, and nobody can tell by then: offsets name their topic, not its id.

Invariants: tombstones for all that is committed by then are in the commit that deletes the topic. For that,
    nothing may have been committed since it was looked up; so it is looked up again, a few times. Where
    others commit all the time, a partition for which a group commits for the first time between the last
    look and the commit keeps its offset. What cannot be read of __consumer_offsets, since it is damaged,
    keeps no topic: its offsets stay, which is told of.
Not here: what is committed after the deletion, by readers that have not noticed, or by a transaction that was
    open. A broker, where there is one, removes that as well.
Concurrency: any process; the metadata log orders them. Brokers follow records that others append to groups.
After a crash: both have happened, or neither.
Sources: Kafka GroupCoordinator.handleDeletedPartitions.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sparklog.client.appender import PartitionedAppender
from sparklog.client.groups import OffsetTable, TopicPartition, offset_rows
from sparklog.client.offsets_topic import OFFSETS_TOPIC
from sparklog.clock import Clock
from sparklog.errors import RetriableError, SparklogError
from sparklog.metadata import Action, DraftExtent, Image, MetadataLog, plan_append, plan_delete_topic

_log = logging.getLogger("sparklog.client")
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
    _log.warning(
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
