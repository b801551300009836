"""What clients are told of a partition's replicas."""

from dataclasses import replace

from sparklog.metadata import NO_NODE, Image, plan_create_topic
from sparklog_server.cluster.elections import ReplicaView, replica_view
from tests.metadata.cluster_roots import applied, cluster, fenced, led


def told(image: Image, partition: int = 0) -> ReplicaView:
    return replica_view(image, image.topic("orders").partitions[partition])


def test_replicas_that_are_fenced_are_offline() -> None:
    image = led(cluster(), [2, 3, 1])
    assert told(image) == ReplicaView(2, 1, (1, 2, 3), (2, 1, 3), ())
    image = fenced(image, 3)
    assert told(image) == ReplicaView(2, 1, (1, 2, 3), (2, 1), (3,))


def test_a_partition_without_a_leader_is_not_available() -> None:
    image = cluster()
    assert (told(image).leader, told(image).error.name) == (NO_NODE, "leader_not_available")
    image = fenced(led(image, [2, 3, 1]), 2)
    assert told(image) == ReplicaView(NO_NODE, 2, (1, 2, 3), (1, 3), (2,))
    assert told(image).error.name == "leader_not_available"


def test_a_broker_that_is_not_registered_any_more_is_offline() -> None:
    image = led(cluster(), [1, 1, 1])
    gone = {node_id: broker for node_id, broker in image.brokers.items() if node_id != 2}
    assert told(replace(image, brokers=gone)).offline == (2,)


def test_what_nobody_has_assigned_has_no_replicas() -> None:
    image = cluster()
    image = applied(image, plan_create_topic(image, "new", 1, topic_id="B" * 22))
    found = replica_view(image, image.topic("new").partitions[0])
    assert found == ReplicaView(NO_NODE, 0, (), (), ())
