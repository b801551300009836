"""The log of state changes: what became of brokers, topics, partitions and replicas, from image to image.

Each change is a line, with the commit at which it was seen; of a failover that moves thousands of partitions
the first ones, and how many there were. What the tables do not allow (transitions.py) is an error.

Invariants: derived from two images, so that every broker tells the same, whoever decided it. Only what may
    have changed is looked at: brokers, and the topics that are not the same objects.
Bounds: LINES of a kind for each look.
Not here: lifecycles of this process (runtime/lifecycle.py), what the controller decides (controller.py).
Concurrency: one thread at a time; reads images only.
Sources: Kafka's state-change.log.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from sparklog.metadata import Image, PartitionLeadership, PartitionState, Topic
from sparklog_server.cluster.transitions import (
    State,
    broker_state,
    partition_state,
    replica_state,
    topic_state,
    way,
)

_log = logging.getLogger("sparklog_server.state_change")
LINES = 20


class Change(NamedTuple):
    """What changed, and how; `note` says what matters besides."""

    what: str
    before: State
    after: State
    note: str = ""


def tell_changes(old: Image, new: Image) -> None:
    """Log what has changed between two images."""
    told: Counter[tuple[State, State]] = Counter()
    for change in changes(old, new):
        kind = (change.before, change.after)
        told[kind] += 1
        if told[kind] > LINES:
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
    for (before, after), count in told.items():
        if count > LINES:
            more = count - LINES
            _log.info("commit %d: and %d more: %s -> %s", new.commit, more, before.value, after.value)


def changes(old: Image, new: Image) -> Iterator[Change]:
    """What is not as it was; of partitions also another leader, who is in the note."""
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
