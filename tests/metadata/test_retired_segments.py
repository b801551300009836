"""Retired segments: what is counted, what stays dead, and what the horizon forgets."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError, RetriableError
from sparklog.metadata import (
    Action,
    AddToTransaction,
    AllocateProducerIds,
    BeginProducer,
    CreateTopic,
    DeleteTopic,
    DraftExtent,
    EndTransaction,
    Image,
    MetadataLog,
    MoveSweepHorizon,
    RetireSegments,
    StageExtents,
    new_id,
    plan_advance_log_start,
    plan_append,
    plan_retire_segments,
    replacement,
)
from sparklog.metadata.documents.snapshot import read_snapshot, write_snapshot
from sparklog.metadata.model import retired, sweeping
from sparklog.metadata.model.retired import NOTHING_RETIRED, RetiredRange, with_retired
from sparklog.storage import MemoryStore

TOPIC = new_id()
WRITER = "a" * 32
TIME_MS = 1_700_000_000_000


def segment(number: int, born: int = 1, writer: str = WRITER) -> str:
    return f"segments/{writer}/{number:08d}.{born}.log"


def draft(name: str, *, position: int = 0, size: int = 100, partition: int = 0) -> DraftExtent:
    return DraftExtent(
        topic_id=TOPIC,
        partition=partition,
        segment=name,
        position=position,
        size=size,
        record_count=1,
        max_timestamp_ms=TIME_MS,
    )


class Root:
    def __init__(self) -> None:
        self.store = MemoryStore("retired")
        self.log = MetadataLog.open(self.store, ManualClock(), create=True)
        self.apply(
            CreateTopic(topic_id=TOPIC, name="t", partitions=2, configs={}),
        )

    @property
    def image(self) -> Image:
        return self.log.image

    def apply(self, *actions: Action) -> None:
        self.log.publish(lambda _: actions)

    def append(self, *drafts: DraftExtent) -> None:
        self.log.publish(lambda image: [plan_append(image, drafts)])

    def expire(self, offset: int, partition: int = 0) -> None:
        def plan(image: Image) -> Sequence[Action]:
            action = plan_advance_log_start(image, TOPIC, partition, offset)
            return [] if action is None else [action]

        self.log.publish(plan)

    def retire(self, *segments: str) -> None:
        self.log.publish(lambda image: [plan_retire_segments(image, TIME_MS, segments)])

    @property
    def counted(self) -> dict[str, int]:
        return dict(self.image.retired.removed_bytes)


@pytest.fixture
def root() -> Root:
    return Root()


# --- counts --------------------------------------------------------------------------------------------


def test_what_expires_is_counted_by_segment(root: Root) -> None:
    root.append(draft(segment(1)), draft(segment(1), position=100, size=70), draft(segment(2), size=65))
    root.expire(1)
    assert root.counted == {segment(1): 100}
    root.expire(3)
    assert root.counted == {segment(1): 170, segment(2): 65}


def test_what_is_replaced_is_counted_and_what_stays_is_not(root: Root) -> None:
    root.append(draft(segment(1)), draft(segment(1), position=100, size=70))
    state = root.image.partition("t", 0)
    _, second = state.extents
    action = replacement(state.extents.columns(), [second], topic_id=TOPIC, partition=0)
    root.apply(action)  # of the two, one is where it was
    assert root.counted == {segment(1): 100}


def test_a_deleted_topic_is_counted(root: Root) -> None:
    root.append(draft(segment(1)), draft(segment(1), position=100, partition=1))
    root.apply(DeleteTopic(topic_id=TOPIC))
    assert root.counted == {segment(1): 200}


@pytest.mark.parametrize("end", ["commit", "abort", "begin", "delete"])
def test_what_was_staged(root: Root, end: str) -> None:
    producer: dict[str, Any] = {"transactional_id": "app", "producer_id": 0, "producer_epoch": 0}
    root.log.publish(
        lambda _: [
            *_allocated(),
            BeginProducer(**producer, timeout_ms=60_000, time_ms=TIME_MS),
            AddToTransaction(**producer, time_ms=TIME_MS, topics=(TOPIC,), partition=(0,)),
        ]
    )
    staged = DraftExtent(
        topic_id=TOPIC,
        partition=0,
        segment=segment(1),
        position=0,
        size=100,
        record_count=1,
        max_timestamp_ms=TIME_MS,
        producer_id=0,
        producer_epoch=0,
        base_sequence=0,
    )
    root.apply(StageExtents(extents=(staged,)))
    assert root.counted == {}
    ends: dict[str, Action] = {
        "commit": EndTransaction(**producer, committed=True, time_ms=TIME_MS, number=1),
        "abort": EndTransaction(**producer, committed=False, time_ms=TIME_MS, number=1),
        "begin": BeginProducer(**{**producer, "producer_epoch": 1}, timeout_ms=60_000, time_ms=TIME_MS),
        "delete": DeleteTopic(topic_id=TOPIC),
    }
    if end == "abort":
        ends[end] = EndTransaction(
            **producer,
            committed=False,
            time_ms=TIME_MS,
            number=1,
            next_producer_id=0,
            next_producer_epoch=1,
        )
    root.apply(ends[end])
    assert root.counted == ({} if end == "commit" else {segment(1): 100})


def _allocated() -> list[Action]:
    return [AllocateProducerIds(first=0, count=1)]


def test_counts_are_bounded(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retired, "MAX_COUNTED", 2)
    root.append(*[draft(segment(number)) for number in range(4)])
    for offset in range(1, 5):
        root.expire(offset)
    assert root.counted == {segment(0): 100, segment(1): 100}


# --- retired --------------------------------------------------------------------------------------------


def test_a_retired_segment_stays_dead(root: Root) -> None:
    root.append(draft(segment(1)))
    root.expire(1)
    root.append(draft(segment(1), position=100))  # it may still come to life
    root.expire(2)
    root.retire(segment(1))
    assert root.counted == {}
    assert root.image.retired.pending == {segment(1): TIME_MS}
    with pytest.raises(RetriableError, match=r"STAGING_EXPIRED.*retired"):
        root.append(draft(segment(1), position=200))
    made_before = plan_append(dataclasses.replace(root.image, retired=NOTHING_RETIRED), [draft(segment(1))])
    with pytest.raises(InvalidRequestError, match="a retired segment"):
        root.apply(made_before)  # apply refuses it as well, so that replay checks
    root.append(draft(segment(2)))


def test_a_live_segment_is_not_retired(root: Root) -> None:
    root.append(draft(segment(1)), draft(segment(2), partition=1))
    root.expire(1)
    root.retire(segment(1), segment(2))
    assert list(root.image.retired.pending) == [segment(1)]
    with pytest.raises(InvalidRequestError, match="a segment that is live"):
        root.apply(RetireSegments(time_ms=TIME_MS, segments=(segment(2),)))


def test_a_name_without_a_birth_is_not_retired(root: Root) -> None:
    assert plan_retire_segments(root.image, TIME_MS, ["segments/w/0.log"]).segments == ()
    with pytest.raises(InvalidRequestError, match="without a version"):
        root.apply(RetireSegments(time_ms=TIME_MS, segments=("segments/w/0.log",)))


def test_what_is_gone_is_pending_no_more_and_stays_retired(root: Root) -> None:
    root.append(draft(segment(1)))
    root.expire(1)
    root.retire(segment(1))
    root.log.publish(lambda image: [plan_retire_segments(image, TIME_MS + 1, gone=[segment(1)])])
    assert root.image.retired.pending == {}
    assert root.image.retired.checked_ms == TIME_MS + 1
    assert root.image.retired.has(segment(1))


def test_what_is_left_is_counted_no_more(root: Root) -> None:
    root.append(draft(segment(1)))
    root.expire(1)
    root.log.publish(lambda image: [plan_retire_segments(image, TIME_MS, left=[segment(1)])])
    assert root.counted == {}
    assert not root.image.retired.has(segment(1))


def test_the_horizon_forgets_what_was_born_before_it(root: Root) -> None:
    root.append(draft(segment(1, 0)), draft(segment(2, 1)), draft(segment(3, 3)))
    root.expire(2)
    root.retire(segment(1, 0))
    assert root.counted == {segment(2, 1): 100}
    root.apply(MoveSweepHorizon(horizon=2))
    assert dataclasses.replace(root.image.retired, checked_ms=-1) == NOTHING_RETIRED
    root.expire(3)
    assert root.counted == {segment(3, 3): 100}
    with pytest.raises(RetriableError, match=r"STAGING_EXPIRED.*horizon"):
        root.append(draft(segment(1, 0)))


def test_neighbours_are_one_range() -> None:
    ranges = with_retired(
        {}, {segment(1, 5): 5, segment(3, 6): 6, "t-0/" + "0" * 20 + ".4-" + "x" * 22 + ".log": 4}
    )
    assert ranges[f"segments/{WRITER}"] == (RetiredRange(1, 1, 5), RetiredRange(3, 3, 6))
    ranges = with_retired(ranges, {segment(2, 6): 6})
    assert ranges[f"segments/{WRITER}"] == (RetiredRange(1, 3, 6),)
    assert len(ranges) == 2


def test_ranges_are_bounded(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "MAX_RANGES", 2)
    root.append(*[draft(segment(number)) for number in (1, 3, 5, 7)])
    root.expire(4)
    root.retire(*[segment(number) for number in (1, 3, 5, 7)])
    assert root.image.retired.range_count == 2
    with pytest.raises(InvalidRequestError, match="3 ranges of retired segments"):
        root.apply(RetireSegments(time_ms=TIME_MS, segments=(segment(5),)))


def test_a_snapshot_has_all_of_it_and_replay_comes_to_the_same(root: Root) -> None:
    root.append(draft(segment(1)), draft(segment(2)), draft(segment(3)))
    root.expire(2)
    root.retire(segment(1))
    write_snapshot(root.store, root.image, timestamp_ms=TIME_MS)
    found = read_snapshot(root.store, root.image.commit, cluster_id=root.image.cluster_id)
    assert found.retired == root.image.retired != NOTHING_RETIRED
    replayed = MetadataLog.open(root.store, ManualClock())
    assert replayed.refresh(force=True).retired == root.image.retired
