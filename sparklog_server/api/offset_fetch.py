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
from operator import itemgetter
from types import ModuleType
from typing import Any, NamedTuple

from sparklog.format.consumer_offsets import OffsetValue
from sparklog_server.api.registry import api
from sparklog_server.api.services import Services
from sparklog_server.groups.committed_offsets import TopicPartition
from sparklog_server.protocol.answers import SLICE, Pace, in_slices
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
    for names in _together(counted):
        some = [name for name in names if name in fitting]
        found = dict(zip(some, _found(services, some, asked, must_be_stable=must_be_stable), strict=True))
        for name in names:
            error, wanted = found.get(name, _TOO_LARGE)
            told = await _topics(wanted, maker_of.topics(error), pace)
            if version < _GROUPS_SINCE:
                return make(types.OffsetFetchResponse, topics=told, error_code=error)
            answers.append(maker_of.group(error)(name, told))
    return make(types.OffsetFetchResponse, groups=answers)


_Asked = dict[str, Any]  # group -> topics, None: all
_Wanted = dict[str, dict[int, OffsetValue | None]]  # topic -> partition -> what is committed; None: unstable


_TOO_LARGE: tuple[ErrorCode, _Wanted] = (ErrorCode.unknown_server_error, {})


def _count_of(services: Services, group_id: str, asked: Any) -> int:
    """How many offsets a group's answer has."""
    if asked is None:
        return services.groups.committed_count(group_id)
    return sum(len(topic.partition_indexes) for topic in asked)


def _together(counted: dict[str, int]) -> Iterator[list[str]]:
    """Groups of which to find the offsets in one turn: what they need to know they share."""
    some: list[str] = []
    found = 0
    for name, count in counted.items():
        some.append(name)
        found += 1 + count
        if found >= SLICE:
            yield some
            some, found = [], 0
    if some:
        yield some


def _found(
    services: Services, names: Sequence[str], asked: _Asked, *, must_be_stable: bool
) -> Iterator[tuple[ErrorCode, _Wanted]]:
    """What is to be answered for groups, as of now."""
    for name, (error, committed) in zip(names, services.groups.fetch_all(names), strict=True):
        unstable: Container[TopicPartition] = ()
        if must_be_stable and not error:
            unstable = services.groups.staged.unstable(name)
        wanted: _Wanted = {}
        if asked[name] is None:
            for place, value in sorted(committed.items(), key=itemgetter(0)):
                wanted.setdefault(place[0], {})[place[1]] = None if place in unstable else value
        else:
            for one in asked[name]:
                of_topic = wanted.setdefault(one.name, {})
                for partition in one.partition_indexes:
                    place = one.name, partition
                    of_topic[partition] = None if place in unstable else committed.get(place, _NOTHING)
        yield error, wanted


class _TopicMakers(NamedTuple):
    """What makes topics, and partitions: with an offset, without one, and with one that may change soon."""

    topic: Callable[..., Any]
    partition: Callable[..., Any]
    nothing: Callable[..., Any]
    unstable: Callable[..., Any]


class _Makers:
    """What makes groups, and what is in them, by their error: thousands have the same."""

    def __init__(self, types: ModuleType, suffix: str) -> None:
        self._types = types
        self._suffix = suffix
        self._groups: dict[ErrorCode, Callable[..., Any]] = {}
        self._topics: dict[ErrorCode, _TopicMakers] = {}

    def group(self, error: ErrorCode) -> Callable[..., Any]:
        """Of an id and topics."""
        if error not in self._groups:
            kind = self._types.OffsetFetchResponseGroup
            self._groups[error] = maker(kind, "group_id", "topics", error_code=error)
        return self._groups[error]

    def topics(self, error: ErrorCode) -> _TopicMakers:
        """What is in such a group."""
        if error not in self._topics:
            kind = getattr(self._types, f"OffsetFetchResponsePartition{self._suffix.removeprefix('Topic')}")
            nothing = _told(_NOTHING, error)
            unstable = _told(_NOTHING, ErrorCode.unstable_offset_commit)
            self._topics[error] = _TopicMakers(
                maker(getattr(self._types, f"OffsetFetchResponse{self._suffix}"), "name", "partitions"),
                lambda number, value: make(kind, partition_index=number, **_told(value, error)),
                maker(kind, "partition_index", **nothing),
                maker(kind, "partition_index", **unstable),
            )
        return self._topics[error]


async def _topics(wanted: _Wanted, makers: _TopicMakers, pace: Pace) -> tuple[Any, ...]:
    told = []
    for name, found in wanted.items():
        partitions = await in_slices(
            makers.unstable(partition)
            if value is None
            else makers.nothing(partition)
            if value is _NOTHING
            else makers.partition(partition, value)
            for partition, value in found.items()
        )
        told.append(makers.topic(name, tuple(partitions)))
        await pace.made(1 + len(partitions) % SLICE)
    await pace.made(1)
    return tuple(told)


def _told(value: OffsetValue, error: ErrorCode) -> dict[str, Any]:
    return {
        "committed_offset": value.offset,
        "committed_leader_epoch": value.leader_epoch,
        "metadata": value.metadata,
        "error_code": error,
    }
