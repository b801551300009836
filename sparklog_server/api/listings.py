"""Answers about all topics, cached as bytes until a commit changes them: Metadata, DescribeLogDirs.

A client may request all topics all the time, in another version each time. Most versions differ in a few
bytes of a topic, and few in its partitions, which are nearly all of the answer. So the partitions are cached
for the versions that share them, until a commit changes them: most commits only add records.

Invariants: an answer has the leaders and fenced brokers of the given image; that of DescribeLogDirs is of the
    newest image when it begins. The cache has one state of the cluster: partitions of at most
    MAX_PARTITION_BYTES, and answers of MAX_ANSWERS_BYTES more, or the last one. One request at a time builds
    them, and yields to the event loop; the others wait for it.
Not here: the bytes themselves (protocol/metadata_response.py, protocol/responses.py).
Concurrency: event loop only.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from sparklog.metadata import Image, PartitionLeadership, PartitionState, Topic, is_internal
from sparklog_server.cluster.elections import replica_view
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
from sparklog_server.protocol.responses import PARTITION_BYTES, encode_log_dir_topic, topic_uuid
from sparklog_server.protocol.wire import Pace, held_bytes

MAX_PARTITION_BYTES: Final = 24 << 20  # of 150,000 partitions, in all versions, 18 MB
MAX_ANSWERS_BYTES: Final = 12 << 20  # of 5,000 topics each has 0.3 MB
MAX_LED = 10_000
_KEPT_BYTES = 150  # of a topic, without its partitions
_FEW, _AT_ONCE = 16, 1024  # partitions
_A_PIECE = 16  # partitions take as long as an entity
_SAYS_OPERATIONS_FROM = 8


class TopicListing:
    """The topics of Metadata responses."""

    def __init__(self) -> None:
        self._answers: TopicAnswers | None = None

    def as_of(self, image: Image) -> "TopicAnswers":
        """Return the answers for this image."""
        answers = self._answers
        if answers is None or answers.cluster_changed != image.cluster_changed:
            answers = self._answers = TopicAnswers(image, answers)
        return answers

    async def of(self, image: Image, version: int, operations: int) -> list[bytes]:
        """Return the array of all topics in a Metadata response."""
        return await self.as_of(image).all(image, version, operations)


class TopicAnswers:
    """The cached answers about topics until a commit changes them."""

    def __init__(self, image: Image, before: "TopicAnswers | None") -> None:
        self.cluster_changed = image.cluster_changed
        self._brokers = image.brokers
        self._led: dict[PartitionLeadership, Led] = {}
        # Which replicas are in sync depends on which brokers are fenced.
        if before is not None and before._brokers == image.brokers and len(before._led) <= MAX_LED:
            self._led = before._led
        self._partitions: dict[int, dict[str, bytes]] = {}  # by version and topic id
        self._partition_bytes = 0
        self._kept: OrderedDict[tuple[int, int], list[bytes]] = OrderedDict()
        self._lock = asyncio.Lock()

    def __len__(self) -> int:
        """Return the number of cached answers."""
        return len(self._kept)

    async def all(self, image: Image, version: int, operations: int) -> list[bytes]:
        """Return the array of all topics."""
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
        """Return one topic."""
        return encode_topic(
            version,
            name=topic.name,
            topic_id=topic_uuid(topic.topic_id),
            is_internal=is_internal(topic.name),
            partitions=await self._partitions_of(image, topic, version, pace),
            operations=operations,
        )

    async def _partitions_of(self, image: Image, topic: Topic, version: int, pace: Pace) -> bytes:
        """Return the array of its partitions."""
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
                return made  # another request has built it concurrently
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
        """Estimate the bytes of its partitions from the first one."""
        led = self._led_as(image, topic.partitions[0])
        return len(topic.partitions) * partition_bytes(version, led.replicas)

    def _led_as(self, image: Image, partition: PartitionState) -> Led:
        led = self._led.get(partition.leadership)
        if led is None:
            seen = replica_view(image, partition)
            led = self._led[partition.leadership] = Led(
                seen.error.value,
                seen.leader,
                seen.leader_epoch,
                Replicas(seen.replicas, seen.in_sync, seen.offline),
            )
        return led


# --- DescribeLogDirs ---------------------------------------------------------------------------------

_LOG_DIRS_TOPIC_BYTES = 260  # without its partitions; names have 249 at most
_LOG_DIRS_AT_ONCE = 1024  # partitions
_LOG_DIRS_A_PIECE = 8  # so many partitions take as long as an entity


class LogDirListing:
    """The topics of DescribeLogDirs responses."""

    def __init__(self, newest: Callable[[], Image]) -> None:
        self._newest = newest
        self._lock = asyncio.Lock()
        self._commit = ""
        self._kept: dict[bool, tuple[int, bytes]] = {}

    def size(self) -> int:
        """Return the approximate size of the answer about all topics."""
        image = self._newest()
        return PARTITION_BYTES * image.partition_count + _LOG_DIRS_TOPIC_BYTES * len(image.topics)

    async def all(self, *, flexible: bool) -> tuple[int, bytes]:
        """Return the number of topics, and the answer about them."""
        async with self._lock:
            image = self._newest()
            if image.commit_uuid != self._commit:
                self._kept.clear()
                self._commit = image.commit_uuid
            if flexible not in self._kept:
                every = [(topic, range(len(topic.partitions))) for topic in image.topics.values()]
                self._kept[flexible] = len(every), await log_dir_topics(every, flexible=flexible)
            return self._kept[flexible]


async def log_dir_topics(wanted: Sequence[tuple[Topic, Sequence[int]]], *, flexible: bool) -> bytes:
    """Encode the partitions of these topics, topic by topic."""
    pace = Pace()
    topics = []
    for topic, numbers in wanted:
        sizes: list[int] = []
        for first in range(0, len(numbers), _LOG_DIRS_AT_ONCE):
            some = [topic.partitions[number] for number in numbers[first : first + _LOG_DIRS_AT_ONCE]]
            sizes += [state.extents.stored_bytes for state in some]
            await pace.made(1 + len(some) // _LOG_DIRS_A_PIECE)
        topics.append(encode_log_dir_topic(topic.name, numbers, sizes, flexible=flexible))
    return b"".join(topics)
