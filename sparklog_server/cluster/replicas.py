"""What clients are told of a partition: who leads it, who could, and which of those are there.

Invariants: as of one image. The leader is told as long as it may lead; without one the partition is
    LEADER_NOT_AVAILABLE, so that clients ask again.
Not here: the bytes (protocol/metadata_response.py), whether this broker may answer (membership.py).
Concurrency: pure.
Sources: Kafka KRaftMetadataCache.getPartitionMetadata.
"""

from typing import NamedTuple

from sparklog.metadata import NO_NODE, Image, PartitionState
from sparklog_server.cluster.selectors import in_sync
from sparklog_server.protocol.errors import ErrorCode


class ToldReplicas(NamedTuple):
    """Those of one partition; `leader` NO_NODE: nobody leads it now."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def error(self) -> ErrorCode:
        return ErrorCode.leader_not_available if self.leader == NO_NODE else ErrorCode.none


def told_replicas(image: Image, partition: PartitionState) -> ToldReplicas:
    """As of this image."""
    led = partition.leadership
    there = in_sync(led, image)
    offline = tuple(one for one in led.replicas if one not in there)
    return ToldReplicas(led.leader, led.leader_epoch, led.replicas, there, offline, led.adding, led.removing)
