"""A broker that will not come back: others are replicas in its place, and it is forgotten, in one commit.

Nothing is copied, so that there is nothing to wait for. In each list of replicas another broker stands where
it stood: one that has none yet of the partition, of a rack that has none if there is one, each in its turn. A
partition for which there is no other broker has one replica less; if it had no other, it keeps the name of
the one that is gone, until it is reassigned. A reassignment whose target is gone with it is called off.

Invariants: pure; what is planned applies in the controller's epoch only. A leader stays a replica.
Not here: whether the broker may be forgotten (admin/), the rules of the registry (sparklog/metadata).
Concurrency: pure functions.
Sources: Kafka ReplicationControlManager.handleBrokerUnregistered, which leaves the lists as they are.
"""

from collections.abc import Sequence
from itertools import islice

from sparklog.client.placement import alternating
from sparklog.metadata import (
    MAX_PARTITIONS_OF_ACTION,
    NO_NODE,
    Action,
    Image,
    PartitionLeadership,
    TopicPartition,
    plan_assign_replicas,
    plan_elect_leaders,
    plan_unregister_broker,
)
from sparklog_server.cluster import selectors
from sparklog_server.cluster.reassignment import unless_void


def plan_unregistering(
    image: Image, node_id: int, broker_epoch: int, *, controller_epoch: int
) -> list[Action]:
    """Forget a registration that is fenced.

    Raises:
        FencedError: CONTROLLER_FENCED.
        InvalidRequestError: INVALID_ACTIONS, it is not fenced.
    """
    end = plan_unregister_broker(image, node_id, broker_epoch, controller_epoch=controller_epoch)
    if end is None:
        return []
    usable = selectors.usable_brokers(image)
    turns = _Turns(image, usable - {node_id})
    after: dict[TopicPartition, PartitionLeadership] = {}
    for topic in image.topics.values():
        for state in topic.partitions:
            if node_id in state.leadership.replicas:
                after[topic.topic_id, state.partition] = _without(state.leadership, node_id, turns)
    leaders = {
        key: chosen
        for key, partition in after.items()
        if partition.leader == NO_NODE and (chosen := selectors.offline(partition, usable)) != NO_NODE
    }
    return [
        *_batched(image, after, leaders, controller_epoch),
        end,
    ]


class _Turns:
    """Brokers, each in its turn."""

    def __init__(self, image: Image, usable: frozenset[int]) -> None:
        self._racks = {node_id: image.brokers[node_id].rack for node_id in usable}
        self._all_racks = {node_id: broker.rack for node_id, broker in image.brokers.items()}
        self._order = alternating(self._racks) if usable else []
        self._next = 0

    def another(self, replicas: Sequence[int]) -> int:
        """One that is none of these; NO_NODE: there is none."""
        taken = {self._all_racks.get(node_id, "") for node_id in replicas}
        others = [node_id for node_id in self._from_next() if node_id not in replicas]
        if not others:
            return NO_NODE
        chosen = next((node_id for node_id in others if self._racks[node_id] not in taken), others[0])
        self._next = (self._order.index(chosen) + 1) % len(self._order)
        return chosen

    def _from_next(self) -> list[int]:
        return self._order[self._next :] + self._order[: self._next]


def _without(before: PartitionLeadership, node_id: int, turns: _Turns) -> PartitionLeadership:
    """A broker that a reassignment was to remove has no successor; one that was to be added has."""
    before = unless_void(before)
    if len(before.replicas) == 1 and turns.another(before.replicas) == NO_NODE:
        return before
    others = tuple(one for one in before.replicas if one != node_id)
    successor = NO_NODE if node_id in before.removing else turns.another(others)

    def replaced(nodes: tuple[int, ...]) -> tuple[int, ...]:
        found = tuple(successor if one == node_id else one for one in nodes)
        return tuple(one for one in found if one != NO_NODE)

    after = PartitionLeadership(
        replicas=replaced(before.replicas),
        leader=before.leader,
        leader_epoch=before.leader_epoch,
        adding=replaced(before.adding),
        removing=tuple(one for one in before.removing if one != node_id),
    )
    return unless_void(after)


def _batched(
    image: Image,
    after: dict[TopicPartition, PartitionLeadership],
    leaders: dict[TopicPartition, int],
    controller_epoch: int,
) -> list[Action]:
    planned: list[Action | None] = []
    assignments = iter(after.items())
    while some := dict(islice(assignments, MAX_PARTITIONS_OF_ACTION)):
        planned.append(plan_assign_replicas(image, some, controller_epoch=controller_epoch))
    elections = iter(leaders.items())
    while chosen := dict(islice(elections, MAX_PARTITIONS_OF_ACTION)):
        planned.append(plan_elect_leaders(image, chosen, controller_epoch=controller_epoch))
    return [action for action in planned if action is not None]
