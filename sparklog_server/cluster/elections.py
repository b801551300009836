"""What a controller commits when brokers come and go: a plan for all partitions that it concerns.

Invariants: pure; each plan is computed from one image, and says nothing when there is nothing to do.
    Everything in it applies in the controller's epoch only.
Bounds: a plan is one commit. An action names as many partitions as it may (model/columns.py); 10,000 of them
    take 80 to 340 KB.
Not here: the rules (selectors.py, sparklog/client/placement.py), when to do what.
Concurrency: pure functions.
Sources: the controller of Kafka before KRaft: onBrokerFailure, onBrokerStartup, onNewPartitionCreation,
    checkAndTriggerAutoLeaderRebalance, ControlledShutdown.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from sparklog.client.placement import spread_replicas
from sparklog.metadata import (
    MAX_PARTITIONS_OF_ACTION,
    NO_NODE,
    Action,
    Image,
    PartitionLeadership,
    TopicPartition,
    plan_assign_replicas,
    plan_elect_leaders,
    plan_fence_broker,
)
from sparklog_server.cluster import selectors

V = TypeVar("V")


def plan_failover(image: Image, node_id: int, *, controller_epoch: int) -> list[Action]:
    """A broker is dead, or has to be taken for it: others lead what it led, and it is fenced.

    The elections come first, so that each partition that has another replica misses no epoch.
    """
    broker = image.brokers.get(node_id)
    if broker is None or broker.is_fenced:
        return []
    usable = selectors.usable_brokers(image) - {node_id}
    chosen = {
        key: selectors.offline(partition, usable)
        for key, partition in _partitions(image)
        if partition.leader == node_id
    }
    leaders = {key: leader for key, leader in chosen.items() if leader != NO_NODE}
    fence = plan_fence_broker(image, node_id, broker.broker_epoch, controller_epoch=controller_epoch)
    return [*_elect(image, leaders, controller_epoch), *([] if fence is None else [fence])]


def plan_takeover(image: Image, *, controller_epoch: int) -> list[Action]:
    """Partitions without a leader get one, if a replica can: after a broker has joined."""
    usable = selectors.usable_brokers(image)
    return _elections(
        image,
        lambda partition: (
            selectors.offline(partition, usable) if partition.leader == NO_NODE else partition.leader
        ),
        controller_epoch,
    )


def plan_hand_over(image: Image, *, controller_epoch: int) -> list[Action]:
    """What brokers in controlled shutdown lead goes to others, as far as there are any."""
    usable = selectors.usable_brokers(image)
    stopping = {one.node_id for one in image.brokers.values() if one.in_controlled_shutdown}
    return _elections(
        image,
        lambda partition: (
            selectors.controlled_shutdown(partition, usable)
            if partition.leader in stopping
            else partition.leader
        ),
        controller_epoch,
    )


def plan_preferred(image: Image, *, controller_epoch: int) -> list[Action]:
    """Everybody leads what he is the first of, if he can. Partitions that nobody leads are not touched."""
    usable = selectors.usable_brokers(image)
    return _elections(
        image,
        lambda partition: (
            partition.leader if partition.leader == NO_NODE else selectors.preferred(partition, usable)
        ),
        controller_epoch,
    )


def is_imbalanced(image: Image, most_percent: int) -> bool:
    """Do others lead more than that of the partitions that a broker is the first of, and could lead?"""
    own, of_others = Counter[int](), Counter[int]()
    for _, partition in _partitions(image):
        first = partition.replicas[0]
        own[first] += 1
        of_others[first] += partition.leader != first
    return any(of_others[one] * 100 > own[one] * most_percent for one in selectors.usable_brokers(image))


def plan_new_partitions(
    image: Image, factor_of: Callable[[str], int], *, controller_epoch: int, start: int
) -> list[Action]:
    """Partitions that nobody has assigned, whoever made them, get replicas, and their first one to lead.

    Args:
        factor_of: how many replicas a topic's partitions are to have, by its name. There are as many as there
            are brokers, if that is less; those that are fenced, or about to stop, come last.
        start: as of spread_replicas.
    """
    usable = selectors.usable_brokers(image)
    racks = {node_id: image.brokers[node_id].rack for node_id in usable}
    if not racks:
        return []
    others = sorted(image.brokers.keys() - usable)  # who may lead when they are back
    assigned: dict[TopicPartition, PartitionLeadership] = {}
    for topic in image.topics.values():
        new = [one.partition for one in topic.partitions if not one.leadership.replicas]
        if not new:
            continue
        wanted = factor_of(topic.name)
        factor = min(wanted, len(racks))
        span = new[-1] - new[0] + 1
        lists = spread_replicas(racks, span, factor, start=start, first_partition=new[0])
        for number in new:
            first = number % len(others) if others else 0
            more = (*others[first:], *others[:first])[: wanted - factor]
            assigned[topic.topic_id, number] = PartitionLeadership((*lists[number - new[0]], *more))
    leaders = {key: partition.replicas[0] for key, partition in assigned.items()}
    assignments = [
        plan_assign_replicas(image, dict(some), controller_epoch=controller_epoch)
        for some in _batched(assigned)
    ]
    elections = _elect(image, leaders, controller_epoch)
    return [*(action for action in assignments if action is not None), *elections]


def plan_growth(
    image: Image, newcomer: int, factor_of: Callable[[str], int], *, controller_epoch: int, start: int
) -> list[Action]:
    """A broker that nobody knew becomes a replica where there were too few brokers for as many as there are
    to be: where all others are replicas, and those are fewer than the factor says.

    So a root whose first broker made the topics does not stop with it, once others have come. All are
    replicas then, spread anew, so that each is the first of as many. Who leads stays; leaders go back later.
    """
    others = image.brokers.keys() - {newcomer}
    racks = {node_id: broker.rack for node_id, broker in image.brokers.items()}
    grown: dict[TopicPartition, PartitionLeadership] = {}
    for topic in image.topics.values():
        few = [
            one.partition
            for one in topic.partitions
            if one.leadership.replicas
            and others == set(one.leadership.replicas)
            and not (one.leadership.adding or one.leadership.removing)
        ]
        if not few or factor_of(topic.name) < len(racks):
            continue
        span = few[-1] - few[0] + 1
        lists = spread_replicas(racks, span, len(racks), start=start, first_partition=few[0])
        for number in few:
            before = topic.partitions[number].leadership
            after = PartitionLeadership(lists[number - few[0]], before.leader, before.leader_epoch)
            grown[topic.topic_id, number] = after
    planned = (
        plan_assign_replicas(image, dict(some), controller_epoch=controller_epoch) for some in _batched(grown)
    )
    return [action for action in planned if action is not None]


def _elections(
    image: Image, choose: Callable[[PartitionLeadership], int], controller_epoch: int
) -> list[Action]:
    changed = {
        key: leader
        for key, partition in _partitions(image)
        if (leader := choose(partition)) != partition.leader
    }
    return _elect(image, changed, controller_epoch)


def _elect(image: Image, leaders: Mapping[TopicPartition, int], controller_epoch: int) -> list[Action]:
    """As many actions as it takes."""
    planned = (
        plan_elect_leaders(image, dict(some), controller_epoch=controller_epoch) for some in _batched(leaders)
    )
    return [action for action in planned if action is not None]


def _batched(partitions: Mapping[TopicPartition, V]) -> Iterator[list[tuple[TopicPartition, V]]]:
    items = iter(partitions.items())
    while some := list(islice(items, MAX_PARTITIONS_OF_ACTION)):
        yield some


def _partitions(image: Image) -> Iterator[tuple[TopicPartition, PartitionLeadership]]:
    """Those that are assigned."""
    for topic in image.topics.values():
        for state in topic.partitions:
            if state.leadership.replicas:
                yield (topic.topic_id, state.partition), state.leadership
