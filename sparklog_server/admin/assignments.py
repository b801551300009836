"""What clients may say of replicas, of partitions that are made: how many, or which.

Invariants: what is legal here applies. What is said is committed together with what makes the partitions, in
    the controller's name, so that they are never seen elsewhere. Who says nothing leaves it to the settings
    (cluster/elections.py).
Not here: assignments of partitions that are there already (leaders.py).
Concurrency: a Placements belongs to one request; the publisher's thread runs it.
Sources: Kafka ReplicationControlManager.validateManualPartitionAssignment, StripedReplicaPlacer.
"""

from collections.abc import Collection, Mapping, Sequence

from sparklog.client.cluster_view import spread_replicas
from sparklog.metadata import (
    NO_NODE,
    Action,
    Image,
    PartitionLeadership,
    TopicPartition,
    apply_actions,
    plan_assign_replicas,
    plan_elect_leaders,
)
from sparklog_server.admin.changes import RefusedError
from sparklog_server.cluster import elections
from sparklog_server.protocol.apis import ErrorCode

MAX_REPLICAS = 100  # of a partition, as in the metadata


def validate_replication_factor(brokers: Collection[int], factor: int) -> None:
    """-1 (the default) or at most the number of brokers."""
    if factor == 0 or factor < -1:
        raise RefusedError(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if factor > min(len(brokers), MAX_REPLICAS):
        raise RefusedError(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
            f"cannot be reached because only {len(brokers)} broker(s) are registered. Records are on shared "
            "storage, whose own copies protect them: the factor is how many brokers may lead. Use -1, or at "
            f"most {min(len(brokers), MAX_REPLICAS)}.",
        )


def validate_assignment(
    brokers: Collection[int], replicas: Sequence[int], *, factor: int | None = None
) -> None:
    """A list that names brokers, each once.

    Args:
        factor: as many as other partitions of the topic have.
    """
    if not replicas:
        raise _invalid("The manual partition assignment includes an empty replica list.")
    strangers = [one for one in replicas if one not in brokers]
    if strangers:
        raise _invalid(
            f"The manual partition assignment includes broker {min(strangers)}, but no such broker is "
            "registered."
        )
    seen: set[int] = set()
    for one in sorted(replicas):
        if one in seen:
            raise _invalid(f"The manual partition assignment includes the broker {one} more than once.")
        seen.add(one)
    if len(replicas) > MAX_REPLICAS:
        raise _invalid(f"The manual partition assignment includes more than {MAX_REPLICAS} brokers.")
    if factor is not None and len(replicas) != factor:
        raise _invalid(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this "
            f"is not consistent with previous partitions, which have {factor} replica(s)."
        )


def validate_usable(image: Image, partition: int, replicas: Sequence[int]) -> None:
    """One of them has to be there, to lead it."""
    if elections.usable_brokers(image).isdisjoint(replicas):
        raise _invalid(
            f"All brokers specified in the manual partition assignment for partition {partition} are fenced "
            "or in controlled shutdown."
        )


# Of partitions from the first number on: these lists, or so many brokers each.
_Wanted = tuple[int, Sequence[tuple[int, ...]], int]
_NOTHING: _Wanted = (0, (), 0)


class Placements:
    """Where the partitions of one request are to be."""

    def __init__(self) -> None:
        self._wanted: dict[str, _Wanted] = {}

    def want(
        self,
        image: Image,
        topic_id: str,
        *,
        lists: Sequence[Sequence[int]] = (),
        factor: int = 0,
        first: int = 0,
    ) -> None:
        """These lists, or so many brokers each: what is legal, for partitions from `first` on."""
        if image.controller.node_id == NO_NODE:  # in whose name they are assigned; the client asks again
            raise RefusedError(ErrorCode.not_controller, "There is no controller at this moment.")
        self._wanted[topic_id] = first, [tuple(one) for one in lists] if lists else (), factor

    def factor_of(self, topic_id: str) -> int:
        """How many replicas a topic's partitions were asked to have; 0: nothing was said of it."""
        _, lists, factor = self._wanted.get(topic_id, _NOTHING)
        return factor or (len(lists[0]) if lists else 0)

    def complete(self, image: Image, actions: Sequence[Action]) -> list[Action]:
        """What assigns the partitions that these actions make, as far as something was said of them."""
        if not self._wanted or not actions:
            return []
        after = apply_actions(image, actions, commit=image.commit + 1, commit_uuid="planned")
        assigned: dict[TopicPartition, PartitionLeadership] = {}
        for topic_id, wanted in self._wanted.items():
            assigned |= _assigned(after, topic_id, wanted)
        usable = elections.usable_brokers(after)
        leaders = {key: elections.offline(one, usable) for key, one in assigned.items()}
        epoch = after.controller.controller_epoch
        there = {key: leader for key, leader in leaders.items() if leader != NO_NODE}
        planned = (
            plan_assign_replicas(after, assigned, controller_epoch=epoch) if assigned else None,
            plan_elect_leaders(after, there, controller_epoch=epoch) if there else None,
        )
        return [action for action in planned if action is not None]


def _assigned(image: Image, topic_id: str, wanted: _Wanted) -> Mapping[TopicPartition, PartitionLeadership]:
    """Nothing, where the change was refused after all: then they were not made."""
    first, lists, factor = wanted
    topic = image.topic_by_id.get(topic_id)
    new = () if topic is None else topic.partitions[first:]
    if not new or new[0].leadership.replicas:
        return {}
    found = lists or _spread(image, factor, len(new), first)
    return {(topic_id, first + place): PartitionLeadership(replicas) for place, replicas in enumerate(found)}


def _spread(image: Image, factor: int, partitions: int, first: int) -> Sequence[tuple[int, ...]]:
    """Over brokers that are there; over all, if there are too few of those."""
    usable = elections.usable_brokers(image)
    chosen = usable if len(usable) >= factor else image.brokers.keys()
    racks = {node_id: image.brokers[node_id].rack for node_id in chosen}
    return spread_replicas(racks, partitions, factor, start=image.commit, first_partition=first)


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.invalid_replica_assignment, message)
