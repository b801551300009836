"""What clients are told of topics, as bytes, and what all of them were told last.

A stranger may ask for all topics all the time, in another version each time: most versions differ in a few
bytes of a topic, and few in its partitions, which are nearly all that there is to make. So these are kept for
the versions that share them, and as long as no commit changes what is told of topics: most only add records.

Invariants: an answer is that of the image it is asked for, leaders and fenced brokers included. What is kept
    is of one state of the cluster: partitions of at most MAX_PARTITION_BYTES, and answers of as much as
    MAX_ANSWERS_BYTES beside, or the last one. They are made by one at a time, for whom others wait, and with
    turns for everybody else.
Not here: the bytes themselves (protocol/metadata_response.py).
Concurrency: event loop only.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from sparklog.metadata import Image, PartitionLeadership, PartitionState, Topic, is_internal
from sparklog_server.cluster.elections import told_replicas
from sparklog_server.protocol.metadata_response import (
    Led,
    Replicas,
    array_of,
    encode_topic,
    encode_topics,
    partition_bytes,
    partitions_led,
    partitions_like,
    rows_led,
    topics_like,
)
from sparklog_server.protocol.responses import topic_uuid
from sparklog_server.protocol.wire import Pace, held_bytes

MAX_PARTITION_BYTES: Final = 24 << 20  # of 150,000 partitions, in all versions, 18 MB
MAX_ANSWERS_BYTES: Final = 12 << 20  # of 5,000 topics each has 0.3 MB
MAX_LED = 10_000
_KEPT_BYTES = 150  # beside a topic's partitions
_FEW, _AT_ONCE = 16, 1024  # partitions
_A_PIECE = 16  # partitions take as long as an entity
_SAYS_OPERATIONS_FROM = 8


class TopicListing:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._told: ToldTopics | None = None

    def as_of(self, image: Image) -> "ToldTopics":
        """What is told of topics as of this image."""
        told = self._told
        if told is None or told.cluster_changed != image.cluster_changed:
            told = self._told = ToldTopics(image, told)
        return told

    async def of(self, image: Image, version: int, operations: int) -> list[bytes]:
        """The array of all topics in a Metadata response."""
        return await self.as_of(image).all(image, version, operations)


class ToldTopics:
    """What is told of topics until a commit changes it."""

    def __init__(self, image: Image, before: "ToldTopics | None") -> None:
        self.cluster_changed = image.cluster_changed
        self._brokers = image.brokers
        self._led: dict[PartitionLeadership, Led] = {}
        # Who is in sync depends on who is fenced.
        if before is not None and before._brokers == image.brokers and len(before._led) <= MAX_LED:
            self._led = before._led
        self._partitions: dict[int, dict[str, bytes]] = {}  # by version and topic id
        self._partition_bytes = 0
        self._kept: OrderedDict[tuple[int, int], list[bytes]] = OrderedDict()
        self._lock = asyncio.Lock()

    def __len__(self) -> int:
        """How many answers are kept."""
        return len(self._kept)

    async def all(self, image: Image, version: int, operations: int) -> list[bytes]:
        """The array of all topics."""
        like = topics_like(version)
        key = like, operations if like >= _SAYS_OPERATIONS_FROM else 0
        async with self._lock:
            if key not in self._kept:
                self._keep(key, await self._made(image, like, operations))
            return self._kept[key]

    async def _made(self, image: Image, version: int, operations: int) -> list[bytes]:
        pace = Pace()
        topics = [
            await self.topic(image, topic, version, operations, pace) for topic in image.topics.values()
        ]
        return encode_topics(topics, version)

    def _keep(self, key: tuple[int, int], chunks: list[bytes]) -> None:
        self._kept[key] = chunks
        while len(self._kept) > 1 and self._answers_bytes() > MAX_ANSWERS_BYTES:
            self._kept.popitem(last=False)

    def _answers_bytes(self) -> int:
        partitions = {id(one) for made in self._partitions.values() for one in made.values()}
        return held_bytes(
            chunk for chunks in self._kept.values() for chunk in chunks if id(chunk) not in partitions
        )

    async def topic(
        self, image: Image, topic: Topic, version: int, operations: int, pace: Pace
    ) -> list[bytes]:
        """One of them."""
        return encode_topic(
            version,
            name=topic.name,
            topic_id=topic_uuid(topic.topic_id),
            is_internal=is_internal(topic.name),
            partitions=await self._partitions_of(image, topic, version, pace),
            operations=operations,
        )

    async def _partitions_of(self, image: Image, topic: Topic, version: int, pace: Pace) -> bytes:
        """The array of its partitions."""
        await pace.made(1)
        like = partitions_like(version)
        kept = self._partitions.setdefault(like, {})
        made = kept.get(topic.topic_id)
        if made is None:
            if len(topic.partitions) <= _FEW:
                made = partitions_led(like, [self._led_as(image, one) for one in topic.partitions])
            else:
                made = await self._partitions_made(image, topic, like, pace)
            if topic.topic_id in kept:
                return made  # somebody else has made it meanwhile
            if self._partition_bytes + _KEPT_BYTES + len(made) <= MAX_PARTITION_BYTES:
                kept[topic.topic_id] = made
                self._partition_bytes += _KEPT_BYTES + len(made)
        return made

    async def _partitions_made(self, image: Image, topic: Topic, version: int, pace: Pace) -> bytes:
        count = len(topic.partitions)
        rows = []
        for first in range(0, count, _AT_ONCE):
            some = topic.partitions[first : first + _AT_ONCE]
            known = map(self._led.get, [one.leadership for one in some])  # not a call for each of them
            led = [
                self._led_as(image, partition) if one is None else one
                for one, partition in zip(known, some, strict=True)
            ]
            rows.append(rows_led(version, first, led))
            await pace.made(len(some) // _A_PIECE)
        return array_of(version, count, rows)

    def size_of(self, image: Image, topic: Topic, version: int) -> int:
        """About how many bytes its partitions take, as the first one is led."""
        led = self._led_as(image, topic.partitions[0])
        return len(topic.partitions) * partition_bytes(version, led.replicas)

    def _led_as(self, image: Image, partition: PartitionState) -> Led:
        led = self._led.get(partition.leadership)
        if led is None:
            told = told_replicas(image, partition)
            led = self._led[partition.leadership] = Led(
                told.error.value,
                told.leader,
                told.leader_epoch,
                Replicas(told.replicas, told.in_sync, told.offline),
            )
        return led
