"""Consumer groups: committed offsets, and how far behind they are, in records and in seconds.

The lag in seconds is the age of the first record that a group has not read. Reading it takes one read of the
storage for each partition, so MAX_READ partitions are looked at for one answer; a record never changes, so
its time is remembered.
Not here: members, which only the group's coordinator knows; changing offsets.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from sparklog.client import CommittedOffset
from sparklog.client.consumer import read_table
from sparklog.console.views import (
    FILTER,
    PAGE,
    Console,
    MissingError,
    Paging,
    Parameter,
    Query,
    Subject,
    View,
    matches,
    paged,
)
from sparklog.errors import SparklogError
from sparklog.metadata import Image

MAX_READ: Final = 100
_RECENT_MS: Final = 2_000  # how old the list of groups may be
TopicPartition = tuple[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRow:
    """What a group has committed for a partition.

    Fields:
        log_start_offset, log_end_offset, lag: null: the topic or the partition was deleted.
        lost: records that were removed before the group read them.
        lag_ms: the age of the first record that it has not read; null: there is none, or it was not read.
    """

    topic: str
    partition: int
    offset: int
    log_start_offset: int | None
    log_end_offset: int | None
    lag: int | None
    lost: int
    lag_ms: int | None
    committed_ms: int
    metadata: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group, over all its partitions.

    Fields:
        deleted_topics: those that are not there any more, or not with all partitions.
        lag: in records.
        lag_ms: the largest of its partitions' that were looked at.
        lost: as in OffsetRow.
        committed_ms: when it last committed.
    """

    group: str
    topics: tuple[str, ...]
    deleted_topics: tuple[str, ...]
    partitions: int
    lag: int
    lag_ms: int | None
    lost: int
    committed_ms: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """The groups that match, those with the largest lag first."""

    paging: Paging
    groups: tuple[GroupRow, ...]
    largest_lag: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage:
    """A group, and its partitions."""

    group: GroupRow
    paging: Paging
    offsets: tuple[OffsetRow, ...]
    largest_lag: int


def group_list(console: Console, query: Query) -> GroupList:
    """Groups that match, in the order that is asked for."""
    found = [one for one in all_groups(console) if matches(one.group, query.filter)]
    sort = query.text("sort", "-lag")
    if sort.removeprefix("-") == "group":
        found.sort(key=lambda one: one.group, reverse=sort.startswith("-"))
    paging, shown = paged(found, query, sort=sort)
    return GroupList(
        paging=paging,
        groups=with_seconds(console, shown),
        largest_lag=max((one.lag for one in found), default=0),
    )


def group_page(console: Console, query: Query) -> GroupPage:
    """One group."""
    image, name = console.image, query.text("group")
    committed = console.log.describe_offsets(name, image=image) if name else {}
    if not committed:
        raise MissingError(f"group {name!r}: it has committed no offsets")
    rows = sorted(_rows(image, committed), key=lambda one: (one.topic, one.partition))
    paging, shown = paged(rows, query)
    offsets = tuple(_with_age(console, image, one) for one in shown)
    whole = _group(name, rows)
    ages = [one.lag_ms for one in offsets if one.lag_ms is not None]
    return GroupPage(
        group=dataclasses.replace(whole, lag_ms=max(ages, default=None)),
        paging=paging,
        offsets=offsets,
        largest_lag=max((one.lag or 0 for one in rows), default=0),
    )


def all_groups(console: Console) -> Sequence[GroupRow]:
    """All groups without the lag in seconds, those with the largest lag in records first."""
    return console.recent("groups", _RECENT_MS, lambda: _all_groups(console))


def _all_groups(console: Console) -> Sequence[GroupRow]:
    image, log = console.image, console.log
    found = [
        _group(name, list(_rows(image, log.describe_offsets(name, image=image)))) for name in log.groups()
    ]
    return sorted(found, key=lambda one: (-one.lag, one.group))


def _group(name: str, rows: Sequence[OffsetRow]) -> GroupRow:
    return GroupRow(
        group=name,
        topics=tuple(sorted({one.topic for one in rows if one.lag is not None})),
        deleted_topics=tuple(sorted({one.topic for one in rows if one.lag is None})),
        partitions=len(rows),
        lag=sum(one.lag or 0 for one in rows),
        lag_ms=None,
        lost=sum(one.lost for one in rows),
        committed_ms=max((one.committed_ms for one in rows), default=-1),
    )


def _rows(image: Image, committed: dict[TopicPartition, CommittedOffset]) -> Iterable[OffsetRow]:
    for (name, number), one in committed.items():
        topic = image.topics.get(name)
        state = None
        if topic is not None and 0 <= number < len(topic.partitions):
            state = topic.partitions[number]
        yield OffsetRow(
            topic=name,
            partition=number,
            offset=one.offset,
            log_start_offset=None if state is None else state.log_start_offset,
            log_end_offset=None if state is None else state.log_end_offset,
            lag=None
            if state is None
            else max(0, state.log_end_offset - max(one.offset, state.log_start_offset)),
            lost=0 if state is None else max(0, state.log_start_offset - one.offset),
            lag_ms=None,
            committed_ms=one.commit_timestamp_ms,
            metadata=one.metadata,
        )


def with_seconds(console: Console, rows: Sequence[GroupRow]) -> tuple[GroupRow, ...]:
    """Add the lag in seconds, of the partitions with the largest lag, as many as MAX_READ allows."""
    image, found, left = console.image, [], MAX_READ
    for row in rows:
        ages = []
        if row.lag and left > 0:
            offsets = _rows(image, console.log.describe_offsets(row.group, image=image))
            behind = sorted((one for one in offsets if one.lag), key=lambda one: -(one.lag or 0))[:left]
            left -= len(behind)
            ages = [_with_age(console, image, one).lag_ms for one in behind]
        known = [age for age in ages if age is not None]
        found.append(dataclasses.replace(row, lag_ms=max(known, default=None)))
    return tuple(found)


def _with_age(console: Console, image: Image, row: OffsetRow) -> OffsetRow:
    if not row.lag or row.log_start_offset is None:
        return row
    start = max(row.offset, row.log_start_offset)
    topic_id = image.topics[row.topic].topic_id
    time_ms = console.fact(
        ("time", topic_id, row.partition, start), lambda: _time_of(console, image, row, start)
    )
    return row if time_ms is None else dataclasses.replace(row, lag_ms=max(0, console.now_ms - time_ms))


def _time_of(console: Console, image: Image, row: OffsetRow, start: int) -> int | None:
    try:
        found = read_table(console.log.metadata, image, row.topic, row.partition, start, max_records=1)
    except SparklogError:
        return None  # expired or deleted meanwhile
    return found.column("timestamp").cast("int64")[0].as_py() if found.num_rows else None


SUBJECT = Subject(
    title="Groups",
    views=(
        View(
            path="/groups",
            template="groups.html",
            data=group_list,
            doc="Consumer groups with their lag in records and seconds.",
            parameters=(FILTER, PAGE, Parameter("sort", "-lag or group.")),
        ),
        View(
            path="/group",
            template="group.html",
            data=group_page,
            doc="A group: its committed offsets and lag by partition.",
            parameters=(Parameter("group", "Its name."), PAGE),
        ),
    ),
)
