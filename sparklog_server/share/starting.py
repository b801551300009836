"""Where a share group begins in a partition: share.auto.offset.reset.

Sources: KIP-932; Kafka ShareGroupAutoOffsetResetStrategy.
"""

from collections.abc import Sequence
from typing import Final

from sparklog.metadata import SharePlace
from sparklog_server.root.live_root import LiveRoot

LATEST: Final = "latest"
EARLIEST: Final = "earliest"


async def start_offsets(root: LiveRoot, places: Sequence[SharePlace], reset: str) -> dict[SharePlace, int]:
    """Return the offset for each partition that exists.

    Args:
        reset: `latest` or `earliest`.
    """
    await root.look(force=True)  # the newest end
    image = root.image
    found = {}
    for topic_id, number in places:
        topic = image.topic_by_id.get(topic_id)
        if topic is not None and number < len(topic.partitions):
            state = topic.partitions[number]
            found[topic_id, number] = state.log_start_offset if reset == EARLIEST else state.log_end_offset
    return found
