"""Who leads a partition and in which epoch, who is controller, who coordinates a group: the one place to ask.

One broker serves a root at a time: it leads every partition, in epoch 0, which never ends, and is everything
else besides. Whether it is that broker now is another question (membership.py).
Invariants: an epoch that clients know is never taken back, so that they find their logs as they left them.
Concurrency: immutable.
Sources: KIP-320; Kafka Partition.checkCurrentLeaderEpoch.
"""

from dataclasses import dataclass

from sparklog.metadata import PartitionState, Topic
from sparklog_server.protocol.errors import ErrorCode

LEADER_EPOCH = 0
NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Leader:
    """Of one partition."""

    node_id: int
    epoch: int


class Leadership:
    """See the module's docstring."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.controller_id = node_id  # changes metadata for clients
        self.coordinator_id = node_id  # coordinates groups
        self.brokers = (node_id,)  # all that may have replicas
        self._leader = Leader(node_id, LEADER_EPOCH)

    def leader_of(self, _partition: PartitionState) -> Leader:
        """Who leads a partition."""
        return self._leader

    def leaders_of(self, topic: Topic) -> tuple[tuple[Leader, int], ...]:
        """Who leads a topic's partitions, from the first on: each with how many in a row."""
        return ((self._leader, len(topic.partitions)),) if topic.partitions else ()

    def leads(self, partition: PartitionState) -> bool:
        """Does this broker lead a partition, and so coordinate what an internal topic says in it?"""
        return self.leader_of(partition).node_id == self.node_id

    def epoch_error(self, partition: PartitionState, current_leader_epoch: int) -> ErrorCode:
        """What to answer a client that takes `current_leader_epoch` for the leader's; -1: it does not say."""
        epoch = self.leader_of(partition).epoch
        if current_leader_epoch in (NO_EPOCH, epoch):
            return ErrorCode.none
        if current_leader_epoch < epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch
