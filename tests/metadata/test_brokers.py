"""Brokers and blocks of producer ids: the newest registration wins, no id is handed out twice."""

from functools import partial

import msgspec
import pytest

from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError, InvalidRequestError
from sparklog.metadata import (
    Action,
    AllocateProducerIds,
    BrokerListener,
    BrokerRegistration,
    Image,
    MetadataLog,
    RegisterBroker,
    WriterTxn,
    new_id,
    plan_allocate_producer_ids,
    plan_register_broker,
)
from sparklog.metadata.documents.document import ManifestBody, encode_document
from sparklog.metadata.documents.paths import commit_name, manifest_name
from sparklog.metadata.documents.snapshot import read_manifest, read_snapshot
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.apply import apply_actions
from sparklog.storage import MemoryStore

LISTENERS = (BrokerListener(host="localhost", port=9092),)


def register(log: MetadataLog, node_id: int = 1) -> str:
    incarnation = new_id()
    log.publish(
        lambda image: [plan_register_broker(image, node_id, incarnation_id=incarnation, listeners=LISTENERS)]
    )
    return incarnation


def test_newest_registration_wins(log: MetadataLog) -> None:
    assert log.image.broker is None
    register(log)
    second = register(log, 2)
    assert log.image.broker == BrokerRegistration(
        node_id=2, broker_epoch=1, incarnation_id=second, listeners=LISTENERS
    )


def test_an_old_epoch_does_not_apply(log: MetadataLog) -> None:
    register(log)
    register(log)
    for epoch in (0, 1):
        action = RegisterBroker(node_id=1, broker_epoch=epoch, incarnation_id=new_id())
        with pytest.raises(ActionRefusedError, match=rf"epoch {epoch}, expected one above 1"):
            apply_actions(log.image, [action], commit=log.image.commit + 1, commit_uuid="u")


def plan_block(image: Image, count: int) -> list[Action]:
    return [plan_allocate_producer_ids(image, count)]


def test_producer_ids_are_handed_out_once(log: MetadataLog) -> None:
    firsts = []
    for count in (1000, 1, 1000):
        (action,) = log.publish(partial(plan_block, count=count)).actions
        assert isinstance(action, AllocateProducerIds)
        firsts.append(action.first)
    assert firsts == [0, 1000, 1001]
    assert log.image.next_producer_id == 2001
    for first in (0, 2000, 2002):
        with pytest.raises(ActionRefusedError, match=rf"ids from {first}, expected 2001"):
            apply_actions(
                log.image,
                [AllocateProducerIds(first=first, count=1)],
                commit=log.image.commit + 1,
                commit_uuid="u",
            )


@pytest.mark.parametrize(
    "fields",
    [
        {"node_id": -1},
        {"node_id": 1 << 31},
        {"incarnation_id": "short"},
        {"listeners": (BrokerListener(host="", port=1),)},
        {"listeners": (BrokerListener(host="h" * 256, port=1),)},
        {"listeners": (BrokerListener(host="h", port=0),)},
        {"listeners": (BrokerListener(host="h", port=65536),)},
        {"listeners": LISTENERS * 101},
    ],
)
def test_malformed_registrations(log: MetadataLog, fields: dict[str, object]) -> None:
    values: dict[str, object] = {"node_id": 1, "incarnation_id": new_id(), "listeners": LISTENERS, **fields}
    node_id = values.pop("node_id")
    with pytest.raises(InvalidRequestError):
        plan_register_broker(log.image, node_id, **values)  # type: ignore[arg-type]
    action = RegisterBroker(node_id=node_id, broker_epoch=0, **values)  # type: ignore[arg-type]
    with pytest.raises(ActionRefusedError, match="broker registration"):
        apply_actions(log.image, [action], commit=0, commit_uuid="u")


def test_negative_epoch_does_not_apply(log: MetadataLog) -> None:
    action = RegisterBroker(node_id=1, broker_epoch=-1, incarnation_id=new_id())
    with pytest.raises(ActionRefusedError, match="negative"):
        apply_actions(log.image, [action], commit=0, commit_uuid="u")


@pytest.mark.parametrize("count", [0, -1, 1 << 63])
def test_malformed_blocks(log: MetadataLog, count: int) -> None:
    with pytest.raises(InvalidRequestError):
        plan_allocate_producer_ids(log.image, count)
    with pytest.raises(ActionRefusedError):
        apply_actions(log.image, [AllocateProducerIds(first=0, count=count)], commit=0, commit_uuid="u")


def test_only_commits_of_brokers_have_version_2(log: MetadataLog, memory: MemoryStore) -> None:
    log.publish(lambda image: [WriterTxn(application="a", version=0)])
    register(log)
    log.publish(lambda image: [WriterTxn(application="a", version=1)])
    starts = [memory.read(commit_name(commit))[:12] for commit in range(3)]
    assert starts == [b'{"version":1', b'{"version":2', b'{"version":1']


def test_snapshots_hold_broker_and_producer_ids(log: MetadataLog, memory: MemoryStore) -> None:
    log.publish(lambda image: [WriterTxn(application="a", version=0)])
    first = log.write_snapshot()
    assert read_manifest(memory, first, cluster_id=log.cluster_id)[0].version == 1
    log.publish(lambda image: [plan_allocate_producer_ids(image, 5)])
    second = log.write_snapshot()
    assert read_manifest(memory, second, cluster_id=log.cluster_id)[0].version == 2
    register(log)
    third = log.write_snapshot()
    assert read_snapshot(memory, third, cluster_id=log.cluster_id) == log.image
    assert MetadataLog.open(memory, ManualClock()).image == log.image


def test_state_of_version_2_in_a_snapshot_of_version_1_is_refused(
    log: MetadataLog, memory: MemoryStore
) -> None:
    register(log)
    commit = log.write_snapshot()
    header, body = read_manifest(memory, commit, cluster_id=log.cluster_id)
    assert isinstance(body, ManifestBody)
    memory.delete(manifest_name(commit))
    memory.put_if_absent(
        manifest_name(commit), encode_document(msgspec.structs.replace(header, version=1), body)
    )
    with pytest.raises(CorruptLogError, match="found a state of version 2, expected 1"):
        read_snapshot(memory, commit, cluster_id=log.cluster_id)
