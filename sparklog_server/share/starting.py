"""Where a share group begins in a partition: share.auto.offset.reset.

Sources: KIP-932; Kafka ShareGroupAutoOffsetResetStrategy.
"""

from collections.abc import Sequence

from sparklog.clock import Clock
from sparklog.errors import InvalidRequestError
from sparklog.metadata import Image, SharePlace
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.settings.share import EARLIEST, LATEST, reset_age_ms


async def start_offsets(
    root: LiveRoot, clock: Clock, places: Sequence[SharePlace], reset: str
) -> dict[SharePlace, int]:
    """Return the offset for each partition that exists.

    Raises:
        SparklogError: the records cannot be read, by which a time is found.
    """
    await root.look(force=True)  # the newest end
    try:
        age_ms = reset_age_ms(reset)
    except InvalidRequestError:  # of a newer version
        reset, age_ms = LATEST, None
    image = root.image
    there = [place for place in places if _is_there(image, place)]
    if age_ms is not None:
        return await root.run_apart(_by_time, root, image, there, clock.now_ms() - age_ms)
    states = {place: image.partition_of(*place) for place in there}
    return {
        place: one.log_start_offset if reset == EARLIEST else one.log_end_offset
        for place, one in states.items()
    }


def _is_there(image: Image, place: SharePlace) -> bool:
    topic = image.topic_by_id.get(place[0])
    return topic is not None and place[1] < len(topic.partitions)


def _by_time(
    root: LiveRoot, image: Image, places: Sequence[SharePlace], since_ms: int
) -> dict[SharePlace, int]:
    """Return the first offset that is not older; the end: none is."""
    found = {}
    for topic_id, number in places:
        offset = root.log.offset_for_time(image.topic_by_id[topic_id].name, number, since_ms, image=image)
        end = image.partition_of(topic_id, number).log_end_offset
        found[topic_id, number] = end if offset is None else offset
    return found
