"""OffsetFetch (key 9), versions 1-9.

Does: committed offsets by partition, or (null topics) all of a group; -1 where nothing is committed. With
    `require_stable` UNSTABLE_OFFSET_COMMIT for those that an open transaction may be about to commit: who is
    told so asks again.
Does not: member epochs of KIP-848.
Errors are told for the group and for each partition that was asked for, also in versions where Kafka tells
    them for the group only: aiokafka looks at the partitions alone, and would start a group anew
    (auto.offset.reset) while its offsets are still being loaded.
Beyond some 60,000 offsets, further groups are answered UNKNOWN_SERVER_ERROR: ask for fewer at once.
Versions: 2 all topics, error code; 5 leader epochs; 6 flexible; 7 require_stable (KIP-447); 8 several groups
    (KIP-709).
"""

from collections.abc import Container
from operator import itemgetter
from types import ModuleType
from typing import Any

from sparklog.format.consumer_offsets import OffsetValue
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.groups.committed_offsets import TopicPartition
from sparklog_server.protocol.answers import in_slices
from sparklog_server.protocol.api_entry import RequestContext
from sparklog_server.protocol.api_keys import ApiKey
from sparklog_server.protocol.entities import field, make, maker
from sparklog_server.protocol.errors import ErrorCode

_GROUPS_SINCE = 8
_PARTITION_BYTES = 500  # while the answer is made
_NOTHING = OffsetValue(offset=-1, commit_timestamp_ms=-1)


@api(ApiKey.OFFSET_FETCH, versions=range(1, 10))
async def handle_offset_fetch(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer from memory, each group and partition once."""
    types, version = context.types, context.api_version
    asked = (
        {request.group_id: request.topics}
        if version < _GROUPS_SINCE
        else {one.group_id: one.topics for one in request.groups}
    )
    fitting = {
        name for name, topics in asked.items() if context.answer.fits(_size_of(services, name, topics))
    }
    await context.answer.reserve()  # before anything is made: a hundred may ask at once
    answers = []
    for name, topics in asked.items():
        stable = field(request, "require_stable", False)
        error, wanted = (
            _found(services, name, topics, must_be_stable=stable)
            if name in fitting
            else (ErrorCode.unknown_server_error, {})
        )
        if version < _GROUPS_SINCE:
            told = await _topics(types, wanted, "Topic", error)
            return make(types.OffsetFetchResponse, topics=told, error_code=error)
        told = await _topics(types, wanted, "Topics", error)
        answers.append(make(types.OffsetFetchResponseGroup, group_id=name, topics=told, error_code=error))
    return make(types.OffsetFetchResponse, groups=answers)


_Wanted = dict[str, dict[int, OffsetValue | None]]  # topic -> partition -> what is committed; None: unstable


_TOO_LARGE: tuple[ErrorCode, _Wanted] = (ErrorCode.unknown_server_error, {})


def _size_of(services: Services, group_id: str, asked: Any) -> int:
    """About what a group's answer takes while it is made."""
    if asked is None:
        return _PARTITION_BYTES * len(services.groups.fetch(group_id)[1])
    return _PARTITION_BYTES * sum(len(topic.partition_indexes) for topic in asked)


def _found(
    services: Services, group_id: str, asked: Any, *, must_be_stable: bool
) -> tuple[ErrorCode, _Wanted]:
    """What is to be answered for a group, as of now."""
    error, committed = services.groups.fetch(group_id)
    unstable: Container[TopicPartition] = ()
    if must_be_stable and not error:
        unstable = services.groups.staged.unstable(group_id)
    wanted: _Wanted = {}
    if asked is None:
        for place, value in sorted(committed.items(), key=itemgetter(0)):
            wanted.setdefault(place[0], {})[place[1]] = None if place in unstable else value
        return error, wanted
    for one in asked:
        of_topic = wanted.setdefault(one.name, {})
        for partition in one.partition_indexes:
            place = one.name, partition
            of_topic[partition] = None if place in unstable else committed.get(place, _NOTHING)
    return error, wanted


async def _topics(types: ModuleType, wanted: _Wanted, suffix: str, error: ErrorCode) -> list[Any]:
    kind = getattr(types, f"OffsetFetchResponsePartition{suffix.removeprefix('Topic')}")
    nothing = maker(kind, "partition_index", **_told(_NOTHING, error))
    unstable = maker(kind, "partition_index", **_told(_NOTHING, ErrorCode.unstable_offset_commit))
    return [
        make(
            getattr(types, f"OffsetFetchResponse{suffix}"),
            name=name,
            partitions=await in_slices(
                unstable(partition)
                if value is None
                else nothing(partition)
                if value is _NOTHING
                else _partition(kind, partition, value, error)
                for partition, value in found.items()
            ),
        )
        for name, found in wanted.items()
    ]


def _partition(kind: type, partition: int, value: OffsetValue, error: ErrorCode) -> Any:
    return make(kind, partition_index=partition, **_told(value, error))


def _told(value: OffsetValue, error: ErrorCode) -> dict[str, Any]:
    return {
        "committed_offset": value.offset,
        "committed_leader_epoch": value.leader_epoch,
        "metadata": value.metadata,
        "error_code": error,
    }
