"""The leader of a partition and its epoch, the controller, the coordinator of a group: the one place to ask.

The image says it. A partition that the controller has not assigned yet has no leader.
Whether this broker may answer now is another question (membership.py).
Invariants: an epoch that clients know is never taken back, so that they find their logs as they left them.
Concurrency: asks the newest image at each call; any thread.
Sources: KIP-320; Kafka Partition.checkCurrentLeaderEpoch; docs/adr/0026.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from sparklog.metadata import Image, PartitionState
from sparklog_server.protocol.apis import ErrorCode

LEADER_EPOCH = 0  # of batches as they are stored, until they are fetched
NO_EPOCH = -1


class Images(Protocol):
    """root/live_root.py."""

    @property
    def image(self) -> Image:
        """The newest that is known."""


class Leader(msgspec.Struct, frozen=True):
    """Of one partition; NO_NODE: there is none."""

    node_id: int
    epoch: int

    def epoch_error(self, current_leader_epoch: int) -> ErrorCode:
        """What to answer a client that takes `current_leader_epoch` for the leader's; -1: it does not say."""
        if current_leader_epoch in (NO_EPOCH, self.epoch):
            return ErrorCode.none
        if current_leader_epoch < self.epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch


class Leadership:
    """Answers from the newest image."""

    def __init__(self, node_id: int, images: Images) -> None:
        self.node_id = node_id
        self._images = images

    @property
    def controller_id(self) -> int:
        """The broker that changes leaderships; NO_NODE while there is none."""
        return self._images.image.controller.node_id

    @property
    def brokers(self) -> Sequence[int]:
        """All that may have replicas, fenced ones, too."""
        return tuple(sorted(self._images.image.brokers))

    @property
    def has_others(self) -> bool:
        """True if another broker that is known could lead what this one leads. A fenced one may come back."""
        return any(node_id != self.node_id for node_id in self._images.image.brokers)

    def leader_of(self, partition: PartitionState) -> Leader:
        """Return the leader of a partition."""
        leadership = partition.leadership
        return Leader(leadership.leader, leadership.leader_epoch)

    def leads(self, partition: PartitionState) -> bool:
        """True if this broker leads a partition, and so coordinates what an internal topic says in it."""
        return self.leader_of(partition).node_id == self.node_id

    def coordinator_of(self, partition: PartitionState) -> int:
        """Return the coordinator of what an internal topic says in this partition; NO_NODE: there is none."""
        return self.leader_of(partition).node_id

    def leader_error(self, partition: PartitionState, current_leader_epoch: int) -> ErrorCode:
        """Why this broker does not answer as the partition's leader; see `Leader.epoch_error`."""
        leader = self.leader_of(partition)
        error = leader.epoch_error(current_leader_epoch)
        if error is ErrorCode.none and leader.node_id != self.node_id:
            return ErrorCode.not_leader_or_follower
        return error
