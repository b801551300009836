"""Which of its replicas is to lead a partition: the four rules by which a controller chooses.

Data is on shared storage, so no replica is behind another one: who is not fenced can lead. What the rules
differ in is when they are asked, and whom they prefer:

    offline              the leader is gone: the first replica that can
    preferred            the first of the list is there again: it, and nobody else
    reassigned           the list is to be another: the leader, if it stays, else the first of the new ones
    that can controlled_shutdown  the leader is about to stop: the first other one that can, if there is one

Invariants: pure; what is chosen is a replica that is neither fenced nor about to stop, the leader of now, or
    NO_NODE. No rule takes a leader away without giving another one, but for `offline`.
Not here: when to ask (the controller), the commit (sparklog/metadata/model/leading.py).
Concurrency: pure functions.
Sources: Kafka OfflinePartitionLeaderSelector, PreferredReplicaPartitionLeaderSelector,
    ReassignedPartitionLeaderSelector, ControlledShutdownLeaderSelector, PartitionLeaderElectionAlgorithms.
"""

from collections.abc import Collection, Sequence

from sparklog.metadata import NO_NODE, Image, PartitionLeadership, in_sync

__all__ = ["controlled_shutdown", "in_sync", "offline", "preferred", "reassigned", "usable_brokers"]


def usable_brokers(image: Image) -> frozenset[int]:
    """Those that may be given something to lead."""
    return frozenset(
        node_id
        for node_id, broker in image.brokers.items()
        if not broker.is_fenced and not broker.in_controlled_shutdown
    )


def offline(partition: PartitionLeadership, usable: Collection[int]) -> int:
    """The leader is gone; NO_NODE: so are all that could take its place."""
    return _first(partition.replicas, usable)


def preferred(partition: PartitionLeadership, usable: Collection[int]) -> int:
    """The first of the list, or who leads now."""
    first = partition.replicas[0] if partition.replicas else NO_NODE
    return first if first in usable else partition.leader


def reassigned(partition: PartitionLeadership, target: Sequence[int], usable: Collection[int]) -> int:
    """One of those that stay, or who leads now: then the reassignment has to wait."""
    if partition.leader in target and partition.leader in usable:
        return partition.leader
    chosen = _first(target, usable)
    return partition.leader if chosen == NO_NODE else chosen


def controlled_shutdown(partition: PartitionLeadership, usable: Collection[int]) -> int:
    """Another one, or who leads now: the partition has no leader when that has stopped."""
    chosen = _first(partition.replicas, usable)
    return partition.leader if chosen == NO_NODE else chosen


def _first(replicas: Sequence[int], usable: Collection[int]) -> int:
    return next((node_id for node_id in replicas if node_id in usable), NO_NODE)
