"""States of brokers, topics, partitions and replicas as an image has them, and which may follow which.

The tables are Kafka's before KRaft: a controller there moved each machine by hand. Here an image says what
is, and the state is derived; so the tables do not drive anything. They say what must not happen, and name
what did: an image may have taken several steps at once, and the steps between are told as well.

    partition   NonExistent -> New -> Online <-> Offline -> NonExistent      New -> Offline
    replica     NonExistent -> New -> Online <-> Offline -> NonExistent      New <-> Offline

A replica is new as long as its reassignment waits, so that one may be new again after its broker was away.

Invariants: pure. A way between two states goes through no other state of what does not exist.
Not here: telling it (state_log.py).
Concurrency: pure functions.
Sources: Kafka PartitionStateMachine, ReplicaStateMachine, BrokerStates.
"""

import enum
from collections.abc import Mapping

from sparklog.metadata import NO_NODE, Image, PartitionLeadership, RegisteredBroker, Topic


class Broker(enum.Enum):
    """Of one node id."""

    UNREGISTERED = "Unregistered"
    FENCED = "Fenced"
    RUNNING = "RunningAsBroker"
    CONTROLLER = "RunningAsController"
    SHUTTING_DOWN = "PendingControlledShutdown"


class TopicState(enum.Enum):
    """New: some of its partitions are assigned to nobody yet."""

    NON_EXISTENT = "NonExistentTopic"
    NEW = "NewTopic"
    ONLINE = "OnlineTopic"


class Partition(enum.Enum):
    """New: nobody has led it yet. Offline: nobody does any more."""

    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


class Replica(enum.Enum):
    """Of a partition, at a broker. New: it comes with a reassignment that is not over."""

    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"


State = Broker | TopicState | Partition | Replica

NEXT: Mapping[State, frozenset[State]] = {
    Broker.UNREGISTERED: frozenset({Broker.RUNNING}),
    Broker.RUNNING: frozenset({Broker.CONTROLLER, Broker.SHUTTING_DOWN, Broker.FENCED}),
    Broker.CONTROLLER: frozenset({Broker.RUNNING, Broker.SHUTTING_DOWN, Broker.FENCED}),
    Broker.SHUTTING_DOWN: frozenset({Broker.FENCED}),
    Broker.FENCED: frozenset({Broker.RUNNING, Broker.UNREGISTERED}),
    TopicState.NON_EXISTENT: frozenset({TopicState.NEW}),
    TopicState.NEW: frozenset({TopicState.ONLINE, TopicState.NON_EXISTENT}),
    TopicState.ONLINE: frozenset({TopicState.NEW, TopicState.NON_EXISTENT}),
    Partition.NON_EXISTENT: frozenset({Partition.NEW}),
    Partition.NEW: frozenset({Partition.ONLINE, Partition.OFFLINE}),
    Partition.ONLINE: frozenset({Partition.OFFLINE}),
    Partition.OFFLINE: frozenset({Partition.ONLINE, Partition.NON_EXISTENT}),
    Replica.NON_EXISTENT: frozenset({Replica.NEW}),
    Replica.NEW: frozenset({Replica.ONLINE, Replica.OFFLINE}),
    Replica.ONLINE: frozenset({Replica.OFFLINE}),
    Replica.OFFLINE: frozenset({Replica.NEW, Replica.ONLINE, Replica.NON_EXISTENT}),
}
_NOTHING: frozenset[State] = frozenset(
    {Broker.UNREGISTERED, TopicState.NON_EXISTENT, Partition.NON_EXISTENT, Replica.NON_EXISTENT}
)


def way(before: State, after: State) -> tuple[State, ...] | None:
    """The states after `before` up to `after`, by the fewest steps; None: there is no legal way."""
    ways: list[tuple[State, ...]] = [()]
    reached: set[State] = {before}
    while ways:
        further: list[tuple[State, ...]] = []
        for one in ways:
            last: State = one[-1] if one else before
            for state in sorted(NEXT[last], key=lambda state: state.value):
                if state is after:
                    return (*one, state)
                if state not in reached and state not in _NOTHING:
                    reached.add(state)
                    further.append((*one, state))
        ways = further
    return None


# --- what an image says ------------------------------------------------------------------------------


def broker_state(image: Image, node_id: int) -> Broker:
    """Of any node id."""
    broker: RegisteredBroker | None = image.brokers.get(node_id)
    if broker is None:
        return Broker.UNREGISTERED
    if broker.is_fenced:
        return Broker.FENCED
    if broker.in_controlled_shutdown:
        return Broker.SHUTTING_DOWN
    return Broker.CONTROLLER if image.controller.node_id == node_id else Broker.RUNNING


def topic_state(topic: Topic | None) -> TopicState:
    """None: there is none."""
    if topic is None:
        return TopicState.NON_EXISTENT
    is_new = any(not state.leadership.replicas for state in topic.partitions)
    return TopicState.NEW if is_new else TopicState.ONLINE


def partition_state(partition: PartitionLeadership | None) -> Partition:
    """None: there is none."""
    if partition is None:
        return Partition.NON_EXISTENT
    if partition.leader != NO_NODE:
        return Partition.ONLINE
    return Partition.OFFLINE if partition.leader_epoch else Partition.NEW


def replica_state(image: Image, partition: PartitionLeadership | None, node_id: int) -> Replica:
    """Of a partition at a broker."""
    if partition is None or node_id not in partition.replicas:
        return Replica.NON_EXISTENT
    broker = image.brokers.get(node_id)
    if broker is None or broker.is_fenced:
        return Replica.OFFLINE
    return Replica.NEW if node_id in partition.adding else Replica.ONLINE
