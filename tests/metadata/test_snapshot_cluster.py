"""Several brokers in snapshots: what comes out is what went in, and what does not fit is damage."""

from typing import Any

import msgspec
import pytest

from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError
from sparklog.metadata import (
    UNASSIGNED,
    Action,
    Image,
    MetadataLog,
    PartitionLeadership,
    new_id,
    plan_assign_replicas,
    plan_create_topic,
    plan_elect_controller,
    plan_elect_leaders,
    plan_fence_broker,
    plan_join_broker,
    plan_unregister_broker,
)
from sparklog.metadata.documents.document import SnapshotPart, checksum, encode_document
from sparklog.metadata.documents.properties import manifest_name, snapshot_directory
from sparklog.metadata.documents.snapshot import read_manifest, read_snapshot
from sparklog.storage import MemoryStore
from tests.metadata.cluster_roots import FOUNDING, LISTENERS, TOPIC


def publish(log: MetadataLog, *actions: Action | None) -> Image:
    log.publish(lambda image: [action for action in actions if action is not None])
    return log.image


def join(log: MetadataLog, node: int) -> Image:
    def plan(image: Image) -> list[Action]:
        return [plan_join_broker(image, node, incarnation_id=new_id(), listeners=LISTENERS, rack=f"r{node}")]

    log.publish(plan)
    return log.image


def rich(log: MetadataLog) -> Image:
    publish(log, FOUNDING)
    for node in (3, 1, 2):
        image = join(log, node)
    publish(log, plan_elect_controller(image, 2, image.brokers[2].broker_epoch))
    publish(log, plan_create_topic(log.image, "orders", 5, topic_id=TOPIC))
    publish(log, plan_create_topic(log.image, "unled", 2, topic_id="B" * 22))
    assigned = {
        (TOPIC, 0): PartitionLeadership((1, 2)),
        (TOPIC, 1): PartitionLeadership((3, 1, 2), adding=(3,), removing=(1,)),
        (TOPIC, 3): PartitionLeadership((1,)),
    }
    publish(log, plan_assign_replicas(log.image, assigned, controller_epoch=1))
    leaders = {(TOPIC, 0): 1, (TOPIC, 1): 3, (TOPIC, 3): 1}
    publish(log, plan_elect_leaders(log.image, leaders, controller_epoch=1))
    epoch = log.image.brokers[1].broker_epoch
    return publish(log, plan_fence_broker(log.image, 1, epoch, controller_epoch=1))


def reread(log: MetadataLog, memory: MemoryStore) -> Image:
    return read_snapshot(memory, log.write_snapshot(), cluster_id=log.cluster_id)


def test_what_comes_out_is_what_went_in(log: MetadataLog, memory: MemoryStore) -> None:
    image = rich(log)
    assert reread(log, memory) == image
    found = [
        state.leadership for state in MetadataLog.open(memory, ManualClock()).image.topic("orders").partitions
    ]
    assert found == [
        PartitionLeadership((1, 2), -1, 2),
        PartitionLeadership((3, 1, 2), 3, 1, (3,), (1,)),
        UNASSIGNED,
        PartitionLeadership((1,), -1, 2),
        UNASSIGNED,
    ]


def test_a_root_that_several_have_left_remembers_it(log: MetadataLog, memory: MemoryStore) -> None:
    image = rich(log)
    publish(log, plan_unregister_broker(image, 1, image.brokers[1].broker_epoch, controller_epoch=1))
    for node in (2, 3):
        publish(log, plan_fence_broker(log.image, node, image.brokers[node].broker_epoch))
    assert reread(log, memory) == log.image
    assert log.image.controller.controller_epoch == 1


def test_many_partitions_take_a_few_bytes_each(log: MetadataLog, memory: MemoryStore) -> None:
    publish(log, FOUNDING)
    for node in (1, 2, 3):
        image = join(log, node)
    publish(log, plan_elect_controller(image, 1, image.brokers[1].broker_epoch))
    publish(log, plan_create_topic(log.image, "orders", 10_000, topic_id=TOPIC))
    bare = read_manifest(memory, log.write_snapshot(), cluster_id=log.cluster_id)[1].state.size
    orders = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
    wanted = {(TOPIC, one): PartitionLeadership(orders[one % 3]) for one in range(10_000)}
    publish(log, plan_assign_replicas(log.image, wanted, controller_epoch=1))
    leaders = {(TOPIC, one): one % 3 + 1 for one in range(10_000)}
    publish(log, plan_elect_leaders(log.image, leaders, controller_epoch=1))
    full = read_manifest(memory, log.write_snapshot(), cluster_id=log.cluster_id)[1].state.size
    assert full - bare < 5 * 10_000  # a digit and a comma for each of list and leader; the epochs are one


# --- damage -------------------------------------------------------------------------------------------


def tampered(log: MetadataLog, memory: MemoryStore, change: Any) -> None:
    """The newest snapshot with another state, and checksums that fit."""
    commit = log.image.commit
    header, body = read_manifest(memory, commit, cluster_id=log.cluster_id)
    name = f"{snapshot_directory(commit)}/{body.state.name}"
    state = msgspec.json.decode(memory.read(name))
    change(state)
    data = msgspec.json.encode(state)
    memory.delete(name)
    memory.put_if_absent(name, data)
    memory.delete(manifest_name(commit))
    part = SnapshotPart(name=body.state.name, size=len(data), crc32c=checksum(data))
    memory.put_if_absent(
        manifest_name(commit), encode_document(header, msgspec.structs.replace(body, state=part))
    )


def orders(state: Any) -> Any:
    return next(topic for topic in state["topics"] if topic["name"] == "orders")["leadership"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda state: orders(state).update(leader=[1, 2]), "column leader: 2 numbers, expected 5"),
        (lambda state: orders(state).update(leader_epoch=-1), "in -1"),
        (lambda state: orders(state).update(replicas=7), "list index out of range"),
        (lambda state: orders(state).update(adding=-2), "list index out of range"),
        (lambda state: orders(state).update(leader=2), "found leader 2"),
        (lambda state: orders(state).update(leader=[1, 3, -1, -1, -1]), "found broker 1 fenced"),
        (lambda state: state["brokers"].append(state["brokers"][0]), "a broker twice"),
        (lambda state: state["brokers"].pop(0), "found broker 3 fenced"),
    ],
)
def test_a_state_that_does_not_fit_is_damage(
    log: MetadataLog, memory: MemoryStore, change: Any, found: str
) -> None:
    commit = rich(log).commit
    log.write_snapshot()
    tampered(log, memory, change)
    with pytest.raises(CorruptLogError, match=found):
        read_snapshot(memory, commit, cluster_id=log.cluster_id)
