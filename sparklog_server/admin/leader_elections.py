"""Leaders that clients ask for: the preferred ones, or any for partitions that have none.

On shared storage no replica is behind another one, so that an "unclean" election loses nothing: it is the
same as that which the controller holds by itself as soon as a replica is there.

Invariants: each partition that was asked for has an outcome, computed from the image that the commit follows.
Not here: who may decide it (cluster/controller.py), Kafka's entities (api/elect_leaders.py).
Concurrency: a thread of the controller's runs it; the outcomes are read when that is over.
Sources: Kafka ReplicationControlManager.electLeaders (KIP-460).
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from sparklog.metadata import (
    MAX_PARTITIONS_OF_ACTION,
    NO_NODE,
    Action,
    Image,
    PartitionLeadership,
    plan_elect_leaders,
)
from sparklog_server.admin.changes import Outcome
from sparklog_server.cluster import selectors
from sparklog_server.protocol.errors import ErrorCode

Named = tuple[str, int]  # topic, partition


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

    def __init__(self, kind: ElectionType, asked: Iterable[Named] | None) -> None:
        """`asked` None: all partitions."""
        self._kind = kind
        self._asked = None if asked is None else list(dict.fromkeys(asked))
        self.outcomes: dict[Named, Outcome] = {}

    def __call__(self, image: Image, controller_epoch: int) -> Sequence[Action]:
        self.outcomes = {}
        usable = selectors.usable_brokers(image)
        chosen: dict[Named, int] = {}
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
        self, key: Named, partition: PartitionLeadership, usable: frozenset[int], chosen: dict[Named, int]
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

    def _partitions(self, image: Image) -> Iterator[tuple[Named, PartitionLeadership | None]]:
        if self._asked is None:
            for topic in image.topics.values():
                for state in topic.partitions:
                    yield (topic.name, state.partition), state.leadership
            return
        for name, number in self._asked:
            found = image.topics.get(name)
            is_there = found is not None and 0 <= number < len(found.partitions)
            yield (name, number), found.partitions[number].leadership if found and is_there else None
