"""Reassignments that clients ask for: other brokers are to be a partition's replicas, or that is called off.

Invariants: each partition that was asked for has an outcome, computed from the image that the commit follows;
    one that is refused harms no other.
Not here: how a reassignment goes on (cluster/reassignment.py), who may decide it (cluster/controller.py),
    Kafka's entities (api/).
Concurrency: a thread of the controller's runs it; the outcomes are read when that is over.
Sources: Kafka ReplicationControlManager.alterPartitionReassignments (KIP-455, KIP-860).
"""

from collections.abc import Iterable, Mapping, Sequence

from sparklog.metadata import Action, Image, PartitionLeadership, TopicPartition
from sparklog_server.admin.assignments import validate_assignment
from sparklog_server.admin.changes import Outcome, RefusedError, outcome_of
from sparklog_server.cluster.reassignment import plan_reassignments, reassigning
from sparklog_server.protocol.errors import ErrorCode

Named = tuple[str, int]  # topic, partition
Targets = Mapping[Named, Sequence[int] | None]  # None: call it off


class Reassignments:
    """A plan; `outcomes` are those of its last run."""

    def __init__(self, targets: Targets, *, may_change_factor: bool) -> None:
        self._targets = targets
        self._may_change_factor = may_change_factor
        self.outcomes: dict[Named, Outcome] = {}

    def __call__(self, image: Image, controller_epoch: int) -> Sequence[Action]:
        self.outcomes = {}
        wanted: dict[TopicPartition, Sequence[int] | None] = {}
        for (name, number), target in self._targets.items():
            try:
                before = _leadership(image, name, number)
                key = image.topics[name].topic_id, number
                self._validate(image, key, before, target, controller_epoch)
            except RefusedError as error:
                self.outcomes[name, number] = outcome_of(error)
            else:
                self.outcomes[name, number] = Outcome()
                wanted[key] = target
        return plan_reassignments(image, wanted, controller_epoch=controller_epoch)

    def _validate(
        self,
        image: Image,
        key: TopicPartition,
        before: PartitionLeadership,
        target: Sequence[int] | None,
        controller_epoch: int,
    ) -> None:
        is_under_way = bool(before.adding or before.removing)
        if target is None:
            if not is_under_way:
                raise _none_in_progress()
            if not plan_reassignments(image, {key: None}, controller_epoch=controller_epoch):
                raise RefusedError(
                    ErrorCode.invalid_replica_assignment,
                    "Unable to revert partition assignment: none of the brokers that had the partition "
                    "before can lead it now.",
                )
            return
        validate_assignment(image.brokers, target)
        now = [node_id for node_id in before.replicas if node_id not in before.adding]
        if not self._may_change_factor and len(target) != len(now):
            raise RefusedError(
                ErrorCode.invalid_replication_factor,
                f"The replication factor is {len(now)}, and cannot be changed by this request to "
                f"{len(target)}.",
            )


def under_way(image: Image, asked: Iterable[Named] | None) -> dict[Named, PartitionLeadership]:
    """Reassignments that are begun, and not over; of these partitions, or of all."""
    names = {topic.topic_id: topic.name for topic in image.topics.values()}
    found = {
        (names[topic_id], number): partition for (topic_id, number), partition in reassigning(image).items()
    }
    if asked is None:
        return found
    return {key: found[key] for key in dict.fromkeys(asked) if key in found}


def _leadership(image: Image, name: str, number: int) -> PartitionLeadership:
    topic = image.topics.get(name)
    if topic is None or not 0 <= number < len(topic.partitions):
        raise RefusedError(ErrorCode.unknown_topic_or_partition, f"Unable to find partition {name}:{number}.")
    return topic.partitions[number].leadership


def _none_in_progress() -> RefusedError:
    return RefusedError(ErrorCode.no_reassignment_in_progress, "No partition reassignment is in progress.")
