"""Consumer groups: committed offsets, and how far behind they are, in records and in time, now and before.

The lag in records is the log's end less the committed offset, as in Kafka's tools. The lag in time is read
from the storage (client/lag.py), of at most MAX_READ partitions for one answer. The last hour comes from the
samples that the console takes while it runs.
Not here: changing offsets (group_changes.py).
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from sparklog.client import CommittedOffset
from sparklog.client.groups import TopicPartition
from sparklog.client.lag import LagPoint, lag_seconds
from sparklog.console.group_members import GroupMembers, group_members, groups_of_brokers
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
from sparklog.metadata import Image

MAX_READ: Final = 100
_RECENT_MS: Final = 2_000  # how old the list of groups may be
_MINUTE_MS: Final = 60_000
MINUTES: Final = 60


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRow:
    """What a group has committed for a partition.

    Fields:
        log_start_offset, log_end_offset, lag: null: the topic or the partition was deleted.
        lost: how much of the lag was removed before the group read it.
        lag_ms: the age of the first record that it has not read; null: there is none, or it was not read.
        consumed_per_second: records, in the last minute; null: not known yet.
    """

    topic: str
    partition: int
    offset: int
    log_start_offset: int | None
    log_end_offset: int | None
    lag: int | None
    lost: int
    lag_ms: int | None
    consumed_per_second: float | None
    committed_ms: int
    metadata: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group, over all its partitions.

    Fields:
        type: classic, or consumer (KIP-848).
        deleted_topics: those that are not there any more, or not with all partitions.
        lag: in records.
        lag_ms: the largest of those of its partitions that were read.
        lost: as in OffsetRow.
        committed_ms: when it last committed.
        consumed_per_second: as in OffsetRow.
        lag_minutes: the largest lag in each of the last MINUTES minutes, the current one last; null: there
            is no sample.
    """

    group: str
    type: str
    topics: tuple[str, ...]
    deleted_topics: tuple[str, ...]
    partitions: int
    lag: int
    lag_ms: int | None
    lost: int
    committed_ms: int
    consumed_per_second: float | None
    lag_minutes: tuple[int | None, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """The groups that match, those with the largest lag first."""

    paging: Paging
    groups: tuple[GroupRow, ...]
    largest_lag: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage:
    """A group, its members and its partitions.

    Fields:
        consumed_minutes, produced_minutes: records per second, in minutes as of GroupRow.lag_minutes.
    """

    group: GroupRow
    paging: Paging
    offsets: tuple[OffsetRow, ...]
    largest_lag: int
    consumed_minutes: tuple[float | None, ...]
    produced_minutes: tuple[float | None, ...]
    members: GroupMembers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupHistory:
    """The last hour of a group, as far as the console has run, oldest first.

    Fields:
        interval_ms: between points.
        points: of all partitions together, or of the one that was asked for.
    """

    group: str
    interval_ms: int
    points: tuple[LagPoint, ...]


def group_list(console: Console, query: Query) -> GroupList:
    """Groups that match, in the order that is asked for."""
    found = [one for one in all_groups(console) if matches(one.group, query.filter)]
    sort = query.text("sort", "-lag")
    if sort.removeprefix("-") == "group":
        found.sort(key=lambda one: one.group, reverse=sort.startswith("-"))
    paging, shown = paged(found, query, sort=sort)
    return GroupList(
        paging=paging,
        groups=with_time_and_history(console, shown),
        largest_lag=max((one.lag for one in found), default=0),
    )


def group_page(console: Console, query: Query) -> GroupPage:
    """One group."""
    image, name = console.image, query.text("group")
    committed = console.log.describe_offsets(name, image=image) if name else {}
    members = group_members(console, image, name) if name else GroupMembers(is_served=False)
    if not committed and not members.members:
        raise MissingError(f"group {name!r}: it has committed no offsets")
    rows = sorted(_rows(image, committed), key=lambda one: (one.topic, one.partition))
    paging, shown = paged(rows, query)
    ages = _ages(console, image, shown)
    since_ms = console.now_ms - _MINUTE_MS
    points = console.history.points(name)
    minutes = _minutes(console, points)
    group = _group(name, rows, console.log.consumer_groups(image=image))
    return GroupPage(
        group=_with_history(console, group, points, max(ages.values(), default=None)),
        paging=paging,
        offsets=tuple(
            dataclasses.replace(
                one,
                lag_ms=ages.get(_place(one)),
                consumed_per_second=_mean(
                    point.consumed_per_second
                    for point in console.history.points(name, (one.topic, one.partition), since_ms=since_ms)
                ),
            )
            for one in shown
        ),
        largest_lag=max((one.lag or 0 for one in rows), default=0),
        consumed_minutes=tuple(_mean(one.consumed_per_second for one in minute) for minute in minutes),
        produced_minutes=tuple(_mean(one.produced_per_second for one in minute) for minute in minutes),
        members=members,
    )


def group_history(console: Console, query: Query) -> GroupHistory:
    """The last hour of one group."""
    name, topic = query.name("group"), query.text("topic")
    history = console.history
    if name not in history.groups() and name not in {one.group for one in all_groups(console)}:
        raise MissingError(f"group {name!r}: it has committed no offsets")
    at = (topic, query.number("partition", 0)) if topic else None
    return GroupHistory(
        group=name,
        interval_ms=history.interval_ms,
        points=tuple(history.points(name, at, since_ms=query.number("since_ms", 0))),
    )


def all_groups(console: Console) -> Sequence[GroupRow]:
    """All groups without the lag in seconds, those with the largest lag in records first."""
    return console.recent("groups", _RECENT_MS, lambda: _all_groups(console))


def _all_groups(console: Console) -> Sequence[GroupRow]:
    image, log = console.image, console.log
    of_consumers = log.consumer_groups(image=image)
    found = [
        _group(name, list(_rows(image, log.describe_offsets(name, image=image))), of_consumers)
        for name in {*log.groups(), *groups_of_brokers(console, image)}
    ]
    return sorted(found, key=lambda one: (-one.lag, one.group))


def _group(name: str, rows: Sequence[OffsetRow], of_consumers: Collection[str]) -> GroupRow:
    return GroupRow(
        group=name,
        type="consumer" if name in of_consumers else "classic",
        topics=tuple(sorted({one.topic for one in rows if one.lag is not None})),
        deleted_topics=tuple(sorted({one.topic for one in rows if one.lag is None})),
        partitions=len(rows),
        lag=sum(one.lag or 0 for one in rows),
        lag_ms=None,
        lost=sum(one.lost for one in rows),
        committed_ms=max((one.committed_ms for one in rows), default=-1),
        consumed_per_second=None,
        lag_minutes=(),
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
            lag=None if state is None else state.lag(one.offset),
            lost=0 if state is None else max(0, state.log_start_offset - one.offset),
            lag_ms=None,
            consumed_per_second=None,
            committed_ms=one.commit_timestamp_ms,
            metadata=one.metadata,
        )


def with_time_and_history(console: Console, rows: Sequence[GroupRow]) -> tuple[GroupRow, ...]:
    """Add the last hour, and the lag in time of the partitions with the largest lag, at most MAX_READ."""
    image, left = console.image, MAX_READ
    behind: dict[str, list[OffsetRow]] = {row.group: [] for row in rows}
    for row in rows:
        if row.lag and left > 0:
            offsets = _rows(image, console.log.describe_offsets(row.group, image=image))
            found = sorted((one for one in offsets if one.lag), key=lambda one: -(one.lag or 0))[:left]
            left -= len(found)
            behind[row.group] = found
    ages = _ages(console, image, itertools.chain.from_iterable(behind.values()))
    return tuple(
        _with_history(
            console,
            row,
            console.history.points(row.group),
            max((ages[_place(one)] for one in behind[row.group] if _place(one) in ages), default=None),
        )
        for row in rows
    )


def _ages(console: Console, image: Image, rows: Iterable[OffsetRow]) -> dict[tuple[str, int, int], int]:
    """The lag in milliseconds of those that are behind, where it can be read."""
    behind = [_place(one) for one in rows if one.lag]
    if not behind:
        return {}
    found = lag_seconds(console.log, behind, image=image, remember=console.fact)
    return {at: round(1000 * seconds) for at, seconds in found.items() if seconds is not None}


def _place(row: OffsetRow) -> tuple[str, int, int]:
    return row.topic, row.partition, row.offset


# --- history -----------------------------------------------------------------------------------------


def _with_history(
    console: Console, row: GroupRow, points: Sequence[LagPoint], lag_ms: int | None
) -> GroupRow:
    since_ms = console.now_ms - _MINUTE_MS
    return dataclasses.replace(
        row,
        lag_ms=lag_ms,
        consumed_per_second=_mean(one.consumed_per_second for one in points if one.at_ms >= since_ms),
        lag_minutes=tuple(
            max((one.lag for one in minute), default=None) for minute in _minutes(console, points)
        ),
    )


def _minutes(console: Console, points: Iterable[LagPoint]) -> list[list[LagPoint]]:
    """The points of each of the last MINUTES minutes, the current one last."""
    found: list[list[LagPoint]] = [[] for _ in range(MINUTES)]
    now = console.now_ms // _MINUTE_MS
    for one in points:
        back = now - one.at_ms // _MINUTE_MS
        if 0 <= back < MINUTES:
            found[MINUTES - 1 - back].append(one)
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if known else None


SUBJECT = Subject(
    title="Groups",
    views=(
        View(
            path="/groups",
            template="groups.html",
            data=group_list,
            doc="Consumer groups with their lag in records and time, and its last hour.",
            parameters=(FILTER, PAGE, Parameter("sort", "-lag or group.")),
        ),
        View(
            path="/group",
            template="group.html",
            data=group_page,
            doc="A group: its members, its committed offsets, lag and rate by partition, and its last hour.",
            parameters=(Parameter("group", "Its name."), PAGE),
        ),
        View(
            path="/groups/{group:any}/history",
            data=group_history,
            doc="A group's lag and rates in the last hour, since the console started.",
            parameters=(
                Parameter("topic", "With partition: only of this partition."),
                Parameter("partition", "Its number."),
                Parameter("since_ms", "Only points at or after it."),
            ),
        ),
    ),
)
