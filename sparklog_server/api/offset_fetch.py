"""OffsetFetch (key 9), versions 1-9.

Does: committed offsets by partition, or (null topics) all of a group; -1 where nothing is committed. With
    `require_stable` UNSTABLE_OFFSET_COMMIT for those that an open transaction may be about to commit: who is
    told so asks again. What a transaction has committed, as far as this broker knows, is waited for, 1.5 s at
    most, whoever asks.
Does not: member epochs of KIP-848.
Errors are told for the group and for each partition that was asked for, also in versions where Kafka tells
    them for the group only: aiokafka looks at the partitions alone, and would start a group anew
    (auto.offset.reset) while its offsets are still being loaded.
Beyond some 60,000 offsets, further groups are answered UNKNOWN_SERVER_ERROR: ask for fewer at once.
Versions: 2 all topics, error code; 5 leader epochs; 6 flexible; 7 require_stable (KIP-447); 8 several groups
    (KIP-709).
"""

from collections.abc import Callable, Container, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from sparklog.format.consumer_offsets import OffsetValue
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.groups.offsets import TopicPartition
from sparklog_server.protocol.apis import ApiKey, ErrorCode, RequestContext
from sparklog_server.protocol.responses import field, make, maker
from sparklog_server.protocol.wire import SLICE, Pace, in_slices
from sparklog_server.runtime.lifecycle import in_turns

_GROUPS_SINCE = 8
_PARTITION_BYTES = 500  # while the answer is made
_SORTED_AT_ONCE = 16  # take as long as it takes to make one
_NOTHING = OffsetValue(offset=-1, commit_timestamp_ms=-1)


@api(ApiKey.OFFSET_FETCH, versions=range(1, 10))
async def handle_offset_fetch(request: Any, context: RequestContext, services: Services) -> Any:
    """Answer from memory, each group and partition once."""
    types, version = context.types, context.api_version
    asked: _Asked = (
        {request.group_id: request.topics}
        if version < _GROUPS_SINCE
        else {one.group_id: one.topics for one in request.groups}
    )
    await services.groups.staged.settled(asked, context.answer.give_way)  # while no room is held
    counts = await in_slices(_count_of(services, name, topics) for name, topics in asked.items())
    counted = dict(zip(asked, counts, strict=True))
    fitting = {name for name, count in counted.items() if context.answer.fits(_PARTITION_BYTES * count)}
    await context.answer.reserve()  # before anything is made: a hundred may ask at once
    must_be_stable = field(request, "require_stable", False)
    maker_of = _Makers(types, "Topic" if version < _GROUPS_SINCE else "Topics")
    pace = Pace()
    answers: list[Any] = []
    for names in in_turns(counted, lambda name: 1 + counted[name], SLICE):
        some = [name for name in names if name in fitting]
        found = dict(zip(some, _found(services, some, asked, must_be_stable=must_be_stable), strict=True))
        for name in names:
            error, wanted = found.get(name, _TOO_LARGE)
            if not isinstance(wanted, dict):
                wanted = await _by_topic(wanted, pace)
            told = await _topics(wanted, error, maker_of.topic, pace)
            if version < _GROUPS_SINCE:
                return make(types.OffsetFetchResponse, topics=told, error_code=error)
            answers.append(maker_of.group(error)(name, told))
    return make(types.OffsetFetchResponse, groups=answers)


_Asked = dict[str, Any]  # group -> topics, None: all
_Wanted = dict[str, dict[int, OffsetValue | None]]  # topic -> partition -> what is committed; None: unstable
_All = list[tuple[TopicPartition, OffsetValue | None]]  # the same of a whole group, as it is found


_TOO_LARGE: tuple[ErrorCode, _Wanted | _All] = (ErrorCode.unknown_server_error, {})


def _count_of(services: Services, group_id: str, asked: Any) -> int:
    """How many offsets a group's answer has."""
    if asked is None:
        return services.groups.committed_count(group_id)
    return sum(len(topic.partition_indexes) for topic in asked)


def _found(
    services: Services, names: Sequence[str], asked: _Asked, *, must_be_stable: bool
) -> Iterator[tuple[ErrorCode, _Wanted | _All]]:
    """What is to be answered for groups, as of now: of 36,000 offsets 4 ms, and all else in later turns."""
    for name, (error, committed) in zip(names, services.groups.fetch_all(names), strict=True):
        unstable: Container[TopicPartition] = ()
        if must_be_stable and not error:
            unstable = services.groups.staged.unstable(name)
        if asked[name] is None:
            yield error, [(at, None if at in unstable else value) for at, value in committed.items()]
            continue
        wanted: _Wanted = {}
        for one in asked[name]:
            of_topic = wanted.setdefault(one.name, {})
            for partition in one.partition_indexes:
                place = one.name, partition
                of_topic[partition] = None if place in unstable else committed.get(place, _NOTHING)
        yield error, wanted


async def _by_topic(found: _All, pace: Pace) -> _Wanted:
    """Of a whole group, in order, with turns for others."""
    topics: _Wanted = {}
    for first in range(0, len(found), SLICE):
        some = found[first : first + SLICE]
        for (topic, partition), value in some:
            topics.setdefault(topic, {})[partition] = value
        await pace.made(len(some))
    wanted: _Wanted = {}
    for topic in sorted(topics):
        wanted[topic] = dict(sorted(topics[topic].items()))
        await pace.made(len(topics[topic]) // _SORTED_AT_ONCE)
    return wanted


class _Partition(NamedTuple):
    """What is written of one, in every version; kio's entity would take ten times as long to make."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    metadata: str | None
    error_code: ErrorCode


class _Makers:
    """What makes topics, and groups by their error: thousands have the same."""

    def __init__(self, types: ModuleType, suffix: str) -> None:
        self._types = types
        self._groups: dict[ErrorCode, Callable[..., Any]] = {}
        self.topic = maker(getattr(types, f"OffsetFetchResponse{suffix}"), "name", "partitions")

    def group(self, error: ErrorCode) -> Callable[..., Any]:
        """Of an id and topics."""
        if error not in self._groups:
            kind = self._types.OffsetFetchResponseGroup
            self._groups[error] = maker(kind, "group_id", "topics", error_code=error)
        return self._groups[error]


async def _topics(
    wanted: _Wanted, error: ErrorCode, topic: Callable[..., Any], pace: Pace
) -> tuple[Any, ...]:
    told = []
    for name, found in wanted.items():
        partitions = await in_slices(_told(number, value, error) for number, value in found.items())
        told.append(topic(name, tuple(partitions)))
        await pace.made(1 + len(partitions) % SLICE)
    await pace.made(1)
    return tuple(told)


def _told(number: int, value: OffsetValue | None, error: ErrorCode) -> _Partition:
    if value is None:
        value, error = _NOTHING, ErrorCode.unstable_offset_commit
    return _Partition(number, value.offset, value.leader_epoch, value.metadata, error)
