"""What a controller commits when brokers come and go: a plan for all partitions that it concerns.

Invariants: pure; each plan is computed from one image, and says nothing when there is nothing to do.
    Everything in it applies in the controller's epoch only.
Bounds: a plan is one commit. An action names as many partitions as it may (model/action.py); 10,000 of them
    take 80 to 340 KB.
Not here: when to do what.
Concurrency: pure functions.
Sources: the controller of Kafka before KRaft: onBrokerFailure, onBrokerStartup, onNewPartitionCreation,
    checkAndTriggerAutoLeaderRebalance, ControlledShutdown.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, TypeVar

from sparklog.client import OFFSETS_TOPIC
from sparklog.client.cluster_view import alternating, spread_replicas
from sparklog.errors import SparklogError
from sparklog.log.config import RootConfig
from sparklog.metadata import (
    MAX_PARTITIONS_OF_ACTION,
    NO_NODE,
    Action,
    ActionRefusedError,
    AddPartitions,
    AssignReplicas,
    CreateTopic,
    Image,
    PartitionLeadership,
    PartitionState,
    TopicPartition,
    apply_actions,
    in_sync,
    plan_assign_replicas,
    plan_elect_controller,
    plan_elect_leaders,
    plan_fence_broker,
    plan_unregister_broker,
)
from sparklog_server.protocol.apis import ErrorCode

# --- selectors ---------------------------------------------------------------------------------------
#
# Which of its replicas is to lead a partition: the four rules by which a controller chooses.
#
# Data is on shared storage, so no replica is behind another one: each that is not fenced can lead. What the
# rules differ in is when they are asked, and whom they prefer:
#
#     offline              the leader is gone: the first replica that can
#     preferred            the first of the list is there again: it, and no other
#     reassigned           the list is to be another: the leader, if it stays, else the first of the new ones
#     that can controlled_shutdown  the leader is about to stop: the first other one that can, if there is one
#
# Invariants: pure; what is chosen is a replica that is neither fenced nor about to stop, the leader of now,
#     or NO_NODE. No rule takes a leader away without giving another one, but for `offline`.
# Not here: when to ask (the controller), the commit (sparklog/metadata/model/registry.py).
# Concurrency: pure functions.
# Sources: Kafka OfflinePartitionLeaderSelector, PreferredReplicaPartitionLeaderSelector,
#     ReassignedPartitionLeaderSelector, ControlledShutdownLeaderSelector, PartitionLeaderElectionAlgorithms.


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
    """The first of the list, or the present leader."""
    first = partition.replicas[0] if partition.replicas else NO_NODE
    return first if first in usable else partition.leader


def reassigned(partition: PartitionLeadership, target: Sequence[int], usable: Collection[int]) -> int:
    """One of those that stay, or the present leader: then the reassignment has to wait."""
    if partition.leader in target and partition.leader in usable:
        return partition.leader
    chosen = _first(target, usable)
    return partition.leader if chosen == NO_NODE else chosen


def controlled_shutdown(partition: PartitionLeadership, usable: Collection[int]) -> int:
    """Another one, or the present leader: the partition has no leader when that has stopped."""
    chosen = _first(partition.replicas, usable)
    return partition.leader if chosen == NO_NODE else chosen


def _first(replicas: Sequence[int], usable: Collection[int]) -> int:
    return next((node_id for node_id in replicas if node_id in usable), NO_NODE)


# --- reassignment ------------------------------------------------------------------------------------
#
# Reassignment: other brokers are to be a partition's replicas. Begun, over, or called off, in a commit each.
#
# Nothing is copied. What takes time is only that the new ones have to be there: as long as one is fenced, the
# reassignment stays begun, is listed, and can be called off.
#
#     begun        replicas: the target, and after it those that are to go
#     over         every broker of the target is usable: one of them leads, and they are all the replicas
#     called off   one of the old replicas leads, if one can, and they are all
#     void         no broker of the target is left, as all were forgotten: called off
#
# Invariants: pure; a leader is one of the replicas before and after each action. What is planned applies in
#     the controller's epoch only.
# Not here: whether a client's list is legal (admin/assignments.py), when to look whether one is over.
# Concurrency: pure functions.
# Sources: KIP-455; Kafka PartitionReassignmentReplicas, ReplicationControlManager.alterPartitionReassignment.


NOTHING: Mapping[TopicPartition, PartitionLeadership] = {}


def begun(partition: PartitionLeadership, target: Sequence[int]) -> PartitionLeadership:
    """With both lists; a reassignment that was begun before is replaced."""
    original = _original(partition)
    removing = tuple(node_id for node_id in original if node_id not in target)
    # The leader stays a replica until another one leads, even if it came with the reassignment before.
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
    """Begin these, or call them off (None), and end immediately those that nothing holds up.

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
    if not usable_brokers(image).issuperset(target):
        return partition
    return _ended(partition, target) if target else unless_void(partition)


