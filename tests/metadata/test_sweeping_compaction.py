"""How far a partition is compacted: what may be noted, and that it is not lost."""

from collections.abc import Callable

import msgspec
import pytest

from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError, InvalidRequestError, UnknownTopicError
from sparklog.metadata import (
    NEVER_CLEANED,
    Action,
    Cleaned,
    DraftExtent,
    Image,
    MetadataLog,
    NoteCleaned,
    Topic,
    apply_actions,
    plan_append,
    plan_note_cleaned,
)
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.storage import MemoryStore

Create = Callable[..., Topic]
Draft = Callable[..., DraftExtent]


def note(log: MetadataLog, topic: Topic, partition: int, cleaned: Cleaned) -> None:
    def plan(image: Image) -> list[Action]:
        action = plan_note_cleaned(image, topic.topic_id, partition, cleaned)
        return [] if action is None else [action]

    log.publish(plan)


def test_it_is_there_after_appends_and_snapshots(
    log: MetadataLog, create: Create, draft: Draft, memory: MemoryStore
) -> None:
    topic = create(log, "orders", 3)
    drafts = [draft(topic, partition=1, record_count=10)]
    log.publish(lambda image: [plan_append(image, drafts)])
    note(log, topic, 1, Cleaned(7, 99))
    log.publish(lambda image: [plan_append(image, drafts)])
    log.write_snapshot()
    again = MetadataLog.open(memory, ManualClock()).image
    assert [state.cleaned for state in again.topic("orders").partitions] == [
        NEVER_CLEANED,
        Cleaned(7, 99),
        NEVER_CLEANED,
    ]


def test_what_is_known_is_not_noted_again(log: MetadataLog, create: Create, draft: Draft) -> None:
    topic = create(log, "orders", 1)
    log.publish(lambda image: [plan_append(image, [draft(topic, record_count=10)])])
    note(log, topic, 0, Cleaned(10, -1))
    assert plan_note_cleaned(log.image, topic.topic_id, 0, Cleaned(10, -1)) is None
    assert plan_note_cleaned(log.image, topic.topic_id, 0, Cleaned(10, 5)) is not None


@pytest.mark.parametrize("cleaned", [Cleaned(4, -1), Cleaned(11, -1), Cleaned(6, -2)])
def test_it_goes_up_to_the_log_end_and_never_back(
    log: MetadataLog, create: Create, draft: Draft, cleaned: Cleaned
) -> None:
    topic = create(log, "orders", 1)
    log.publish(lambda image: [plan_append(image, [draft(topic, record_count=10)])])
    note(log, topic, 0, Cleaned(5, -1))
    with pytest.raises(InvalidRequestError, match=r"expected 5 to 10|expected -1 or a time") as raised:
        plan_note_cleaned(log.image, topic.topic_id, 0, cleaned)
    assert raised.value.code == "INVALID_ACTIONS"
    action = NoteCleaned(
        topic_id=topic.topic_id,
        partition=0,
        first_dirty_offset=cleaned.first_dirty_offset,
        delete_horizon_ms=cleaned.delete_horizon_ms,
    )
    with pytest.raises(ActionRefusedError, match=r"expected 5 to 10|expected -1 or a time"):
        apply_actions(log.image, [action], commit=log.image.commit + 1, commit_uuid="u")


def test_a_topic_that_is_gone(log: MetadataLog) -> None:
    with pytest.raises(UnknownTopicError):
        plan_note_cleaned(log.image, "T" * 22, 0, Cleaned(0, -1))


def test_a_snapshot_that_is_beyond_the_log_end_is_damaged(
    log: MetadataLog, create: Create, memory: MemoryStore
) -> None:
    import dataclasses

    from sparklog.metadata.documents.snapshot import read_snapshot, write_snapshot

    create(log, "orders", 1)
    image = log.image
    (topic,) = image.topics.values()
    state = msgspec.structs.replace(topic.partitions[0], cleaned=Cleaned(1, -1))
    wrong = dataclasses.replace(topic, partitions=(state,))
    write_snapshot(memory, dataclasses.replace(image, topics={"orders": wrong}), timestamp_ms=0)
    with pytest.raises(CorruptLogError, match="orders"):
        read_snapshot(memory, image.commit, cluster_id=image.cluster_id)
