"""The log of state changes: what became of brokers, topics, partitions and replicas, from image to image.

Each change is a line, with the commit at which it was seen; of a failover that moves thousands of partitions
the first ones, and how many there were. What the tables do not allow is an error.

Invariants: derived from two images, so that every broker logs the same, whichever decided it. Only what may
    have changed is looked at: brokers, and the topics that are not the same objects.
Bounds: LINES of a kind for each look.
Not here: lifecycles of this process (runtime/lifecycle.py), what the controller decides (controller.py).
Concurrency: one thread at a time; reads images only.
Sources: Kafka's state-change.log.
"""

import enum
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sparklog.metadata import NO_NODE, Image, PartitionLeadership, PartitionState, RegisteredBroker, Topic

# --- transitions -------------------------------------------------------------------------------------
#
# States of brokers, topics, partitions and replicas as an image has them, and which may follow which.
#
# The tables are Kafka's before KRaft: a controller there moved each machine by hand. Here an image says what
# is, and the state is derived; so the tables do not drive anything. They say what must not happen, and name
# what did: an image may have taken several steps in one, and the steps between are logged as well.
#
#     partition   NonExistent -> New -> Online <-> Offline -> NonExistent      New -> Offline
#     replica     NonExistent -> New -> Online <-> Offline -> NonExistent      New <-> Offline
#
# A replica is new as long as its reassignment waits, so that one may be new again after its broker was away.
#
# Invariants: pure. A way between two states goes through no other state of what does not exist.
# Concurrency: pure functions.
# Sources: Kafka PartitionStateMachine, ReplicaStateMachine, BrokerStates.


class Broker(enum.Enum):
    """Of one node id."""

    UNREGISTERED = "Unregistered"
    FENCED = "Fenced"
    RUNNING = "RunningAsBroker"
    CONTROLLER = "RunningAsController"
    SHUTTING_DOWN = "PendingControlledShutdown"


class TopicState(enum.Enum):
    """New: some of its partitions are not assigned yet."""

    NON_EXISTENT = "NonExistentTopic"
    NEW = "NewTopic"
    ONLINE = "OnlineTopic"


class Partition(enum.Enum):
    """New: it has not had a leader yet. Offline: it has none any more."""

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


# --- state log ---------------------------------------------------------------------------------------


_log = logging.getLogger("sparklog_server.state_change")
LINES = 20


class Change(NamedTuple):
    """What changed, and how; `note` says what matters besides."""

    what: str
    before: State
    after: State
    note: str = ""


def log_changes(old: Image, new: Image) -> None:
    """Log what has changed between two images."""
    counts: Counter[tuple[State, State]] = Counter()
    for change in changes(old, new):
        kind = (change.before, change.after)
        counts[kind] += 1
        if counts[kind] > LINES:
            continue
        steps = None if change.before is change.after else way(change.before, change.after)
        if change.before is not change.after and steps is None:
            _log.error(
                "commit %d: %s: %s -> %s, which is illegal",
                new.commit,
                change.what,
                change.before.value,
                change.after.value,
            )
            continue
        line = " -> ".join(state.value for state in (change.before, *(steps or (change.after,))))
        _log.info("commit %d: %s: %s%s", new.commit, change.what, line, change.note)
    for (before, after), count in counts.items():
        if count > LINES:
            more = count - LINES
            _log.info("commit %d: and %d more: %s -> %s", new.commit, more, before.value, after.value)


def changes(old: Image, new: Image) -> Iterator[Change]:
    """Yield what is not as it was; of partitions also another leader, which is in the note."""
    for node_id in sorted(old.brokers.keys() | new.brokers.keys()):
        before, after = broker_state(old, node_id), broker_state(new, node_id)
        if before is not after:
            yield Change(f"broker {node_id}", before, after)
        elif old.brokers[node_id].broker_epoch != new.brokers[node_id].broker_epoch:
            yield Change(
                f"broker {node_id}", before, after, f", of epoch {new.brokers[node_id].broker_epoch}"
            )
    are_brokers_same = _unfenced(old) == _unfenced(new)
    for topic_id in old.topic_by_id.keys() | new.topic_by_id.keys():
        one, other = old.topic_by_id.get(topic_id), new.topic_by_id.get(topic_id)
        if one is other and are_brokers_same:
            continue
        yield from _of_topic(old, new, one, other)


def _of_topic(old: Image, new: Image, one: Topic | None, other: Topic | None) -> Iterator[Change]:
    named = other or one
    assert named is not None
    before, after = topic_state(one), topic_state(other)
    if before is not after:
        yield Change(f"topic {named.name}", before, after)
    for number in range(max(len(t.partitions) for t in (one, other) if t is not None)):
        yield from _of_partition(
            old, new, f"{named.name}-{number}", _leadership(one, number), _leadership(other, number)
        )


def _of_partition(
    old: Image, new: Image, name: str, one: PartitionLeadership | None, other: PartitionLeadership | None
) -> Iterator[Change]:
    before, after = partition_state(one), partition_state(other)
    if before is not after or (one is not None and other is not None and one.leader != other.leader):
        note = "" if other is None else f", leader {other.leader} in epoch {other.leader_epoch}"
        yield Change(f"partition {name}", before, after, note)
    replicas = {*(() if one is None else one.replicas), *(() if other is None else other.replicas)}
    for node_id in sorted(replicas):
        was, now = replica_state(old, one, node_id), replica_state(new, other, node_id)
        if was is not now:
            yield Change(f"replica {node_id} of {name}", was, now)


def _leadership(topic: Topic | None, number: int) -> PartitionLeadership | None:
    if topic is None or number >= len(topic.partitions):
        return None
    state: PartitionState = topic.partitions[number]
    return state.leadership


def _unfenced(image: Image) -> frozenset[int]:
    return frozenset(node_id for node_id, broker in image.brokers.items() if not broker.is_fenced)