def _called_off(image: Image, partition: PartitionLeadership) -> PartitionLeadership:
    """As it was, unless none of its brokers could lead it, and one does now."""
    original = _original(partition)
    if partition.leader in (NO_NODE, *original):
        return _ended(partition, original)
    chosen = offline(PartitionLeadership(original), usable_brokers(image))
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
    usable = usable_brokers(image)
    leaders = {
        key: offline(partition, usable)
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


# --- replicas ----------------------------------------------------------------------------------------
#
# What clients get of a partition: its leader, its replicas, and which of those are there.
#
# Invariants: as of one image. The leader is named as long as it may lead; without one the partition is
#     LEADER_NOT_AVAILABLE, so that clients ask again.
# Not here: the bytes (protocol/metadata_response.py), whether this broker may answer (membership.py).
# Concurrency: pure.
# Sources: Kafka KRaftMetadataCache.getPartitionMetadata.


class ReplicaView(NamedTuple):
    """Those of one partition; `leader` NO_NODE: it has no leader now."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def error(self) -> ErrorCode:
        return ErrorCode.leader_not_available if self.leader == NO_NODE else ErrorCode.none


def replica_view(image: Image, partition: PartitionState) -> ReplicaView:
    """As of this image."""
    led = partition.leadership
    there = in_sync(led, image)
    offline = tuple(one for one in led.replicas if one not in there)
    return ReplicaView(led.leader, led.leader_epoch, led.replicas, there, offline, led.adding, led.removing)


# --- unregistering -----------------------------------------------------------------------------------
#
# A broker that will not come back: others are replicas in its place, and it is forgotten, in one commit.
#
# Nothing is copied, so that there is nothing to wait for. In each list of replicas another broker stands
# where it stood: one that has none yet of the partition, of a rack that has none if there is one, each in its
# turn. A partition for which there is no other broker has one replica less; if it had no other, it keeps the
# name of the one that is gone, until it is reassigned. A reassignment whose target is gone with it is called
# off.
#
# Invariants: pure; what is planned applies in the controller's epoch only. A leader stays a replica.
# Not here: whether the broker may be forgotten (admin/), the rules of the registry (sparklog/metadata).
# Concurrency: pure functions.
# Sources: Kafka ReplicationControlManager.handleBrokerUnregistered, which leaves the lists as they are.


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
    usable = usable_brokers(image)
    turns = _Turns(image, usable - {node_id})
    after: dict[TopicPartition, PartitionLeadership] = {}
    for topic in image.topics.values():
        for state in topic.partitions:
            if node_id in state.leadership.replicas:
                after[topic.topic_id, state.partition] = _without(state.leadership, node_id, turns)
    leaders = {
        key: chosen
        for key, partition in after.items()
        if partition.leader == NO_NODE and (chosen := offline(partition, usable)) != NO_NODE
    }
    return [
        *_unregistering_batched(image, after, leaders, controller_epoch),
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


def _unregistering_batched(
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


# --- elections ---------------------------------------------------------------------------------------


V = TypeVar("V")


def plan_failover(image: Image, node_id: int, *, controller_epoch: int) -> list[Action]:
    """A broker is dead, or has to be taken for it: others lead what it led, and it is fenced.

    The elections come first, so that each partition that has another replica misses no epoch.
    """
    broker = image.brokers.get(node_id)
    if broker is None or broker.is_fenced:
        return []
    usable = usable_brokers(image) - {node_id}
    chosen = {
        key: offline(partition, usable)
        for key, partition in _partitions(image)
        if partition.leader == node_id
    }
    leaders = {key: leader for key, leader in chosen.items() if leader != NO_NODE}
    fence = plan_fence_broker(image, node_id, broker.broker_epoch, controller_epoch=controller_epoch)
    return [*_elect(image, leaders, controller_epoch), *([] if fence is None else [fence])]


def plan_takeover(image: Image, *, controller_epoch: int) -> list[Action]:
    """Partitions without a leader get one, if a replica can: after a broker has joined."""
    usable = usable_brokers(image)
    return _elections(
        image,
        lambda partition: offline(partition, usable) if partition.leader == NO_NODE else partition.leader,
        controller_epoch,
    )


def plan_hand_over(image: Image, *, controller_epoch: int) -> list[Action]:
    """What brokers in controlled shutdown lead goes to others, as far as there are any."""
    usable = usable_brokers(image)
    stopping = {one.node_id for one in image.brokers.values() if one.in_controlled_shutdown}
    return _elections(
        image,
        lambda partition: (
            controlled_shutdown(partition, usable) if partition.leader in stopping else partition.leader
        ),
        controller_epoch,
    )


def plan_preferred(image: Image, *, controller_epoch: int) -> list[Action]:
    """Let each broker lead what it is the first of, if it can. Partitions without a leader stay so."""
    usable = usable_brokers(image)
    return _elections(
        image,
        lambda partition: partition.leader if partition.leader == NO_NODE else preferred(partition, usable),
        controller_epoch,
    )


def is_imbalanced(image: Image, most_percent: int) -> bool:
    """True if others lead more than that of the partitions that a broker is the first of, and could lead."""
    own, of_others = Counter[int](), Counter[int]()
    for _, partition in _partitions(image):
        first = partition.replicas[0]
        own[first] += 1
        of_others[first] += partition.leader != first
    return any(of_others[one] * 100 > own[one] * most_percent for one in usable_brokers(image))


def plan_new_partitions(
    image: Image, factor_of: Callable[[str], int], *, controller_epoch: int, start: int
) -> list[Action]:
    """Partitions that are not assigned, by whichever process they were made, get replicas and a leader.

    Args:
        factor_of: how many replicas a topic's partitions are to have, by its name. There are as many as there
            are brokers, if that is less; those that are fenced, or about to stop, come last.
        start: as of spread_replicas.
    """
    usable = usable_brokers(image)
    racks = {node_id: image.brokers[node_id].rack for node_id in usable}
    if not racks:
        return []
    others = sorted(image.brokers.keys() - usable)  # they may lead when they are back
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
    """A broker that is new becomes a replica where there were too few brokers for as many as there are
    to be: where all others are replicas, and those are fewer than the factor says.

    So a root whose first broker made the topics does not stop with it, once others have come. All are
    replicas then, spread again, so that each is the first of as many. The leader stays; leaders go back
    later.
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


# --- assigning ---------------------------------------------------------------------------------------
#
# How many replicas partitions get, and who assigns them first.
#
# Data is on shared storage, so a replica costs nothing: the factor says among how many brokers leading moves
# when one stops. So topics have three by default, where Kafka has one; as many as there are
# brokers, if those are fewer.
#
# Partitions that a broker makes are assigned in the same commit, in the name of the controller, so that
# a client that asked for a topic finds it led. What others make (Spark, the command line) the controller
# assigns when it sees it.
#
# Invariants: pure. What is assigned in the controller's name applies in its epoch, or the commit is void.
# Concurrency: pure functions.
# Sources: Kafka default.replication.factor, offsets.topic.replication.factor.


FACTORS = ("default.replication.factor", "offsets.topic.replication.factor")  # the settings that it asks for
_MAKING = (CreateTopic, AddPartitions, AssignReplicas)


class Assigning:
    """By the settings of the root, else of this broker."""

    def __init__(self, root_config: Callable[[Image], RootConfig]) -> None:
        self._root_config = root_config

    def factor_of(self, image: Image, topic: str) -> int:
        """How many replicas a topic's new partitions get, if there are as many brokers."""
        config = self._root_config(image)
        if topic == OFFSETS_TOPIC:
            return config.offsets_topic_replication_factor
        return config.default_replication_factor

    def assignments(self, image: Image, actions: Sequence[Action]) -> Sequence[Action]:
        """What assigns the partitions that these actions make; nothing, while there is no controller."""
        if image.controller.node_id == NO_NODE:
            return ()
        making = [action for action in actions if isinstance(action, _MAKING)]
        if not any(isinstance(action, CreateTopic | AddPartitions) for action in making):
            return ()  # what is there already is assigned again
        grown = {
            one.topic_id: image.topic_by_id[one.topic_id] for one in making if isinstance(one, AddPartitions)
        }
        theirs = replace(image, topics={one.name: one for one in grown.values()}, topic_by_id=grown)
        after = apply_actions(theirs, making, commit=image.commit + 1, commit_uuid="planned")
        return self.plan(after, after.controller.controller_epoch)

    def plan(self, image: Image, controller_epoch: int) -> list[Action]:
        """What assigns all partitions that are not assigned; each commit begins with another broker."""
        return plan_new_partitions(
            image,
            lambda name: self.factor_of(image, name),
            controller_epoch=controller_epoch,
            start=image.commit,
        )

    def growth(self, image: Image, controller_epoch: int, newcomer: int) -> list[Action]:
        """What makes a new broker a replica, where there were too few."""
        return plan_growth(
            image,
            newcomer,
            lambda name: self.factor_of(image, name),
            controller_epoch=controller_epoch,
            start=image.commit,
        )


# --- duties ------------------------------------------------------------------------------------------
#
# What a controller has to do, as of one image: everything that is due, in one commit.
#
# Also the commit by which a broker becomes the controller says what is due then, so that after a failure, and
# when the first broker starts, nothing waits for a second commit.
#
# Invariants: pure; each part is planned against the image after the parts before it, and one that is refused
#     is left out: it holds up no failover. Nothing is due twice: what has been applied is not planned again.
# Not here: which brokers are dead (liveness.py), when to look.
# (controller.py).
# Concurrency: pure functions.
# Sources: the controller of Kafka before KRaft: onControllerFailover, and those above.


Known = tuple[int, int]  # a registration: node id, broker epoch
Step = Callable[[Image, int], Sequence[Action]]  # from a controller epoch, too
_log = logging.getLogger("sparklog_server.controller")


def tell_refused(error: Exception) -> None:
    """For a caller that does not try again."""
    _log.warning("a part of what is due was refused, and is left out: %s", error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duties:
    """What a plan needs to know besides the image.

    Fields:
        registration: of the broker that does it: node id, and broker epoch.
        dead: node ids of those to be taken for dead, each with the epoch of the registration that is.
        assigning: how many replicas new partitions get.
        newcomer: a broker that joins, and was never known before.
    """

    registration: Known
    assigning: Assigning
    dead: Collection[Known] = ()
    newcomer: int = NO_NODE

    def plan(self, image: Image, on_refused: Callable[[Exception], None] = tell_refused) -> list[Action]:
        """Everything that is due; nothing, if another broker is to do it.

        Args:
            on_refused: gets each part that is left out, as it was refused.
        """
        now = (image.controller.node_id, image.controller.broker_epoch)
        if not _stands(image, self.registration):
            return []
        planned = _Planned(image)
        if now != self.registration:
            if image.controller.node_id != NO_NODE and now not in self.dead:
                return []
            planned.add([plan_elect_controller(image, *self.registration)])
        planned.add_steps(self._steps(), on_refused)
        return planned.actions

    def _steps(self) -> Iterator[Step]:
        for node_id, broker_epoch in sorted(self.dead):
            yield lambda image, epoch, dead=(node_id, broker_epoch): (  # type: ignore[misc]
                plan_failover(image, dead[0], controller_epoch=epoch) if _stands(image, dead) else []
            )
        if self.newcomer != NO_NODE:
            yield lambda image, epoch: self.assigning.growth(image, epoch, self.newcomer)
        yield self.assigning.plan
        yield lambda image, epoch: plan_hand_over(image, controller_epoch=epoch)
        yield lambda image, epoch: plan_takeover(image, controller_epoch=epoch)
        yield lambda image, epoch: plan_completions(image, controller_epoch=epoch)


def plan_entering(before: Image, after: Image, joined: Known, assigning: Assigning) -> list[Action]:
    """What goes with the commit by which a broker joins; the images without it, and with it.

    A broker that finds no other becomes the controller immediately, and all is led with one commit. One that
    is new becomes a replica in the controller's name, as only this commit knows that it is new.

    What has no leader, as the registration that led it ends with this commit, is led again, in the
    controller's name, too. So no client sees it without a leader: aiokafka's producers give a batch up then
    that has waited for long. If the controller itself ends with the commit, the next one sees to it,
    in a moment: it is not known here which of the others are alive.
    """
    node_id, _ = joined
    newcomer = NO_NODE if node_id in before.brokers else node_id
    if after.controller.node_id != NO_NODE:
        planned = _Planned(after)
        planned.add_steps(_steps_of_entering(newcomer, assigning), tell_refused)
        return planned.actions
    if usable_brokers(after) - {node_id}:
        return []  # one of them has itself elected, without being disturbed
    return Duties(registration=joined, assigning=assigning, newcomer=newcomer).plan(after)


def _steps_of_entering(newcomer: int, assigning: Assigning) -> Iterator[Step]:
    if newcomer != NO_NODE:
        yield lambda image, epoch: assigning.growth(image, epoch, newcomer)
    yield lambda image, epoch: plan_takeover(image, controller_epoch=epoch)


class _Planned:
    """Actions, and the image with them."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.actions: list[Action] = []

    def add(self, actions: Sequence[Action]) -> None:
        """All of them, or none if one is refused."""
        if actions:
            after = self.image.commit + 1
            self.image = apply_actions(self.image, actions, commit=after, commit_uuid="planned")
            self.actions += actions

    def add_steps(self, steps: Iterable[Step], on_refused: Callable[[Exception], None]) -> None:
        """Those that are not refused, in the epoch of the controller."""
        epoch = self.image.controller.controller_epoch
        for step in steps:
            try:
                self.add(step(self.image, epoch))
            except (SparklogError, ActionRefusedError) as error:
                on_refused(error)


def _stands(image: Image, registration: Known) -> bool:
    node_id, broker_epoch = registration
    broker = image.brokers.get(node_id)
    return broker is not None and broker.broker_epoch == broker_epoch and not broker.is_fenced
