"""Share groups as the root knows them: where they are in each partition; and changes without a broker.

Not here: their members, which only a coordinator knows (group_coordinators.py).
Concurrency: any thread.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from sparklog.client.log import SparkLog
from sparklog.metadata import Action, Image, plan_begin_share, plan_forget_share

TopicPartition = tuple[str, int]


class ShareOffset(NamedTuple):
    """A share group in a partition; `lag`: the records that have not ended."""

    start_offset: int
    log_end_offset: int
    lag: int


def share_offsets(image: Image, group: str) -> dict[TopicPartition, ShareOffset]:
    """Return where a share group is; nothing for other groups."""
    found = {}
    for (topic_id, partition), state in image.shares.get(group, {}).items():
        topic = image.topic_by_id[topic_id]
        log = topic.partitions[partition]
        start = max(state.start_offset, log.log_start_offset)
        lag = max(0, log.log_end_offset - start - state.ended_count)
        found[topic.name, partition] = ShareOffset(start, log.log_end_offset, lag)
    return dict(sorted(found.items()))


def reset_share_offsets(log: SparkLog, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Let a share group begin anew at these offsets; no broker must serve the root.

    Raises:
        UnknownTopicError: a partition is gone.
        RetriableError, StorageError: perhaps not done.
    """

    def plan(image: Image) -> list[Action]:
        starts = {(image.topic(topic).topic_id, number): at for (topic, number), at in offsets.items()}
        return [*plan_begin_share(image, group, starts, is_reset=True)]

    log.metadata.publish(plan)


def forget_share_group(log: SparkLog, group: str, topics: Collection[str] = ()) -> bool:
    """Forget a share group in topics (names) or altogether; False: it is not known there. As above."""
    is_known = False

    def plan(image: Image) -> list[Action]:
        nonlocal is_known
        ids = [image.topics[name].topic_id for name in topics if name in image.topics]
        action = plan_forget_share(image, group, ids) if ids or not topics else None
        is_known = action is not None
        return [] if action is None else [action]

    log.metadata.publish(plan)
    return is_known
