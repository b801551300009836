"""What FORMAT.md's bounds refuse, and their edges, which apply: the same for whoever replays the log."""

from typing import Any

import pytest

from sparklog.metadata import (
    Action,
    AddToTransaction,
    AllocateProducerIds,
    AppendExtents,
    BeginProducer,
    BrokerListener,
    EndTransaction,
    ExpireProducers,
    Extent,
    JoinBroker,
    NoteCleaned,
    ReplaceExtents,
    RequestApplied,
    SetConfigs,
    StageExtents,
    WriterTxn,
)
from sparklog.metadata.model.action import ActionRefusedError
from tests.metadata.transacting import TOPIC, Root, draft

MAX = (1 << 63) - 1
BROKER = "I" * 22
COMMIT = 3  # after the two topics, and a producer


def written(application: str = "a", version: int = 1) -> WriterTxn:
    return WriterTxn(application=application, version=version, topics=(TOPIC,))


def joined(host: str = "h", port: int = 9092, incarnation: str = BROKER) -> JoinBroker:
    """By the commit that is applied."""
    listener = BrokerListener(host=host, port=port)
    return JoinBroker(node_id=1, broker_epoch=COMMIT, incarnation_id=incarnation, listeners=(listener,))


def appended(**fields: Any) -> AppendExtents:
    extent: dict[str, Any] = {
        "topic_id": TOPIC,
        "partition": 0,
        "segment": "segments/w/00000000.0.log",
        "position": 0,
        "size": 61,
        "base_offset": 0,
        "record_count": 1,
        "max_timestamp_ms": -1,
        "offset_delta": 0,
    }
    return AppendExtents(extents=(Extent(**(extent | fields)),))


def produced(producer_id: int = 5, producer_epoch: int = 0, base_sequence: int = 0) -> AppendExtents:
    return appended(producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence)


def begun(timeout_ms: int = 1, time_ms: int = 0) -> list[Action]:
    begin = BeginProducer(
        transactional_id="job", producer_id=1, producer_epoch=0, timeout_ms=timeout_ms, time_ms=time_ms
    )
    return [AllocateProducerIds(first=1, count=1), begin]


def added(time_ms: int = 0, groups: tuple[str, ...] = ("g",)) -> AddToTransaction:
    return AddToTransaction(
        transactional_id="app", producer_id=0, producer_epoch=0, time_ms=time_ms, groups=groups
    )


def ended(time_ms: int = 0) -> list[Action]:
    end = EndTransaction(
        transactional_id="app", producer_id=0, producer_epoch=0, committed=False, time_ms=time_ms
    )
    return [added(), end]


def settled(sequence: int = 0, actions: int = 0, publisher: str = "P" * 22) -> RequestApplied:
    return RequestApplied(publisher=publisher, sequence=sequence, actions=actions, nonce="N" * 22)


def staged(opens_ms: int = 0) -> StageExtents:
    return StageExtents(extents=(draft((0, 0), 0),), opens_ms=opens_ms)


def cleaned(delete_horizon_ms: int = -1) -> NoteCleaned:
    return NoteCleaned(topic_id=TOPIC, partition=0, first_dirty_offset=0, delete_horizon_ms=delete_horizon_ms)


def applies(actions: Action | list[Action]) -> bool:
    root = Root()
    root.begin()
    try:
        root.apply(*(actions if isinstance(actions, list) else [actions]))
    except ActionRefusedError:
        return False
    return True


@pytest.mark.parametrize(
    "actions",
    [
        written(application="x" * 1_024, version=MAX),
        written(version=0),
        joined(),
        joined(host="h" * 255, port=65_535),
        appended(position=MAX - 61),
        appended(record_count=MAX),
        produced(producer_id=MAX, producer_epoch=32_767, base_sequence=(1 << 31) - 1),
        begun(timeout_ms=(1 << 31) - 1, time_ms=MAX),
        added(),
        ended(),
        settled(),
        staged(opens_ms=MAX),
        cleaned(delete_horizon_ms=MAX),
        ExpireProducers(time_ms=-1),
        AllocateProducerIds(first=1, count=MAX - 1),
    ],
)
def test_the_edges_apply(actions: Any) -> None:
    assert applies(actions)


@pytest.mark.parametrize(
    "actions",
    [
        written(application=""),
        written(application="x" * 1_025),
        written(version=-1),
        SetConfigs(configs={"": "x"}),
        joined(incarnation=BROKER[1:]),
        joined(host=""),
        joined(host="h" * 256),
        joined(port=0),
        joined(port=65_536),
        appended(size=60),
        appended(position=-1),
        appended(position=MAX - 60),
        appended(record_count=0),
        appended(max_timestamp_ms=-2),
        appended(offset_delta=1),
        appended(offset_delta=-1),
        appended(producer_epoch=0),
        appended(base_sequence=0),
        produced(producer_id=-2),
        produced(producer_epoch=-1),
        produced(producer_epoch=32_768),
        produced(base_sequence=-1),
        produced(base_sequence=1 << 31),
        begun(timeout_ms=0),
        begun(timeout_ms=1 << 31),
        begun(time_ms=-1),
        added(time_ms=-1),
        added(groups=()),
        ended(time_ms=-1),
        settled(sequence=-1),
        settled(actions=-1),
        settled(actions=1),
        settled(publisher="P"),
        staged(opens_ms=-2),
        StageExtents(extents=()),
        cleaned(delete_horizon_ms=-2),
        ExpireProducers(time_ms=-2),
        ExpireProducers(time_ms=0, max_timestamp_ms=-2),
        AllocateProducerIds(first=1, count=0),
        AllocateProducerIds(first=1, count=MAX),
        ReplaceExtents(
            topic_id=TOPIC, partition=0, start_offset=0, end_offset=0, removed_count=0, removed_crc32c=0
        ),
    ],
)
def test_what_is_beyond_them_does_not(actions: Any) -> None:
    assert not applies(actions)
