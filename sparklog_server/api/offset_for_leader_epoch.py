"""OffsetForLeaderEpoch (key 23), versions 2-4.

Does: tell where an epoch ended, so that consumers find out whether their log was truncated. It never is: a
    new leader goes on where the old one ended, on the same storage. So every epoch up to the leader's ends
    with the log, as it is now: an older end would look like a truncation to whoever has read on at another
    broker, which is why the metadata log is looked at first. Only a restore from a backup truncates: epochs
    of before end where the partition did then. A later epoch is unknown (-1).
Does not: followers, throttling.
Versions: 2 current leader epoch (KIP-320); 3 replica id; 4 flexible.
"""

from typing import Any

from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.cluster.leadership import NO_EPOCH
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext, error_code
from sparklog_server.protocol.responses import field, make

UNDEFINED = -1


@api(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=range(2, 5))
async def handle_offset_for_leader_epoch(request: Any, context: RequestContext, services: Services) -> Any:
    failure = await services.root.look(force=True)
    refusal = ErrorCode.none if failure is None else error_code(failure)
    if not services.membership.is_in_charge:
        refusal = ErrorCode.not_leader_or_follower
    topics = []
    for topic in request.topics:
        partitions = []
        for one in topic.partitions:
            error, epoch, end_offset = refusal, UNDEFINED, UNDEFINED
            if not refusal:
                error, epoch, end_offset = _end_of_epoch(topic.topic, one, services)
            partitions.append(
                make(
                    context.types.EpochEndOffset,
                    partition=one.partition,
                    error_code=error,
                    leader_epoch=epoch,
                    end_offset=end_offset,
                )
            )
        topics.append(
            make(context.types.OffsetForLeaderTopicResult, topic=topic.topic, partitions=partitions)
        )
    return make(context.types.OffsetForLeaderEpochResponse, topics=topics)


def _end_of_epoch(name: str, one: Any, services: Services) -> tuple[ErrorCode, int, int]:
    topic = services.root.image.topics.get(name)
    if topic is None or not 0 <= one.partition < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition, UNDEFINED, UNDEFINED
    state = topic.partitions[one.partition]
    epoch = services.leadership.leader_of(state).epoch
    error = services.leadership.leader_error(state, field(one, "current_leader_epoch", NO_EPOCH))
    if error is not ErrorCode.none or not 0 <= one.leader_epoch <= epoch:
        return error, UNDEFINED, UNDEFINED
    if one.leader_epoch < services.root.image.incarnation.leader_epoch:
        return ErrorCode.none, one.leader_epoch, state.restored_end_offset
    return ErrorCode.none, one.leader_epoch, state.log_end_offset
