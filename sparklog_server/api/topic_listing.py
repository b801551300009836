"""What clients are told of topics, as bytes, and what all of them were told last.

Invariants: an answer is that of the image it is asked for. At most MAX_KEPT answers are kept, of one image.
Not here: the bytes themselves (protocol/metadata_response.py).
Concurrency: event loop only.
"""

from collections import OrderedDict

from sparklog.metadata import Image, Topic, is_internal
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.protocol.entities import topic_uuid
from sparklog_server.protocol.metadata_response import Led, encode_topic, encode_topics

MAX_KEPT = 4  # of 5,000 topics each has 0.3 MB


class TopicListing:
    """See the module's docstring."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._image: Image | None = None
        self._kept: OrderedDict[tuple[int, int], list[bytes]] = OrderedDict()

    def __len__(self) -> int:
        """How many answers are kept."""
        return len(self._kept)

    def of(self, image: Image, version: int, operations: int) -> list[bytes]:
        """The array of all topics in a Metadata response."""
        if image is not self._image:
            self._kept.clear()
            self._image = image
        key = version, operations
        chunks = self._kept.get(key)
        if chunks is None:
            topics = [self.topic(topic, version, operations) for topic in image.topics.values()]
            chunks = self._kept[key] = encode_topics(topics, version)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return chunks

    def topic(self, topic: Topic, version: int, operations: int) -> list[bytes]:
        """One of them."""
        return encode_topic(
            version,
            name=topic.name,
            topic_id=topic_uuid(topic.topic_id),
            is_internal=is_internal(topic.name),
            led=tuple(
                Led(leader.node_id, leader.epoch, count)
                for leader, count in self._leadership.leaders_of(topic)
            ),
            operations=operations,
        )
