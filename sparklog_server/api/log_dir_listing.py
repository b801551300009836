"""The stored bytes of partitions as DescribeLogDirs tells them, and what it told of all of them last.

Invariants: an answer is that of the image that is the newest when it is begun. What is kept is of one image;
    it is made by one at a time, for whom others wait, and with turns for everybody else.
Not here: the bytes themselves (protocol/responses.py).
Concurrency: event loop only.
"""

import asyncio
from collections.abc import Callable, Sequence

from sparklog.metadata import Image, Topic
from sparklog_server.protocol.responses import PARTITION_BYTES, encode_log_dir_topic
from sparklog_server.protocol.wire import Pace

_TOPIC_BYTES = 260  # beside its partitions; names have 249 at most
_AT_ONCE = 1024  # partitions
_A_PIECE = 8  # partitions take as long to look at as an entity to make


class LogDirListing:
    """See the module's docstring."""

    def __init__(self, newest: Callable[[], Image]) -> None:
        self._newest = newest
        self._lock = asyncio.Lock()
        self._commit = ""
        self._kept: dict[bool, tuple[int, bytes]] = {}

    def size(self) -> int:
        """About how many bytes are told of all."""
        image = self._newest()
        return PARTITION_BYTES * image.partition_count + _TOPIC_BYTES * len(image.topics)

    async def all(self, *, flexible: bool) -> tuple[int, bytes]:
        """How many topics there are, and what is told of them."""
        async with self._lock:
            image = self._newest()
            if image.commit_uuid != self._commit:
                self._kept.clear()
                self._commit = image.commit_uuid
            if flexible not in self._kept:
                every = [(topic, range(len(topic.partitions))) for topic in image.topics.values()]
                self._kept[flexible] = len(every), await told(every, flexible=flexible)
            return self._kept[flexible]


async def told(wanted: Sequence[tuple[Topic, Sequence[int]]], *, flexible: bool) -> bytes:
    """What is told of these topics' partitions, one topic after the other."""
    pace = Pace()
    topics = []
    for topic, numbers in wanted:
        sizes: list[int] = []
        for first in range(0, len(numbers), _AT_ONCE):
            some = [topic.partitions[number] for number in numbers[first : first + _AT_ONCE]]
            sizes += [state.extents.stored_bytes for state in some]
            await pace.made(1 + len(some) // _A_PIECE)
        topics.append(encode_log_dir_topic(topic.name, numbers, sizes, flexible=flexible))
    return b"".join(topics)
