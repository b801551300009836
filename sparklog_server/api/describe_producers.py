"""DescribeProducers (key 61), version 0.

Does: the producers that a partition remembers: epoch, last sequence, the time of the last batch. As of the
    newest image, whichever broker leads the partition. What is staged counts: sequences are those of staging.
Does not: tell where an open transaction begins (CurrentTxnStartOffset is -1): its records have no offsets
    yet. So `kafka-transactions abort` is to name the producer (--producer-id), and `find-hanging` finds none,
    which is right: a transaction that nobody knows cannot have staged anything.
Beyond MAX_PRODUCERS, or 32 MiB of partitions, the rest of the partitions is answered UNKNOWN_SERVER_ERROR:
    ask for fewer at once.
Versions: 0 (KIP-664).
"""

from collections.abc import Sequence
from typing import Any

from sparklog.metadata import Image, PartitionState
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import encode_partition, encode_producers, encode_topics
from sparklog_server.protocol.wire import Response, in_slices
from sparklog_server.transactions.coordinator import active_producers

MAX_PRODUCERS = 100_000  # in all partitions of a request: some 60 ms
_PARTITION_BYTES, _PRODUCER_BYTES = 200, 100  # while the answer is made
_LOOKED_AT_TOGETHER = 64  # partitions: a thread for each of thousands took longer than looking
_Place = tuple[str, int]


@api(ApiKey.DESCRIBE_PRODUCERS, versions=range(1))
async def handle_describe_producers(request: Any, context: RequestContext, services: Services) -> Any:
    """Each partition once."""
    await services.root.look(force=True)
    image = services.root.image
    asked = dict.fromkeys(
        (topic.name, number) for topic in request.topics for number in topic.partition_indexes
    )
    room = _Room(image, context)
    errors = {place: room.error(place) for place in asked}
    await context.answer.reserve()
    found = await _look(services, image, [place for place, error in errors.items() if not error])
    partitions = await in_slices(
        found[place] if place in found else encode_partition(place[1], error)
        for place, error in errors.items()
    )
    answers: dict[str, list[bytes]] = {}
    for (name, _), one in zip(errors, partitions, strict=True):
        answers.setdefault(name, []).append(one)
    return Response(chunks=encode_topics(answers))


class _Room:
    """For what the partitions of a request remember."""

    def __init__(self, image: Image, context: RequestContext) -> None:
        self._image = image
        self._answer = context.answer
        self._left = MAX_PRODUCERS

    def error(self, place: _Place) -> ErrorCode:
        """Why nothing is told of this one; what is told counts."""
        name, number = place
        topic = self._image.topics.get(name)
        if topic is None or not 0 <= number < len(topic.partitions):
            return ErrorCode.unknown_topic_or_partition
        count = len(topic.partitions[number].producers)
        if count > self._left or not self._answer.fits(_PARTITION_BYTES + _PRODUCER_BYTES * count):
            return ErrorCode.unknown_server_error
        self._left -= count
        return ErrorCode.none


async def _look(services: Services, image: Image, places: Sequence[_Place]) -> dict[_Place, bytes]:
    """What is said of those partitions that remember any, many partitions in one call of a thread."""
    states = [(place, image.topics[place[0]].partitions[place[1]]) for place in places]
    wanted = [(place, state) for place, state in states if state.producers]
    found: dict[_Place, bytes] = {}
    for first in range(0, len(wanted), _LOOKED_AT_TOGETHER):
        some = wanted[first : first + _LOOKED_AT_TOGETHER]
        found |= await services.root.run(_look_at, image, some)
    return found


def _look_at(image: Image, some: Sequence[tuple[_Place, PartitionState]]) -> dict[_Place, bytes]:
    return {
        place: encode_partition(place[1], ErrorCode.none, encode_producers(active_producers(image, state)))
        for place, state in some
    }
