"""Who leads a topic's partitions, in the state of a snapshot: in columns, with each list of brokers once.

Invariants: what comes out is what went in; what does not fit the topic is refused (ValueError).
Not here: the rest of the state (snapshot.py), how leaderships change (model/leading.py).
Concurrency: pure functions.
Sources: FORMAT.md#metadata-log.
"""

from collections.abc import Sequence

import msgspec

from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.broker_values import NO_NODE, UNASSIGNED, PartitionLeadership
from sparklog.metadata.model.columns import Column, column_of, expanded
from sparklog.metadata.model.leading import NO_LIST
from sparklog.metadata.model.numbers import Int64


class StoredLeadership(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of one topic: a number for each partition, or one for all; -1 in the place of a list: it is empty."""

    lists: tuple[tuple[Int64, ...], ...]
    replicas: Column
    leader: Column
    leader_epoch: Column
    adding: Column = NO_LIST
    removing: Column = NO_LIST


def stored_leadership(partitions: Sequence[PartitionLeadership]) -> StoredLeadership | None:
    """The columns; None where nothing is to be said."""
    if all(one == UNASSIGNED for one in partitions):
        return None
    places: dict[tuple[int, ...], int] = {}

    def place(brokers: tuple[int, ...]) -> int:
        return places.setdefault(brokers, len(places)) if brokers else NO_LIST

    replicas = column_of([place(one.replicas) for one in partitions])
    adding = column_of([place(one.adding) for one in partitions])
    removing = column_of([place(one.removing) for one in partitions])
    leader = column_of([one.leader for one in partitions])
    leader_epoch = column_of([one.leader_epoch for one in partitions])
    return StoredLeadership(tuple(places), replicas, leader, leader_epoch, adding, removing)


def leaderships(stored: StoredLeadership | None, count: int) -> Sequence[PartitionLeadership]:
    """The leadership of each of a topic's partitions; ValueError says what is wrong with the columns."""
    if stored is None:
        return (UNASSIGNED,) * count
    lists = (*stored.lists, ())  # the last one is that of NO_LIST
    try:
        places = [expanded(getattr(stored, name), count, name) for name in ("replicas", "adding", "removing")]
        leaders = expanded(stored.leader, count, "leader")
        epochs = expanded(stored.leader_epoch, count, "leader_epoch")
    except ActionRefusedError as error:
        raise ValueError(str(error)) from None
    for column in places:
        if min(column, default=0) < NO_LIST or max(column, default=0) >= len(stored.lists):
            raise ValueError(f"found a place outside {len(stored.lists)} lists of brokers")
    found = []
    for partition in range(count):
        replicas, adding, removing = (lists[column[partition]] for column in places)
        leader, epoch = leaders[partition], epochs[partition]
        if epoch < 0 or (leader != NO_NODE and leader not in replicas):
            raise ValueError(f"partition {partition}: found leader {leader} in {epoch}, of {replicas}")
        found.append(PartitionLeadership(replicas, leader, epoch, adding, removing))
    return found
