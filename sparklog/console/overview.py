"""The first page: problems before all, then how much there is, who serves it, and what goes on.

The problems are the findings of `sparklog doctor` that read only a little, and of groups.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from sparklog.client.cluster_view import describe_brokers, describe_controller, is_served, last_seen_ms
from sparklog.client.root_checks import (
    Finding,
    Status,
    check_brokers,
    check_directory,
    check_incarnation,
    check_transactions,
    fail,
    warn,
)
from sparklog.console.commits import CommitRow, commit_times, newest_commits
from sparklog.console.groups import GroupRow, all_groups, with_time_and_history
from sparklog.console.topics import produced_per_second, topic_size, total_rate
from sparklog.console.views import Console, Query, Subject, View
from sparklog.errors import SparklogError
from sparklog.metadata import NO_NODE, Image

T = TypeVar("T")
MINUTES: Final = 60
MAX_GROUPS: Final = 8
MAX_NAMED: Final = 5
_COMMITS: Final = 10
_MINUTE_MS: Final = 60_000
_CHECKS_MS: Final = 10_000  # how old findings about the storage may be


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong, and what to do. `severity` is fail or warn."""

    check: str
    severity: str
    detail: str
    fix: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """A broker. `seen_ms`: the age of its last heartbeat; null: it never gave one."""

    node_id: int
    state: str
    address: str | None
    rack: str
    is_controller: bool
    leads: int
    seen_ms: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The root in one look.

    Fields:
        checked: the names of the checks; those without a problem are fine.
        is_served: a broker is registered, or was once.
        produced_per_second: records, in the last minute; null: not known yet.
        commit_minutes: commits in each of the last MINUTES minutes, the current one last; null: cleaning has
            removed commits of that minute.
        groups: those with the largest lag.
    """

    root: str
    cluster_id: str
    commit: int
    newest_ms: int
    problems: tuple[Problem, ...]
    checked: tuple[str, ...]
    topics: int
    partitions: int
    records: int
    produced_per_second: float | None
    size_bytes: int
    extents: int
    is_served: bool
    controller: int | None
    brokers: tuple[BrokerRow, ...]
    commit_minutes: tuple[int | None, ...]
    commits: tuple[CommitRow, ...]
    groups: tuple[GroupRow, ...]
    group_count: int


def overview(console: Console, _query: Query) -> Overview:
    """The root in one look."""
    image, log = console.image, console.log
    seen = last_seen_ms(log.store, log.clock) if image.brokers else {}
    damage: list[Finding] = []
    groups = _readable("groups", lambda: all_groups(console), damage)
    shown = _readable("groups", lambda: with_time_and_history(console, groups[:MAX_GROUPS]), damage)
    commits = _readable("commits", lambda: newest_commits(console, _COMMITS), damage)
    found = list(itertools.chain(damage, _findings(console, image, seen), _group_findings(groups)))
    sizes = [topic_size(topic) for topic in image.topics.values()]
    controller = describe_controller(image).node_id
    return Overview(
        root=log.url,
        cluster_id=image.cluster_id,
        commit=image.commit,
        newest_ms=image.newest_ms,
        problems=tuple(
            Problem(check=one.check, severity=one.status.value, detail=one.detail, fix=one.fix)
            for one in sorted(found, key=lambda one: one.status is not Status.FAIL)
            if one.status is not Status.OK
        ),
        checked=tuple(one.check for one in found),
        topics=len(sizes),
        partitions=image.partition_count,
        records=sum(one.records for one in sizes),
        produced_per_second=total_rate(map(produced_per_second(console), image.topics.values())),
        size_bytes=sum(one.size for one in sizes),
        extents=sum(one.extents for one in sizes),
        is_served=is_served(image),
        controller=None if controller == NO_NODE else controller,
        brokers=tuple(
            BrokerRow(
                node_id=one.node_id,
                state=one.state,
                address=one.address,
                rack=one.rack,
                is_controller=one.is_controller,
                leads=one.leads,
                seen_ms=seen.get(one.node_id),
            )
            for one in describe_brokers(image)
        ),
        commit_minutes=_minutes(console),
        commits=tuple(commits),
        groups=tuple(shown),
        group_count=len(groups),
    )


def _readable(check: str, read: Callable[[], Sequence[T]], damage: list[Finding]) -> Sequence[T]:
    """Return what `read` returns; where it cannot be read, nothing, and say so: other parts are shown."""
    try:
        return read()
    except SparklogError as error:
        damage.append(fail(check, f"cannot be read: {error.message}", error.fix))
        return ()


def _findings(console: Console, image: Image, seen: dict[int, int]) -> Iterator[Finding]:
    log = console.log
    yield from check_brokers(image, seen)
    yield from check_transactions(image, console.now_ms)
    yield from console.recent("storage", _CHECKS_MS, lambda: _storage_findings(console))
    if log.store.traits.is_remote:
        yield from console.recent("incarnation", _CHECKS_MS, lambda: list(check_incarnation(log)))


def _storage_findings(console: Console) -> list[Finding]:
    try:
        return list(check_directory(console.log.store))
    except (SparklogError, OSError) as error:
        return [warn("storage", f"not known: {error}", "see the message")]


def _group_findings(groups: Sequence[GroupRow]) -> Iterator[Finding]:
    """Groups that have lost records to retention before they read them."""
    lost = [one for one in groups if one.lost]
    if lost:
        named = ", ".join(f"{one.group} ({one.lost:,})" for one in lost[:MAX_NAMED])
        more = f" and {len(lost) - MAX_NAMED:,} more" if len(lost) > MAX_NAMED else ""
        yield warn(
            "groups",
            f"records were removed before these groups read them: {named}{more}",
            "raise retention.ms or retention.bytes of the topics, or let the groups read faster",
        )


def _minutes(console: Console) -> tuple[int | None, ...]:
    now_minute = console.now_ms // _MINUTE_MS
    times = commit_times(console)
    counts = Counter(time_ms // _MINUTE_MS for time_ms in times.values())
    is_cleaned = times and min(times) > 0
    oldest = min(counts) if is_cleaned else now_minute - MINUTES
    minutes = range(now_minute - MINUTES + 1, now_minute + 1)
    return tuple(None if minute < oldest else counts[minute] for minute in minutes)


SUBJECT = Subject(
    title="Overview",
    views=(
        View(
            path="/",
            api="/overview",
            template="overview.html",
            data=overview,
            doc="Problems, sizes, brokers, groups with their lag, and commits.",
        ),
    ),
)
