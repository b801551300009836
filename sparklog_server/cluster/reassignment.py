"""Reassignment: other brokers are to be a partition's replicas. Begun, over, or called off, in a commit each.

Nothing is copied. What takes time is only that the new ones have to be there: as long as one is fenced, the
reassignment stays begun, is listed, and can be called off.

    begun        replicas: the target, and after it those that are to go
    over         every broker of the target is usable: one of them leads, and they are all the replicas
    called off   one of the old replicas leads, if one can, and they are all
    void         nobody of the target is left, as its brokers were forgotten: called off

Invariants: pure; a leader is one of the replicas before and after each action. What is planned applies in the
    controller's epoch only.
Not here: whether a client's list is legal (admin/assignments.py), when to look whether one is over.
Concurrency: pure functions.
Sources: KIP-455; Kafka PartitionReassignmentReplicas, ReplicationControlManager.alterPartitionReassignment.
"""

from collections.abc import Mapping, Sequence

from sparklog.metadata import (
    NO_NODE,
    Action,
    Image,
    PartitionLeadership,
    TopicPartition,
    plan_assign_replicas,
    plan_elect_leaders,
)
from sparklog_server.cluster import selectors

NOTHING: Mapping[TopicPartition, PartitionLeadership] = {}


def begun(partition: PartitionLeadership, target: Sequence[int]) -> PartitionLeadership:
    """With both lists; a reassignment that was begun before is replaced."""
    original = _original(partition)
    removing = tuple(node_id for node_id in original if node_id not in target)
    # Who leads stays a replica until another one leads, even if it came with the reassignment before.
    staying = (partition.leader,) if partition.leader not in (NO_NODE, *target, *removing) else ()
    return PartitionLeadership(
        replicas=(*target, *removing, *staying),
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        adding=tuple(node_id for node_id in target if node_id not in original),
        removing=(*removing, *staying),
    )


def plan_reassignments(
    image: Image, targets: Mapping[TopicPartition, Sequence[int] | None], *, controller_epoch: int
) -> list[Action]:
    """Begin these, or call them off (None), and end at once those that nothing holds up.

    Raises:
        UnknownTopicError: a topic or partition is not there.
    """
    now = {key: image.partition_of(*key).leadership for key in targets}
    first = {key: begun(now[key], target) for key, target in targets.items() if target is not None}
    after = {key: _completed(image, one) for key, one in first.items()}
    for key, target in targets.items():
        if target is None:
            after[key] = _called_off(image, now[key])
    return _plan(image, after, controller_epoch, through=first)


def plan_completions(image: Image, *, controller_epoch: int) -> list[Action]:
    """End all reassignments whose brokers are there by now."""
    under_way = reassigning(image)
    return _plan(image, {key: _completed(image, one) for key, one in under_way.items()}, controller_epoch)


def unless_void(partition: PartitionLeadership) -> PartitionLeadership:
    """Without a target there is nothing to wait for: those that were to go are the replicas, as before."""
    return partition if _target(partition) else _ended(partition, partition.replicas)


def reassigning(image: Image) -> dict[TopicPartition, PartitionLeadership]:
    """Those that are begun, and not over."""
    return {
        (topic.topic_id, state.partition): state.leadership
        for topic in image.topics.values()
        for state in topic.partitions
        if state.leadership.adding or state.leadership.removing
    }


def _original(partition: PartitionLeadership) -> tuple[int, ...]:
    """Those of before; all, where the ones of before were forgotten since."""
    found = tuple(node_id for node_id in partition.replicas if node_id not in partition.adding)
    return found or partition.replicas


def _target(partition: PartitionLeadership) -> tuple[int, ...]:
    return tuple(node_id for node_id in partition.replicas if node_id not in partition.removing)


def _completed(image: Image, partition: PartitionLeadership) -> PartitionLeadership:
    """As it is once it is over, if it can be."""
    target = _target(partition)
    if not selectors.usable_brokers(image).issuperset(target):
        return partition
    return _ended(partition, target) if target else unless_void(partition)


def _called_off(image: Image, partition: PartitionLeadership) -> PartitionLeadership:
    """As it was, unless nobody of then could lead it, and somebody does now."""
    original = _original(partition)
    if partition.leader in (NO_NODE, *original):
        return _ended(partition, original)
    chosen = selectors.offline(PartitionLeadership(original), selectors.usable_brokers(image))
    return partition if chosen == NO_NODE else _ended(partition, original)


def _ended(partition: PartitionLeadership, replicas: tuple[int, ...]) -> PartitionLeadership:
    return PartitionLeadership(replicas, partition.leader, partition.leader_epoch)


def _plan(
    image: Image,
    after: Mapping[TopicPartition, PartitionLeadership],
    controller_epoch: int,
    *,
    through: Mapping[TopicPartition, PartitionLeadership] = NOTHING,
) -> list[Action]:
    """Leaders before the lists that they are not to be in, and `through` the lists that have both."""
    usable = selectors.usable_brokers(image)
    leaders = {
        key: selectors.offline(partition, usable)
        for key, partition in after.items()
        if partition.leader not in (NO_NODE, *partition.replicas)
    }
    both = {key: through[key] for key in leaders if key in through}
    planned = (
        plan_assign_replicas(image, both, controller_epoch=controller_epoch),
        plan_elect_leaders(image, leaders, controller_epoch=controller_epoch),
        plan_assign_replicas(image, after, controller_epoch=controller_epoch),
    )
    return [action for action in planned if action is not None]
