"""The metadata log: who committed what, and when; the state after a commit; what differs between two.

A commit never changes, so what was read of it is remembered. Reading a state is dear: the last few are kept.
Invariants: a filter looks at MAX_SCANNED commits for one answer, and says where to go on.
Not here: the words (client/commit_words.py).
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from sparklog.client.cluster_view import describe_brokers
from sparklog.client.commit_words import CommitWords, Words
from sparklog.client.groups import OffsetTable
from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.console.topics import TopicSize, topic_size
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
from sparklog.metadata import NO_NODE, Image, Topic, without_secrets
from sparklog.metadata.documents.properties import DIRECTORY, commit_of
from sparklog.metadata.loading import load_image_at, read_past_commits
from sparklog.wording import counted

PER_PAGE: Final = 50
MAX_SCANNED: Final = 1_000
MAX_ACTIONS: Final = 1_000  # of a commit
MAX_GROUP_BYTES: Final = 16 << 20  # of __consumer_offsets, to read the groups of a past state
MAX_CHANGES: Final = 500
_MAX_LISTED: Final = 20  # items in a list of a commit's fields
_CHUNK: Final = 50
_RECENT_MS, _REMOTE_MS = 5_000, 30_000  # how old a listing may be: on an object store it costs requests

# --- log ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommitRow:
    """A commit in one line; `by` are brokers, writers or publishers."""

    commit: int
    timestamp_ms: int
    by: tuple[str, ...]
    summary: str
    actions: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommitList:
    """Commits, the newest first.

    Fields:
        newest, oldest: the range that is kept.
        older: `before` of the next page; null: there is nothing older.
    """

    commits: tuple[CommitRow, ...]
    newest: int
    oldest: int
    filter: str
    older: int | None


def commit_list(console: Console, query: Query) -> CommitList:
    """Commits before one, or the newest."""
    image, wanted = console.image, query.filter
    times = commit_times(console)
    oldest = oldest_kept(times, image)
    before = min(query.number("before", image.commit + 1), image.commit + 1)
    found: list[CommitRow] = []
    scanned, stop = 0, before
    for row in _backwards(console, image, before, oldest):
        scanned, stop = scanned + 1, row.commit
        text = f"{row.commit} {' '.join(row.by)} {row.summary}"
        if not wanted or matches(text, wanted):
            found.append(row)
        if len(found) >= PER_PAGE or scanned >= MAX_SCANNED:
            break
    return CommitList(
        commits=tuple(found),
        newest=image.commit,
        oldest=oldest,
        filter=wanted,
        older=stop if stop > oldest else None,
    )


def newest_commits(console: Console, count: int) -> tuple[CommitRow, ...]:
    """The newest, the very newest first."""
    image = console.image
    oldest = oldest_kept(commit_times(console), image)
    rows = _backwards(console, image, image.commit + 1, max(oldest, image.commit + 1 - count))
    return tuple(row for row, _ in zip(rows, range(count), strict=False))


def commit_times(console: Console) -> Mapping[int, int]:
    """When each commit that is kept was stored, by the storage's clock, in ms."""

    def listed() -> dict[int, int]:
        found = {}
        for file in console.log.store.list(DIRECTORY, recursive=True):
            number = commit_of(file.name)
            if number is not None:
                found[number] = file.modified_ms
        return found

    is_remote = console.log.store.traits.is_remote
    return console.recent("commits", _REMOTE_MS if is_remote else _RECENT_MS, listed)


def oldest_kept(times: Mapping[int, int], image: Image) -> int:
    """The first commit of the unbroken range up to the newest, by a listing that may be a little older."""
    oldest = min(image.commit, max(times, default=image.commit))
    while oldest - 1 in times:
        oldest -= 1
    return max(0, oldest)


