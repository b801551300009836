"""What a fetch may read of a partition here: by who this broker is to it, and by what its image knows.

|this broker|serves|
|leads it|everybody; names a replica in the consumer's rack instead, if it is to and knows one (KIP-392)|
|has a replica|consumers that may be sent to one (Fetch from version 11 on), as far as its image goes|
|neither|nobody: NOT_LEADER_OR_FOLLOWER|

An offset beyond the log's end is out of range only if the image was the newest when the consumer asked:
1. a consumer reads at broker B, to offset 100, and comes to A, whose image ends at 90;
2. A says OFFSET_OUT_OF_RANGE, and the consumer does what auto.offset.reset says: to it, 100 records are lost,
   or come again.
So the log is looked at first, and everything is checked again. If that fails, nobody knows: the consumer
shall ask again who leads. A replica never says out of range: it sends the consumer to the leader, as Kafka's.

Invariants: pure, for one image.
Not here: looking at the log, waiting, reading (service.py).
Concurrency: any thread.
Sources: KIP-392; Kafka Partition.readRecords, ReplicaManager.findPreferredReadReplica,
    RackAwareReplicaSelector.
"""

from dataclasses import dataclass

from sparklog.metadata import NO_NODE, Image, PartitionState
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.fetch.response import PartitionAnswer
from sparklog_server.fetch.sessions import PartitionFetch
from sparklog_server.fetch.waiting import countable_bytes
from sparklog_server.protocol.errors import ErrorCode


@dataclass(slots=True)
class Wanted:
    """A partition of a fetch, as it is to be answered.

    Fields:
        readable: bytes, as far as they matter for min_bytes; 0: nothing.
        is_unsure: a newer image may say otherwise.
    """

    fetch: PartitionFetch
    state: PartitionState | None
    answer: PartitionAnswer
    readable: int = 0
    is_unsure: bool = False


def check(
    image: Image,
    leadership: Leadership,
    fetch: PartitionFetch,
    *,
    min_bytes: int,
    rack: str | None,
    is_rack_aware: bool,
) -> Wanted:
    """A partition of a fetch against an image.

    Args:
        rack: of the consumer, "" if it has none; None: it must be served by leaders.
        is_rack_aware: are consumers sent to replicas in their racks?
    """
    topic_id = fetch.topic_id
    topic = image.topic_by_id.get(topic_id) if topic_id else image.topics.get(fetch.topic)
    name = fetch.topic if topic is None else topic.name
    answer = PartitionAnswer(topic=name, topic_id=topic_id, partition=fetch.partition)
    if topic is None or not 0 <= fetch.partition < len(topic.partitions):
        is_id_unknown = topic is None and topic_id
        answer.error_code = (
            ErrorCode.unknown_topic_id if is_id_unknown else ErrorCode.unknown_topic_or_partition
        ).value
        return Wanted(fetch, None, answer)
    state = topic.partitions[fetch.partition]
    leader = leadership.leader_of(state)
    error = leader.epoch_error(fetch.leader_epoch)
    if error:
        answer.error_code = error.value
        return Wanted(fetch, None, answer, is_unsure=error is ErrorCode.unknown_leader_epoch)
    is_leader = leader.node_id == leadership.node_id
    if not is_leader and (rack is None or leadership.node_id not in state.leadership.replicas):
        answer.error_code = ErrorCode.not_leader_or_follower.value
        return Wanted(fetch, None, answer)
    answer.tell(state)
    is_beyond = fetch.offset > state.log_end_offset
    if is_beyond or fetch.offset < state.log_start_offset:
        can_tell = is_leader or not is_beyond
        answer.error_code = (
            ErrorCode.offset_out_of_range if can_tell else ErrorCode.offset_not_available
        ).value
        return Wanted(fetch, state, answer, is_unsure=is_beyond)
    if is_leader and rack and is_rack_aware:
        answer.preferred_read_replica = preferred_replica(image, state, rack)
        if answer.preferred_read_replica != NO_NODE:
            return Wanted(fetch, state, answer)
    return Wanted(fetch, state, answer, countable_bytes(state, fetch, min_bytes))


def preferred_replica(image: Image, state: PartitionState, rack: str) -> int:
    """A replica in the rack, unless the leader is there, too; NO_NODE: the leader serves.

    Several share the partitions.
    """
    brokers, leadership = image.brokers, state.leadership
    leader = brokers.get(leadership.leader)
    if leader is None or leader.rack == rack:
        return NO_NODE
    there = [
        one.node_id
        for one in map(brokers.get, leadership.replicas)
        if one is not None and one.rack == rack and not (one.is_fenced or one.in_controlled_shutdown)
    ]
    return there[state.partition % len(there)] if there else NO_NODE
