"""Replacements are of the very extents that they name: same offsets and number are not enough."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from crc32c import crc32c

from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError, RetriableError
from sparklog.metadata import (
    NUMBER_COLUMNS,
    DraftExtent,
    Extent,
    MetadataLog,
    MoveSweepHorizon,
    new_id,
    plan_append,
    plan_create_topic,
    plan_replace_extents,
    plan_replacements,
)
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.actions import apply_actions
from sparklog.metadata.model.extent_list import checksum_of, columns_of
from sparklog.storage import MemoryStore
from tests.replacing import plan_replacing

Draft = Callable[..., DraftExtent]


@pytest.fixture
def extents(log: MetadataLog, draft: Draft) -> list[Extent]:
    """Three of a partition, in the log."""
    log.publish(lambda image: [plan_create_topic(image, "orders", 1, topic_id=new_id())])
    topic = log.image.topic("orders")
    drafts = [draft(topic, position=100 * number) for number in range(3)]
    log.publish(lambda image: [plan_append(image, drafts)])
    return list(log.image.partition("orders", 0).extents)


def merged(extents: list[Extent]) -> Extent:
    count = sum(extent.record_count for extent in extents)
    return msgspec.structs.replace(extents[0], segment="orders-0/merged.log", record_count=count, position=0)


def test_other_extents_of_the_same_offsets_and_number_are_not_replaced(
    log: MetadataLog, extents: list[Extent]
) -> None:
    first = plan_replacing(log.image, extents, [merged(extents)])
    # Another rewriter has moved one of them to another segment.
    moved = msgspec.structs.replace(extents[1], segment="orders-0/elsewhere.log")
    other = plan_replacing(log.image, extents[1:2], [moved])
    log.publish(lambda image: [plan_replace_extents(image, other)])
    with pytest.raises(RetriableError, match="to be replaced have changed") as raised:
        plan_replace_extents(log.image, first)
    assert raised.value.code == "EXTENTS_CHANGED"
    with pytest.raises(ActionRefusedError, match=r"have CRC-32C \d+, expected \d+"):
        apply_actions(log.image, [first], commit=log.image.commit + 1, commit_uuid="U" * 22)
    assert log.image.partition("orders", 0).extents[1].segment == "orders-0/elsewhere.log"


@pytest.mark.parametrize("field", ["segment", *NUMBER_COLUMNS])
def test_every_field_counts(extents: list[Extent], field: str) -> None:
    changed: dict[str, object] = {
        field: "other.log" if field == "segment" else getattr(extents[1], field) + 1
    }
    others = [extents[0], msgspec.structs.replace(extents[1], **changed), extents[2]]
    assert checksum_of(columns_of(others)) != checksum_of(columns_of(extents))


def test_the_checksum_is_format_mds(extents: list[Extent]) -> None:
    data = b"".join(
        np.array([getattr(extent, field) for extent in extents], ">i8").tobytes() for field in NUMBER_COLUMNS
    )
    names = b"\0".join(extent.segment.encode() for extent in extents)
    assert checksum_of(columns_of(extents)) == crc32c(data + names)


def test_it_does_not_matter_how_the_columns_are_kept(log: MetadataLog, extents: list[Extent]) -> None:
    state = log.image.partition("orders", 0)
    assert checksum_of(state.extents.columns_between(0, 3)) == checksum_of(columns_of(extents))
    assert checksum_of(state.extents.columns_between(1, 2)) == checksum_of(columns_of(extents[1:2]))
    reopened = MetadataLog.open(log.store, ManualClock())
    assert checksum_of(reopened.image.partition("orders", 0).extents.columns()) == checksum_of(
        columns_of(extents)
    )


def test_what_another_of_its_commit_leaves_without_a_live_segment_is_left_out(
    log: MetadataLog, draft: Draft
) -> None:
    """The first takes the last extent of an old segment away; the second would bring it to life again."""
    log.publish(lambda image: [plan_create_topic(image, "orders", 1, topic_id=new_id())])
    topic = log.image.topic("orders")
    old = "segments/w/00000000.0.log"
    log.publish(lambda image: [plan_append(image, [draft(topic, segment=old), draft(topic)])])
    log.publish(lambda image: [MoveSweepHorizon(horizon=1)])
    one, other = log.image.partition("orders", 0).extents
    first = plan_replacing(log.image, [one], [])
    second = plan_replacing(log.image, [other], [msgspec.structs.replace(other, segment=old, position=500)])
    assert plan_replacements(log.image, [second]) == [second]
    assert plan_replacements(log.image, [first, second]) == [first]
    log.publish(lambda image: list(plan_replacements(image, [first, second])))
    assert list(log.image.partition("orders", 0).extents) == [other]


def test_what_was_made_wrong_is_told_as_it_is_planned(log: MetadataLog, extents: list[Extent]) -> None:
    good = plan_replacing(log.image, extents, [merged(extents)])
    for wrong in (
        msgspec.structs.replace(good, added=(*good.added, *good.added)),
        msgspec.structs.replace(good, end_offset=good.end_offset - 1),
    ):
        for plan in (plan_replace_extents, lambda image, one: plan_replacements(image, [one])):
            with pytest.raises(InvalidRequestError) as raised:
                plan(log.image, wrong)
            assert raised.value.code == "INVALID_ACTIONS"


def test_a_commit_weighs_what_it_replaces(log: MetadataLog, draft: Draft, memory: MemoryStore) -> None:
    """Each replacement is small in the log, and takes as long to replay as some dozens of new extents."""
    log.publish(lambda image: [plan_create_topic(image, "many", 40, topic_id=new_id())])
    topic = log.image.topic("many")
    drafts = [draft(topic, partition, position=100 * n) for partition in range(40) for n in range(3)]
    log.publish(lambda image: [plan_append(image, drafts)])
    appended = log.image.replayed.last_weight
    before = [list(state.extents) for state in log.image.topic("many").partitions]
    log.publish(lambda image: [plan_replacing(image, some, [merged(some)]) for some in before])
    assert [len(state.extents) for state in log.image.topic("many").partitions] == [1] * 40
    assert log.image.replayed.last_weight > 5 * appended
    assert MetadataLog.open(memory, ManualClock()).image.replayed == log.image.replayed
