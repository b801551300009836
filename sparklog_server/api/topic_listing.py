"""What clients are told of topics, as bytes, and what all of them were told last.

Invariants: an answer is that of the image it is asked for, leaders and fenced brokers included. At most
    MAX_KEPT answers are kept, of one image.
Not here: the bytes themselves (protocol/metadata_response.py).
Concurrency: event loop only.
"""

from collections import OrderedDict

from sparklog.metadata import Image, PartitionLeadership, PartitionState, Topic, is_internal
from sparklog_server.cluster.leadership import LEADER_EPOCH
from sparklog_server.cluster.replicas import told_replicas
from sparklog_server.protocol.entities import topic_uuid
from sparklog_server.protocol.metadata_response import (
    Led,
    Replicas,
    encode_topic,
    encode_topics,
    partition_bytes,
    partitions_alike,
    partitions_led,
)

MAX_KEPT = 4  # of 5,000 topics each has 0.3 MB
MAX_LED = 10_000


class TopicListing:
    """See the module's docstring."""

    def __init__(self, node_id: int) -> None:
        self._alone = Led(0, node_id, LEADER_EPOCH, Replicas((node_id,), (node_id,)))
        self._image: Image | None = None
        self._led: dict[PartitionLeadership, Led] = {}
        self._kept: OrderedDict[tuple[int, int], list[bytes]] = OrderedDict()

    def __len__(self) -> int:
        """How many answers are kept."""
        return len(self._kept)

    def of(self, image: Image, version: int, operations: int) -> list[bytes]:
        """The array of all topics in a Metadata response."""
        self._look_at(image)
        key = version, operations
        chunks = self._kept.get(key)
        if chunks is None:
            topics = [self.topic(image, topic, version, operations) for topic in image.topics.values()]
            chunks = self._kept[key] = encode_topics(topics, version)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return chunks

    def topic(self, image: Image, topic: Topic, version: int, operations: int) -> list[bytes]:
        """One of them."""
        self._look_at(image)
        if image.brokers:
            partitions = partitions_led(version, map(self._told, topic.partitions))
        else:
            partitions = partitions_alike(version, self._alone, len(topic.partitions))
        return encode_topic(
            version,
            name=topic.name,
            topic_id=topic_uuid(topic.topic_id),
            is_internal=is_internal(topic.name),
            partitions=partitions,
            operations=operations,
        )

    def size_of(self, image: Image, topic: Topic, version: int) -> int:
        """About how many bytes its partitions take, as the first one is led."""
        self._look_at(image)
        led = self._told(topic.partitions[0]) if image.brokers else self._alone
        return len(topic.partitions) * partition_bytes(version, led.replicas)

    def _told(self, partition: PartitionState) -> Led:
        led = self._led.get(partition.leadership)
        if led is None:
            image = self._image
            assert image is not None
            told = told_replicas(image, self._alone.node_id, partition)
            led = self._led[partition.leadership] = Led(
                told.error.value,
                told.leader,
                told.leader_epoch,
                Replicas(told.replicas, told.in_sync, told.offline),
            )
        return led

    def _look_at(self, image: Image) -> None:
        if image is self._image:
            return
        self._kept.clear()
        # Who is in sync depends on who is fenced.
        if self._image is None or image.brokers != self._image.brokers or len(self._led) > MAX_LED:
            self._led.clear()
        self._image = image
