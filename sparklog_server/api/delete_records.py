"""DeleteRecords (key 21), versions 0-2.

Does: move the log's start up to an offset, or to the high watermark (-1); all partitions in one commit, each
    judged by the image that the commit follows.
Does not: free the storage (retention does), throttling; time out: the request's time-out is for replicas to
    follow, of which there are none. As in Kafka, the records of internal topics (INVALID_TOPIC_EXCEPTION) and
    of topics that are only compacted (POLICY_VIOLATION) stay.
Versions: 2 flexible.
"""

import logging
from typing import Any

from sparklog_server.admin.changes import Part, TopicPartition, deletion
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import make

NONE = -1
_log = logging.getLogger("sparklog_server.fetch")


@api(ApiKey.DELETE_RECORDS, versions=range(3))
async def handle_delete_records(request: Any, context: RequestContext, services: Services) -> Any:
    """Plan every partition by itself; one commit for all that can be."""
    lows: dict[TopicPartition, int] = {}
    parts: dict[TopicPartition, Part] = {}
    for topic in request.topics:
        for one in topic.partitions:
            key = topic.name, one.partition_index
            parts[key] = deletion(services.root, key, one.offset, lows)
    outcomes = await services.changes.make(parts, fenced=ErrorCode.not_leader_or_follower)
    refused = {key: outcome.message for key, outcome in outcomes.items() if outcome.is_error}
    if refused:  # a line for a request, whatever its size; the answer has codes only
        (name, partition), why = next(iter(refused.items()))
        _log.info("delete records: %d refused, %r-%d first: %s", len(refused), name[:100], partition, why)
    types = context.types
    return make(
        types.DeleteRecordsResponse,
        topics=[
            make(
                types.DeleteRecordsTopicResult,
                name=topic.name,
                partitions=[
                    _result(types, one.partition_index, outcomes[key].code, lows.get(key, NONE))
                    for one in topic.partitions
                    for key in [(topic.name, one.partition_index)]
                ],
            )
            for topic in request.topics
        ],
    )


def _result(types: Any, partition: int, error: ErrorCode, low_watermark: int) -> Any:
    return make(
        types.DeleteRecordsPartitionResult,
        partition_index=partition,
        low_watermark=NONE if error else low_watermark,
        error_code=error,
    )
