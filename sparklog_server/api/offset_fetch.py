"""OffsetFetch (key 9), versions 1-9.

Does: committed offsets by partition, or (null topics) all of a group; -1 where nothing is committed.
Does not: member epochs of KIP-848. `require_stable` changes nothing: there are no transactions whose offsets
    could still be open.
Errors are told for the group and for each partition that was asked for, also in versions where Kafka tells
    them for the group only: aiokafka looks at the partitions alone, and would start a group anew
    (auto.offset.reset) while its offsets are still being loaded.
Versions: 2 all topics, error code; 5 leader epochs; 6 flexible; 7 require_stable (KIP-447); 8 several groups
    (KIP-709).
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from sparklog.format.consumer_offsets import OffsetValue
from sparklog_server.protocol.entities import make
from sparklog_server.protocol.registry import RequestContext, api

if TYPE_CHECKING:
    from sparklog_server.broker import Broker

_GROUPS_SINCE = 8
_NOTHING = OffsetValue(offset=-1, commit_timestamp_ms=-1)


@api(key=9, versions=range(1, 10))
async def handle_offset_fetch(request: Any, context: RequestContext, broker: "Broker") -> Any:
    """Answer from memory."""
    types, version = context.types, context.api_version
    if version >= _GROUPS_SINCE:
        answers = []
        for one in request.groups:
            error, topics = _topics(types, broker, one.group_id, one.topics, "Topics")
            answers.append(
                make(types.OffsetFetchResponseGroup, group_id=one.group_id, topics=topics, error_code=error)
            )
        return make(types.OffsetFetchResponse, groups=answers)
    error, topics = _topics(types, broker, request.group_id, request.topics, "Topic")
    return make(types.OffsetFetchResponse, topics=topics, error_code=error)


def _topics(
    types: ModuleType, broker: "Broker", group_id: str, asked: Any, suffix: str
) -> tuple[ErrorCode, list[Any]]:
    error, committed = broker.groups.fetch(group_id)
    wanted: Iterable[tuple[str, Iterable[int]]]
    if asked is None:
        wanted = [
            (topic, [partition for _, partition in partitions])
            for topic, partitions in groupby(sorted(committed), key=itemgetter(0))
        ]
    else:
        wanted = [(topic.name, topic.partition_indexes) for topic in asked]
    return error, [
        make(
            getattr(types, f"OffsetFetchResponse{suffix}"),
            name=name,
            partitions=[
                _partition(types, suffix, committed, name, partition, error) for partition in partitions
            ],
        )
        for name, partitions in wanted
    ]


def _partition(
    types: ModuleType,
    suffix: str,
    committed: Mapping[tuple[str, int], OffsetValue],
    topic: str,
    partition: int,
    error: ErrorCode,
) -> Any:
    value = committed.get((topic, partition), _NOTHING)
    return make(
        getattr(types, f"OffsetFetchResponsePartition{suffix.removeprefix('Topic')}"),
        partition_index=partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        error_code=error,
    )
