"""Deleting records: moving the start of a partition's log up.

Invariants: judged by the image that the commit follows. As in Kafka, the records of internal topics and of
    topics that are only compacted stay.
Not here: freeing the storage, carrying the parts out (changes.py), Kafka's entities (api/).
Sources: KIP-107; Kafka ReplicaManager.deleteRecordsOnLocalLog.
"""

from sparklog.metadata import Action, Image, is_internal, plan_advance_log_start
from sparklog_server.admin.changes import Part, RefusedError
from sparklog_server.protocol.errors import ErrorCode
from sparklog_server.root.live_root import LiveRoot

HIGH_WATERMARK = -1
TopicPartition = tuple[str, int]


def deletion(root: LiveRoot, key: TopicPartition, offset: int, lows: dict[TopicPartition, int]) -> Part:
    """Of all before an offset; -1: before the high watermark. `lows` takes the log's start as it will be."""

    def plan(image: Image) -> Action | None:
        name, partition = key
        topic = image.topics.get(name)
        if topic is None or not 0 <= partition < len(topic.partitions):
            raise RefusedError(ErrorCode.unknown_topic_or_partition, "there is no such partition")
        if is_internal(name):
            raise RefusedError(ErrorCode.invalid_topic_exception, "the topic is internal")
        if root.topic_config(topic).cleanup_policy == ("compact",):
            raise RefusedError(ErrorCode.policy_violation, "the topic's cleanup.policy is compact")
        state = topic.partitions[partition]
        start = state.log_end_offset if offset == HIGH_WATERMARK else offset
        if not 0 <= start <= state.log_end_offset:
            raise RefusedError(
                ErrorCode.offset_out_of_range, f"found offset {offset}, expected 0 to {state.log_end_offset}"
            )
        lows[key] = max(start, state.log_start_offset)
        return plan_advance_log_start(image, topic.topic_id, partition, start)

    return plan
