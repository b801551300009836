"""OffsetFetch (key 9), versions 1-9.

Does: committed offsets by partition, or (null topics) all of a group; -1 where nothing is committed.
Does not: member epochs of KIP-848. `require_stable` changes nothing: there are no transactions whose offsets
    could still be open.
Errors are told for the group and for each partition that was asked for, also in versions where Kafka tells
    them for the group only: aiokafka looks at the partitions alone, and would start a group anew
    (auto.offset.reset) while its offsets are still being loaded.
Beyond some 60,000 offsets of groups that are asked for as a whole, further groups are answered
    UNKNOWN_SERVER_ERROR: ask for fewer at once.
Versions: 2 all topics, error code; 5 leader epochs; 6 flexible; 7 require_stable (KIP-447); 8 several groups
    (KIP-709).
"""

from operator import itemgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from sparklog.format.consumer_offsets import OffsetValue
from sparklog_server.protocol.answers import in_slices
from sparklog_server.protocol.entities import make
from sparklog_server.protocol.registry import RequestContext, api

if TYPE_CHECKING:
    from sparklog_server.broker import Broker

_GROUPS_SINCE = 8
_PARTITION_BYTES = 500  # while the answer is made
_NOTHING = OffsetValue(offset=-1, commit_timestamp_ms=-1)


@api(key=9, versions=range(1, 10))
async def handle_offset_fetch(request: Any, context: RequestContext, broker: "Broker") -> Any:
    """Answer from memory, each group and partition once."""
    types, version = context.types, context.api_version
    if version >= _GROUPS_SINCE:
        asked = {one.group_id: one for one in request.groups}
        found = {name: _found(context, broker, name, one.topics) for name, one in asked.items()}
        await context.answer.reserve()
        answers = []
        for name, (error, wanted) in found.items():
            topics = await _topics(types, wanted, "Topics", error)
            answers.append(
                make(types.OffsetFetchResponseGroup, group_id=name, topics=topics, error_code=error)
            )
        return make(types.OffsetFetchResponse, groups=answers)
    error, wanted = _found(context, broker, request.group_id, request.topics)
    await context.answer.reserve()
    topics = await _topics(types, wanted, "Topic", error)
    return make(types.OffsetFetchResponse, topics=topics, error_code=error)


_Wanted = dict[str, dict[int, OffsetValue]]  # topic -> partition -> what is committed


def _found(context: RequestContext, broker: "Broker", group_id: str, asked: Any) -> tuple[ErrorCode, _Wanted]:
    """What is to be answered for a group, as of now."""
    error, committed = broker.groups.fetch(group_id)
    wanted: _Wanted = {}
    if asked is None:
        if not context.answer.fits(_PARTITION_BYTES * len(committed)):
            return ErrorCode.unknown_server_error, {}
        for (topic, partition), value in sorted(committed.items(), key=itemgetter(0)):
            wanted.setdefault(topic, {})[partition] = value
        return error, wanted
    for one in asked:
        of_topic = wanted.setdefault(one.name, {})
        for partition in one.partition_indexes:
            of_topic[partition] = committed.get((one.name, partition), _NOTHING)
    context.answer.fits(_PARTITION_BYTES * sum(map(len, wanted.values())))
    return error, wanted


async def _topics(types: ModuleType, wanted: _Wanted, suffix: str, error: ErrorCode) -> list[Any]:
    return [
        make(
            getattr(types, f"OffsetFetchResponse{suffix}"),
            name=name,
            partitions=await in_slices(
                _partition(types, suffix, partition, value, error) for partition, value in found.items()
            ),
        )
        for name, found in wanted.items()
    ]


def _partition(
    types: ModuleType,
    suffix: str,
    partition: int,
    value: OffsetValue,
    error: ErrorCode,
) -> Any:
    return make(
        getattr(types, f"OffsetFetchResponsePartition{suffix.removeprefix('Topic')}"),
        partition_index=partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        error_code=error,
    )
