"""Leaders that clients ask for: the preferred ones, or any for partitions that have none.

On shared storage no replica is behind another one, so that an "unclean" election loses nothing: it is the
same as that which the controller holds by itself as soon as a replica is there.

Invariants: each partition that was asked for has an outcome, computed from the image that the commit follows.
Not here: which broker may decide it (cluster/controller.py).
Concurrency: a thread of the controller's runs it; the outcomes are read when that is over.
Sources: Kafka ReplicationControlManager.electLeaders (KIP-460).
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from sparklog.metadata import (
    MAX_PARTITIONS_OF_ACTION,
    NO_NODE,
    Action,
    Image,
    PartitionLeadership,
    TopicPartition,
    plan_elect_leaders,
)
from sparklog_server.admin.assignments import validate_assignment
from sparklog_server.admin.changes import Outcome, RefusedError, outcome_of
from sparklog_server.cluster import elections as selectors
from sparklog_server.cluster.elections import plan_reassignments, reassigning
from sparklog_server.protocol.apis import ErrorCode

# --- reassignments -----------------------------------------------------------------------------------
#
# Reassignments that clients ask for: other brokers are to be a partition's replicas, or that is called off.
#
# Invariants: each partition that was asked for has an outcome, computed from the image that the commit
#     follows; one that is refused harms no other.
# Not here: how a reassignment goes on (cluster/elections.py), which broker decides it
#     (cluster/controller.py), Kafka's entities (api/).
# Concurrency: a thread of the controller's runs it; the outcomes are read when that is over.
# Sources: Kafka ReplicationControlManager.alterPartitionReassignments (KIP-455, KIP-860).


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


# --- leader elections --------------------------------------------------------------------------------


NamedPartition = tuple[str, int]  # topic, partition


class ElectionType(enum.IntEnum):
    """Kafka's."""

    PREFERRED = 0
    UNCLEAN = 1


_NOT_NEEDED = Outcome(ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
_NOT_AVAILABLE = {
    ElectionType.PREFERRED: Outcome(
        ErrorCode.preferred_leader_not_available, "The preferred leader was not available."
    ),
    ElectionType.UNCLEAN: Outcome(
        ErrorCode.eligible_leaders_not_available, "Eligible topic partition leaders are not available."
    ),
}
_UNKNOWN = Outcome(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")


class Elections:
    """A plan; `outcomes` are those of its last run, without those that were not asked for one by one and
    need none.
    """

    def __init__(self, kind: ElectionType, asked: Iterable[NamedPartition] | None) -> None:
        """`asked` None: all partitions."""
        self._kind = kind
        self._asked = None if asked is None else list(dict.fromkeys(asked))
        self.outcomes: dict[NamedPartition, Outcome] = {}

    def __call__(self, image: Image, controller_epoch: int) -> Sequence[Action]:
        self.outcomes = {}
        usable = selectors.usable_brokers(image)
        chosen: dict[NamedPartition, int] = {}
        for key, partition in self._partitions(image):
            outcome = _UNKNOWN if partition is None else self._decide(key, partition, usable, chosen)
            if self._asked is not None or outcome is not _NOT_NEEDED:
                self.outcomes[key] = outcome
        leaders = iter(
            {
                (image.topics[name].topic_id, number): leader for (name, number), leader in chosen.items()
            }.items()
        )
        actions: list[Action] = []
        while some := dict(islice(leaders, MAX_PARTITIONS_OF_ACTION)):
            action = plan_elect_leaders(image, some, controller_epoch=controller_epoch)
            actions += () if action is None else (action,)
        return actions

    def _decide(
        self,
        key: NamedPartition,
        partition: PartitionLeadership,
        usable: frozenset[int],
        chosen: dict[NamedPartition, int],
    ) -> Outcome:
        if self._kind is ElectionType.PREFERRED:
            wanted = partition.replicas[0] if partition.replicas else NO_NODE
            if partition.leader == wanted != NO_NODE:
                return _NOT_NEEDED
            leader = wanted if wanted in usable else NO_NODE
        else:
            if partition.leader != NO_NODE:
                return _NOT_NEEDED
            leader = selectors.offline(partition, usable)
        if leader == NO_NODE:
            return _NOT_AVAILABLE[self._kind]
        chosen[key] = leader
        return Outcome()

    def _partitions(self, image: Image) -> Iterator[tuple[NamedPartition, PartitionLeadership | None]]:
        if self._asked is None:
            for topic in image.topics.values():
                for state in topic.partitions:
                    yield (topic.name, state.partition), state.leadership
            return
        for name, number in self._asked:
            found = image.topics.get(name)
            is_there = found is not None and 0 <= number < len(found.partitions)
            yield (name, number), found.partitions[number].leadership if found and is_there else None