def _backwards(console: Console, image: Image, before: int, oldest: int) -> Iterator[CommitRow]:
    """Commits below `before`, the newest first, read in chunks."""
    stop = before
    while stop > oldest:
        start = max(oldest, (stop - 1) // _CHUNK * _CHUNK)
        key = (image.cluster_id, start, stop)
        rows = console.fact(key, lambda start=start, stop=stop: _read(console, image, start, stop))  # type: ignore[misc]
        yield from reversed(rows)
        stop = start


def _read(console: Console, image: Image, start: int, stop: int) -> tuple[CommitRow, ...]:
    words = Words(image)
    return tuple(
        _row(words.commit(header, actions))
        for header, actions in read_past_commits(console.log.store, image, start, stop - 1)
    )


def _row(found: CommitWords) -> CommitRow:
    return CommitRow(
        commit=found.commit,
        timestamp_ms=found.timestamp_ms,
        by=found.by,
        summary=found.summary,
        actions=len(found.actions),
    )


# --- a commit ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """An action: its type, what it does, and its fields as JSON text, in which long lists are cut."""

    type: str
    words: str
    fields: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommitPage:
    """A commit. `actions` has MAX_ACTIONS at most, of `action_count`."""

    commit: int
    newest: int
    timestamp_ms: int
    by: tuple[str, ...]
    uuid: str
    previous: str
    size_bytes: int
    actions: tuple[ActionRow, ...]
    action_count: int


def commit_page(console: Console, query: Query) -> CommitPage:
    """One commit."""
    image, number = console.image, query.number("commit", 0)
    ((header, actions),) = read_past_commits(console.log.store, image, number, number)
    found = Words(image).commit(header, actions)
    rows = [
        ActionRow(type=one.type, words=one.words, fields=_fields(action))
        for one, action in zip(found.actions[:MAX_ACTIONS], actions[:MAX_ACTIONS], strict=True)
    ]
    return CommitPage(
        commit=number,
        newest=image.commit,
        timestamp_ms=header.timestamp_ms,
        by=found.by,
        uuid=header.uuid,
        previous=header.previous,
        size_bytes=header.length,
        actions=tuple(rows),
        action_count=len(actions),
    )


def _fields(action: Any) -> str:
    document = {
        name: [*value[:_MAX_LISTED], f"and {len(value) - _MAX_LISTED:,} more"]
        if isinstance(value, tuple | list) and len(value) > _MAX_LISTED
        else value
        for name, value in msgspec.structs.asdict(without_secrets(action)).items()
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


# --- a state -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StateBroker:
    """A broker as of a commit."""

    node_id: int
    state: str
    address: str | None
    is_controller: bool
    leads: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StateGroup:
    """A group as of a commit."""

    group: str
    partitions: int
    lag: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatePage:
    """The root after a commit.

    Fields:
        groups: as far as their records are still there; null: too many to read.
    """

    commit: int
    newest: int
    paging: Paging
    topics: tuple[TopicSize, ...]
    brokers: tuple[StateBroker, ...]
    configs: dict[str, str]
    groups: tuple[StateGroup, ...] | None


def state_page(console: Console, query: Query) -> StatePage:
    """Topics, brokers, settings and groups after a commit."""
    image = _past(console, query.number("commit", 0))
    names = sorted(name for name in image.topics if matches(name, query.filter))
    paging, shown = paged(names, query)
    committed = _committed(console, image)
    groups = None
    if committed is not None:
        groups = tuple(
            StateGroup(group=name, partitions=len(offsets), lag=_lag(image, offsets))
            for name, offsets in list(committed.items())[:MAX_CHANGES]
        )
    return StatePage(
        commit=image.commit,
        newest=console.image.commit,
        paging=paging,
        topics=tuple(topic_size(image.topics[name]) for name in shown),
        brokers=tuple(
            StateBroker(
                node_id=one.node_id,
                state=one.state,
                address=one.address,
                is_controller=one.is_controller,
                leads=one.leads,
            )
            for one in describe_brokers(image)
        ),
        configs=dict(sorted(image.configs.items())),
        groups=groups,
    )


def _past(console: Console, commit: int) -> Image:
    image = console.image
    return (
        image
        if commit == image.commit
        else console.past(commit, lambda: load_image_at(console.log.store, image, commit))
    )


def _committed(console: Console, image: Image) -> dict[str, dict[tuple[str, int], int]] | None:
    """The offsets of all groups as of an image; None: too much to read, or it cannot be."""
    topic = image.topics.get(OFFSETS_TOPIC)
    if topic is None:
        return {}
    if sum(one.extents.stored_bytes for one in topic.partitions) > MAX_GROUP_BYTES:
        return None
    table = OffsetTable(console.log.metadata)
    try:
        return {
            group: {place: one.offset for place, one in table.committed(image, group).items()}
            for group in table.groups(image)
        }
    except SparklogError:
        return None


def _lag(image: Image, offsets: Mapping[tuple[str, int], int]) -> int:
    lag = 0
    for (name, partition), offset in offsets.items():
        topic = image.topics.get(name)
        if topic is not None and partition < len(topic.partitions):
            lag += max(0, topic.partitions[partition].log_end_offset - offset)
    return lag


# --- what differs ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that differs: null where it is not there. `kind`: topic, setting, broker, leader, group."""

    kind: str
    subject: str
    before: str | None
    after: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DiffPage:
    """What differs between the states after two commits. `changes` has MAX_CHANGES at most."""

    first: int
    last: int
    newest: int
    changes: tuple[Change, ...]
    change_count: int


def diff_page(console: Console, query: Query) -> DiffPage:
    """The states after two commits, compared; by default the newest and the one before it."""
    newest = console.image.commit
    if newest < 0:
        raise MissingError("the log has no commits")
    last = query.number("to", newest)
    first = query.number("from", max(0, last - 1))
    before, after = _past(console, min(first, last)), _past(console, max(first, last))
    changes = [
        *_cluster_changes(before, after),
        *_topic_changes(before, after),
        *_group_changes(console, before, after),
    ]
    return DiffPage(
        first=before.commit,
        last=after.commit,
        newest=newest,
        changes=tuple(changes[:MAX_CHANGES]),
        change_count=len(changes),
    )


def _changed(kind: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for subject in sorted({*before, *after}):
        was, now = before.get(subject), after.get(subject)
        if was != now:
            yield Change(kind=kind, subject=subject, before=was, after=now)


def _cluster_changes(before: Image, after: Image) -> Iterator[Change]:
    yield from _changed("setting", before.configs, after.configs)
    yield from _changed("broker", _brokers(before), _brokers(after))


def _brokers(image: Image) -> dict[str, str]:
    return {
        str(one.node_id): f"{one.state}, epoch {one.broker_epoch}" + ", controller" * one.is_controller
        for one in describe_brokers(image)
    }


def _topic_changes(before: Image, after: Image) -> Iterator[Change]:
    """Of topics whose objects differ: most are the same object in a state that was replayed."""
    names = {
        topic_id: topic.name for image in (before, after) for topic_id, topic in image.topic_by_id.items()
    }
    for topic_id in sorted(names, key=lambda one: names[one]):
        old, new = before.topic_by_id.get(topic_id), after.topic_by_id.get(topic_id)
        if old is new:
            continue
        found = old or new
        assert found is not None
        sizes = [None if topic is None else _sized(topic_size(topic)) for topic in (old, new)]
        if sizes[0] != sizes[1]:
            yield Change(kind="topic", subject=found.name, before=sizes[0], after=sizes[1])
        if old is None or new is None:
            continue
        for one in _changed("setting", old.configs, new.configs):
            yield dataclasses.replace(one, subject=f"{new.name}: {one.subject}")
        yield from _changed("leader", _leaders(old), _leaders(new))


def _leaders(topic: Topic) -> dict[str, str]:
    return {
        f"{topic.name}-{one.partition}": f"broker {one.leadership.leader}"
        for one in topic.partitions
        if one.leadership.leader != NO_NODE
    }


def _sized(one: TopicSize) -> str:
    records, extents = counted(one.records, "record"), counted(one.extents, "extent")
    return f"{records}, {one.size:,} bytes in {extents}, {counted(one.partitions, 'partition')}"


def _group_changes(console: Console, before: Image, after: Image) -> Iterator[Change]:
    was, now = _committed(console, before), _committed(console, after)
    if was is None or now is None:
        return
    texts = [
        {
            f"{group}: {topic}-{partition}": str(offset)
            for group, offsets in committed.items()
            for (topic, partition), offset in offsets.items()
        }
        for committed in (was, now)
    ]
    yield from _changed("group", *texts)


SUBJECT = Subject(
    title="Commits",
    views=(
        View(
            path="/commits",
            template="commits.html",
            data=commit_list,
            doc="The metadata log: who committed what, and when; the newest first.",
            parameters=(FILTER, Parameter("before", "Only commits with a smaller number.")),
        ),
        View(
            path="/commits/{commit}",
            template="commit.html",
            data=commit_page,
            doc="A commit with all its actions.",
        ),
        View(
            path="/commits/{commit}/state",
            template="state.html",
            data=state_page,
            doc="Topics, brokers, settings and groups after a commit.",
            parameters=(FILTER, PAGE),
        ),
        View(
            path="/diff",
            template="diff.html",
            data=diff_page,
            doc="What differs between the states after two commits.",
            parameters=(
                Parameter("from", "The first commit; default: the one before `to`."),
                Parameter("to", "The last commit; default: the newest."),
            ),
        ),
    ),
)
