"""Requests with many drafts: posted and applied in columns, and bounded by what they become."""

import json

import pytest

from sparklog.client.appender import StagedAppend
from sparklog.client.publish import encode_payload, interpret_request, publish
from sparklog.clock import ManualClock
from sparklog.metadata import (
    AppendExtents,
    DraftExtent,
    MetadataLog,
    MetadataSettings,
    RequestApplied,
    new_id,
    plan_create_topic,
)
from sparklog.metadata import combining as others_module
from sparklog.metadata.documents import extent_columns
from sparklog.metadata.documents.properties import commit_name
from sparklog.metadata.loading import read_commit
from sparklog.metadata.requests import Posted, RequestBox
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits

REMOTE = StoreTraits(is_remote=True, appends_after_sync=False)
PARTITIONS = 20


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore("many", clock=clock, traits=REMOTE)


@pytest.fixture
def log(store: MemoryStore, clock: ManualClock) -> MetadataLog:
    log = MetadataLog.open(store, clock, create=True, settings=MetadataSettings(snapshot_bytes=1 << 30))
    log.publish(lambda image: [plan_create_topic(image, "t", PARTITIONS, topic_id="T" * 22)])
    return log


def staged(segment: str, count: int = PARTITIONS) -> StagedAppend:
    return StagedAppend(
        drafts=tuple(
            DraftExtent(
                topic_id="T" * 22,
                partition=partition,
                segment=segment,
                position=170 * partition,
                size=170,
                record_count=2,
                max_timestamp_ms=5,
            )
            for partition in range(count)
        )
    )


def leave_request(store: MemoryStore, log: MetadataLog, clock: ManualClock, one: StagedAppend) -> str:
    """Of a publisher that is gone; its name."""
    box = RequestBox(store, clock, log.cluster_id)
    posted = Posted(publisher=new_id(), sequence=0, base=log.image.commit, nonce=new_id())
    name = box.post(posted, box.encode(posted, encode_payload([one], None)))
    clock.advance_ms(1)
    return name


def ends(log: MetadataLog) -> list[int]:
    return [state.log_end_offset for state in log.image.topics["t"].partitions]


def test_a_request_with_many_drafts_is_applied_with_ours(
    log: MetadataLog, store: MemoryStore, clock: ManualClock
) -> None:
    name = leave_request(store, log, clock, staged("theirs"))
    _, body = map(json.loads, store.read(name).splitlines())
    assert body["publish"]["columns"]["segments"] == ["theirs"]
    log.combiner.contention.note()
    result = publish(log, [staged("ours")])
    assert result.commit == 1
    assert {found.record_count for found in result.ranges.values()} == {2}
    assert ends(log) == [4] * PARTITIONS
    _, actions = read_commit(store, 1, log.cluster_id)
    kinds = [type(action) for action in actions]
    assert kinds == [RequestApplied, AppendExtents] * 2
    document = json.loads(store.read(commit_name(1)).splitlines()[1])
    assert [action["type"] for action in document["actions"]][1::2] == ["append_columns"] * 2


def test_a_few_drafts_stay_objects(log: MetadataLog, store: MemoryStore, clock: ManualClock) -> None:
    name = leave_request(store, log, clock, staged("theirs", 7))
    _, body = map(json.loads, store.read(name).splitlines())
    assert len(body["publish"]["drafts"]) == 7
    assert "columns" not in body["publish"]


def test_what_is_combined_is_bounded_by_its_extents(
    log: MetadataLog, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little of a request they are: the commit may have to say them as objects."""
    for _ in range(6):
        name = leave_request(store, log, clock, staged("theirs"))
    assert len(store.read(name)) < 1000 < PARTITIONS * others_module.EXTENT_BYTES
    monkeypatch.setattr(others_module, "MAX_COMBINED_BYTES", 3 * PARTITIONS * others_module.EXTENT_BYTES)
    log.combiner.contention.note()
    clock.advance_ms(5_000)
    log.combiner.contention.note()
    publish(log, [staged("ours")])
    assert ends(log) == [8] * PARTITIONS  # ours, and three of theirs


def test_a_request_is_interpreted_when_its_turn_has_come(
    log: MetadataLog, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        leave_request(store, log, clock, staged(f"theirs {number}"))
    tickets = RequestBox(store, clock, log.cluster_id).waiting(log.image)
    monkeypatch.setattr(others_module, "MAX_COMBINED_BYTES", 3 * PARTITIONS * others_module.EXTENT_BYTES // 2)
    interpreted = []

    def interpret(payload: bytes) -> others_module.Plan:
        interpreted.append(payload)
        return interpret_request(payload)

    others = others_module.OtherRequests(RequestBox(store, clock, log.cluster_id), interpret)
    assert len(others.actions(others_module.image_after(log.image, []), tickets, remembered=[])) == 2
    assert len(interpreted) == 2  # the second was one too many


def test_a_commit_weighs_its_extents_whatever_their_form(
    log: MetadataLog, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who opens the log would have seven times as many to apply before a snapshot is due."""
    weights = []
    for least in (1, 1 << 20):
        monkeypatch.setattr(extent_columns, "MIN_COLUMN_EXTENTS", least)
        publish(log, [staged("ours")] * 10)
        assert ("columns" in store.read(commit_name(log.image.commit)).decode()) == (least == 1)
        weights.append(log.image.replayed.last_weight)
        opened = MetadataLog.open(store, clock)
        assert opened.image.replayed == log.image.replayed
    assert 10 * PARTITIONS * 200 < min(weights) <= max(weights) < 1.3 * min(weights)
